/* history.c - see history.h. */
#include "policy/history.h"

#include <string.h>

/* A first step fills pools and makes the optimizer's state: what it adds is no trend. */
#define WARM_UP_STEPS 2
#define FEWEST_STEPS 4
#define LEAST_RISE 50 /* of the capacity: 2 % */
#define BY_DRIVER_TOO ((uint64_t)1 << 20)

void bsg_history_start(struct bsg_history *history) {
  memset(history, 0, sizeof(*history));
  history->stride = 1;
}

void bsg_history_rise(struct bsg_history *history, struct bsg_when when, const struct bsg_mark_fact *mark) {
  history->rise_total++;
  if (history->rise_count == BSG_TIMELINE_ROOM) {
    /* Every second one, and the first. */
    for (int i = 0; i < BSG_TIMELINE_ROOM / 2; i++)
      history->rises[i] = history->rises[2 * i];
    history->rise_count = BSG_TIMELINE_ROOM / 2;
  }
  history->rises[history->rise_count++] = (struct bsg_rise){when, *mark};
}

void bsg_history_oom(struct bsg_history *history) {
  history->spoilt = true;
  history->largest_since_oom = 0;
}

static void keep_step(struct bsg_history *history, const struct bsg_step_end *end) {
  if (history->step_total++ % history->stride != 0)
    return;
  if (history->step_count == BSG_STEPS_ROOM) {
    for (int i = 0; i < BSG_STEPS_ROOM / 2; i++)
      history->steps[i] = history->steps[2 * i];
    history->step_count = BSG_STEPS_ROOM / 2;
    history->stride *= 2;
  }
  history->steps[history->step_count++] = *end;
}

/* The slot of a size; the one longest not seen makes room. */
static struct bsg_size_seen *size_of(struct bsg_history *history, uint64_t input, int64_t micro_batch) {
  struct bsg_size_seen *found = NULL;

  for (int i = 0; i < BSG_SIZES_ROOM; i++) {
    struct bsg_size_seen *size = &history->sizes[i];
    if (size->input == input && size->micro_batch == micro_batch)
      return size;
    if (!found || size->order < found->order)
      found = size;
  }
  *found = (struct bsg_size_seen){.input = input, .micro_batch = micro_batch};
  return found;
}

void bsg_history_step(struct bsg_history *history, const struct bsg_step_end *end, bool held_by_framework,
                      uint64_t input, int64_t micro_batch, uint64_t allocated_peak) {
  struct bsg_size_seen *size;
  bool raised = allocated_peak > history->allocated_peak;

  if (held_by_framework != history->held_by_framework && history->step_count) {
    history->step_count = 0; /* two kinds of figures make no trend */
    history->step_total = 0;
  }
  history->held_by_framework = held_by_framework;
  if (raised)
    history->allocated_peak = allocated_peak;
  if (history->spoilt) {
    history->spoilt = false;
    return;
  }
  history->last_good_step = end->step;
  keep_step(history, end);
  if (held_by_framework)
    history->base = (struct bsg_fit_point){.peak_bytes = end->held_bytes, .steps = history->base.steps + 1};
  if (!input || micro_batch <= 0)
    return;
  size = size_of(history, input, micro_batch);
  size->steps++;
  size->order = ++history->clock;
  if (end->allocated_peak_bytes > size->framework_peak)
    size->framework_peak = end->allocated_peak_bytes;
  else if (raised && !end->allocated_peak_bytes)
    size->framework_peak = allocated_peak;
  if (micro_batch >= history->largest_since_oom) {
    history->largest_since_oom = micro_batch;
    if (end->peak_bytes > size->driver_peak)
      size->driver_peak = end->peak_bytes;
  }
}

/* What is held between steps is there in each of them: a line that begins below it has too little to go by. */
static bool starts_too_low(const struct bsg_history *history, const struct bsg_fit_point *points, int count) {
  struct bsg_fit fit;

  return count > 1 && count < BSG_FIT_POINTS && bsg_fit_solve(points, count, &fit) == 0 &&
         fit.fixed_bytes < history->base.peak_bytes;
}

static int collect(const struct bsg_history *history, uint64_t input, bool framework,
                   struct bsg_fit_point out[BSG_FIT_POINTS]) {
  int count = 0;

  for (int i = 0; i < BSG_SIZES_ROOM && count < BSG_FIT_POINTS; i++) {
    const struct bsg_size_seen *size = &history->sizes[i];
    uint64_t peak = framework ? size->framework_peak : size->driver_peak;
    int at = count;
    if (size->input != input || peak == 0)
      continue;
    for (; at > 0 && out[at - 1].micro_batch > size->micro_batch; at--)
      out[at] = out[at - 1];
    out[at] = (struct bsg_fit_point){size->micro_batch, peak, size->steps};
    count++;
  }
  if (history->base.steps && (count == 1 || (framework && starts_too_low(history, out, count)))) {
    memmove(&out[1], &out[0], sizeof(out[0]) * (size_t)count);
    out[0] = history->base;
    count++;
  }
  return count;
}

int bsg_history_points(const struct bsg_history *history, uint64_t input, struct bsg_fit_point out[BSG_FIT_POINTS],
                       bool *of_framework) {
  int count = input ? collect(history, input, true, out) : 0;

  *of_framework = count >= 2;
  if (count < 2 && input)
    count = collect(history, input, false, out);
  return count;
}

bool bsg_history_knows(const struct bsg_history *history, uint64_t input) {
  for (int i = 0; i < BSG_SIZES_ROOM && input; i++)
    if (history->sizes[i].input == input && history->sizes[i].steps)
      return true;
  return false;
}

/* ---- the trend ---- */

static uint64_t held_at(const struct bsg_step_end *end) {
  return end->held_bytes;
}

static uint64_t idle_at(const struct bsg_step_end *end) {
  return end->idle_bytes;
}

/* A rise that is steady, goes on to the end, and matters. A one-time rise (a cache that is filled) is none. */
static bool rises(const struct bsg_step_end *steps, int count, uint64_t (*figure)(const struct bsg_step_end *),
                  uint64_t least, struct bsg_growth *out) {
  uint64_t first, middle, last;
  int up = 0;

  for (int i = 0; i < count; i++)
    if (figure(&steps[i]) == BSG_BYTES_UNKNOWN)
      return false;
  first = figure(&steps[0]);
  middle = figure(&steps[count / 2]);
  last = figure(&steps[count - 1]);
  out->first_bytes = first;
  out->last_bytes = last;
  out->steps = steps[count - 1].step - steps[0].step;
  out->bytes_per_step = out->steps ? ((int64_t)last - (int64_t)first) / out->steps : 0;
  if (last < first || last - first < least || last < middle || (last - middle) * 4 < last - first)
    return false;
  /* By whole chunks the driver's figure rises now and then only: quarters are compared, not steps. */
  for (int quarter = 1; quarter <= 4; quarter++)
    up += figure(&steps[(count - 1) * quarter / 4]) > figure(&steps[(count - 1) * (quarter - 1) / 4]);
  return up >= 3;
}

void bsg_history_trend(const struct bsg_history *history, uint64_t capacity_bytes, bool new_input,
                       struct bsg_growth *out) {
  const struct bsg_step_end *steps = history->steps;
  int count = history->step_count;
  uint64_t least = capacity_bytes == BSG_BYTES_UNKNOWN ? 0 : capacity_bytes / LEAST_RISE;
  struct bsg_growth idle;

  *out = (struct bsg_growth){0};
  if (least < BY_DRIVER_TOO / 4)
    least = BY_DRIVER_TOO / 4;
  while (count > 0 && steps[0].step <= WARM_UP_STEPS) {
    steps++;
    count--;
  }
  if (count < FEWEST_STEPS) {
    if (new_input && history->step_count)
      out->trend = BSG_TREND_SHAPES;
    return;
  }
  if (rises(steps, count, held_at, least, out))
    out->trend = BSG_TREND_LEAK;
  else if (rises(steps, count, idle_at, least, &idle)) {
    *out = idle;
    out->trend = BSG_TREND_CACHE;
  } else
    out->trend = new_input ? BSG_TREND_SHAPES : BSG_TREND_FLAT;
}

const char *bsg_trend_name(enum bsg_trend trend) {
  static const char *const names[] = {"unknown", "flat", "leak", "cache", "shapes"};
  return names[trend];
}
