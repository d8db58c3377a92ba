/*
 * decide.h - the decisions, as pure functions: no state, no files, no clock. Everything that bsguard changes about a
 * job is one of these results.
 *
 * k (`chunks`) is the primary figure: an OOM doubles it. micro_batch = ceil(batch / k) samples;
 * accumulation_steps = ceil(batch / micro_batch), which may be below k.
 */
#ifndef BSG_POLICY_DECIDE_H
#define BSG_POLICY_DECIDE_H

#include <stdbool.h>
#include <stdint.h>

#include "shim/bsguard.h"

/* The most chunks that anybody is asked to run where the batch is not known, so that k cannot overflow. */
#define BSG_MOST_CHUNKS (INT64_C(1) << 20)

/* A batch and the pieces that it is run in. batch 0: not known, and then neither is micro_batch (0). */
struct bsg_split {
  int64_t batch;
  int64_t chunks;
  int64_t micro_batch;
  int64_t accumulation_steps;
};

/* `batch` samples in `chunks` pieces; both are raised to what is possible (batch >= 0, 1 <= chunks <= batch). */
struct bsg_split bsg_split_of(int64_t batch, int64_t chunks);

/* `batch` samples in pieces of at most `micro_batch` samples; micro_batch 0: no limit. */
struct bsg_split bsg_split_under(int64_t batch, int64_t micro_batch);

/*
 * An OOM at `now`. BSG_SHRINK: `out` has twice the chunks. BSG_FLOOR: the micro-batch is 1 already. BSG_CANNOT: it must
 * not be split (`can_split` false), or the batch is not known. `out` is `now` where nothing changes.
 */
enum bsg_verdict bsg_decide_oom(const struct bsg_split *now, bool can_split, struct bsg_split *out);

/* The same where no adapter says what the batch is: k doubles up to BSG_MOST_CHUNKS. */
enum bsg_verdict bsg_decide_inferred(const struct bsg_split *now, struct bsg_split *out);

/* May an OOM in this phase be answered by smaller pieces? Not where no batch is being run. */
bool bsg_phase_can_split(int phase);

/*
 * Was a call refused though the device had enough free bytes for it? Then what was free lay in pieces. The driver hands
 * memory out in units of 2 MiB: a request is rounded up to them. Both in bytes; free_bytes UINT64_MAX:
 * nobody knows, and then the answer is no.
 */
bool bsg_decide_fragmented(uint64_t request_bytes, uint64_t free_bytes);

/* What is known of a request that the driver refused again. */
struct bsg_repeated {
  uint64_t freed_before; /* bytes freed on the device so far, at the refusal before */
  uint64_t freed_now;
  bool granted_between; /* an allocation on this device succeeded in between */
  bool concluded;       /* an OOM was inferred for this request already, and nothing succeeded since */
};

/* Without an adapter: is this an OOM that the framework will not get out of by freeing its caches? */
bool bsg_decide_terminal(const struct bsg_repeated *repeated);

#endif
