/* json_write.c - see json_write.h. */
#include "policy/json_write.h"

#include <errno.h>
#include <string.h>

#include "policy/utf8.h"

void bsg_json_init(struct bsg_json *json, struct bsg_out *out) {
  *json = (struct bsg_json){.out = out};
}

static enum bsg_json_layout layout_of(const struct bsg_json *json) {
  return json->depth == 0 ? BSG_JSON_TIGHT : json->level[json->depth - 1].layout;
}

static void new_line(struct bsg_json *json, int depth) {
  bsg_out_bytes(json->out, "\n", 1);
  for (int i = 0; i < depth; i++)
    bsg_out_bytes(json->out, "  ", 2);
}

/* What stands between the last value and the next one, or between a bracket and the first. */
static void separate(struct bsg_json *json) {
  if (json->after_key) {
    json->after_key = false;
    return;
  }
  if (json->depth == 0)
    return;
  bool any = json->level[json->depth - 1].any;
  json->level[json->depth - 1].any = true;
  switch (layout_of(json)) {
  case BSG_JSON_TIGHT:
    bsg_out_text(json->out, any ? "," : "");
    break;
  case BSG_JSON_INLINE:
    bsg_out_text(json->out, any ? ", " : "");
    break;
  case BSG_JSON_LINES:
    bsg_out_text(json->out, any ? "," : "");
    new_line(json, json->depth);
    break;
  }
}

static void begin(struct bsg_json *json, enum bsg_json_layout layout, const char *open, char close) {
  separate(json);
  if (json->depth == BSG_JSON_DEPTH) {
    json->out->error = json->out->error ? json->out->error : -EOVERFLOW;
    return;
  }
  bsg_out_bytes(json->out, open, 1);
  json->level[json->depth].layout = layout;
  json->level[json->depth].close = close;
  json->level[json->depth].any = false;
  json->depth++;
}

void bsg_json_object(struct bsg_json *json, enum bsg_json_layout layout) {
  begin(json, layout, "{", '}');
}
void bsg_json_array(struct bsg_json *json, enum bsg_json_layout layout) {
  begin(json, layout, "[", ']');
}

void bsg_json_end(struct bsg_json *json) {
  if (json->depth == 0)
    return;
  json->depth--;
  if (json->level[json->depth].layout == BSG_JSON_LINES && json->level[json->depth].any)
    new_line(json, json->depth);
  bsg_out_bytes(json->out, &json->level[json->depth].close, 1);
}

static void quoted(struct bsg_json *json, const char *text) {
  struct bsg_out *out = json->out;
  size_t length = strlen(text), plain = 0;

  bsg_out_bytes(out, "\"", 1);
  for (size_t i = 0; i < length;) {
    uint8_t byte = (uint8_t)text[i];
    int sequence = bsg_utf8_sequence(text + i, length - i);
    bool as_it_is = sequence > 1 || (sequence == 1 && byte >= 0x20 && byte != '"' && byte != '\\' && byte != 0x7F);

    if (as_it_is) {
      i += (size_t)sequence;
      continue;
    }
    bsg_out_bytes(out, text + plain, i - plain);
    if (sequence == 0)
      bsg_out_text(out, "\xEF\xBF\xBD");
    else if (byte == '"')
      bsg_out_text(out, "\\\"");
    else if (byte == '\\')
      bsg_out_text(out, "\\\\");
    else if (byte == '\n')
      bsg_out_text(out, "\\n");
    else if (byte == '\r')
      bsg_out_text(out, "\\r");
    else if (byte == '\t')
      bsg_out_text(out, "\\t");
    else
      bsg_out_format(out, "\\u%04x", byte);
    plain = ++i;
  }
  bsg_out_bytes(out, text + plain, length - plain);
  bsg_out_bytes(out, "\"", 1);
}

void bsg_json_key(struct bsg_json *json, const char *key) {
  separate(json);
  quoted(json, key);
  bsg_out_text(json->out, layout_of(json) == BSG_JSON_TIGHT ? ":" : ": ");
  json->after_key = true;
}

void bsg_json_null(struct bsg_json *json) {
  separate(json);
  bsg_out_text(json->out, "null");
}

void bsg_json_bool(struct bsg_json *json, bool value) {
  separate(json);
  bsg_out_text(json->out, value ? "true" : "false");
}

void bsg_json_int(struct bsg_json *json, int64_t value) {
  separate(json);
  bsg_out_format(json->out, "%lld", (long long)value);
}

void bsg_json_uint(struct bsg_json *json, uint64_t value) {
  separate(json);
  bsg_out_format(json->out, "%llu", (unsigned long long)value);
}

void bsg_json_string(struct bsg_json *json, const char *value) {
  if (!value) {
    bsg_json_null(json);
    return;
  }
  separate(json);
  quoted(json, value);
}

void bsg_json_time(struct bsg_json *json, int64_t unix_ms) {
  separate(json);
  bsg_out_bytes(json->out, "\"", 1);
  bsg_out_time(json->out, unix_ms);
  bsg_out_bytes(json->out, "\"", 1);
}

void bsg_json_member_null(struct bsg_json *json, const char *key) {
  bsg_json_key(json, key);
  bsg_json_null(json);
}

void bsg_json_member_bool(struct bsg_json *json, const char *key, bool value) {
  bsg_json_key(json, key);
  bsg_json_bool(json, value);
}

void bsg_json_member_int(struct bsg_json *json, const char *key, int64_t value) {
  bsg_json_key(json, key);
  bsg_json_int(json, value);
}

void bsg_json_member_uint(struct bsg_json *json, const char *key, uint64_t value) {
  bsg_json_key(json, key);
  bsg_json_uint(json, value);
}

void bsg_json_member_string(struct bsg_json *json, const char *key, const char *value) {
  bsg_json_key(json, key);
  bsg_json_string(json, value);
}

void bsg_json_member_time(struct bsg_json *json, const char *key, int64_t unix_ms) {
  bsg_json_key(json, key);
  bsg_json_time(json, unix_ms);
}

void bsg_json_member_known(struct bsg_json *json, const char *key, int64_t value, int64_t not_known) {
  bsg_json_key(json, key);
  if (value == not_known)
    bsg_json_null(json);
  else
    bsg_json_int(json, value);
}

void bsg_json_member_bytes(struct bsg_json *json, const char *key, uint64_t value, uint64_t not_known) {
  bsg_json_key(json, key);
  if (value == not_known)
    bsg_json_null(json);
  else
    bsg_json_uint(json, value);
}

void bsg_json_member_list(struct bsg_json *json, const char *key, const char *commas, enum bsg_json_layout layout) {
  bsg_json_key(json, key);
  bsg_json_array(json, layout);
  while (commas && *commas) {
    char item[256];
    size_t length = strcspn(commas, ",");
    size_t kept = bsg_utf8_cut(commas, length, sizeof(item) - 1);

    memcpy(item, commas, kept);
    item[kept] = '\0';
    if (kept != 0)
      bsg_json_string(json, item);
    commas += length + (commas[length] == ',');
  }
  bsg_json_end(json);
}
