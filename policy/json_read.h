/*
 * json_read.h - a strict JSON parser for small files that somebody else wrote. Fixed tables, nothing is allocated; the
 * text is at most BSG_JSON_TEXT_ROOM bytes, BSG_JSON_NODES values and BSG_JSON_NESTING levels. Refused, with the reason
 * and the place: anything that RFC 8259 does not allow, text after the value, a key twice in one object, invalid UTF-8,
 * lone surrogates, U+0000.
 */
#ifndef BSG_POLICY_JSON_READ_H
#define BSG_POLICY_JSON_READ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BSG_JSON_TEXT_ROOM 4096
#define BSG_JSON_NODES 128
#define BSG_JSON_NESTING 8

enum bsg_json_type { BSG_JSON_NULL, BSG_JSON_BOOL, BSG_JSON_NUMBER, BSG_JSON_STRING, BSG_JSON_ARRAY, BSG_JSON_OBJECT };

struct bsg_json_value {
  enum bsg_json_type type;
  const char *key;    /* decoded; NULL: not a member of an object */
  const char *string; /* decoded, NUL-terminated */
  int64_t integer;    /* where `is_integer` */
  bool is_integer;    /* a number without fraction or exponent that fits */
  bool boolean;
  size_t start, end; /* where it stands in the text */
  int parent;        /* -1: the whole text */
};

struct bsg_json_document {
  const char *text;
  size_t length, at;
  const char *why; /* after a failure: what was wrong, at byte `at` */
  int count;
  struct bsg_json_value values[BSG_JSON_NODES];
  size_t used;
  char strings[BSG_JSON_TEXT_ROOM + BSG_JSON_NODES * 2]; /* decoded text is never longer, but for its end */
};

/* 0, -EINVAL (not JSON) or -E2BIG (a limit above). */
int bsg_json_parse(struct bsg_json_document *document, const char *text, size_t length);

/* The member of the outermost object; NULL: there is none. */
const struct bsg_json_value *bsg_json_find(const struct bsg_json_document *document, const char *key);

#endif
