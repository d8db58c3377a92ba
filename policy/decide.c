/* decide.c - see decide.h. */
#include "policy/decide.h"

static int64_t divide_up(int64_t a, int64_t b) {
  return a / b + (a % b != 0);
}

struct bsg_split bsg_split_of(int64_t batch, int64_t chunks) {
  struct bsg_split split = {.batch = batch < 0 ? 0 : batch, .chunks = chunks < 1 ? 1 : chunks};

  if (split.batch == 0) {
    split.chunks = split.chunks > BSG_MOST_CHUNKS ? BSG_MOST_CHUNKS : split.chunks;
    split.accumulation_steps = split.chunks;
    return split;
  }
  if (split.chunks > split.batch)
    split.chunks = split.batch;
  split.micro_batch = divide_up(split.batch, split.chunks);
  split.accumulation_steps = divide_up(split.batch, split.micro_batch);
  return split;
}

struct bsg_split bsg_split_under(int64_t batch, int64_t micro_batch) {
  if (batch <= 0 || micro_batch <= 0)
    return bsg_split_of(batch, 1);
  return bsg_split_of(batch, divide_up(batch, micro_batch));
}

enum bsg_verdict bsg_decide_oom(const struct bsg_split *now, bool can_split, struct bsg_split *out) {
  *out = *now;
  if (!can_split || now->batch <= 0)
    return BSG_CANNOT;
  if (now->micro_batch <= 1)
    return BSG_FLOOR;
  /* micro_batch >= 2 means that k < batch, so doubling cannot overflow before the batch does; and it always lowers the
   * micro-batch, since ceil(batch / 2k) = ceil(ceil(batch / k) / 2). */
  int64_t doubled = now->chunks > now->batch / 2 ? now->batch : now->chunks * 2;
  *out = bsg_split_of(now->batch, doubled);
  return BSG_SHRINK;
}

enum bsg_verdict bsg_decide_inferred(const struct bsg_split *now, struct bsg_split *out) {
  if (now->batch > 0)
    return bsg_decide_oom(now, true, out);
  *out = *now;
  if (now->chunks >= BSG_MOST_CHUNKS)
    return BSG_FLOOR;
  *out = bsg_split_of(0, now->chunks * 2);
  return BSG_SHRINK;
}

bool bsg_phase_can_split(int phase) {
  /* An optimizer's own memory, a loader's or a checkpoint's does not depend on the micro-batch. */
  return phase != BSG_PHASE_OPTIMIZER && phase != BSG_PHASE_DATA && phase != BSG_PHASE_SAVE;
}

bool bsg_decide_fragmented(uint64_t request_bytes, uint64_t free_bytes) {
  const uint64_t unit = UINT64_C(2) << 20;

  if (request_bytes == 0 || free_bytes == UINT64_MAX || request_bytes > UINT64_MAX - unit)
    return false;
  return free_bytes >= (request_bytes + unit - 1) / unit * unit;
}

bool bsg_decide_terminal(const struct bsg_repeated *repeated) {
  return !repeated->concluded && !repeated->granted_between && repeated->freed_now > repeated->freed_before;
}
