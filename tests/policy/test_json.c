/* test_json.c - what is written can be parsed whatever the text, and what is parsed is JSON and nothing else. */
#include <errno.h>

#include "check.h"
#include "policy/json_read.h"
#include "policy/json_write.h"

static struct bsg_json_document document;

static int parse(const char *text) {
  return bsg_json_parse(&document, text, strlen(text));
}

TEST(escapes_come_back_as_they_were) {
  static const char *const texts[] = {
      "",         "plain", "\"quoted\"",         "back\\slash",      "line\nfeed\ttab\rcr",
      "\x01\x1f", "\x7f",  "d\xC3\xA9j\xC3\xA0", "\xF0\x9F\x92\xBE", "a/b"};
  char buffer[256];
  struct bsg_out out;
  struct bsg_json json;

  for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
    bsg_out_buffer(&out, buffer, sizeof(buffer));
    bsg_json_init(&json, &out);
    bsg_json_object(&json, BSG_JSON_TIGHT);
    bsg_json_member_string(&json, "key", texts[i]);
    bsg_json_end(&json);
    CHECK_INT(out.error, 0);
    CHECK_INT(parse(bsg_out_string(&out)), 0);
    CHECK_TEXT(bsg_json_find(&document, "key")->string, texts[i]);
  }
}

TEST(every_byte_alone_gives_valid_json) {
  char buffer[64], text[4] = "a?b";
  struct bsg_out out;
  struct bsg_json json;

  for (int byte = 1; byte < 256; byte++) {
    text[1] = (char)byte;
    bsg_out_buffer(&out, buffer, sizeof(buffer));
    bsg_json_init(&json, &out);
    bsg_json_array(&json, BSG_JSON_TIGHT);
    bsg_json_string(&json, text);
    bsg_json_end(&json);
    CHECK_INT(parse(bsg_out_string(&out)), 0);
    if (byte >= 0x80) /* no byte above 7F is a character by itself */
      CHECK_TEXT(document.values[1].string, "a\xEF\xBF\xBD"
                                            "b");
    else
      CHECK_TEXT(document.values[1].string, text);
  }
}

TEST(invalid_utf8_is_replaced) {
  /* overlong, surrogate, above U+10FFFF, cut off, stray continuation */
  static const char *const texts[] = {"\xC0\xAF",         "\xE0\x80\xAF", "\xED\xA0\x80",
                                      "\xF4\x90\x80\x80", "\xE2\x82",     "\x80"};
  char buffer[128];
  struct bsg_out out;
  struct bsg_json json;

  for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
    bsg_out_buffer(&out, buffer, sizeof(buffer));
    bsg_json_init(&json, &out);
    bsg_json_string(&json, texts[i]);
    CHECK_HAS(bsg_out_string(&out), "\xEF\xBF\xBD");
    CHECK_INT(parse(buffer), 0);
  }
}

TEST(layouts) {
  char buffer[256];
  struct bsg_out out;
  struct bsg_json json;

  bsg_out_buffer(&out, buffer, sizeof(buffer));
  bsg_json_init(&json, &out);
  bsg_json_object(&json, BSG_JSON_LINES);
  bsg_json_member_known(&json, "a", 0, 0);
  bsg_json_key(&json, "b");
  bsg_json_array(&json, BSG_JSON_LINES);
  bsg_json_end(&json);
  bsg_json_key(&json, "c");
  bsg_json_array(&json, BSG_JSON_LINES);
  bsg_json_object(&json, BSG_JSON_INLINE);
  bsg_json_member_int(&json, "d", -1);
  bsg_json_member_bool(&json, "e", true);
  bsg_json_end(&json);
  bsg_json_end(&json);
  bsg_json_member_list(&json, "f", "x,,y", BSG_JSON_TIGHT);
  bsg_json_end(&json);
  CHECK_TEXT(bsg_out_string(&out), "{\n  \"a\": null,\n  \"b\": [],\n  \"c\": [\n    {\"d\": -1, \"e\": true}\n  ],\n"
                                   "  \"f\": [\"x\",\"y\"]\n}");
}

TEST(what_does_not_fit_is_an_error_and_stays_inside) {
  char buffer[16 + 8];
  struct bsg_out out;
  struct bsg_json json;

  memset(buffer, '#', sizeof(buffer));
  bsg_out_buffer(&out, buffer, 16);
  bsg_json_init(&json, &out);
  bsg_json_string(&json, "more than sixteen bytes of text");
  CHECK_INT(out.error, -EOVERFLOW);
  CHECK_INT(strlen(bsg_out_string(&out)), 15);
  CHECK(memcmp(buffer + 16, "########", 8) == 0);
}

static char collected[4096];
static size_t collected_length;
static int collect(void *context, const char *bytes, size_t length) {
  (void)context;
  memcpy(collected + collected_length, bytes, length);
  collected_length += length;
  return 0;
}

static int fail_after_one(void *context, const char *bytes, size_t length) {
  int *calls = context;
  (void)bytes, (void)length;
  return (*calls)++ == 0 ? 0 : -ENOSPC;
}

TEST(through_a_small_buffer) {
  char buffer[7];
  struct bsg_out out;

  collected_length = 0;
  bsg_out_through(&out, buffer, sizeof(buffer), collect, NULL);
  for (int i = 0; i < 100; i++)
    bsg_out_format(&out, "%d,", i);
  CHECK_INT(bsg_out_finish(&out), 0);
  CHECK_INT(collected_length, 10 * 2 + 90 * 3);
  CHECK(memcmp(collected, "0,1,2,3,", 8) == 0);

  int calls = 0;
  bsg_out_through(&out, buffer, sizeof(buffer), fail_after_one, &calls);
  for (int i = 0; i < 100; i++)
    bsg_out_text(&out, "1234567");
  CHECK_INT(bsg_out_finish(&out), -ENOSPC);
  CHECK_INT(calls, 2); /* nothing is tried again after the first error */
}

TEST(sizes_and_times_for_people) {
  static const struct {
    uint64_t bytes;
    const char *text;
  } rows[] = {{0, "0 B"},
              {1023, "1023 B"},
              {1024, "1.0 KiB"},
              {67108864, "64.0 MiB"},
              {33554431, "31.9 MiB"},
              {24159191040ull, "22.5 GiB"},
              {UINT64_MAX, "15.9 EiB"}};
  char buffer[64];
  struct bsg_out out;

  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    bsg_out_buffer(&out, buffer, sizeof(buffer));
    bsg_out_size(&out, rows[i].bytes);
    CHECK_TEXT(bsg_out_string(&out), rows[i].text);
  }
  static const struct {
    int64_t ms;
    const char *text;
  } times[] = {{0, "1970-01-01T00:00:00.000Z"},
               {INT64_C(951827696789), "2000-02-29T12:34:56.789Z"},
               {INT64_C(1796063412001), "2026-11-30T18:30:12.001Z"},
               {INT64_C(4107542399999), "2100-02-28T23:59:59.999Z"},
               {INT64_C(4107542400000), "2100-03-01T00:00:00.000Z"},
               {-1, "1969-12-31T23:59:59.999Z"}};
  for (size_t i = 0; i < sizeof(times) / sizeof(times[0]); i++) {
    bsg_out_buffer(&out, buffer, sizeof(buffer));
    bsg_out_time(&out, times[i].ms);
    CHECK_TEXT(bsg_out_string(&out), times[i].text);
  }
}

TEST(lines_carry_nothing_that_a_terminal_acts_on) {
  char buffer[64];
  struct bsg_out out;

  bsg_out_buffer(&out, buffer, sizeof(buffer));
  bsg_out_clean(&out,
                "a\x1b[31mb\x07"
                "c\xC2\x9B"
                "d\xFF"
                "e\nsecond line",
                60);
  CHECK_TEXT(bsg_out_string(&out), "a [31mb c d?e");
  bsg_out_buffer(&out, buffer, sizeof(buffer));
  bsg_out_clean(&out, "ab\xE2\x82\xAC", 4); /* a cut character is left out */
  CHECK_TEXT(bsg_out_string(&out), "ab");
}

TEST(valid_texts) {
  static const char *const texts[] = {"{}",
                                      " [ ] ",
                                      "null",
                                      "-0",
                                      "1.5e-3",
                                      "\"\\ud83d\\udcbe\"",
                                      "{\"a\":{\"a\":[1,{\"a\":2}]}}",
                                      "[true,false,null]",
                                      "9223372036854775807",
                                      "-9223372036854775808"};
  for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
    CHECK_INT(parse(texts[i]), 0);
  CHECK_INT(document.values[0].integer, INT64_MIN);
  CHECK_INT(parse("\"\\u0061\\u00e9\\ud83d\\udcbe\""), 0);
  CHECK_TEXT(document.values[0].string, "a\xC3\xA9\xF0\x9F\x92\xBE");
}

TEST(invalid_texts) {
  static const char *const texts[] = {"",
                                      " ",
                                      "{",
                                      "}",
                                      "{\"a\"}",
                                      "{\"a\":}",
                                      "{\"a\":1,}",
                                      "[1,]",
                                      "[1 2]",
                                      "{a:1}",
                                      "{'a':1}",
                                      "01",
                                      "-",
                                      "1.",
                                      ".5",
                                      "1e",
                                      "+1",
                                      "0x1",
                                      "nul",
                                      "True",
                                      "NaN",
                                      "Infinity",
                                      "\"a",
                                      "\"\\x\"",
                                      "\"\\u12\"",
                                      "\"\t\"",
                                      "\"\\ud800\"",
                                      "\"\\udc00\"",
                                      "\"\\ud800\\u0041\"",
                                      "\"\\u0000\"",
                                      "{} {}",
                                      "{}x",
                                      "1 1",
                                      "// c\n1",
                                      "{\"a\":1 \"b\":2}",
                                      "\"\xff\"",
                                      "{\"a\":1,\"a\":2}",
                                      "{\"a\":1,\"\\u0061\":2}",
                                      "[{\"b\":1,\"b\":1}]",
                                      "\xEF\xBB\xBF{}"};
  for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
    if (parse(texts[i]) == 0) {
      fprintf(stderr, "taken for JSON: %s\n", texts[i]);
      exit(1);
    }
    CHECK(document.why != NULL);
  }
}

TEST(numbers_that_are_no_integers_are_known_as_such) {
  static const char *const texts[] = {"1.0", "1e2", "9223372036854775808", "-9223372036854775809",
                                      "99999999999999999999999"};
  for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
    CHECK_INT(parse(texts[i]), 0);
    CHECK(!document.values[0].is_integer);
  }
}

TEST(limits) {
  static char text[BSG_JSON_TEXT_ROOM + 2];

  memset(text, '[', 100000 < sizeof(text) ? 1000 : sizeof(text) - 1);
  CHECK_INT(parse(text), -E2BIG); /* deep nesting */
  CHECK_INT(parse("[[[[[[[[1]]]]]]]]"), 0);
  CHECK_INT(parse("[[[[[[[[[1]]]]]]]]]"), -E2BIG);
  memset(text, ' ', sizeof(text) - 1);
  CHECK_INT(parse(text), -E2BIG); /* too long */
  char *at = text;
  *at++ = '[';
  for (int i = 0; i < 200; i++)
    at += sprintf(at, "%s1", i ? "," : "");
  strcpy(at, "]");
  CHECK_INT(parse(text), -E2BIG); /* too many values */
  /* Text of the greatest length, all of it one string. */
  memset(text, 'x', BSG_JSON_TEXT_ROOM);
  text[0] = text[BSG_JSON_TEXT_ROOM - 1] = '"';
  text[BSG_JSON_TEXT_ROOM] = '\0';
  CHECK_INT(parse(text), 0);
}

TEST(truncations_of_a_valid_text_are_refused) {
  const char *text = "{\"schema\": \"bsguard.request/1\", \"micro_batch\": 4, \"x\": [1.5e3, true, null, \"\\u00e9\"]}";
  for (size_t length = 0; length < strlen(text); length++)
    CHECK(bsg_json_parse(&document, text, length) != 0);
  CHECK_INT(parse(text), 0);
}
