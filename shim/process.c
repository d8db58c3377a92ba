/*
 * process.c - the life of the process that we were preloaded into. The constructor makes our entry in LD_PRELOAD
 * absolute, so that it holds in children after a chdir(), and puts the framework half on PYTHONPATH; the destructor
 * gives the policy its last word. Nothing else happens before the first driver look-up: a shell, git or a data-loader
 * worker is to notice nothing. Never allocates from the heap, never prints.
 */
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

#include "shim/bsguard.h"
#include "shim/environment.h"
#include "shim/log.h"
#include "shim/options.h"
#include "shim/root.h"

#define MAX_VARIABLE 16384
#define INJECT "/bsguard/inject"

/* The environment keeps these. */
static struct {
  char preload[MAX_VARIABLE];
  char pythonpath[MAX_VARIABLE];
} state;

/* As the loader knows us (what LD_PRELOAD said, perhaps relative), and absolute. */
struct self {
  const char *given;
  char absolute[PATH_MAX];
};

static int find_self(struct self *out) {
  static const char anchor;
  Dl_info info;
  char here[PATH_MAX];
  const char *given;
  int length;

  if (!dladdr(&anchor, &info) || !info.dli_fname)
    return -ENOENT;
  out->given = given = info.dli_fname;
  if (given[0] == '/')
    length = snprintf(out->absolute, sizeof out->absolute, "%s", given);
  else {
    if (!getcwd(here, sizeof here))
      return -errno;
    while (strncmp(given, "./", 2) == 0)
      given += 2;
    length = snprintf(out->absolute, sizeof out->absolute, "%s/%s", here, given);
  }
  return length < 0 || (size_t)length >= sizeof out->absolute ? -ENAMETOOLONG : 0;
}

/* Is this entry of LD_PRELOAD ours, and not absolute? Without a slash it was searched for. */
static bool is_our_relative(const char *entry, size_t length, const struct self *self) {
  const char *slash = strrchr(self->given, '/');
  if (length == 0 || entry[0] == '/')
    return false;
  if (strlen(self->given) == length && strncmp(entry, self->given, length) == 0)
    return true;
  return !memchr(entry, '/', length) && slash && strlen(slash + 1) == length && strncmp(slash + 1, entry, length) == 0;
}

/* Appends to a variable under construction; false where it is full. */
static bool append(char *variable, size_t *used, const char *text, size_t length) {
  if (*used + length >= MAX_VARIABLE)
    return false;
  memcpy(variable + *used, text, length);
  *used += length;
  variable[*used] = '\0';
  return true;
}

static void make_preload_absolute(const struct self *self) {
  const char *list = bsg_environment_get("LD_PRELOAD");
  size_t used = 0;
  bool changed = false;

  if (!list || !append(state.preload, &used, "LD_PRELOAD=", 11))
    return;
  while (*list) {
    size_t length = strcspn(list, ": ");
    bool ours = is_our_relative(list, length, self);
    /* A path with a separator in it cannot be an entry. */
    if (ours && strpbrk(self->absolute, ": "))
      return;
    if (!append(state.preload, &used, ours ? self->absolute : list, ours ? strlen(self->absolute) : length))
      return;
    changed |= ours;
    list += length;
    if (*list && !append(state.preload, &used, list++, 1))
      return;
  }
  if (changed)
    bsg_environment_set(state.preload);
}

/* Our folder first, and nowhere else in the list. */
static void put_on_pythonpath(const struct self *self) {
  const char *list = bsg_environment_get("PYTHONPATH");
  char folder[PATH_MAX];
  const char *slash = strrchr(self->absolute, '/');
  size_t used = 0, folder_length;
  int length = snprintf(folder, sizeof folder, "%.*s" INJECT, (int)(slash - self->absolute), self->absolute);

  if (length < 0 || (size_t)length >= sizeof folder || strchr(folder, ':') || access(folder, R_OK | X_OK) != 0)
    return;
  folder_length = (size_t)length;
  if (!append(state.pythonpath, &used, "PYTHONPATH=", 11) || !append(state.pythonpath, &used, folder, folder_length))
    return;
  while (list && *list) {
    size_t entry = strcspn(list, ":");
    bool ours = entry == folder_length && strncmp(list, folder, entry) == 0;
    if (!ours && (!append(state.pythonpath, &used, ":", 1) || !append(state.pythonpath, &used, list, entry)))
      return;
    list += entry;
    if (*list == ':')
      list++;
  }
  bsg_environment_set(state.pythonpath);
}

__attribute__((constructor)) static void enter(void) {
  int saved = errno;
  struct self self;

  if (getauxval(AT_SECURE))
    return;
  bsg_log_open();
  if (find_self(&self) == 0) {
    make_preload_absolute(&self);
    if (bsg_options_peek_mode() != BSG_MODE_OFF)
      put_on_pythonpath(&self);
  }
  errno = saved;
}

__attribute__((destructor)) static void leave(void) {
  bsg_root_stop();
}
