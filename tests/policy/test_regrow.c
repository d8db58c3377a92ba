/*
 * test_regrow.c - the sizes that a job is run in, over thousands of steps of a simulated memory: how many OOMs until it
 * is settled, how far from an oracle that knows each step's best count, and that a spike is over when it is over.
 */
#include <math.h>

#include "check.h"
#include "policy/regrow.h"

#define MIB ((uint64_t)1 << 20)

/* ---- the simulated device ---- */

/* A step takes fixed + per_element x elements of its largest piece, but never less than floor (a loss, an optimizer).
 */
struct model {
  double capacity, fixed, per_element, floor;
  double noise; /* relative, above the line */
};

static uint64_t seed;

static double uniform(void) {
  seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
  return (double)(seed >> 11) / 9007199254740992.0;
}

static double normal(void) {
  double u = uniform(), v = uniform();
  return sqrt(-2 * log(u > 1e-300 ? u : 1e-300)) * cos(6.283185307179586 * v);
}

static double peak(const struct model *m, double samples, double elements) {
  double bytes = m->fixed + m->per_element * samples * elements;
  bytes = bytes > m->floor ? bytes : m->floor;
  return bytes * (1 + m->noise * uniform());
}

/* As bsg_policy_boundary(), _terminal() and _step() drive the rules: one step, rescued where it must be. */
struct job {
  struct bsg_sizing sizing;
  struct {
    int64_t elements, most;
    struct bsg_regrowth growth;
  } shapes[4096];
  int shape_count;
  bool met; /* an OOM */
  int64_t ooms;
};

static struct job job;

static struct bsg_split step(const struct model *m, int64_t batch, int64_t elements) {
  struct bsg_outlook o = {.sizing = &job.sizing, .elements = elements, .available = (uint64_t)m->capacity};
  int shape = 0;
  bool clean = true;
  double took;

  while (shape < job.shape_count && job.shapes[shape].elements != elements)
    shape++;
  if (shape == job.shape_count) {
    CHECK(job.shape_count < 4096);
    job.shapes[job.shape_count++].elements = elements;
    job.shapes[shape].most = 0;
    job.shapes[shape].growth = (struct bsg_regrowth){0};
  }
  struct bsg_regrowth *growth = &job.shapes[shape].growth;
  struct bsg_split now = bsg_split_under(batch, job.shapes[shape].most), next;
  if (job.met && job.shapes[shape].most == 0 && bsg_regrow_foreseen(&now, &o, &next)) {
    now = next;
    job.shapes[shape].most = now.micro_batch;
  }
  while ((took = peak(m, (double)now.micro_batch, (double)elements)) > m->capacity) {
    job.ooms++;
    job.met = true;
    clean = false;
    bsg_sizing_refused(&job.sizing, bsg_sizing_x(&job.sizing, now.micro_batch, elements), (uint64_t)m->capacity,
                       (uint64_t)(m->fixed * 0.6));
    CHECK_INT(bsg_regrow_shrink(growth, &now, true, &o, &next), BSG_SHRINK);
    CHECK(next.micro_batch < now.micro_batch);
    now = next;
    job.shapes[shape].most = now.micro_batch;
  }
  if (!clean)
    return now;
  bsg_sizing_measured(&job.sizing, bsg_sizing_x(&job.sizing, now.micro_batch, elements), (uint64_t)took);
  bsg_sizing_held(&job.sizing, (uint64_t)(m->fixed * 0.7)); /* gradients included */
  bsg_sizing_clean(&job.sizing);
  bsg_regrow_clean(growth);
  if (bsg_regrow_back(growth, &now, &o, &next)) {
    CHECK(next.micro_batch < now.micro_batch);
    job.shapes[shape].most = next.micro_batch;
  } else if (bsg_regrow_up(growth, &now, &o, &next)) {
    CHECK(next.micro_batch > now.micro_batch);
    job.shapes[shape].most = next.micro_batch;
  }
  return now;
}

/* The fewest chunks that fit. */
static int64_t best(const struct model *m, int64_t batch, int64_t elements) {
  for (int64_t k = 1; k <= batch; k++)
    if (peak(m, (double)bsg_split_of(batch, k).micro_batch, (double)elements) <= m->capacity)
      return k;
  return batch;
}

/* Time of a step in units of a sample's elements: recomputing costs 30 % where there are pieces, and each has a start.
 */
static double seconds(double samples, double elements, int64_t chunks) {
  return samples * elements * (chunks > 1 ? 1.3 : 1.0) + (double)chunks * elements * 0.5;
}

static void start(uint64_t with_seed) {
  memset(&job, 0, sizeof job);
  seed = with_seed;
}

/* ---- settled at once ---- */

TEST(two_ooms_at_most_until_settled_from_a_tenth_to_sixteen_times_too_large) {
  static const int64_t batches[] = {32, 64, 100, 256, 1000};
  int worst = 0;

  for (size_t b = 0; b < 5; b++)
    for (int large = 11; large <= 160; large += 3)
      for (int share = 0; share <= 50; share += 10)
        for (int floor = 0; floor <= 60; floor += 30) {
          /* `large` tenths times the capacity is the peak of the whole batch, `share` % of the capacity stays. */
          struct model m = {.capacity = 1e10, .fixed = 1e8 * share, .floor = 1e8 * floor, .noise = 0.002};
          int64_t batch = batches[b], k = 0;
          m.per_element = (1e9 * large - m.fixed) / (double)(batch * 1000);
          if (m.fixed + m.per_element * 1000 * 2.1 > m.capacity)
            continue; /* two samples do not fit: nothing but one at a time is left */
          start((uint64_t)large * 1000 + (uint64_t)share);
          for (int i = 0; i < 300; i++)
            k = step(&m, batch, 1000).accumulation_steps;
          if (job.ooms > worst)
            worst = (int)job.ooms;
          if (job.ooms > 2)
            fprintf(stderr, "batch %lld, %d tenths, %d %% fixed, %d %% floor: %lld OOMs, k %lld\n", (long long)batch,
                    large, share, floor, (long long)job.ooms, (long long)k);
          CHECK(job.ooms <= 2);
          /* And not settled too low: within the reserve of what is best. */
          double ratio = seconds((double)batch, 1000, best(&m, batch, 1000)) / seconds((double)batch, 1000, k);
          if (ratio < 0.8)
            fprintf(stderr, "batch %lld, %d tenths, %d %% fixed, %d %% floor: k %lld, best %lld\n", (long long)batch,
                    large, share, floor, (long long)k, (long long)best(&m, batch, 1000));
          CHECK(ratio >= 0.8);
        }
  CHECK_INT(worst, 2);
}

TEST(with_a_fit_at_hand_the_first_split_fits_and_three_is_allowed) {
  struct model m = {.capacity = 1e10, .fixed = 1e9};
  m.per_element = 1e9 * 24 / (32 * 100.0); /* 32 samples take 25 GB: three pieces of 11 fit, 9.25 GB... */
  m.capacity = 1.05e10;
  start(1);
  step(&m, 4, 100);
  step(&m, 8, 100);
  CHECK_INT(job.ooms, 0);
  struct bsg_split split = step(&m, 32, 100);
  CHECK_INT(job.ooms, 1);
  CHECK_INT(split.accumulation_steps, 3);
}

TEST(lognormal_lengths_with_rare_spikes_come_near_an_oracle) {
  for (uint64_t s = 1; s <= 8; s++) {
    struct model m = {.capacity = 1e10, .fixed = 2e9, .noise = 0.002};
    double mine = 0, oracle = 0;
    int64_t needless = 0, steps = 6000;
    m.per_element = 8e9 / (32 * 400.0); /* lengths of 400 fit whole */
    start(s);
    for (int64_t i = 0; i < steps; i++) {
      int64_t length = (int64_t)(120 * exp(0.5 * normal()));
      if (uniform() < 0.002)
        length *= 8;
      length = length < 8 ? 8 : length > 4000 ? 4000 : length;
      int64_t before = job.ooms;
      struct bsg_split split = step(&m, 32, length);
      int64_t k = best(&m, 32, length);
      mine += seconds(32, (double)length, split.accumulation_steps);
      mine += (double)(job.ooms - before) * seconds(32, (double)length, 1); /* the attempt that failed */
      oracle += seconds(32, (double)length, k);
      /* With less than the reserve to spare nothing is split for fear. */
      if (k == 1 && split.accumulation_steps > 1 && peak(&m, 32, (double)length) < 0.88 * m.capacity)
        needless++;
    }
    fprintf(stderr, "seed %d: %.3f of the oracle, %lld OOMs, %lld needlessly split\n", (int)s, oracle / mine,
            (long long)job.ooms, (long long)needless);
    CHECK(oracle / mine >= 0.9);
    CHECK(job.ooms <= 8);
    CHECK(needless <= steps / 500);
  }
}

/* ---- spikes ---- */

TEST(a_neighbours_spike_is_over_when_it_is_over) {
  struct model m = {.capacity = 1e10, .fixed = 1e9};
  struct bsg_split split;
  m.per_element = 7e9 / (32 * 100.0); /* 8 GB whole */
  start(3);
  for (int i = 0; i < 20; i++)
    split = step(&m, 32, 100);
  CHECK_INT(job.ooms, 0);
  m.capacity = 5e9;
  for (int i = 0; i < 50; i++)
    split = step(&m, 32, 100);
  CHECK(split.accumulation_steps > 1);
  CHECK(job.ooms >= 1 && job.ooms <= 2);
  int64_t met = job.ooms;
  m.capacity = 1e10;
  for (int i = 0; i < 20; i++)
    split = step(&m, 32, 100);
  CHECK_INT(split.accumulation_steps, 1);
  CHECK_INT(job.ooms, met);
}

/* Whatever the rhythm in which a neighbour takes half of the device and gives it back: the sizes do not follow it for
 * ever, since each try that failed makes the next one wait twice as long; nor do they stay small where it stays away
 * for long. */
TEST(a_neighbours_rhythm_makes_no_storm_of_decisions) {
  enum { STEPS = 6000 };
  static const int halves[] = {1, 2, 3, 5, 8, 13, 40, 100, 400, 0}; /* steps with, and as many without; 0: by chance */

  for (size_t h = 0; h < sizeof halves / sizeof *halves; h++) {
    struct model m = {.fixed = 1e9, .per_element = 7e9 / (32 * 100.0), .noise = 0.002}; /* 8 GB whole, of 10 or 5 */
    int64_t changes = 0, before = 0, whole = 0, room = 0, came = 0;
    bool there = false;

    start(h + 1);
    for (int i = 0; i < STEPS; i++) {
      bool was = there;
      there = halves[h] ? i / halves[h] % 2 == 0 : uniform() < 0.1 ? !there : there;
      came += there && !was;
      m.capacity = there ? 5e9 : 1e10;
      struct bsg_split now = step(&m, 32, 100);
      changes += before && now.micro_batch != before;
      before = now.micro_batch;
      whole += !there && now.accumulation_steps == 1;
      room += !there;
    }
    if (job.ooms > came + 2 || changes > 2 * job.ooms || (halves[h] < 40 && changes > STEPS / 100))
      fprintf(stderr, "%d steps with and without: %lld changes, %lld OOMs, it came %lld times\n", halves[h],
              (long long)changes, (long long)job.ooms, (long long)came);
    CHECK(job.ooms <= came + 2 && changes <= 2 * job.ooms);
    if (halves[h] < 40)
      CHECK(changes <= STEPS / 100);
    else
      CHECK(whole >= room * 9 / 10);
  }
}

TEST(a_spike_of_ones_own_is_over_when_it_is_over) {
  struct model m = {.capacity = 1e10, .fixed = 1e9};
  struct bsg_split split;
  int64_t met;
  m.per_element = 7e9 / (32 * 100.0);                /* 8 GB whole */
  for (int before = 0; before <= 20; before += 20) { /* known whole before, or not */
    start(4);
    for (int i = 0; i < before; i++)
      step(&m, 32, 100);
    m.fixed = 6e9; /* the job holds something large for a while */
    for (int i = 0; i < 50; i++)
      split = step(&m, 32, 100);
    CHECK(split.accumulation_steps > 1);
    CHECK(job.ooms >= 1 && job.ooms <= 2);
    met = job.ooms;
    m.fixed = 1e9;
    for (int i = 0; i < 25; i++)
      split = step(&m, 32, 100);
    CHECK_INT(split.accumulation_steps, 1);
    CHECK_INT(job.ooms, met);
  }
}

TEST(a_refusal_stands_against_less_once_less_is_held) {
  struct bsg_sizing sizing = {0};
  bsg_sizing_refused(&sizing, 100, 1000, 600);
  CHECK_INT(bsg_sizing_peak(&sizing, 100), 1000);
  CHECK_INT(bsg_sizing_peak(&sizing, 200), 1400);
  bsg_sizing_held(&sizing, 700); /* more than the base: says nothing */
  bsg_sizing_held(&sizing, 0);   /* not known */
  CHECK_INT(bsg_sizing_peak(&sizing, 100), 1000);
  bsg_sizing_held(&sizing, 100);
  CHECK_INT(bsg_sizing_peak(&sizing, 100), 500);
  CHECK_INT(bsg_sizing_peak(&sizing, 200), 900);
  bsg_sizing_refused(&sizing, 100, 800, 0); /* a base that nobody knows */
  bsg_sizing_held(&sizing, 100);
  CHECK_INT(bsg_sizing_peak(&sizing, 100), 800);
}

TEST(a_try_that_fails_waits_twice_as_long) {
  /* The measures say that it fits, and it does not: fragmentation, a neighbour that comes and goes. */
  struct bsg_regrowth growth = {0};
  struct bsg_sizing sizing = {0};
  struct bsg_outlook o = {.sizing = &sizing, .elements = 16, .available = 10000 * MIB};
  struct bsg_split now = bsg_split_of(32, 2), next;
  int64_t waited[6];

  for (int i = 0; i < 6; i++) {
    int64_t clean = 0;
    do {
      sizing.refused_x = 0;
      bsg_sizing_measured(&sizing, bsg_sizing_x(&sizing, 16, 16), 2000 * MIB);
      bsg_regrow_clean(&growth);
      clean++;
      CHECK(clean < 10000);
    } while (!bsg_regrow_up(&growth, &now, &o, &next));
    waited[i] = clean;
    CHECK_INT(next.accumulation_steps, 1);
    bsg_sizing_refused(&sizing, bsg_sizing_x(&sizing, 32, 16), 10000 * MIB, MIB);
    struct bsg_split whole = next;
    CHECK_INT(bsg_regrow_shrink(&growth, &whole, true, &o, &now), BSG_SHRINK);
    CHECK_INT(now.micro_batch, 16); /* what ran clean */
  }
  CHECK_INT(waited[0], 1);
  for (int i = 2; i < 6; i++)
    CHECK(waited[i] == 2 * waited[i - 1]);
}

TEST(one_refusal_for_no_reason_is_forgotten) {
  struct model m = {.capacity = 1e10, .fixed = 1e9, .per_element = 2e9 / (32 * 100.0)};
  struct bsg_split split;
  start(5);
  step(&m, 32, 100);
  m.capacity = 1e9 * 1.2; /* for the length of one call */
  step(&m, 32, 100);
  m.capacity = 1e10;
  for (int i = 0; i < 200; i++)
    split = step(&m, 32, 100);
  CHECK_INT(split.accumulation_steps, 1);
}

TEST(a_try_that_leaves_no_reserve_is_taken_back_before_it_fails) {
  struct bsg_regrowth growth = {0};
  struct bsg_sizing sizing = {0};
  struct bsg_outlook o = {.sizing = &sizing, .elements = 16, .available = 1000 * MIB};
  struct bsg_split now = bsg_split_of(32, 4), up, back;

  for (int took = 850; took <= 950; took += 100) {
    growth = (struct bsg_regrowth){0};
    sizing = (struct bsg_sizing){.base_bytes = 100 * MIB};
    bsg_sizing_measured(&sizing, bsg_sizing_x(&sizing, 8, 16), 400 * MIB);
    bsg_regrow_clean(&growth);
    CHECK(!bsg_regrow_back(&growth, &now, &o, &back)); /* there was no try */
    CHECK(bsg_regrow_up(&growth, &now, &o, &up));
    CHECK_INT(up.micro_batch, 16);
    bsg_sizing_measured(&sizing, bsg_sizing_x(&sizing, 16, 16), (uint64_t)took * MIB);
    bsg_regrow_clean(&growth);
    CHECK_INT(bsg_regrow_back(&growth, &up, &o, &back), took > 900);
    CHECK_INT(back.micro_batch, took > 900 ? 11 : 16);
  }
  for (int i = 0; i < 100; i++) { /* and not tried again, as long as it is known what it takes */
    bsg_regrow_clean(&growth);
    CHECK(!bsg_regrow_up(&growth, &back, &o, &up));
  }
}

TEST(an_operators_size_is_not_grown_past) {
  struct bsg_regrowth growth = {.fixed = true};
  struct bsg_sizing sizing = {0};
  struct bsg_outlook o = {.sizing = &sizing, .elements = 16, .available = 10000 * MIB};
  struct bsg_split now = bsg_split_of(32, 4), next;

  bsg_sizing_measured(&sizing, bsg_sizing_x(&sizing, 8, 16), 10 * MIB);
  for (int i = 0; i < 100; i++) {
    bsg_regrow_clean(&growth);
    CHECK(!bsg_regrow_up(&growth, &now, &o, &next));
  }
}

/* ---- arithmetic ---- */

TEST(elements_of_signatures) {
  CHECK_INT(bsg_sizing_elements("float32[3,224,224]"), 3 * 224 * 224);
  CHECK_INT(bsg_sizing_elements("float32[3,8];int64[]"), 25);
  CHECK_INT(bsg_sizing_elements("int64[17];bool[=8,=8];None"), 17);
  CHECK_INT(bsg_sizing_elements(""), 1);
  CHECK_INT(bsg_sizing_elements(NULL), 1);
  CHECK_INT(bsg_sizing_elements("float32[99999999999999999999,99999999999999999999]") > 0, 1);
  CHECK_INT(bsg_sizing_elements("float32[3,2"), 6);
}

TEST(nothing_known_means_twice_as_many) {
  struct bsg_regrowth growth = {0};
  struct bsg_outlook o = {0};
  struct bsg_split now = bsg_split_of(32, 1), next;

  CHECK_INT(bsg_regrow_shrink(&growth, &now, true, &o, &next), BSG_SHRINK);
  CHECK_INT(next.accumulation_steps, 2);
  now = next;
  CHECK_INT(bsg_regrow_shrink(&growth, &now, true, &o, &next), BSG_SHRINK);
  CHECK_INT(next.micro_batch, 2); /* the second in a row: far down */
  now = next;
  CHECK_INT(bsg_regrow_shrink(&growth, &now, true, &o, &next), BSG_SHRINK);
  CHECK_INT(next.micro_batch, 1);
  now = next;
  CHECK_INT(bsg_regrow_shrink(&growth, &now, true, &o, &next), BSG_FLOOR);
}

TEST(after_a_whole_forward_twice_as_many_twice) {
  struct bsg_regrowth growth = {0};
  struct bsg_outlook o = {.after_forward = true};
  struct bsg_split now = bsg_split_of(1024, 1), next;
  static const int64_t then[] = {512, 256, 16};

  for (int i = 0; i < 3; i++) {
    CHECK_INT(bsg_regrow_shrink(&growth, &now, true, &o, &next), BSG_SHRINK);
    CHECK_INT(next.micro_batch, then[i]);
    now = next;
  }
}

TEST(no_piece_is_smaller_than_was_proven) {
  for (int64_t batch = 2; batch <= 70; batch++)
    for (int64_t smallest = 1; smallest <= 4; smallest++) {
      struct bsg_regrowth growth = {0};
      struct bsg_outlook o = {.smallest = smallest};
      struct bsg_split now = bsg_split_of(batch, 1), next;
      while (bsg_regrow_shrink(&growth, &now, true, &o, &next) == BSG_SHRINK) {
        CHECK(next.micro_batch >= smallest && next.micro_batch < now.micro_batch);
        now = next;
      }
    }
}
