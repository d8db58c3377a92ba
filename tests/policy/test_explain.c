/* test_explain.c - the pure parts of a report: fit, accounting, trend, and whose fault it was. */
#include "check.h"
#include "policy/accounting.h"
#include "policy/culprit.h"
#include "policy/fit.h"
#include "policy/history.h"

#define MB UINT64_C(1000000)
#define MIB ((uint64_t)1 << 20)
#define GIB ((uint64_t)1 << 30)
#define NOTHING BSG_BYTES_UNKNOWN

/* ---- fit ---- */

/* Measured: an OCR detector with ResNet-18, input 800 x 800, FP32; 32 ran out of memory on 24 GB, in the backward. */
static const struct bsg_fit_point ocr[] = {
    {1, 2148 * MB, 1}, {4, 5892 * MB, 1}, {8, 10365 * MB, 1}, {16, 18940 * MB, 1}};

/* The peak at a size between those measured, by the straight line of its neighbours. */
static uint64_t measured(int64_t size) {
  for (int i = 0; i < 3; i++)
    if (size >= ocr[i].micro_batch && size <= ocr[i + 1].micro_batch)
      return ocr[i].peak_bytes + (ocr[i + 1].peak_bytes - ocr[i].peak_bytes) * (uint64_t)(size - ocr[i].micro_batch) /
                                     (uint64_t)(ocr[i + 1].micro_batch - ocr[i].micro_batch);
  return ocr[3].peak_bytes + (ocr[3].peak_bytes - ocr[2].peak_bytes) / 8 * (uint64_t)(size - 16);
}

TEST(the_ocr_detector) {
  static const struct {
    uint64_t gigabytes;
    int64_t least, most; /* what people run there, and the first size that does not fit by the measurements */
  } cards[] = {{6, 4, 4}, {8, 4, 5}, {12, 8, 9}, {16, 8, 13}, {24, 16, 20}};
  struct bsg_fit fit;

  CHECK_INT(bsg_fit_solve(ocr, 4, &fit), 0);
  CHECK_INT(fit.method, BSG_FIT_LEAST_SQUARES);
  CHECK(bsg_fit_peak(&fit, 32) > 24000 * MB);
  CHECK(fit.error_permille >= 0 && fit.error_permille <= 50);
  for (size_t i = 0; i < sizeof(cards) / sizeof(cards[0]); i++) {
    uint64_t capacity = cards[i].gigabytes * 1000 * MB;
    int64_t fits = bsg_fit_largest(&fit, capacity);
    printf("%2d GB: micro-batch %d, measured %d MB there\n", (int)cards[i].gigabytes, (int)fits,
           (int)(measured(fits) / MB));
    CHECK(fits >= cards[i].least && fits <= cards[i].most);
    CHECK(measured(fits) <= capacity);
    CHECK(fits < 32);
  }
}

TEST(two_points_and_a_base) {
  const struct bsg_fit_point two[] = {{8, 100 * MIB, 5}, {16, 180 * MIB, 5}},
                             base[] = {{0, 20 * MIB, 9}, {8, 100 * MIB, 5}};
  struct bsg_fit fit;

  CHECK_INT(bsg_fit_solve(two, 2, &fit), 0);
  CHECK_INT(fit.method, BSG_FIT_TWO_POINTS);
  CHECK_INT(fit.fixed_bytes, 20 * MIB);
  CHECK_INT(fit.per_sample_bytes, 10 * MIB);
  CHECK_INT(fit.error_permille, -1); /* two points always fit: that is no error of 0 */
  CHECK_INT(bsg_fit_solve(base, 2, &fit), 0);
  CHECK_INT(fit.method, BSG_FIT_BASE_AND_PEAK);
  CHECK_INT(bsg_fit_largest(&fit, 120 * MIB), 10);
  CHECK_INT(bsg_fit_largest(&fit, 19 * MIB), 0);
}

TEST(no_fit_where_there_is_none) {
  const struct bsg_fit_point one[] = {{8, MIB, 1}}, falling[] = {{8, 100 * MIB, 1}, {16, 90 * MIB, 1}},
                             flat[] = {{8, 100 * MIB, 1}, {16, 100 * MIB, 1}}, base[] = {{0, MIB, 1}, {0, MIB, 1}};
  struct bsg_fit fit;

  CHECK(bsg_fit_solve(NULL, 0, &fit) < 0);
  CHECK(bsg_fit_solve(one, 1, &fit) < 0);
  CHECK(bsg_fit_solve(falling, 2, &fit) < 0);
  CHECK(bsg_fit_solve(flat, 2, &fit) < 0);
  CHECK(bsg_fit_solve(base, 2, &fit) < 0);
}

TEST(a_line_never_begins_below_zero) {
  const struct bsg_fit_point steep[] = {{1, 10 * MIB, 1}, {2, 40 * MIB, 1}, {4, 160 * MIB, 1}};
  struct bsg_fit fit;

  CHECK_INT(bsg_fit_solve(steep, 3, &fit), 0);
  CHECK_INT(fit.fixed_bytes, 0);
  CHECK(bsg_fit_peak(&fit, INT64_MAX) == UINT64_MAX);
}

/* ---- accounting ---- */

static uint64_t sum(const struct bsg_accounting *accounting) {
  uint64_t bytes = 0;
  for (int part = 0; part < BSG_PART_COUNT; part++)
    bytes += accounting->bytes[part];
  return bytes;
}

TEST(the_parts_are_the_capacity) {
  struct bsg_others_fact others = {
      .own_seen = true, .count = 2, .listed = 2, .list = {{.pid = 7, .bytes = 3 * GIB}, {.pid = 8, .bytes = GIB}}};
  struct bsg_accounting_input input = {.capacity_bytes = 24 * GIB,
                                       .free_bytes = 2 * GIB,
                                       .live_bytes = 16 * GIB,
                                       .allocated_bytes = 12 * GIB,
                                       .reserved_bytes = 15 * GIB,
                                       .others = &others};
  struct bsg_accounting out;

  bsg_account(&input, &out);
  CHECK(out.known && out.framework_told && sum(&out) == 24 * GIB);
  CHECK(out.bytes[BSG_PART_FRAMEWORK_LIVE] == 12 * GIB && out.bytes[BSG_PART_FRAMEWORK_CACHED] == 3 * GIB);
  CHECK(out.bytes[BSG_PART_PROCESS_OTHER] == GIB && out.bytes[BSG_PART_OTHER_PROCESSES] == 4 * GIB);
  CHECK(out.bytes[BSG_PART_DRIVER] == 2 * GIB && out.bytes[BSG_PART_NOT_TOLD_APART] == 0);

  others.list[1].bytes = NOTHING;
  bsg_account(&input, &out);
  CHECK(out.bytes[BSG_PART_NOT_TOLD_APART] == 6 * GIB && sum(&out) == 24 * GIB);
  input.others = NULL;
  bsg_account(&input, &out);
  CHECK(out.bytes[BSG_PART_NOT_TOLD_APART] == 6 * GIB && sum(&out) == 24 * GIB);
  input.free_bytes = NOTHING;
  bsg_account(&input, &out);
  CHECK(!out.known);
}

/* Figures of different moments, or wrong ones: still the capacity, nothing below zero. */
TEST(the_parts_are_the_capacity_whatever_is_told) {
  uint64_t random = 88172645463325252u, of[5];
  struct bsg_others_fact others = {.own_seen = true, .count = 1, .listed = 1};
  struct bsg_accounting out;

  for (int round = 0; round < 100000; round++) {
    for (int i = 0; i < 5; i++) {
      random ^= random << 13, random ^= random >> 7, random ^= random << 17;
      of[i] = random % (30 * GIB);
    }
    struct bsg_accounting_input input = {.capacity_bytes = 24 * GIB,
                                         .free_bytes = of[0],
                                         .live_bytes = of[1],
                                         .allocated_bytes = round % 3 ? of[2] : NOTHING,
                                         .reserved_bytes = round % 5 ? of[3] : NOTHING,
                                         .others = round % 2 ? &others : NULL};
    others.list[0].bytes = of[4];
    bsg_account(&input, &out);
    CHECK(sum(&out) == 24 * GIB);
    for (int part = 0; part < BSG_PART_COUNT; part++)
      CHECK(out.bytes[part] <= 24 * GIB);
  }
}

/* ---- history ---- */

static struct bsg_history history;

static void steps(int count, uint64_t held, uint64_t more_each, uint64_t idle, uint64_t more_idle) {
  for (int i = 0; i < count; i++) {
    struct bsg_step_end end = {.step = history.last_good_step + 1,
                               .held_bytes = held + (uint64_t)i * more_each,
                               .idle_bytes = idle + (uint64_t)i * more_idle,
                               .peak_bytes = 4 * GIB};
    bsg_history_step(&history, &end, true, 17, 8, 0);
  }
}

static enum bsg_trend trend(bool new_input) {
  struct bsg_growth growth;
  bsg_history_trend(&history, 16 * GIB, new_input, &growth);
  return growth.trend;
}

TEST(trends) {
  struct bsg_growth growth;

  bsg_history_start(&history);
  CHECK_INT(trend(false), BSG_TREND_UNKNOWN);
  steps(1000, 4 * GIB, 0, GIB, 0);
  CHECK_INT(trend(false), BSG_TREND_FLAT);
  CHECK_INT(trend(true), BSG_TREND_SHAPES);

  bsg_history_start(&history);
  steps(1000, 4 * GIB, 10 * MIB, GIB, 0);
  bsg_history_trend(&history, 16 * GIB, false, &growth);
  CHECK_INT(growth.trend, BSG_TREND_LEAK);
  CHECK_INT(growth.bytes_per_step, 10 * MIB);
  CHECK(growth.steps > 950);

  bsg_history_start(&history);
  steps(300, 4 * GIB, 0, GIB, 20 * MIB);
  CHECK_INT(trend(false), BSG_TREND_CACHE);

  /* Filled once and no more: a cache of a fixed size, an exponential average. */
  bsg_history_start(&history);
  steps(100, 4 * GIB, 40 * MIB, GIB, 0);
  steps(400, 8 * GIB, 0, GIB, 0);
  CHECK_INT(trend(false), BSG_TREND_FLAT);

  /* The state of the optimizer appears at the first step. */
  bsg_history_start(&history);
  steps(1, GIB, 0, 0, 0);
  steps(50, 8 * GIB, 0, 0, 0);
  CHECK_INT(trend(false), BSG_TREND_FLAT);

  /* Too little to matter. */
  bsg_history_start(&history);
  steps(1000, 4 * GIB, 1000, GIB, 0);
  CHECK_INT(trend(false), BSG_TREND_FLAT);
}

TEST(the_timeline_is_thinned_and_keeps_the_last) {
  bsg_history_start(&history);
  for (int i = 1; i <= 1000; i++) {
    struct bsg_mark_fact mark = {.live_bytes = (uint64_t)i};
    bsg_history_rise(&history, (struct bsg_when){.mono_ns = i}, &mark);
  }
  CHECK_INT(history.rise_total, 1000);
  CHECK(history.rise_count >= BSG_TIMELINE_ROOM / 2 && history.rise_count <= BSG_TIMELINE_ROOM);
  CHECK_INT(history.rises[0].mark.live_bytes, 1);
  CHECK_INT(history.rises[history.rise_count - 1].mark.live_bytes, 1000);
  for (int i = 1; i < history.rise_count; i++)
    CHECK(history.rises[i].mark.live_bytes > history.rises[i - 1].mark.live_bytes);
}

TEST(points_are_of_steps_that_did_not_run_out) {
  struct bsg_fit_point points[BSG_FIT_POINTS];
  struct bsg_step_end end = {.step = 1, .held_bytes = GIB, .idle_bytes = 0, .peak_bytes = 5 * GIB};
  bool framework;

  bsg_history_start(&history);
  bsg_history_step(&history, &end, true, 17, 8, 3 * GIB);
  bsg_history_step(&history, &end, true, 17, 16, 5 * GIB);
  bsg_history_step(&history, &end, true, 17, 4, 5 * GIB); /* raised nothing: its own peak is not known */
  bsg_history_oom(&history);
  bsg_history_step(&history, &end, true, 17, 32, 9 * GIB); /* ran out */
  bsg_history_step(&history, &end, true, 99, 32, 10 * GIB);
  CHECK_INT(bsg_history_points(&history, 17, points, &framework), 2);
  CHECK(framework);
  CHECK_INT(points[0].micro_batch, 8);
  CHECK(points[0].peak_bytes == 3 * GIB && points[1].peak_bytes == 5 * GIB);
  CHECK(bsg_history_knows(&history, 99) && !bsg_history_knows(&history, 5));
  /* One size, and what is held between steps. */
  CHECK_INT(bsg_history_points(&history, 99, points, &framework), 2);
  CHECK_INT(points[0].micro_batch, 0);
  CHECK(points[0].peak_bytes == GIB && points[1].peak_bytes == 10 * GIB);
  CHECK_INT(bsg_history_points(&history, 0, points, &framework), 0);
}

TEST(points_of_a_framework_that_says_what_each_step_took) {
  struct bsg_fit_point points[BSG_FIT_POINTS];
  struct bsg_step_end end = {.step = 1, .held_bytes = 2 * GIB, .peak_bytes = 9 * GIB, .allocated_peak_bytes = 8 * GIB};
  bool framework;

  bsg_history_start(&history);
  bsg_history_step(&history, &end, true, 17, 8, 8 * GIB);
  end.allocated_peak_bytes = 4 * GIB;
  bsg_history_step(&history, &end, true, 17, 4, 8 * GIB); /* below that of the run, and known all the same */
  CHECK_INT(bsg_history_points(&history, 17, points, &framework), 3); /* from nothing: and what is held */
  CHECK(framework);
  CHECK(points[0].micro_batch == 0 && points[0].peak_bytes == 2 * GIB);
  CHECK(points[1].peak_bytes == 4 * GIB && points[2].peak_bytes == 8 * GIB);
  end.allocated_peak_bytes = 6 * GIB;
  bsg_history_step(&history, &end, true, 17, 4, 8 * GIB);
  CHECK_INT(bsg_history_points(&history, 17, points, &framework), 2); /* a line that begins above it */
}

/* ---- the culprit ---- */

static struct bsg_growth growth;
static struct bsg_fit fit;

/* A training step that died in its forward, 8 GiB of activations on 16 GiB. */
static struct bsg_culprit_input ordinary(void) {
  growth = (struct bsg_growth){.trend = BSG_TREND_FLAT};
  return (struct bsg_culprit_input){.driver_refused = true,
                                    .phase = BSG_PHASE_FORWARD,
                                    .micro_batch = 32,
                                    .request_bytes = 512 * MIB,
                                    .capacity_bytes = 16 * GIB,
                                    .free_bytes = 256 * MIB,
                                    .live_bytes = 15 * GIB,
                                    .allocated_bytes = 14 * GIB,
                                    .idle_bytes = GIB,
                                    .others_bytes = NOTHING,
                                    .elsewhere_bytes = 768 * MIB,
                                    .parameter_bytes = 2 * GIB,
                                    .gradient_bytes = 2 * GIB,
                                    .optimizer_bytes = 2 * GIB,
                                    .growth = &growth};
}

static enum bsg_cause cause_of(const struct bsg_culprit_input *input) {
  struct bsg_culprit out;
  bsg_culprit_find(input, &out);
  return out.cause;
}

TEST(the_right_culprit) {
  struct bsg_culprit_input input = ordinary();
  struct bsg_culprit out;

  bsg_culprit_find(&input, &out);
  CHECK_INT(out.cause, BSG_CAUSE_ACTIVATIONS);
  CHECK(out.bytes == 8 * GIB);

  input.others_bytes = 5 * GIB;
  CHECK_INT(cause_of(&input), BSG_CAUSE_OTHER_PROCESS);
  input.others_bytes = NOTHING; /* NVML does not say, and 768 MiB may be the driver's; 6 GiB are not */
  input.elsewhere_bytes = 6 * GIB;
  CHECK_INT(cause_of(&input), BSG_CAUSE_OTHER_PROCESS);
  input = ordinary();
  input.others_bytes = 100 * MIB; /* too small to be the reason, and less than what was missing */
  CHECK_INT(cause_of(&input), BSG_CAUSE_ACTIVATIONS);

  input = ordinary();
  growth = (struct bsg_growth){.trend = BSG_TREND_LEAK, .steps = 90, .first_bytes = 5 * GIB, .last_bytes = 9 * GIB};
  CHECK_INT(cause_of(&input), BSG_CAUSE_LEAK);
  input.kept_graphs = 90;
  CHECK_INT(cause_of(&input), BSG_CAUSE_LEAK);
  input.kept_graphs = 0, input.kept_data = 90;
  CHECK_INT(cause_of(&input), BSG_CAUSE_GROWING_CACHE);
  input.others_bytes = 2 * GIB; /* the larger one */
  CHECK_INT(cause_of(&input), BSG_CAUSE_GROWING_CACHE);
  input.others_bytes = 6 * GIB;
  CHECK_INT(cause_of(&input), BSG_CAUSE_OTHER_PROCESS);

  input = ordinary();
  input.idle_bytes = 5 * GIB;
  CHECK_INT(cause_of(&input), BSG_CAUSE_FRAGMENTATION);
  input = ordinary();
  input.free_bytes = GIB;
  CHECK_INT(cause_of(&input), BSG_CAUSE_FRAGMENTATION);

  input = ordinary();
  input.request_bytes = 9 * GIB;
  CHECK_INT(cause_of(&input), BSG_CAUSE_ONE_REQUEST);
  input.phase = BSG_PHASE_EVALUATION;
  CHECK_INT(cause_of(&input), BSG_CAUSE_EVALUATION);
  input.phase = BSG_PHASE_OPTIMIZER;
  CHECK_INT(cause_of(&input), BSG_CAUSE_OPTIMIZER_STATE);

  input = ordinary();
  input.phase = BSG_PHASE_OPTIMIZER;
  CHECK_INT(cause_of(&input), BSG_CAUSE_OPTIMIZER_STATE);
  input = ordinary();
  input.optimizer_bytes = 8 * GIB;
  bsg_culprit_find(&input, &out);
  CHECK_INT(out.cause, BSG_CAUSE_OPTIMIZER_STATE);
  CHECK(out.bytes == 8 * GIB);

  input = ordinary();
  input.phase = BSG_PHASE_EVALUATION;
  CHECK_INT(cause_of(&input), BSG_CAUSE_EVALUATION);

  input = ordinary();
  input.parameter_bytes = 7 * GIB, input.gradient_bytes = 5 * GIB, input.optimizer_bytes = NOTHING;
  CHECK_INT(cause_of(&input), BSG_CAUSE_FIXED_PART);
  input = ordinary();
  input.at_the_floor = true;
  fit = (struct bsg_fit){.fixed_bytes = 13 * GIB, .per_sample_bytes = GIB};
  input.fit = &fit;
  CHECK_INT(cause_of(&input), BSG_CAUSE_FIXED_PART);

  input = ordinary();
  input.driver_refused = false;
  CHECK_INT(cause_of(&input), BSG_CAUSE_FRAMEWORK_LIMIT);
  input = ordinary();
  input.phase = BSG_PHASE_DATA;
  CHECK_INT(cause_of(&input), BSG_CAUSE_UNKNOWN);
}

TEST(no_culprit_is_made_up) {
  struct bsg_culprit_input input = ordinary();

  input.capacity_bytes = NOTHING;
  CHECK_INT(cause_of(&input), BSG_CAUSE_UNKNOWN);
  input = ordinary();
  input.allocated_bytes = input.idle_bytes = input.parameter_bytes = input.gradient_bytes = input.optimizer_bytes =
      input.elsewhere_bytes = input.free_bytes = NOTHING;
  struct bsg_culprit out;
  bsg_culprit_find(&input, &out);
  CHECK_INT(out.cause, BSG_CAUSE_ACTIVATIONS);
  CHECK(out.bytes == NOTHING);
}
