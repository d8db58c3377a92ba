/* manual.c - the program bsguard-options: prints every option from the table. --page: as a part of the manual page. */
#include <string.h>
#include <unistd.h>

#include "shim/options.h"

int main(int argc, char **argv) {
  bsg_options_manual(STDOUT_FILENO, argc > 1 && strcmp(argv[1], "--page") == 0);
  return 0;
}
