/*
 * culprit.h - what stood in the way of a request: one cause, by what was measured. Pure.
 *
 * First come the things that do not belong to a training step of this size (a neighbour, a leak, memory in pieces, one
 * huge request): of those that would have been enough for the request the largest is the cause. Where there is none the
 * step itself is: by the phase that it died in, and by what the framework says its memory is.
 */
#ifndef BSG_POLICY_CULPRIT_H
#define BSG_POLICY_CULPRIT_H

#include <stdbool.h>

#include "policy/history.h"
#include "policy/records.h"

enum bsg_cause {
  BSG_CAUSE_NONE = 0, /* nothing ran out */
  BSG_CAUSE_FRAMEWORK_LIMIT,
  BSG_CAUSE_OTHER_PROCESS,
  BSG_CAUSE_FRAGMENTATION,
  BSG_CAUSE_ONE_REQUEST,
  BSG_CAUSE_LEAK,
  BSG_CAUSE_GROWING_CACHE, /* data that the program keeps on purpose, more of it each step */
  BSG_CAUSE_OPTIMIZER_STATE,
  BSG_CAUSE_FIXED_PART,
  BSG_CAUSE_EVALUATION,
  BSG_CAUSE_ACTIVATIONS,
  BSG_CAUSE_UNKNOWN,
  BSG_CAUSE_COUNT
};

/* Sizes: BSG_BYTES_UNKNOWN where not known. */
struct bsg_culprit_input {
  bool driver_refused; /* false: the framework stopped by itself */
  int phase;
  int64_t micro_batch;    /* that it died at; 0: not known */
  bool at_the_floor;      /* could not be made smaller */
  uint64_t request_bytes; /* 0: not known */
  uint64_t capacity_bytes, free_bytes, live_bytes;
  uint64_t allocated_bytes; /* the framework's, in use */
  uint64_t idle_bytes;      /* the framework's, idle */
  uint64_t others_bytes;    /* processes that NVML names */
  uint64_t elsewhere_bytes; /* used on the device, not by the ledger */
  uint64_t parameter_bytes, gradient_bytes, optimizer_bytes;
  const struct bsg_growth *growth;
  uint64_t kept_graphs, kept_data; /* tensors in containers of the program, with a graph behind them and without */
  const struct bsg_fit *fit;       /* NULL: none */
};

struct bsg_culprit {
  enum bsg_cause cause;
  uint64_t bytes; /* that the cause holds or asks for; BSG_BYTES_UNKNOWN */
};

void bsg_culprit_find(const struct bsg_culprit_input *input, struct bsg_culprit *out);

const char *bsg_cause_name(enum bsg_cause cause);

#endif
