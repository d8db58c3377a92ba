/* utf8.c - see utf8.h. The ranges are those of the Unicode standard, table 3-7 (well-formed UTF-8 byte sequences). */
#include "policy/utf8.h"

#include <stdbool.h>
#include <stdint.h>

static bool continues(uint8_t byte, uint8_t low, uint8_t high) {
  return byte >= low && byte <= high;
}

int bsg_utf8_sequence(const char *text, size_t length) {
  const uint8_t *b = (const uint8_t *)text;
  uint8_t low = 0x80, high = 0xBF;
  int need;

  if (length == 0)
    return 0;
  if (b[0] < 0x80)
    return 1;
  if (b[0] >= 0xC2 && b[0] <= 0xDF) {
    need = 2;
  } else if ((b[0] & 0xF0) == 0xE0) {
    need = 3;
    if (b[0] == 0xE0)
      low = 0xA0; /* no overlong forms */
    if (b[0] == 0xED)
      high = 0x9F; /* no surrogates */
  } else if (b[0] >= 0xF0 && b[0] <= 0xF4) {
    need = 4;
    if (b[0] == 0xF0)
      low = 0x90;
    if (b[0] == 0xF4)
      high = 0x8F; /* nothing above U+10FFFF */
  } else {
    return 0;
  }
  if (length < (size_t)need || !continues(b[1], low, high))
    return 0;
  for (int i = 2; i < need; i++)
    if (!continues(b[i], 0x80, 0xBF))
      return 0;
  return need;
}

size_t bsg_utf8_cut(const char *text, size_t length, size_t limit) {
  if (length <= limit)
    return length;
  /* A sequence that would be cut starts at most three bytes before the limit. */
  for (size_t back = 1; back <= 3 && back <= limit; back++) {
    size_t start = limit - back;
    if (bsg_utf8_sequence(text + start, length - start) > (int)back)
      return start;
  }
  return limit;
}
