/*
 * sizing.h - what is known of how much memory the pieces of one boundary take, and which pieces fit. Pure: no files, no
 * clock, no driver. One of these for each (device, boundary), whatever the shapes of its inputs.
 *
 * The size of a piece (`x`) is counted in elements of its inputs, so that what one length has taught holds for another:
 * in sixteenths of a sample of the shape that came first, which keeps whole numbers exact enough.
 *
 * Three kinds of knowledge, none of which is believed beyond its reach:
 *   measured   peaks of clean steps, by the largest piece that ran in them
 *   base       what is held whether a piece runs or not, seen after the caches were emptied for an OOM. A peak grows at
 *              most in proportion above it, so a line from the base through a measured peak is never too low
 *   refused    the smallest piece that ran out, and what there was then: its peak is above that. What it says is what
 * the piece needs on top of the base: once less is held, it stands against less
 */
#ifndef BSG_POLICY_SIZING_H
#define BSG_POLICY_SIZING_H

#include <stdbool.h>
#include <stdint.h>

#include "policy/decide.h"
#include "policy/fit.h"

#define BSG_SIZING_NOT_KNOWN UINT64_MAX

struct bsg_sizing {
  int64_t unit; /* elements in a sample of the first shape; 0: none came yet */
  uint64_t base_bytes;
  int count, next;
  struct bsg_fit_point points[BSG_FIT_POINTS - 1]; /* one more is the base */
  int64_t refused_x;                               /* 0: none */
  uint64_t refused_bytes, refused_base;            /* there were so many, so many of them held whatever runs */
  uint64_t ceiling_bytes;                          /* a limit of the framework's own, below the device's; 0: none met */
  int64_t age, patience; /* clean steps since the last refusal, and after how many it is forgotten */
};

/* Elements in one sample, from a signature such as "float32[3,224,224];int64[8]": the sum over what is cut. 1 or more.
 */
int64_t bsg_sizing_elements(const char *signature);

/* The size of a piece of `samples` samples of `elements` elements each. */
int64_t bsg_sizing_x(struct bsg_sizing *sizing, int64_t samples, int64_t elements);

/* A clean step whose largest piece was `x` peaked at `bytes`. What was measured of this size before is replaced. */
void bsg_sizing_measured(struct bsg_sizing *sizing, int64_t x, uint64_t bytes);

/* A piece of `x` ran out where `available` bytes were to be had; `base` are held now that it is gone. */
void bsg_sizing_refused(struct bsg_sizing *sizing, int64_t x, uint64_t available, uint64_t base);

/* The smallest size that ran out, in samples of `elements` elements, rounded up; 0: none is known. */
int64_t bsg_sizing_refused_samples(const struct bsg_sizing *sizing, int64_t elements);

/* As bsg_sizing_refused(), of an earlier run of the same job: not forgotten soon, since that run would not have met it
 * a second time either. Nothing where a size as large was measured since. */
void bsg_sizing_refused_before(struct bsg_sizing *sizing, int64_t x, uint64_t available, uint64_t base);

/* A step ended with `bytes` held by the framework's own count, gradients included: the base is no more than that. */
void bsg_sizing_held(struct bsg_sizing *sizing, uint64_t bytes);

/* A clean step ended. A refusal is forgotten after a number of them that doubles with each refusal: a neighbour may be
 * gone, and a single allocation may fail for reasons that never come again. */
void bsg_sizing_clean(struct bsg_sizing *sizing);

/* The peak of a step with pieces of `x`; what was refused would be refused again. BSG_SIZING_NOT_KNOWN: nobody can say.
 */
uint64_t bsg_sizing_peak(const struct bsg_sizing *sizing, int64_t x);

/* True where the peak of pieces of `x` is known, and leaves the reserve of `available`. */
bool bsg_sizing_fits(const struct bsg_sizing *sizing, int64_t x, uint64_t available);

/* The fewest chunks, at least `least`, in which a batch fits within `available` bytes (less a reserve for
 * fragmentation) by what was measured; 0: none does, or nobody knows. smallest: samples in the smallest piece allowed.
 */
int64_t bsg_sizing_chunks(struct bsg_sizing *sizing, int64_t batch, int64_t elements, int64_t least, int64_t smallest,
                          uint64_t available);

/* The fewest chunks that what was refused leaves possible, where nothing was measured; 1 where it says nothing. */
int64_t bsg_sizing_least(struct bsg_sizing *sizing, int64_t batch, int64_t elements, uint64_t available);

#endif
