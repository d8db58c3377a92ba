/*
 * fit.h - how much memory does a batch take? peak = fixed + per_sample x micro_batch, by measured points. Pure.
 *
 * A point of micro-batch 0 is what was held between steps: where only one size was ever run, that and its peak make the
 * line. Nothing here knows whether the points are good: whoever collects them leaves out steps that ran out of memory.
 */
#ifndef BSG_POLICY_FIT_H
#define BSG_POLICY_FIT_H

#include <stdint.h>

#define BSG_FIT_POINTS 32

struct bsg_fit_point {
  int64_t micro_batch; /* samples */
  uint64_t peak_bytes;
  int64_t steps; /* that it was seen in */
};

enum bsg_fit_method { BSG_FIT_LEAST_SQUARES, BSG_FIT_TWO_POINTS, BSG_FIT_BASE_AND_PEAK };

struct bsg_fit {
  enum bsg_fit_method method;
  uint64_t fixed_bytes, per_sample_bytes;
  uint64_t margin_bytes;  /* the most that a point lies above the line */
  int64_t error_permille; /* median distance of the points from the line, of the point; -1: two points always fit */
};

/* The points in any order, each size once. -EDOM: fewer than two sizes, or memory that does not rise with the batch. */
int bsg_fit_solve(const struct bsg_fit_point *points, int count, struct bsg_fit *out);

/* What the line says for a micro-batch, without the margin; UINT64_MAX where that is past all bounds. */
uint64_t bsg_fit_peak(const struct bsg_fit *fit, int64_t micro_batch);

/* The largest micro-batch whose peak, margin included, is within `available_bytes`; 0: not even one sample. */
int64_t bsg_fit_largest(const struct bsg_fit *fit, uint64_t available_bytes);

const char *bsg_fit_method_name(enum bsg_fit_method method);

#endif
