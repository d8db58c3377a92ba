/* test_second_run.c - what a run takes up of an earlier one of the same job: its size, or less where there is less
 * memory. */
#include "check.h"
#include "fixture.h"

/* A run that has settled at 8 of 32 samples, with a peak of 16 GiB above 4 that are held. */
static void settle_in_a_first_run(void) {
  static char store[320];

  fixture_open(BSG_MODE_GUARD);
  snprintf(store, sizeof(store), "%s/store", fixture.root);
  fixture.config.store = store;
  fixture_reopen();
  bsg_policy_attach(fixture.policy, now(), "paddle 3.3.1", NULL);
  use_device(0);
  boundary(0, "Net", "float32[8]", 32, BSG_PHASE_FORWARD);
  for (int i = 0; i < 2; i++) {
    struct bsg_oom oom = {.size = sizeof(oom),
                          .boundary = "Net",
                          .signature = "float32[8]",
                          .batch = 32,
                          .phase = BSG_PHASE_FORWARD,
                          .exactness = BSG_EXACT,
                          .request_bytes = 64 * MIB,
                          .held_bytes = 4 * GIB};
    struct bsg_decision decision = {0}; /* as of an adapter that cannot try the same once more */
    struct bsg_memory_fact before = fixture.memory;
    refuse(64 * MIB, 1);
    fixture.memory.live_bytes = 5 * GIB; /* its caches are empty now */
    fixture.memory.free_bytes = 17 * GIB;
    bsg_policy_terminal(fixture.policy, now(), &oom, (struct bsg_where){fixture.step, BSG_PHASE_FORWARD}, &decision);
    fixture.memory = before;
  }
  for (int i = 0; i < 6; i++) {
    struct bsg_memory_fact memory = fixture.memory;
    struct bsg_decision as = boundary(0, "Net", "float32[8]", 32, BSG_PHASE_FORWARD);
    CHECK(as.accumulation_steps > 1);
    bsg_policy_step(fixture.policy, now(), &memory, (4 + 12 * (uint64_t)as.micro_batch / 8) * GIB,
                    (struct bsg_where){fixture.step++, BSG_PHASE_OPTIMIZER});
  }
  stop();
  snprintf(fixture.parent, sizeof(fixture.parent), "%s/second", fixture.root);
  fixture_reopen();
  bsg_policy_attach(fixture.policy, now(), "paddle 3.3.1", NULL);
  use_device(0);
}

TEST(a_second_run_starts_as_the_first_settled) {
  settle_in_a_first_run();
  struct bsg_decision known = boundary(0, "Net", "float32[8]", 32, BSG_PHASE_FORWARD);
  CHECK(known.accumulation_steps > 1);
  CHECK_HAS(event_of("decision", -1), "\"restored\"");
  CHECK_HAS(event_of("decision", -1), "an earlier run of this job fitted in it");
}

TEST(a_second_run_with_less_memory_starts_smaller) {
  settle_in_a_first_run();
  struct bsg_decision known = boundary(0, "Net", "float32[8]", 32, BSG_PHASE_FORWARD);
  settle_in_a_first_run();
  fixture.memory.live_bytes = GIB; /* another process has the rest */
  fixture.memory.free_bytes = 8 * GIB;
  struct bsg_decision less = boundary(0, "Net", "float32[8]", 32, BSG_PHASE_FORWARD);
  CHECK(less.micro_batch < known.micro_batch);
  CHECK_HAS(event_of("decision", -1), "and there are 9.0 GiB");
}

TEST(a_second_run_does_not_try_what_the_first_ran_out_with) {
  int64_t largest = 0;

  settle_in_a_first_run();
  for (int i = 0; i < 100; i++) { /* longer than a refusal of this run's own is believed */
    struct bsg_memory_fact memory = fixture.memory;
    struct bsg_decision as = boundary(0, "Net", "float32[8]", 32, BSG_PHASE_FORWARD);
    largest = as.micro_batch > largest ? as.micro_batch : largest;
    bsg_policy_step(fixture.policy, now(), &memory, (4 + (uint64_t)as.micro_batch / 8) * GIB, /* as if all would fit */
                    (struct bsg_where){fixture.step++, BSG_PHASE_OPTIMIZER});
  }
  CHECK(largest >= 8 && largest < 16);
  fixture.memory.free_bytes = 60 * GIB; /* so much more that it says nothing against it */
  for (int i = 0; i < 20; i++) {
    struct bsg_memory_fact memory = fixture.memory;
    largest = boundary(0, "Net", "float32[8]", 32, BSG_PHASE_FORWARD).micro_batch;
    bsg_policy_step(fixture.policy, now(), &memory, (4 + (uint64_t)largest / 8) * GIB,
                    (struct bsg_where){fixture.step++, BSG_PHASE_OPTIMIZER});
  }
  CHECK_INT(largest, 32);
}
