/*
 * json_write.h - a bounded JSON writer over out.h. It places commas and escapes; whoever calls it keeps to the grammar
 * (a key before each value in an object). Bytes that are not UTF-8 become U+FFFD, so that a line can always be parsed.
 *
 * Layouts: BSG_JSON_TIGHT {"a":1,"b":2}   BSG_JSON_INLINE {"a": 1, "b": 2}   BSG_JSON_LINES one member a line,
 * indented.
 */
#ifndef BSG_POLICY_JSON_WRITE_H
#define BSG_POLICY_JSON_WRITE_H

#include <stdbool.h>

#include "policy/out.h"

#define BSG_JSON_DEPTH 8

enum bsg_json_layout { BSG_JSON_TIGHT, BSG_JSON_INLINE, BSG_JSON_LINES };

struct bsg_json {
  struct bsg_out *out;
  int depth;
  bool after_key;
  struct {
    enum bsg_json_layout layout;
    char close;
    bool any;
  } level[BSG_JSON_DEPTH];
};

void bsg_json_init(struct bsg_json *json, struct bsg_out *out);

void bsg_json_object(struct bsg_json *json, enum bsg_json_layout layout);
void bsg_json_array(struct bsg_json *json, enum bsg_json_layout layout);
void bsg_json_end(struct bsg_json *json); /* closes the innermost object or array */

void bsg_json_key(struct bsg_json *json, const char *key);

void bsg_json_null(struct bsg_json *json);
void bsg_json_bool(struct bsg_json *json, bool value);
void bsg_json_int(struct bsg_json *json, int64_t value);
void bsg_json_uint(struct bsg_json *json, uint64_t value);
void bsg_json_string(struct bsg_json *json, const char *value); /* NULL: null */
void bsg_json_time(struct bsg_json *json, int64_t unix_ms);

/* A member: its key and its value. */
void bsg_json_member_null(struct bsg_json *json, const char *key);
void bsg_json_member_bool(struct bsg_json *json, const char *key, bool value);
void bsg_json_member_int(struct bsg_json *json, const char *key, int64_t value);
void bsg_json_member_uint(struct bsg_json *json, const char *key, uint64_t value);
void bsg_json_member_string(struct bsg_json *json, const char *key, const char *value);
void bsg_json_member_time(struct bsg_json *json, const char *key, int64_t unix_ms);
/* The value, or null where it is the one that stands for "not known". */
void bsg_json_member_known(struct bsg_json *json, const char *key, int64_t value, int64_t not_known);
void bsg_json_member_bytes(struct bsg_json *json, const char *key, uint64_t value, uint64_t not_known);
/* "a,b" as ["a", "b"]; NULL and "" as []. */
void bsg_json_member_list(struct bsg_json *json, const char *key, const char *commas, enum bsg_json_layout layout);

#endif
