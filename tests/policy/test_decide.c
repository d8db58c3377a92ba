/* test_decide.c - the arithmetic of splits and the decisions, exhaustively for small batches. */
#include <limits.h>

#include "check.h"
#include "policy/decide.h"

#define MIB ((uint64_t)1 << 20)

static int64_t up(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

TEST(fragmentation_is_told_in_the_units_of_the_driver) {
  CHECK(bsg_decide_fragmented(1, 2 * MIB));
  CHECK(!bsg_decide_fragmented(1, 2 * MIB - 1)); /* less than one unit cannot be handed out */
  CHECK(bsg_decide_fragmented(3 * MIB, 4 * MIB));
  CHECK(!bsg_decide_fragmented(5 * MIB, 5 * MIB));
  CHECK(!bsg_decide_fragmented(0, 1024 * MIB));
  CHECK(!bsg_decide_fragmented(MIB, UINT64_MAX)); /* not known */
  CHECK(!bsg_decide_fragmented(UINT64_MAX, 1024 * MIB));
}

TEST(table_of_splits) {
  static const struct {
    int64_t batch, chunks, micro_batch, steps;
  } rows[] = {{32, 1, 32, 1}, {32, 2, 16, 2}, {32, 4, 8, 4}, {32, 3, 11, 3}, {10, 4, 3, 4},
              {5, 4, 2, 3},   {7, 4, 2, 4},   {9, 8, 2, 5},  {1, 1, 1, 1},   {1, 8, 1, 1}};

  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    struct bsg_split split = bsg_split_of(rows[i].batch, rows[i].chunks);
    CHECK_INT(split.batch, rows[i].batch);
    CHECK_INT(split.micro_batch, rows[i].micro_batch);
    CHECK_INT(split.accumulation_steps, rows[i].steps);
  }
}

TEST(every_split_of_every_small_batch) {
  for (int64_t batch = 1; batch <= 64; batch++)
    for (int64_t k = 1; k <= 2 * batch; k++) {
      struct bsg_split split = bsg_split_of(batch, k);
      CHECK_INT(split.micro_batch, up(batch, k));
      CHECK_INT(split.accumulation_steps, up(batch, split.micro_batch));
      CHECK(split.accumulation_steps <= split.chunks);
      CHECK(split.accumulation_steps * split.micro_batch >= batch);
      CHECK((split.accumulation_steps - 1) * split.micro_batch < batch);
      /* Chunks that differ by one sample at most never pass the micro-batch. */
      CHECK(up(batch, split.accumulation_steps) <= split.micro_batch);
    }
}

TEST(every_limit_of_every_small_batch) {
  for (int64_t batch = 1; batch <= 64; batch++)
    for (int64_t most = 1; most <= 80; most++) {
      struct bsg_split split = bsg_split_under(batch, most);
      CHECK(split.micro_batch <= most);
      CHECK_INT(split.chunks, up(batch, most));
      /* Not split needlessly: with one chunk fewer it would not fit. */
      if (split.chunks > 1)
        CHECK(up(batch, split.chunks - 1) > most);
    }
  CHECK_INT(bsg_split_under(32, 0).chunks, 1);
}

TEST(an_oom_doubles_until_the_floor) {
  for (int64_t batch = 1; batch <= 64; batch++)
    for (int64_t k = 1; k <= batch; k++) {
      struct bsg_split now = bsg_split_of(batch, k), next;
      int halvings = 0;
      while (bsg_decide_oom(&now, true, &next) == BSG_SHRINK) {
        CHECK(next.chunks == 2 * now.chunks || next.chunks == batch);
        CHECK_INT(next.micro_batch, up(now.micro_batch, 2));
        CHECK(next.micro_batch < now.micro_batch);
        now = next;
        CHECK(++halvings <= 7);
      }
      CHECK_INT(now.micro_batch, 1);
      CHECK_INT(now.accumulation_steps, batch);
      CHECK_INT(bsg_decide_oom(&now, true, &next), BSG_FLOOR);
      CHECK_INT(next.chunks, now.chunks);
    }
}

TEST(what_cannot_be_split_is_left) {
  struct bsg_split now = bsg_split_of(32, 2), next;

  CHECK_INT(bsg_decide_oom(&now, false, &next), BSG_CANNOT);
  CHECK_INT(next.chunks, 2);
  now = bsg_split_of(0, 1);
  CHECK_INT(bsg_decide_oom(&now, true, &next), BSG_CANNOT);
  CHECK(!bsg_phase_can_split(BSG_PHASE_OPTIMIZER));
  CHECK(!bsg_phase_can_split(BSG_PHASE_DATA));
  CHECK(!bsg_phase_can_split(BSG_PHASE_SAVE));
  CHECK(bsg_phase_can_split(BSG_PHASE_FORWARD));
  CHECK(bsg_phase_can_split(BSG_PHASE_LOSS));
  CHECK(bsg_phase_can_split(BSG_PHASE_BACKWARD));
  CHECK(bsg_phase_can_split(BSG_PHASE_EVALUATION));
}

TEST(large_batches_do_not_overflow) {
  struct bsg_split now = bsg_split_of(INT64_MAX, 1), next;
  int halvings = 0;

  while (bsg_decide_oom(&now, true, &next) == BSG_SHRINK) {
    CHECK(next.chunks > now.chunks);
    CHECK(next.micro_batch < now.micro_batch && next.micro_batch >= 1);
    now = next;
    halvings++;
  }
  CHECK_INT(halvings, 63);
  CHECK_INT(now.micro_batch, 1);
  CHECK_INT(bsg_split_of(-5, -5).chunks, 1);
  CHECK_INT(bsg_split_under(INT64_MAX, INT64_MAX).chunks, 1);
}

TEST(without_a_batch_the_chunks_double_up_to_a_bound) {
  struct bsg_split now = bsg_split_of(0, 1), next;

  CHECK_INT(now.micro_batch, 0);
  for (int i = 1; i <= 20; i++) {
    CHECK_INT(bsg_decide_inferred(&now, &next), BSG_SHRINK);
    CHECK_INT(next.accumulation_steps, (int64_t)1 << i);
    CHECK_INT(next.micro_batch, 0);
    now = next;
  }
  CHECK_INT(bsg_decide_inferred(&now, &next), BSG_FLOOR);
  CHECK_INT(next.chunks, BSG_MOST_CHUNKS);
}

TEST(inference_needs_all_its_conditions) {
  for (int bits = 0; bits < 8; bits++) {
    bool freed = bits & 1, granted = bits & 2, concluded = bits & 4;
    struct bsg_repeated repeated = {
        .freed_before = 100, .freed_now = freed ? 101 : 100, .granted_between = granted, .concluded = concluded};
    CHECK_INT(bsg_decide_terminal(&repeated), freed && !granted && !concluded);
  }
}
