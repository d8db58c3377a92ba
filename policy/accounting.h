/*
 * accounting.h - where the capacity of a device is. The parts always add up to it: what was measured a moment apart, or
 * by somebody who counts otherwise, is cut to what is left. Pure.
 */
#ifndef BSG_POLICY_ACCOUNTING_H
#define BSG_POLICY_ACCOUNTING_H

#include <stdbool.h>

#include "policy/records.h"

enum bsg_part {
  BSG_PART_FRAMEWORK_LIVE = 0, /* tensors */
  BSG_PART_FRAMEWORK_CACHED,   /* taken from the driver by the framework, and idle */
  BSG_PART_PROCESS_OTHER,      /* allocated by this process past the framework; all of it where that does not tell */
  BSG_PART_DRIVER,             /* contexts, modules, local memory */
  BSG_PART_OTHER_PROCESSES,
  BSG_PART_NOT_TOLD_APART, /* the two before, where nobody says whose it is */
  BSG_PART_FREE,
  BSG_PART_COUNT
};

struct bsg_accounting {
  bool known;
  bool framework_told;
  uint64_t capacity_bytes;
  uint64_t bytes[BSG_PART_COUNT]; /* their sum is the capacity */
};

struct bsg_accounting_input {
  uint64_t capacity_bytes, free_bytes, live_bytes; /* BSG_BYTES_UNKNOWN; live: the ledger's */
  uint64_t allocated_bytes, reserved_bytes;        /* the framework's; BSG_BYTES_UNKNOWN */
  const struct bsg_others_fact *others;            /* NULL: nobody says */
};

void bsg_account(const struct bsg_accounting_input *input, struct bsg_accounting *out);

const char *bsg_part_name(enum bsg_part part);  /* in report.json */
const char *bsg_part_label(enum bsg_part part); /* for people */

#endif
