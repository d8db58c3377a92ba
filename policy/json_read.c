/* json_read.c - see json_read.h. */
#include "policy/json_read.h"

#include <errno.h>
#include <string.h>

#include "policy/utf8.h"

static int fail(struct bsg_json_document *d, int error, const char *why) {
  d->why = why;
  return error;
}

static int peek(const struct bsg_json_document *d) {
  return d->at < d->length ? (unsigned char)d->text[d->at] : -1;
}

static void skip_space(struct bsg_json_document *d) {
  for (int c = peek(d); c == ' ' || c == '\t' || c == '\n' || c == '\r'; c = peek(d))
    d->at++;
}

static int hex_digits(struct bsg_json_document *d, uint32_t *out) {
  *out = 0;
  for (int i = 0; i < 4; i++) {
    int c = peek(d);
    int digit = c >= '0' && c <= '9'   ? c - '0'
                : c >= 'a' && c <= 'f' ? c - 'a' + 10
                : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                       : -1;
    if (digit < 0)
      return fail(d, -EINVAL, "\\u needs four hexadecimal digits");
    *out = *out * 16 + (uint32_t)digit;
    d->at++;
  }
  return 0;
}

static void put_character(struct bsg_json_document *d, uint32_t c) {
  char *out = d->strings + d->used;

  if (c < 0x80) {
    out[0] = (char)c;
    d->used += 1;
  } else if (c < 0x800) {
    out[0] = (char)(0xC0 | c >> 6);
    out[1] = (char)(0x80 | (c & 0x3F));
    d->used += 2;
  } else if (c < 0x10000) {
    out[0] = (char)(0xE0 | c >> 12);
    out[1] = (char)(0x80 | (c >> 6 & 0x3F));
    out[2] = (char)(0x80 | (c & 0x3F));
    d->used += 3;
  } else {
    out[0] = (char)(0xF0 | c >> 18);
    out[1] = (char)(0x80 | (c >> 12 & 0x3F));
    out[2] = (char)(0x80 | (c >> 6 & 0x3F));
    out[3] = (char)(0x80 | (c & 0x3F));
    d->used += 4;
  }
}

static int unicode_escape(struct bsg_json_document *d) {
  uint32_t c, low;
  int error = hex_digits(d, &c);

  if (error)
    return error;
  if (c >= 0xD800 && c < 0xDC00) {
    if (d->at + 1 >= d->length || d->text[d->at] != '\\' || d->text[d->at + 1] != 'u')
      return fail(d, -EINVAL, "half of a surrogate pair");
    d->at += 2;
    error = hex_digits(d, &low);
    if (error)
      return error;
    if (low < 0xDC00 || low > 0xDFFF)
      return fail(d, -EINVAL, "half of a surrogate pair");
    c = 0x10000 + ((c - 0xD800) << 10) + (low - 0xDC00);
  } else if (c >= 0xDC00 && c < 0xE000) {
    return fail(d, -EINVAL, "half of a surrogate pair");
  }
  if (c == 0)
    return fail(d, -EINVAL, "U+0000 in a string");
  put_character(d, c);
  return 0;
}

static int parse_string(struct bsg_json_document *d, const char **out) {
  static const char escapes[] = "\"\\/bfnrt", meanings[] = "\"\\/\b\f\n\r\t";
  char *start = d->strings + d->used;

  if (peek(d) != '"')
    return fail(d, -EINVAL, "a string in double quotes is expected");
  d->at++;
  for (;;) {
    int c = peek(d);
    if (c < 0)
      return fail(d, -EINVAL, "a string without end");
    if (c == '"')
      break;
    if (c < 0x20)
      return fail(d, -EINVAL, "a control character in a string");
    if (c == '\\') {
      d->at++;
      c = peek(d);
      const char *escape = c > 0 ? strchr(escapes, c) : NULL;
      if (c == 'u') {
        d->at++;
        int error = unicode_escape(d);
        if (error)
          return error;
      } else if (escape) {
        d->strings[d->used++] = meanings[escape - escapes];
        d->at++;
      } else {
        return fail(d, -EINVAL, "an unknown escape in a string");
      }
      continue;
    }
    int sequence = bsg_utf8_sequence(d->text + d->at, d->length - d->at);
    if (sequence == 0)
      return fail(d, -EINVAL, "not UTF-8");
    memcpy(d->strings + d->used, d->text + d->at, (size_t)sequence);
    d->used += (size_t)sequence;
    d->at += (size_t)sequence;
  }
  d->at++;
  d->strings[d->used++] = '\0';
  *out = start;
  return 0;
}

static bool digit(const struct bsg_json_document *d) {
  return peek(d) >= '0' && peek(d) <= '9';
}

static int parse_number(struct bsg_json_document *d, struct bsg_json_value *value) {
  bool negative = peek(d) == '-', fits = true;
  uint64_t magnitude = 0;
  /* The magnitude of INT64_MIN is one more than that of INT64_MAX. */
  uint64_t most = (uint64_t)INT64_MAX + (negative ? 1 : 0);

  d->at += negative;
  if (!digit(d))
    return fail(d, -EINVAL, "a number needs a digit");
  if (peek(d) == '0' && d->at + 1 < d->length && d->text[d->at + 1] >= '0' && d->text[d->at + 1] <= '9')
    return fail(d, -EINVAL, "a number must not begin with 0");
  for (; digit(d); d->at++) {
    uint64_t next = (uint64_t)(peek(d) - '0');
    fits = fits && magnitude <= (most - next) / 10;
    magnitude = magnitude * 10 + next;
  }
  if (peek(d) == '.') {
    fits = false;
    d->at++;
    if (!digit(d))
      return fail(d, -EINVAL, "a number needs a digit after its point");
    while (digit(d))
      d->at++;
  }
  if (peek(d) == 'e' || peek(d) == 'E') {
    fits = false;
    d->at++;
    if (peek(d) == '+' || peek(d) == '-')
      d->at++;
    if (!digit(d))
      return fail(d, -EINVAL, "a number needs a digit in its exponent");
    while (digit(d))
      d->at++;
  }
  value->type = BSG_JSON_NUMBER;
  value->is_integer = fits;
  if (fits)
    value->integer = negative ? (int64_t)(0 - magnitude) : (int64_t)magnitude;
  return 0;
}

static int parse_word(struct bsg_json_document *d, struct bsg_json_value *value) {
  static const struct {
    const char *word;
    enum bsg_json_type type;
    bool boolean;
  } words[] = {{"null", BSG_JSON_NULL, false}, {"true", BSG_JSON_BOOL, true}, {"false", BSG_JSON_BOOL, false}};

  for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
    size_t length = strlen(words[i].word);
    if (d->length - d->at >= length && memcmp(d->text + d->at, words[i].word, length) == 0) {
      d->at += length;
      value->type = words[i].type;
      value->boolean = words[i].boolean;
      return 0;
    }
  }
  return fail(d, -EINVAL, "a value is expected");
}

static int parse_value(struct bsg_json_document *d, int parent, const char *key, int depth);

static bool has_key(const struct bsg_json_document *d, int parent, const char *key) {
  for (int i = parent + 1; i < d->count; i++)
    if (d->values[i].parent == parent && strcmp(d->values[i].key, key) == 0)
      return true;
  return false;
}

/* Objects and arrays; the depth is bounded, so recursion is. */
static int parse_members(struct bsg_json_document *d, int self, bool object, int depth) {
  int close = object ? '}' : ']', error;

  if (depth >= BSG_JSON_NESTING)
    return fail(d, -E2BIG, "too deeply nested");
  d->at++;
  skip_space(d);
  if (peek(d) == close) {
    d->at++;
    return 0;
  }
  for (;;) {
    const char *key = NULL;
    skip_space(d);
    if (object) {
      size_t start = d->at;
      error = parse_string(d, &key);
      if (error)
        return error;
      if (has_key(d, self, key)) {
        d->at = start;
        return fail(d, -EINVAL, "a key that was there already");
      }
      skip_space(d);
      if (peek(d) != ':')
        return fail(d, -EINVAL, "a colon is expected");
      d->at++;
    }
    error = parse_value(d, self, key, depth + 1);
    if (error)
      return error;
    skip_space(d);
    if (peek(d) == close) {
      d->at++;
      return 0;
    }
    if (peek(d) != ',')
      return fail(d, -EINVAL, object ? "a comma or } is expected" : "a comma or ] is expected");
    d->at++;
  }
}

static int parse_value(struct bsg_json_document *d, int parent, const char *key, int depth) {
  int self = d->count, error;
  struct bsg_json_value *value;

  if (d->count == BSG_JSON_NODES)
    return fail(d, -E2BIG, "too many values");
  skip_space(d);
  value = &d->values[d->count++];
  *value = (struct bsg_json_value){.key = key, .parent = parent, .start = d->at};
  switch (peek(d)) {
  case '{':
  case '[':
    value->type = peek(d) == '{' ? BSG_JSON_OBJECT : BSG_JSON_ARRAY;
    error = parse_members(d, self, value->type == BSG_JSON_OBJECT, depth);
    break;
  case '"':
    value->type = BSG_JSON_STRING;
    error = parse_string(d, &value->string);
    break;
  case '-':
  case '0' ... '9':
    error = parse_number(d, value);
    break;
  default:
    error = parse_word(d, value);
  }
  value->end = d->at;
  return error;
}

int bsg_json_parse(struct bsg_json_document *d, const char *text, size_t length) {
  int error;

  d->text = text;
  d->length = length;
  d->at = 0;
  d->why = NULL;
  d->count = 0;
  d->used = 0;
  if (length > BSG_JSON_TEXT_ROOM)
    return fail(d, -E2BIG, "too long");
  error = parse_value(d, -1, NULL, 0);
  if (error)
    return error;
  skip_space(d);
  return d->at == d->length ? 0 : fail(d, -EINVAL, "something follows the value");
}

const struct bsg_json_value *bsg_json_find(const struct bsg_json_document *d, const char *key) {
  if (d->count == 0 || d->values[0].type != BSG_JSON_OBJECT)
    return NULL;
  for (int i = 1; i < d->count; i++)
    if (d->values[i].parent == 0 && strcmp(d->values[i].key, key) == 0)
      return &d->values[i];
  return NULL;
}
