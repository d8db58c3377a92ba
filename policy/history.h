/*
 * history.h - what a device's memory did over the run, in little room: rises of the high-water mark, what each step
 * held and took, and the points of the fit. Whatever gets too many is thinned evenly. Pure: no clock, no files.
 */
#ifndef BSG_POLICY_HISTORY_H
#define BSG_POLICY_HISTORY_H

#include <stdbool.h>

#include "policy/fit.h"
#include "policy/records.h"

#define BSG_TIMELINE_ROOM 64
#define BSG_STEPS_ROOM 128
#define BSG_SIZES_ROOM 64

/* A rise of the high-water mark. */
struct bsg_rise {
  struct bsg_when when;
  struct bsg_mark_fact mark;
};

/* What was true at the end of a step. */
struct bsg_step_end {
  int64_t step;
  uint64_t held_bytes; /* that the framework has in use between steps; else what the driver gave this process */
  uint64_t idle_bytes; /* in the framework's cache; BSG_BYTES_UNKNOWN */
  uint64_t peak_bytes; /* of the step, at the driver */
  uint64_t allocated_peak_bytes; /* of the step, that the framework had in use; 0: it does not say */
};

/* What was measured of one size of one input. */
struct bsg_size_seen {
  uint64_t input; /* hash of boundary and signature; 0: a free slot */
  int64_t micro_batch;
  uint64_t framework_peak, driver_peak; /* 0: not measured; of steps that did not run out of memory */
  int64_t steps;
  uint64_t order;
};

struct bsg_history {
  int64_t rise_total;
  int rise_count;
  struct bsg_rise rises[BSG_TIMELINE_ROOM];

  int64_t step_total, stride; /* each stride-th step is kept */
  int step_count;
  struct bsg_step_end steps[BSG_STEPS_ROOM];
  bool held_by_framework; /* whose figure held_bytes is */

  struct bsg_size_seen sizes[BSG_SIZES_ROOM];
  uint64_t clock;
  uint64_t allocated_peak; /* the framework's over the whole run, as last told */
  int64_t
      largest_since_oom; /* micro-batch: only that shows its peak at the driver, which sees the cache of larger ones */
  bool spoilt;           /* the step under way ran out of memory */
  int64_t last_good_step;
  struct bsg_fit_point base; /* of micro-batch 0; steps 0: none yet */
};

void bsg_history_start(struct bsg_history *history);

void bsg_history_rise(struct bsg_history *history, struct bsg_when when, const struct bsg_mark_fact *mark);

/* Memory ran out, or the step under way is otherwise none to measure. */
void bsg_history_oom(struct bsg_history *history);

/*
 * A step ended. input 0: no boundary was run. allocated_peak: the framework's over the whole run, 0: it keeps none;
 * only a step that raised it shows its own peak, where the framework does not say that of each.
 */
void bsg_history_step(struct bsg_history *history, const struct bsg_step_end *end, bool held_by_framework,
                      uint64_t input, int64_t micro_batch, uint64_t allocated_peak);

/* The points of an input, by the framework's peaks where there are enough, else by the driver's. Returns how many. */
int bsg_history_points(const struct bsg_history *history, uint64_t input, struct bsg_fit_point out[BSG_FIT_POINTS],
                       bool *of_framework);

/* Was a step of this input ever ended? */
bool bsg_history_knows(const struct bsg_history *history, uint64_t input);

enum bsg_trend { BSG_TREND_UNKNOWN = 0, BSG_TREND_FLAT, BSG_TREND_LEAK, BSG_TREND_CACHE, BSG_TREND_SHAPES };

struct bsg_growth {
  enum bsg_trend trend;
  int64_t steps;                    /* between the first and the last that were compared */
  uint64_t first_bytes, last_bytes; /* held (leak), or idle (cache) */
  int64_t bytes_per_step;
};

/* What happened from step to step. capacity_bytes: what a rise is measured against. new_input: the step that failed ran
 * on an input that no step had ended with. */
void bsg_history_trend(const struct bsg_history *history, uint64_t capacity_bytes, bool new_input,
                       struct bsg_growth *out);

const char *bsg_trend_name(enum bsg_trend trend);

#endif
