/*
 * config.c - the SIMGPU_* variables (simgpu.h lists them). A wrong value is one line on stderr that names the variable,
 * the value and what is allowed; the default is then used. Depends on libc alone and never ends the process.
 */
#include <ctype.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"

static struct {
  pthread_once_t once;
  struct sim_config config;
} state = {.once = PTHREAD_ONCE_INIT};

static const char sizes_allowed[] = "an integer with an optional B, KB, MB, GB, KiB, MiB or GiB";

static void complain(const char *name, const char *value, const char *allowed) {
  fprintf(stderr, "simgpu: %s=%s is not understood; allowed: %s; the default is used\n", name, value, allowed);
}

/* Reads digits; the rest of the text starts at *end. */
static int number(const char *text, uint64_t *out, const char **end) {
  char *stop;
  if (!isdigit((unsigned char)*text))
    return -EINVAL;
  errno = 0;
  *out = strtoull(text, &stop, 10);
  *end = stop;
  return errno ? -errno : 0;
}

static int size(const char *text, uint64_t *out) {
  static const struct {
    const char *name;
    uint64_t bytes;
  } units[] = {{"", 1},
               {"B", 1},
               {"KB", 1000},
               {"MB", 1000000},
               {"GB", 1000000000},
               {"KIB", 1ull << 10},
               {"MIB", 1ull << 20},
               {"GIB", 1ull << 30}};
  const char *rest;
  uint64_t value;
  if (number(text, &value, &rest))
    return -EINVAL;
  while (*rest == ' ')
    rest++;
  for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
    if (strcasecmp(rest, units[i].name) == 0)
      return __builtin_mul_overflow(value, units[i].bytes, out) ? -ERANGE : 0;
  }
  return -EINVAL;
}

static void read_size(const char *name, uint64_t least, uint64_t *out) {
  const char *text = getenv(name);
  uint64_t value;
  if (!text || !*text)
    return;
  if (size(text, &value) || value < least)
    complain(name, text, sizes_allowed);
  else
    *out = value;
}

static void read_unit(const char *name, uint64_t *out) {
  uint64_t value = *out;
  read_size(name, 512, &value);
  if ((value & (value - 1)) || value > 1ull << 30)
    complain(name, getenv(name), "a power of two from 512 to 1GiB");
  else
    *out = value;
}

static void read_number(const char *name, uint64_t least, uint64_t most, const char *allowed, uint64_t *out) {
  const char *text = getenv(name), *rest;
  uint64_t value;
  if (!text || !*text)
    return;
  if (number(text, &value, &rest) || *rest || value < least || value > most)
    complain(name, text, allowed);
  else
    *out = value;
}

static void read_switch(const char *name, bool *out) {
  uint64_t value = *out;
  read_number(name, 0, 1, "0 or 1", &value);
  *out = value != 0;
}

static int ranges(const char *text, struct sim_range *out, int room) {
  int count = 0;
  for (;;) {
    struct sim_range range = {.count = 1};
    if (count == room || number(text, &range.first, &text) || range.first == 0)
      return -EINVAL;
    if (*text == ':' && (number(text + 1, &range.count, &text) || range.count == 0))
      return -EINVAL;
    out[count++] = range;
    if (!*text)
      return count;
    if (*text++ != ',')
      return -EINVAL;
  }
}

static void read_all(void) {
  struct sim_config *c = &state.config;
  uint64_t devices = 1, version = (uint64_t)sim_built_version;
  const char *text;

  c->memory = 1ull << 30;
  c->granularity = 512;
  read_size("SIMGPU_MEMORY", 1, &c->memory);
  c->pool_chunk = 2ull << 20;
  read_unit("SIMGPU_GRANULARITY", &c->granularity);
  read_unit("SIMGPU_POOL_CHUNK", &c->pool_chunk);
  read_size("SIMGPU_CONTEXT_MEMORY", 0, &c->context_memory);
  read_size("SIMGPU_MODULE_MEMORY", 0, &c->module_memory);
  read_size("SIMGPU_QUEUE_MEMORY", 0, &c->queue_memory);
  read_size("SIMGPU_FAIL_SIZE", 0, &c->fail_size);
  read_number("SIMGPU_DEVICES", 0, SIM_MAX_DEVICES, "0 to 16", &devices);
  read_number("SIMGPU_DRIVER_VERSION", 2000, 999999, "1000*major + 10*minor, e.g. 12040", &version);
  read_number("SIMGPU_FAIL_EVERY", 0, UINT64_MAX, "an integer, 0 for never", &c->fail_every);
  read_switch("SIMGPU_PROTECT", &c->protect);
  read_switch("SIMGPU_POISON", &c->poison);
  read_switch("SIMGPU_STATS", &c->stats);
  c->devices = (int)devices;
  c->driver_version = (int)version;

  text = getenv("SIMGPU_FAIL_AT");
  if (text && *text) {
    int count = ranges(text, c->fail_at, SIM_MAX_RANGES);
    if (count < 0)
      complain("SIMGPU_FAIL_AT", text, "N or N:COUNT, both from 1, up to 32 of them separated by commas");
    else
      c->fail_at_count = count;
  }
  text = getenv("SIMGPU_FAIL_CALLS");
  c->fail_all = text && strcmp(text, "all") == 0;
  if (text && *text && !c->fail_all && strcmp(text, "memory") != 0)
    complain("SIMGPU_FAIL_CALLS", text, "memory or all");
  text = getenv("SIMGPU_LOG");
  c->log = text && *text ? strdup(text) : NULL;
  text = getenv("SIMGPU_REFUSALS");
  c->refusals = text && *text ? strdup(text) : NULL;
  text = getenv("SIMGPU_SHARED");
  c->shared = text && *text ? strdup(text) : NULL;
}

const struct sim_config *sim_config(void) {
  pthread_once(&state.once, read_all);
  return &state.config;
}
