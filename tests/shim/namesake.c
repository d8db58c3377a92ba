/* namesake.c - a library of the name of Paddle's: all that tells a process of Paddle. */
#include "shim/bsguard.h"

BSG_EXPORT int namesake(void);
BSG_EXPORT int namesake(void) {
  return 1;
}
