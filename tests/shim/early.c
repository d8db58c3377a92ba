/* early.c - a program whose work is done by the constructor of a library (linked.c), which runs before ours. */
void early_is_needed(void);

int main(void) {
  early_is_needed();
  return 0;
}
