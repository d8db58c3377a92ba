/* check.h - for C tests: CHECK says what did not hold, and where, and ends the program with 1. */
#ifndef BSG_TESTS_CHECK_H
#define BSG_TESTS_CHECK_H

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define CHECK(condition)                                                                                               \
  do {                                                                                                                 \
    if (!(condition)) {                                                                                                \
      fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #condition);                                    \
      exit(1);                                                                                                         \
    }                                                                                                                  \
  } while (0)

/* Two numbers, and what they are when they differ. */
#define CHECK_EQUAL(left, right)                                                                                       \
  do {                                                                                                                 \
    int64_t left_ = (int64_t)(left), right_ = (int64_t)(right);                                                        \
    if (left_ != right_) {                                                                                             \
      fprintf(stderr, "%s:%d: %s is %" PRId64 ", %s is %" PRId64 "\n", __FILE__, __LINE__, #left, left_, #right,       \
              right_);                                                                                                 \
      exit(1);                                                                                                         \
    }                                                                                                                  \
  } while (0)

#endif
