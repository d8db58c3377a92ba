/* fit.c - see fit.h. */
#include "policy/fit.h"

#include <errno.h>

static double line(double fixed, double per_sample, const struct bsg_fit_point *point) {
  return fixed + per_sample * (double)point->micro_batch;
}

/* Least squares; a line that would begin below zero is held at zero. Returns the slope. */
static double slope(const struct bsg_fit_point *points, int count, double *fixed) {
  double mean_x = 0, mean_y = 0, xy = 0, xx = 0, through_xy = 0, through_xx = 0;

  for (int i = 0; i < count; i++) {
    mean_x += (double)points[i].micro_batch / count;
    mean_y += (double)points[i].peak_bytes / count;
  }
  for (int i = 0; i < count; i++) {
    double x = (double)points[i].micro_batch, y = (double)points[i].peak_bytes;
    xy += (x - mean_x) * (y - mean_y);
    xx += (x - mean_x) * (x - mean_x);
    through_xy += x * y;
    through_xx += x * x;
  }
  if (xx <= 0)
    return 0;
  *fixed = mean_y - xy / xx * mean_x;
  if (*fixed >= 0)
    return xy / xx;
  *fixed = 0;
  return through_xy / through_xx;
}

/* The middle one, without sorting what is given. */
static int64_t median(const int64_t *values, int count) {
  for (int i = 0; i < count; i++) {
    int below = 0, same = 0;
    for (int j = 0; j < count; j++) {
      below += values[j] < values[i];
      same += values[j] == values[i];
    }
    if (below <= count / 2 && below + same > count / 2)
      return values[i];
  }
  return 0;
}

int bsg_fit_solve(const struct bsg_fit_point *points, int count, struct bsg_fit *out) {
  int64_t errors[BSG_FIT_POINTS];
  double fixed = 0, per_sample, margin = 0;
  int measured = 0, sizes = 0;

  *out = (struct bsg_fit){.error_permille = -1};
  if (count > BSG_FIT_POINTS)
    return -EINVAL;
  for (int i = 0; i < count; i++)
    sizes += points[i].micro_batch > 0;
  if (count < 2 || sizes < 1)
    return -EDOM;
  per_sample = slope(points, count, &fixed);
  if (per_sample < 1)
    return -EDOM;
  for (int i = 0; i < count; i++) {
    double above = (double)points[i].peak_bytes - line(fixed, per_sample, &points[i]);
    double distance = above < 0 ? -above : above;
    if (above > margin)
      margin = above;
    if (points[i].peak_bytes)
      errors[measured++] = (int64_t)(distance * 1000 / (double)points[i].peak_bytes + 0.5);
  }
  out->fixed_bytes = (uint64_t)(fixed + 0.5);
  out->per_sample_bytes = (uint64_t)(per_sample + 0.5);
  out->margin_bytes = (uint64_t)(margin + 0.5);
  out->method = count > 2 ? BSG_FIT_LEAST_SQUARES : sizes == 2 ? BSG_FIT_TWO_POINTS : BSG_FIT_BASE_AND_PEAK;
  if (count > 2)
    out->error_permille = median(errors, measured);
  return 0;
}

uint64_t bsg_fit_peak(const struct bsg_fit *fit, int64_t micro_batch) {
  uint64_t rise;

  if (__builtin_mul_overflow(fit->per_sample_bytes, (uint64_t)micro_batch, &rise) ||
      __builtin_add_overflow(rise, fit->fixed_bytes, &rise))
    return UINT64_MAX;
  return rise;
}

int64_t bsg_fit_largest(const struct bsg_fit *fit, uint64_t available_bytes) {
  uint64_t first = fit->fixed_bytes + fit->margin_bytes;

  if (fit->per_sample_bytes == 0 || available_bytes < first)
    return 0;
  return (int64_t)((available_bytes - first) / fit->per_sample_bytes);
}

const char *bsg_fit_method_name(enum bsg_fit_method method) {
  static const char *const names[] = {"least_squares", "two_points", "base_and_peak"};
  return names[method];
}
