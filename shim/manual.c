/* manual.c - the program bsguard-options: prints every option from the table. */
#include <unistd.h>

#include "shim/options.h"

int main(void) {
  bsg_options_manual(STDOUT_FILENO);
  return 0;
}
