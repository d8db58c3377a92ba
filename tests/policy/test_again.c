/* test_again.c - when a step is tried whole once more before it is split, and what is waited for before that. */
#include <errno.h>
#include <stddef.h>

#include "check.h"
#include "fixture.h"

/* A device of 100 MiB, of which `live` are ours and `free` are free; others hold the rest. */
static void memory_is(uint64_t live, uint64_t free_bytes) {
  fixture.memory.total_bytes = 100 * MIB;
  fixture.memory.live_bytes = live;
  fixture.memory.free_bytes = free_bytes;
  fixture.memory.before_bytes = 10 * MIB; /* the driver's own */
}

static void start(int64_t wait_ms) {
  fixture_open(BSG_MODE_GUARD);
  fixture.config.wait_ms = wait_ms;
  fixture.no_others = true;
  memory_is(20 * MIB, 70 * MIB);
  fixture_reopen();
  bsg_policy_attach(fixture.policy, now(), "paddle 3.3.1", NULL);
  use_device(0);
  boundary(0, "Net", "float32[8]", 32, BSG_PHASE_FORWARD);
}

TEST(pieces_are_put_together_first) {
  start(3000);
  refuse(8 * MIB, 7); /* of 70 MiB free */
  struct bsg_decision decision = terminal(32, BSG_PHASE_FORWARD, BSG_EXACT);
  CHECK_INT(decision.verdict, BSG_AGAIN);
  CHECK_INT(decision.chunks, 1);
  CHECK_INT(decision.wait_ms, 0);
  CHECK_INT(bsg_policy_waited(fixture.policy, now(), 0, 10), -ENOENT); /* for what? */
  CHECK_INT(bsg_policy_retried(fixture.policy, now(), 0, "the forward"), 0);
  CHECK_HAS(last_line(), "fragmented): caches given back, the forward went through");
  CHECK_INT(events_of("decision"), 1); /* the start */

  /* Not again so soon. */
  end_step();
  refuse(8 * MIB, 7);
  CHECK_INT(terminal(32, BSG_PHASE_FORWARD, BSG_EXACT).verdict, BSG_SHRINK);
  for (int i = 0; i < 10; i++)
    end_step();
  refuse(8 * MIB, 7);
  CHECK_INT(terminal(32, BSG_PHASE_BACKWARD, BSG_EXACT).verdict, BSG_AGAIN);
}

TEST(others_that_came_later_are_waited_for) {
  start(3000);
  memory_is(20 * MIB, 4 * MIB); /* 66 MiB went to somebody else */
  refuse(16 * MIB, 7);
  memory_is(5 * MIB, 19 * MIB); /* what the attempt held was given back */
  struct bsg_decision decision = terminal(32, BSG_PHASE_FORWARD, BSG_EXACT);
  CHECK_INT(decision.verdict, BSG_AGAIN);
  CHECK_INT(decision.wait_ms, 3000);
  CHECK_INT(decision.wait_free_bytes, 31 * MIB); /* as much as the attempt held, and the request */
  CHECK_HAS(last_line(), "other processes hold 66.0 MiB; waiting up to 3 s");
  memory_is(5 * MIB, 40 * MIB);
  CHECK_INT(bsg_policy_waited(fixture.policy, now(), 0, 1250), 0);
  CHECK_HAS(event_of("waited", 0),
            "\"others_bytes\":69206016,\"waited_ms\":1250,\"free_bytes\":41943040,\"met\":true}");
  CHECK_HAS(last_line(), "waited 1.2 s for other processes: 40.0 MiB free of the 31.0 MiB needed");
  CHECK_INT(bsg_policy_waited(fixture.policy, now(), 0, 1250), -ENOENT); /* once */
}

TEST(who_is_there_from_the_start_is_waited_for_where_nvml_names_them) {
  start(3000);
  memory_is(20 * MIB, 4 * MIB);
  fixture.memory.before_bytes = 76 * MIB;
  refuse(16 * MIB, 7);
  CHECK_INT(terminal(32, BSG_PHASE_FORWARD, BSG_EXACT).verdict, BSG_SHRINK); /* it may all be the driver's own */

  start(3000);
  memory_is(20 * MIB, 4 * MIB);
  fixture.memory.before_bytes = 76 * MIB;
  fixture.no_others = false;
  fixture.others =
      (struct bsg_others_fact){.own_seen = true, .count = 1, .listed = 1, .list = {{.pid = 9, .bytes = 30 * MIB}}};
  refuse(16 * MIB, 7);
  CHECK_INT(terminal(32, BSG_PHASE_FORWARD, BSG_EXACT).verdict, BSG_AGAIN);
  CHECK_HAS(last_line(), "other processes hold 30.0 MiB");

  start(3000);
  memory_is(20 * MIB, 4 * MIB);
  fixture.no_others = false;
  fixture.others.list[0].bytes = 11 * MIB; /* less than what was missing */
  refuse(16 * MIB, 7);
  CHECK_INT(terminal(32, BSG_PHASE_FORWARD, BSG_EXACT).verdict, BSG_SHRINK);
}

TEST(what_is_there_between_steps_is_nobody_who_came) {
  start(3000);
  memory_is(20 * MIB, 64 * MIB); /* 16 elsewhere: six more than before the first allocation, and ten are the least */
  end_step();
  memory_is(76 * MIB, 8 * MIB);
  refuse(16 * MIB, 7); /* eight are missing, six came */
  CHECK_INT(terminal(32, BSG_PHASE_FORWARD, BSG_EXACT).verdict, BSG_SHRINK);
}

TEST(nothing_is_tried_again_where_it_cannot_be_or_must_not_be) {
  start(0); /* BSGUARD_WAIT=0 */
  refuse(8 * MIB, 7);
  CHECK_INT(terminal(32, BSG_PHASE_FORWARD, BSG_EXACT).verdict, BSG_SHRINK);

  start(3000);
  refuse(8 * MIB, 7);
  CHECK_INT(terminal(32, BSG_PHASE_OPTIMIZER, BSG_EXACT).verdict, BSG_CANNOT);
  refuse(8 * MIB, 7);
  CHECK_INT(terminal_of(0, NULL, 0, BSG_PHASE_DATA, BSG_REFUSED, "x").verdict, BSG_CANNOT);
  refuse(8 * MIB, 7);
  CHECK_INT(terminal(32, BSG_PHASE_BACKWARD, BSG_REFUSED).verdict, BSG_CANNOT);
  refuse(8 * MIB, 7);
  CHECK_INT(terminal(32, BSG_PHASE_FORWARD, BSG_REFUSED).verdict, BSG_CANNOT); /* it may count its calls */

  refuse(8 * MIB, 7);
  CHECK_INT(terminal(32, BSG_PHASE_FORWARD, BSG_APPROXIMATE).verdict, BSG_SHRINK); /* statistics would count twice */

  /* A caller that was compiled before there was such an answer. */
  start(3000);
  refuse(8 * MIB, 7);
  struct bsg_decision old = {.size = offsetof(struct bsg_decision, wait_ms)};
  struct bsg_oom oom = {.size = sizeof(oom), .boundary = "Net", .signature = "float32[8]", .batch = 32};
  oom.phase = BSG_PHASE_FORWARD;
  bsg_policy_terminal(fixture.policy, now(), &oom, (struct bsg_where){1, BSG_PHASE_FORWARD}, &old);
  CHECK_INT(old.verdict, BSG_SHRINK);

  fixture_open(BSG_MODE_OBSERVE);
  fixture.config.wait_ms = 3000;
  fixture_reopen();
  use_device(0);
  refuse(8 * MIB, 7);
  CHECK_INT(terminal(32, BSG_PHASE_FORWARD, BSG_EXACT).verdict, BSG_KEEP);
}

/* What has nothing to split, and what is at its smallest. */
TEST(as_a_last_resort_others_are_waited_for_until_the_patience_is_spent) {
  start(3000);
  memory_is(20 * MIB, 4 * MIB);
  refuse(16 * MIB, 7);
  struct bsg_decision decision = terminal_of(0, NULL, 0, BSG_PHASE_OPTIMIZER, BSG_REFUSED, "x");
  CHECK_INT(decision.verdict, BSG_AGAIN);
  CHECK_INT(decision.wait_ms, 3000);
  CHECK_INT(decision.wait_free_bytes, 16 * MIB); /* the request alone */
  CHECK_HAS(last_line(), "other processes hold 66.0 MiB; waiting up to 3 s for them before it is given up");
  CHECK_INT(bsg_policy_waited(fixture.policy, now(), 0, 2000), 0);
  CHECK_HAS(last_line(), "waited 2.0 s for other processes in vain");
  int said = fixture.line_count;

  refuse(16 * MIB, 7);
  decision = terminal_of(0, NULL, 0, BSG_PHASE_OPTIMIZER, BSG_REFUSED, "x");
  CHECK_INT(decision.verdict, BSG_AGAIN);
  CHECK_INT(decision.wait_ms, 950); /* what is left; each try takes 50 at least */
  CHECK_INT(bsg_policy_waited(fixture.policy, now(), 0, 960), 0);
  CHECK_INT(events_of("waited"), 2);
  CHECK_INT(fixture.line_count, said); /* aloud once in ten steps */
  refuse(16 * MIB, 7);
  CHECK_INT(terminal_of(0, NULL, 0, BSG_PHASE_OPTIMIZER, BSG_REFUSED, "x").verdict, BSG_CANNOT);

  /* Something went through: patience is as it was. */
  refuse(16 * MIB, 7);
  CHECK_INT(bsg_policy_retried(fixture.policy, now(), 0, "the optimizer's step"), 0);
  refuse(16 * MIB, 7);
  CHECK_INT(terminal_of(0, NULL, 0, BSG_PHASE_LOSS, BSG_REFUSED, "x").wait_ms, 3000);
}

TEST(others_that_take_it_again_and_again_are_no_endless_loop) {
  int tries = 0;

  start(3000);
  memory_is(20 * MIB, 4 * MIB);
  for (;; tries++) {
    memory_is(20 * MIB, 4 * MIB);
    refuse(16 * MIB, 7);
    memory_is(20 * MIB, 30 * MIB); /* free whenever one looks */
    struct bsg_decision decision = terminal_of(0, NULL, 0, BSG_PHASE_DATA, BSG_REFUSED, "x");
    if (decision.verdict != BSG_AGAIN || tries == 1000)
      break;
    CHECK_INT(decision.wait_ms, 0);
  }
  CHECK_INT(tries, 60);
}

TEST(at_its_smallest_a_step_waits_and_one_that_must_not_be_cut_does_not) {
  start(3000);
  memory_is(20 * MIB, 4 * MIB);
  refuse(16 * MIB, 7);
  CHECK_INT(terminal(1, BSG_PHASE_BACKWARD, BSG_EXACT).verdict, BSG_AGAIN); /* before it is split */
  refuse(16 * MIB, 7);
  CHECK_INT(terminal(1, BSG_PHASE_BACKWARD, BSG_EXACT).verdict, BSG_AGAIN); /* there is nothing smaller */
  refuse(16 * MIB, 7);
  CHECK_INT(terminal(32, BSG_PHASE_FORWARD, BSG_REFUSED).verdict, BSG_CANNOT);

  memory_is(92 * MIB, 4 * MIB); /* four elsewhere: less than was missing */
  refuse(16 * MIB, 7);
  CHECK_INT(terminal_of(0, NULL, 0, BSG_PHASE_DATA, BSG_REFUSED, "x").verdict, BSG_CANNOT);
}
