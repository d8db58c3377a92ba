/*
 * regrow.h - how far down after an OOM, and when up again. Pure rules over what sizing.h knows; the state of one entry
 * of the table of sizes is here.
 *
 * Down: to the fewest chunks that fit by what was measured; where nothing was, to twice as many. A second OOM before
 * any step ran clean shows that halving is too slow: then far down at once, and from the first clean step, which
 * measures, up again to what fits. So a job meets two OOMs at most until it is settled, however much too large it is.
 * Where the whole batch came through its forward it is not many times too large, and twice as many again will do.
 *
 * Up: after clean steps, when the measures say that fewer chunks fit. A try that fails goes back to what ran clean, and
 * the next one waits twice as long. So does one that took more than was foreseen and leaves no reserve: it runs clean
 * until an allocation finds no piece that is large enough.
 */
#ifndef BSG_POLICY_REGROW_H
#define BSG_POLICY_REGROW_H

#include <stdbool.h>
#include <stdint.h>

#include "policy/decide.h"
#include "policy/sizing.h"

struct bsg_regrowth {
  int64_t clean;  /* steps at the present size without an OOM */
  int64_t wait;   /* of them that the next try needs; 0 stands for 1 */
  int64_t before; /* micro-batch that ran clean before the last try; 0: there was none, or it has proved itself */
  int64_t ooms;   /* since the last clean step */
  bool near;      /* the first of them came after a whole forward */
  bool fixed;     /* an operator has said how large, and nothing grows past that */
};

/* What there is to go by. sizing NULL or available 0: nothing. */
struct bsg_outlook {
  struct bsg_sizing *sizing;
  int64_t elements;   /* of one sample */
  int64_t smallest;   /* samples in the smallest piece allowed */
  bool after_forward; /* this OOM came after the forward, with all that it keeps */
  uint64_t available; /* bytes to this process on the device, what it holds included */
};

/* As bsg_decide_oom(), with what is known: see above. Takes note of the OOM in `growth`. */
enum bsg_verdict bsg_regrow_shrink(struct bsg_regrowth *growth, const struct bsg_split *now, bool can_split,
                                   const struct bsg_outlook *outlook, struct bsg_split *out);

/* True: a batch that is about to run whole, as `now`, would not fit by what is known, and `out` would. Only to be asked
 * once an OOM was met: a job that never runs out is not touched. */
bool bsg_regrow_foreseen(const struct bsg_split *now, const struct bsg_outlook *outlook, struct bsg_split *out);

/* A step ran clean at the present size. */
void bsg_regrow_clean(struct bsg_regrowth *growth);

/* Is it worth asking bsg_regrow_up()? It costs a question to the driver. */
bool bsg_regrow_due(const struct bsg_regrowth *growth, const struct bsg_split *now);

/* True: the last try has run, and took more than it should: back to `out`, more chunks, though no more than ran clean
 * before. Takes note of that. */
bool bsg_regrow_back(struct bsg_regrowth *growth, const struct bsg_split *now, const struct bsg_outlook *outlook,
                     struct bsg_split *out);

/* True while bsg_regrow_back() is worth asking. */
bool bsg_regrow_on_trial(const struct bsg_regrowth *growth, const struct bsg_split *now);

/* True: run in `out`, fewer chunks, from now on. Takes note of the try. */
bool bsg_regrow_up(struct bsg_regrowth *growth, const struct bsg_split *now, const struct bsg_outlook *outlook,
                   struct bsg_split *out);

#endif
