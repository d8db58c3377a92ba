/*
 * fuzz.h - what the fuzz targets share. A target is one function of bytes; a broken promise ends the process, which the
 * fuzzer reports with the bytes that did it.
 */
#ifndef BSG_TESTS_FUZZ_H
#define BSG_TESTS_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ENSURE(condition)                                                                                              \
  do {                                                                                                                 \
    if (!(condition)) {                                                                                                \
      fprintf(stderr, "%s:%d: broken promise: %s\n", __FILE__, __LINE__, #condition);                                  \
      abort();                                                                                                         \
    }                                                                                                                  \
  } while (0)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The bytes, taken from the front; zero where they have come to an end. */
struct bytes {
  const uint8_t *data;
  size_t left;
};

static inline uint64_t take(struct bytes *from, size_t count) {
  uint64_t value = 0;
  for (; count > 0; count--) {
    value = value << 8 | (from->left ? *from->data : 0);
    if (from->left)
      from->data++, from->left--;
  }
  return value;
}

/* A string of at most `room` - 1 bytes: a length, then the bytes. */
static inline const char *take_text(struct bytes *from, char *out, size_t room) {
  size_t length = take(from, 1) % room;
  if (length > from->left)
    length = from->left;
  memcpy(out, from->data, length);
  out[length] = '\0';
  from->data += length;
  from->left -= length;
  return out;
}

#endif
