/* names.c - see names.h. */
#include "policy/names.h"

#include <stddef.h>

#include "shim/bsguard.h"

static const char *name_of(const char *const *names, int count, int value, const char *otherwise) {
  return value >= 0 && value < count ? names[value] : otherwise;
}

const char *bsg_reason_name(int reason) {
  static const char *const names[] = {"start",  "oom",           "framework-limit", "inferred",
                                      "manual", "fragmentation", "regrow",          "restored"};
  return name_of(names, sizeof(names) / sizeof(names[0]), reason, "manual");
}

const char *bsg_phase_name(int phase) {
  static const char *const names[BSG_PHASE_COUNT] = {"init",       "forward", "loss", "backward", "optimizer",
                                                     "evaluation", "data",    "save", "other"};
  return name_of(names, BSG_PHASE_COUNT, phase, "other");
}

const char *bsg_exactness_name(int exactness) {
  static const char *const names[] = {"exact", "equivalent", "approximate", "refused"};
  return name_of(names, sizeof(names) / sizeof(names[0]), exactness, NULL);
}

const char *bsg_mode_name(int mode) {
  static const char *const names[] = {"off", "observe", "guard"};
  return name_of(names, sizeof(names) / sizeof(names[0]), mode, "off");
}
