/*
 * check.h - the smallest test helper that says what went wrong. A file has TEST(name) { CHECK(...); } and ends with
 * nothing: `program` runs all its tests, `program name` one. A test that cannot run here calls skip(why).
 */
#ifndef BSG_TESTS_CHECK_H
#define BSG_TESTS_CHECK_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct test {
  const char *name;
  void (*run)(void);
};

#define MOST_TESTS 64
static struct test tests_of_file[MOST_TESTS];
static int test_count;

#define TEST(title)                                                                                                    \
  static void test_##title(void);                                                                                      \
  __attribute__((constructor)) static void add_##title(void) {                                                         \
    tests_of_file[test_count++] = (struct test){#title, test_##title};                                                 \
  }                                                                                                                    \
  static void test_##title(void)

#define CHECK(condition)                                                                                               \
  do {                                                                                                                 \
    if (!(condition)) {                                                                                                \
      fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition);                                        \
      exit(1);                                                                                                         \
    }                                                                                                                  \
  } while (0)

#define CHECK_INT(value, expected)                                                                                     \
  do {                                                                                                                 \
    long long value_ = (long long)(value), expected_ = (long long)(expected);                                          \
    if (value_ != expected_) {                                                                                         \
      fprintf(stderr, "%s:%d: %s is %lld, expected %lld\n", __FILE__, __LINE__, #value, value_, expected_);            \
      exit(1);                                                                                                         \
    }                                                                                                                  \
  } while (0)

#define CHECK_TEXT(value, expected)                                                                                    \
  do {                                                                                                                 \
    const char *value_ = (value), *expected_ = (expected);                                                             \
    if (!value_ || strcmp(value_, expected_) != 0) {                                                                   \
      fprintf(stderr, "%s:%d: %s is\n  %s\nexpected\n  %s\n", __FILE__, __LINE__, #value, value_ ? value_ : "NULL",    \
              expected_);                                                                                              \
      exit(1);                                                                                                         \
    }                                                                                                                  \
  } while (0)

#define CHECK_HAS(text, part)                                                                                          \
  do {                                                                                                                 \
    const char *text_ = (text), *part_ = (part);                                                                       \
    if (!text_ || !strstr(text_, part_)) {                                                                             \
      fprintf(stderr, "%s:%d: %s has no\n  %s\nit is\n  %s\n", __FILE__, __LINE__, #text, part_,                       \
              text_ ? text_ : "NULL");                                                                                 \
      exit(1);                                                                                                         \
    }                                                                                                                  \
  } while (0)

__attribute__((unused)) static void skip(const char *why) {
  fprintf(stderr, "skipped: %s\n", why);
  exit(77);
}

int main(int argc, char **argv) {
  int run = 0;

  for (int i = 0; i < test_count; i++) {
    if (argc > 1 && strcmp(argv[1], tests_of_file[i].name) != 0)
      continue;
    tests_of_file[i].run();
    run++;
  }
  if (run == 0)
    fprintf(stderr, "no such test: %s\n", argc > 1 ? argv[1] : "(none in this file)");
  return run == 0;
}

#endif
