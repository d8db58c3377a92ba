/* regrow.c - see regrow.h. */
#include "policy/regrow.h"

/* The share of a batch, and the samples, that "far down" is: enough for a job sixteen times too large of which half
 * does not get smaller. A single sample is the last resort: BatchNorm has no statistics of one. */
#define FAR_DOWN 64
#define FEW_SAMPLES 2

#define FIRST_WAIT 8 /* clean steps, after the first try that failed */
#define MOST_WAIT 4096
#define BLIND 16 /* clean steps, before a try without any measure */
/* Of what is available, what a try may aim at: where pieces fit already there is little to gain in the last few
 * percent, and an OOM to meet. */
#define GROWS_TO_PERCENT 95
#define ON_TRIAL 3    /* clean steps in which a try may show that it takes more than was foreseen */
#define PROVED 16     /* clean steps after which a try counts as a success */
#define FORGIVEN 1024 /* and after which earlier failures are forgotten */

static struct bsg_split far_down(const struct bsg_split *now, int64_t smallest) {
  int64_t samples = now->batch / FAR_DOWN + (now->batch % FAR_DOWN != 0);

  if (samples < FEW_SAMPLES)
    samples = FEW_SAMPLES;
  if (samples < smallest)
    samples = smallest;
  /* Rounded so that no piece is smaller, though pieces differ by one sample. */
  return bsg_split_of(now->batch, now->batch / samples);
}

/* The fewest chunks that fit, or twice as many. */
static struct bsg_split next_down(const struct bsg_split *now, const struct bsg_split *doubled,
                                  const struct bsg_outlook *o) {
  struct bsg_split found;
  int64_t chunks;

  if (!o->sizing || o->available == 0)
    return *doubled;
  chunks =
      bsg_sizing_chunks(o->sizing, now->batch, o->elements, now->accumulation_steps + 1, o->smallest, o->available);
  if (chunks) {
    found = bsg_split_of(now->batch, chunks);
    if (found.micro_batch < now->micro_batch)
      return found;
  }
  chunks = bsg_sizing_least(o->sizing, now->batch, o->elements, o->available);
  found = bsg_split_of(now->batch, chunks > doubled->chunks ? chunks : doubled->chunks);
  return found.micro_batch >= o->smallest ? found : *doubled;
}

/* A try has failed. */
static void wait_longer(struct bsg_regrowth *growth) {
  growth->wait = growth->wait < FIRST_WAIT ? FIRST_WAIT : growth->wait > MOST_WAIT / 2 ? MOST_WAIT : growth->wait * 2;
}

enum bsg_verdict bsg_regrow_shrink(struct bsg_regrowth *growth, const struct bsg_split *now, bool can_split,
                                   const struct bsg_outlook *outlook, struct bsg_split *out) {
  struct bsg_split doubled, down;
  enum bsg_verdict verdict = bsg_decide_oom(now, can_split, &doubled);
  int64_t before = growth->before, smallest = outlook->smallest > 1 ? outlook->smallest : 1;

  *out = *now;
  growth->clean = 0;
  growth->before = 0;
  if (before)
    wait_longer(growth);
  if (verdict != BSG_SHRINK)
    return verdict;
  if (now->micro_batch <= smallest)
    return BSG_FLOOR;
  if (doubled.micro_batch < smallest)
    doubled = bsg_split_of(now->batch, now->batch / smallest);
  if (doubled.micro_batch >= now->micro_batch)
    return BSG_FLOOR;

  if (growth->ooms == 0)
    growth->near = outlook->after_forward && now->accumulation_steps == 1;
  if (growth->ooms > (growth->near ? 1 : 0)) {
    down = far_down(now, smallest);
    if (down.micro_batch > doubled.micro_batch)
      down = doubled;
  } else if (before && before < now->micro_batch) {
    down = bsg_split_under(now->batch, before);
  } else {
    down = next_down(now, &doubled, outlook);
  }
  growth->ooms++;
  *out = down;
  return BSG_SHRINK;
}

bool bsg_regrow_foreseen(const struct bsg_split *now, const struct bsg_outlook *o, struct bsg_split *out) {
  uint64_t peak;
  int64_t chunks;

  *out = *now;
  if (!o->sizing || o->available == 0 || now->batch < 2)
    return false;
  peak = bsg_sizing_peak(o->sizing, bsg_sizing_x(o->sizing, now->micro_batch, o->elements));
  if (peak == BSG_SIZING_NOT_KNOWN || peak < o->available)
    return false;
  chunks = bsg_sizing_chunks(o->sizing, now->batch, o->elements, now->accumulation_steps + 1, 1, o->available);
  if (chunks == 0)
    return false;
  *out = bsg_split_of(now->batch, chunks);
  return out->micro_batch < now->micro_batch;
}

void bsg_regrow_clean(struct bsg_regrowth *growth) {
  growth->ooms = 0;
  growth->near = false;
  growth->clean++;
  if (growth->clean >= PROVED)
    growth->before = 0;
  if (growth->clean >= FORGIVEN)
    growth->wait = 0;
}

bool bsg_regrow_due(const struct bsg_regrowth *growth, const struct bsg_split *now) {
  if (growth->fixed || now->accumulation_steps <= 1 || growth->clean < 1 || growth->clean < growth->wait)
    return false;
  return growth->clean < 8 || growth->clean % 8 == 0; /* what has not fitted for a while need not be asked each step */
}

bool bsg_regrow_on_trial(const struct bsg_regrowth *growth, const struct bsg_split *now) {
  return !growth->fixed && growth->clean <= ON_TRIAL && growth->before > 0 && growth->before < now->micro_batch;
}

bool bsg_regrow_back(struct bsg_regrowth *growth, const struct bsg_split *now, const struct bsg_outlook *o,
                     struct bsg_split *out) {
  *out = *now;
  if (!bsg_regrow_on_trial(growth, now) || !o->sizing || o->sizing->count == 0 || o->available == 0 ||
      bsg_sizing_fits(o->sizing, bsg_sizing_x(o->sizing, now->micro_batch, o->elements), o->available))
    return false;
  int64_t chunks = bsg_sizing_chunks(o->sizing, now->batch, o->elements, now->accumulation_steps + 1, 1,
                                     o->available / 100 * GROWS_TO_PERCENT);
  *out = bsg_split_of(now->batch, chunks);
  if (chunks == 0 || out->micro_batch < growth->before)
    *out = bsg_split_under(now->batch, growth->before);
  growth->before = 0;
  growth->clean = 0;
  wait_longer(growth);
  return true;
}

/* Nobody can measure: half as many chunks, as far as nothing so large was refused. */
static int64_t without_measures(const struct bsg_split *now, const struct bsg_outlook *o) {
  struct bsg_split up = bsg_split_of(now->batch, now->accumulation_steps / 2);
  int64_t x = bsg_sizing_x(o->sizing, up.micro_batch, o->elements);

  return o->sizing->refused_x && x >= o->sizing->refused_x ? 0 : up.accumulation_steps;
}

bool bsg_regrow_up(struct bsg_regrowth *growth, const struct bsg_split *now, const struct bsg_outlook *outlook,
                   struct bsg_split *out) {
  int64_t chunks;

  *out = *now;
  if (!outlook->sizing || outlook->available == 0 || !bsg_regrow_due(growth, now))
    return false;
  if (outlook->sizing->count)
    chunks = bsg_sizing_chunks(outlook->sizing, now->batch, outlook->elements, 1, 1,
                               outlook->available / 100 * GROWS_TO_PERCENT);
  else
    chunks = growth->clean >= BLIND ? without_measures(now, outlook) : 0;
  if (chunks == 0 || chunks >= now->accumulation_steps)
    return false;
  *out = bsg_split_of(now->batch, chunks);
  growth->before = now->micro_batch;
  growth->clean = 0;
  return true;
}
