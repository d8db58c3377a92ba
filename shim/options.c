/*
 * options.c - see options.h. Depends on environment.h and log.h. Never calls getenv(): a program may bring its own.
 */
#include "shim/options.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "shim/environment.h"
#include "shim/log.h"

#define MAX_TEXT 4096
#define MOST_SECONDS 600

enum type { CHOICE, PATH, SIZE, SECONDS };

struct option {
  const char *variable;
  enum type type;
  const char *preset;
  const char *allowed;
  const char *meaning;
};

struct value {
  int64_t number;
  char text[MAX_TEXT];
};

static const struct option options[BSG_OPTION_COUNT] = {
#define BSG_OPTION(id, variable, type, preset, allowed, meaning) {variable, type, preset, allowed, meaning},
#include "shim/options.def"
#undef BSG_OPTION
};

static struct {
  pthread_once_t once;
  struct value values[BSG_OPTION_COUNT];
} state = {.once = PTHREAD_ONCE_INIT};

static int parse_choice(const char *allowed, const char *text, int64_t *number) {
  size_t length = strlen(text);
  for (int64_t index = 0;; index++) {
    size_t word = strcspn(allowed, "|");
    if (word == length && strncmp(allowed, text, length) == 0) {
      *number = index;
      return 0;
    }
    if (allowed[word] == '\0')
      return -EINVAL;
    allowed += word + 1;
  }
}

static int parse_size(const char *text, int64_t *number) {
  static const struct {
    const char *name;
    int64_t bytes;
  } units[] = {{"", 1},          {"B", 1},         {"KB", 1000},    {"MB", 1000000}, {"GB", 1000000000},
               {"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}};
  int64_t value = 0;

  if (*text < '0' || *text > '9')
    return -EINVAL;
  for (; *text >= '0' && *text <= '9'; text++)
    if (__builtin_mul_overflow(value, 10, &value) || __builtin_add_overflow(value, *text - '0', &value))
      return -ERANGE;
  while (*text == ' ')
    text++;
  for (size_t i = 0; i < sizeof units / sizeof units[0]; i++)
    if (strcasecmp(text, units[i].name) == 0)
      return __builtin_mul_overflow(value, units[i].bytes, number) ? -ERANGE : 0;
  return -EINVAL;
}

static int parse_seconds(const char *text, int64_t *number) {
  int64_t value = 0;

  if (!*text)
    return -EINVAL;
  for (; *text >= '0' && *text <= '9'; text++)
    if ((value = 10 * value + *text - '0') > MOST_SECONDS)
      return -ERANGE;
  *number = value;
  return *text ? -EINVAL : 0;
}

static int parse(const struct option *option, const char *text, struct value *out) {
  int result = 0;

  out->number = 0;
  if (strlen(text) >= sizeof out->text)
    return -ENAMETOOLONG;
  if (option->type == CHOICE)
    result = parse_choice(option->allowed, text, &out->number);
  else if (option->type == SIZE)
    result = parse_size(text, &out->number);
  else if (option->type == SECONDS)
    result = parse_seconds(text, &out->number);
  if (result != 0)
    return result;
  if (option->type == SIZE || option->type == SECONDS)
    snprintf(out->text, sizeof out->text, "%lld", (long long)out->number);
  else
    strcpy(out->text, text);
  return 0;
}

/* A name that is misspelt would be an option that does nothing, in silence. */
static void tell_unknown(const char *definition) {
  size_t length = strcspn(definition, "=");

  for (int id = 0; id < BSG_OPTION_COUNT; id++)
    if (strlen(options[id].variable) == length && strncmp(definition, options[id].variable, length) == 0)
      return;
  bsg_log(BSG_LOG_NORMAL, "%.*s is no option of bsguard; bsguard doctor names those that there are",
          length < 64 ? (int)length : 64, definition);
}

static void load(void) {
  bool wrong[BSG_OPTION_COUNT] = {false};

  for (int id = 0; id < BSG_OPTION_COUNT; id++) {
    const char *text = bsg_environment_get(options[id].variable);
    if (text && *text && parse(&options[id], text, &state.values[id]) == 0)
      continue;
    wrong[id] = text && *text;
    parse(&options[id], options[id].preset, &state.values[id]);
  }
  bsg_log_set_level((int)state.values[BSG_OPTION_LOG].number);
  /* Only now is it known whether to be quiet about them. */
  for (int id = 0; id < BSG_OPTION_COUNT; id++)
    if (wrong[id])
      bsg_log(BSG_LOG_NORMAL, "%s=%.64s is not understood: allowed is %s; using %s", options[id].variable,
              bsg_environment_get(options[id].variable), options[id].allowed, options[id].preset);
  bsg_environment_each("BSGUARD_", tell_unknown);
}

void bsg_options_load(void) {
  pthread_once(&state.once, load);
}

int64_t bsg_options_number(enum bsg_option_id id) {
  bsg_options_load();
  return state.values[id].number;
}

const char *bsg_options_text(enum bsg_option_id id) {
  bsg_options_load();
  return state.values[id].text;
}

const char *bsg_options_find(const char *variable) {
  for (int id = 0; variable && id < BSG_OPTION_COUNT; id++)
    if (strcmp(variable, options[id].variable) == 0)
      return bsg_options_text(id);
  return NULL;
}

int bsg_options_peek_mode(void) {
  const struct option *option = &options[BSG_OPTION_MODE];
  const char *text = bsg_environment_get(option->variable);
  int64_t mode = 0;
  if (!text || parse_choice(option->allowed, text, &mode) != 0)
    parse_choice(option->allowed, option->preset, &mode);
  return (int)mode;
}

void bsg_options_manual(int fd, bool page) {
  const char *format = page ? ".TP\n.BR %s \" (%s; default %s)\"\n%s\n" : "%s (%s; default %s)\n    %s\n";
  for (int id = 0; id < BSG_OPTION_COUNT; id++)
    dprintf(fd, format, options[id].variable, options[id].allowed, *options[id].preset ? options[id].preset : "none",
            options[id].meaning);
}
