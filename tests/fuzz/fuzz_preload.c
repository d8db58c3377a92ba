/*
 * fuzz_preload.c - LD_PRELOAD and PYTHONPATH as we rewrite them for our children: nothing of what was there is lost or
 * changed but our own entry, and what does not fit is left alone. The functions are not visible outside their file, so
 * that file is made a part of this one.
 */
#include "shim/process.c"

#include "fuzz.h"

void bsg_root_stop(void) {}
void bsg_log_open(void) {}
int bsg_options_peek_mode(void) {
  return BSG_MODE_OFF;
}

/* The list as it was, and as it is: entry by entry the same, where ours may have become absolute. */
static void compare_preload(const char *before, const char *after, const struct self *self) {
  for (;;) {
    size_t old = strcspn(before, ": "), new = strcspn(after, ": ");
    if (old != new || strncmp(before, after, old) != 0)
      ENSURE(new == strlen(self->absolute) && strncmp(after, self->absolute, new) == 0);
    before += old;
    after += new;
    ENSURE(*before == *after);
    if (*before == '\0')
      return;
    before++, after++;
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static char definition[70000], path[70000], before[70000], given[300];
  struct bytes bytes = {data, size < 60000 ? size : 60000};
  struct self self;
  size_t preload;

  self.given = take_text(&bytes, given, 256);
  snprintf(self.absolute, sizeof(self.absolute), "/%s", take(&bytes, 1) % 2 ? given : "opt/bsguard/libbsguard.so");
  preload = take(&bytes, 2) % (bytes.left + 1);
  snprintf(definition, sizeof(definition), "LD_PRELOAD=%.*s", (int)preload, (const char *)bytes.data);
  snprintf(path, sizeof(path), "PYTHONPATH=%.*s", (int)(bytes.left - preload), (const char *)bytes.data + preload);
  ENSURE(bsg_environment_set(definition) == 0 && bsg_environment_set(path) == 0);

  strcpy(before, definition + 11);
  make_preload_absolute(&self);
  compare_preload(before, bsg_environment_get("LD_PRELOAD"), &self);

  strcpy(before, path + 11);
  put_on_pythonpath(&self);
  const char *after = bsg_environment_get("PYTHONPATH");
  ENSURE(after && strlen(after) < MAX_VARIABLE + sizeof(before));
  /* Back to what it was, so that neither holds a buffer of ours. */
  ENSURE(bsg_environment_set(definition) == 0 && bsg_environment_set(path) == 0);
  return 0;
}
