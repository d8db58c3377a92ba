/* test_refusals.c - from refused driver calls to what they were: absorbed, terminal, or inferred without an adapter. */
#include "check.h"
#include "fixture.h"

/* As fixture_start(), without an adapter. */
static void start_alone(enum bsg_mode mode) {
  fixture_open(mode);
  fixture.freed_bytes = 7 * GIB; /* the job has been running for a while */
  use_device(0);
}

static void free_some(void) {
  fixture.freed_bytes += MIB;
}

TEST(a_request_that_succeeds_later_was_absorbed) {
  start_alone(BSG_MODE_GUARD);
  CHECK(!bsg_policy_waiting(fixture.policy));
  refuse(128 * MIB, 7);
  refuse(128 * MIB, 7);
  CHECK(bsg_policy_waiting(fixture.policy));
  grant(128 * MIB, 8);     /* another thread */
  grant(128 * MIB - 1, 7); /* a smaller one */
  CHECK_INT(events_of("absorbed"), 0);
  grant(128 * MIB, 7);
  CHECK(!bsg_policy_waiting(fixture.policy));
  CHECK_INT(events_of("absorbed"), 1);
  CHECK_HAS(event_of("absorbed", 0),
            "\"device\":0,\"api\":\"cuMemAlloc_v2\",\"request_bytes\":134217728,\"attempts\":2,"
            "\"step\":1,\"phase\":\"forward\"}");
  CHECK_INT(events_of("oom"), 0);
}

TEST(under_an_adapter_it_is_absorbed_once_no_report_can_follow) {
  fixture_start(BSG_MODE_GUARD);
  boundary(0, "Net", "float32[8]", 32, BSG_PHASE_FORWARD);
  refuse(2 * MIB, 7);
  grant(2 * MIB, 7);
  CHECK(!bsg_policy_waiting(fixture.policy)); /* nothing more is to be seen */
  boundary(0, "Net", "float32[8]", 32, BSG_PHASE_FORWARD);
  CHECK_INT(events_of("absorbed"), 1);
  CHECK_INT(boundary(0, "Net", "float32[8]", 32, BSG_PHASE_FORWARD).chunks, 1);
}

TEST(a_report_after_the_memory_was_freed_and_used_again) {
  fixture_start(BSG_MODE_GUARD);
  boundary(0, "Net", "float32[8]", 32, BSG_PHASE_FORWARD);
  fixture.holder_count = 1;
  fixture.holders[0] = (struct bsg_holder_fact){.api = "cuMemAlloc_v2", .bytes = 777 * MIB};
  refuse(2 * MIB, 7);
  refuse(2 * MIB, 7);
  /* The adapter has caught the exception, freed the graph and tried a few samples before it reports. */
  fixture.holder_count = 0;
  free_some();
  grant(2 * MIB, 7);
  grant(16 * MIB, 7);
  CHECK_INT(terminal(32, BSG_PHASE_BACKWARD, BSG_EXACT).verdict, BSG_SHRINK);
  CHECK_INT(events_of("absorbed"), 0);
  CHECK_HAS(event_of("oom", 0), "\"api\":\"cuMemAlloc_v2\",\"request_bytes\":2097152,\"attempts\":2,");
  CHECK_HAS(event_of("decision", 1), "\"reason\":\"fragmentation\""); /* 32 MiB were free */
  /* The report shows the memory as it was when it ran out. */
  bsg_policy_unrescued(fixture.policy, now(), 0, "x", (struct bsg_where){1, BSG_PHASE_BACKWARD});
  CHECK_HAS(read_file("report.json"), "\"bytes\": 814743552");
  end_step();
  CHECK_INT(events_of("absorbed"), 0);
}

TEST(a_smaller_refusal_that_was_met_is_not_blamed_for_a_larger_request) {
  fixture_start(BSG_MODE_GUARD);
  boundary(0, "Net", "float32[8]", 32, BSG_PHASE_FORWARD);
  refuse(2 * MIB, 7);
  grant(2 * MIB, 7);
  struct bsg_oom oom = {
      .size = sizeof(oom), .boundary = "Net", .signature = "float32[8]", .batch = 32, .request_bytes = 64 * MIB};
  bsg_policy_terminal(fixture.policy, now(), &oom, (struct bsg_where){1, BSG_PHASE_FORWARD}, NULL);
  CHECK_HAS(event_of("oom", 0), "\"api\":null,\"request_bytes\":67108864,\"attempts\":0");
  end_step();
  CHECK_INT(events_of("absorbed"), 1);
}

TEST(the_last_refusal_is_blamed) {
  fixture_start(BSG_MODE_GUARD);
  boundary(0, "Net", "float32[8]", 32, BSG_PHASE_FORWARD);
  refuse(64 * MIB, 7);
  refuse(8 * MIB, 7);
  refuse(8 * MIB, 7);
  terminal(32, BSG_PHASE_FORWARD, BSG_EXACT);
  CHECK_HAS(event_of("oom", 0), "\"request_bytes\":8388608,\"attempts\":2,");
  CHECK(!bsg_policy_waiting(fixture.policy)); /* the larger one was part of the same story */
  end_step();
  CHECK_INT(events_of("absorbed"), 0);
}

TEST(a_refusal_that_was_not_met_is_blamed_whatever_the_framework_says_of_sizes) {
  fixture_start(BSG_MODE_GUARD);
  boundary(0, "Net", "float32[8]", 32, BSG_PHASE_FORWARD);
  refuse(2 * MIB, 7);
  struct bsg_oom oom = {
      .size = sizeof(oom), .boundary = "Net", .signature = "float32[8]", .batch = 32, .request_bytes = 64 * MIB};
  bsg_policy_terminal(fixture.policy, now(), &oom, (struct bsg_where){1, BSG_PHASE_FORWARD}, NULL);
  CHECK_HAS(event_of("oom", 0), "\"api\":\"cuMemAlloc_v2\",\"request_bytes\":2097152,\"attempts\":1");
}

TEST(what_is_left_at_the_end_of_a_step_was_absorbed) {
  fixture_start(BSG_MODE_GUARD);
  refuse(8 * MIB, 7);
  refuse(8 * MIB, 7);
  refuse(8 * MIB, 7);
  refuse(4 * MIB, 9);
  end_step();
  CHECK_INT(events_of("absorbed"), 2);
  CHECK_INT(number_in(event_of("absorbed", 0), "attempts"), 3);
  CHECK_INT(number_in(event_of("absorbed", 1), "attempts"), 1);
  CHECK(!bsg_policy_waiting(fixture.policy));
  end_step();
  CHECK_INT(events_of("absorbed"), 2);
  CHECK_INT(events_of("oom"), 0);
}

TEST(more_refusals_than_there_is_room_for) {
  fixture_start(BSG_MODE_GUARD);
  for (uint64_t i = 0; i < 100; i++)
    refuse(MIB + i, i);
  end_step();
  CHECK_INT(events_of("absorbed"), 100);
  CHECK(!bsg_policy_waiting(fixture.policy));
}

TEST(inferred_when_refused_again_after_memory_was_freed) {
  start_alone(BSG_MODE_GUARD);
  refuse(64 * MIB, 7);
  refuse(64 * MIB, 7); /* nothing was freed in between */
  CHECK_INT(events_of("oom"), 0);
  free_some();
  refuse(64 * MIB, 7);
  CHECK_TEXT(order_of_events(), "start oom decision");
  CHECK_HAS(event_of("oom", 0), "\"attempts\":3,");
  CHECK_HAS(event_of("decision", 0), "\"sequence\":1,\"reason\":\"inferred\",\"batch\":null,\"micro_batch\":null,"
                                     "\"accumulation_steps\":2,");
  const char *control = read_file("control.json");
  CHECK_HAS(control, "\"inferred\": true,\n  \"batch\": null,\n  \"micro_batch\": null,\n  \"accumulation_steps\": 2,\n"
                     "  \"previous\": null,\n");
  CHECK_HAS(control, "{\"device\": 0, \"boundary\": null, \"signature\": null, \"batch\": null, \"micro_batch\": null, "
                     "\"accumulation_steps\": 2}");
  CHECK_INT(fixture.line_count, 1);
  CHECK_HAS(last_line(), "OOM inferred (gpu:0 refused 64.0 MiB");
  /* Not again for this request until something succeeded. */
  for (int i = 0; i < 5; i++) {
    free_some();
    refuse(64 * MIB, 7);
  }
  CHECK_INT(events_of("decision"), 1);
  grant(MIB, 3);
  refuse(64 * MIB, 7);
  CHECK_INT(events_of("decision"), 1);
  free_some();
  refuse(64 * MIB, 7);
  CHECK_INT(events_of("decision"), 2);
  CHECK_HAS(read_file("control.json"),
            "\"accumulation_steps\": 4,\n  \"previous\": {\"sequence\": 1, \"micro_batch\": null, "
            "\"accumulation_steps\": 2}");
}

TEST(not_inferred_after_something_succeeded) {
  start_alone(BSG_MODE_GUARD);
  for (int i = 0; i < 10; i++) {
    refuse(64 * MIB, 7);
    free_some();
    grant(MIB, 9);
  }
  CHECK_INT(events_of("oom"), 0);
  CHECK_INT(events_of("decision"), 0);
}

TEST(requests_are_told_apart_for_inference) {
  start_alone(BSG_MODE_GUARD);
  refuse(64 * MIB, 7);
  free_some();
  refuse(32 * MIB, 7); /* another size */
  free_some();
  refuse(64 * MIB, 8); /* another thread */
  CHECK_INT(events_of("oom"), 0);
}

TEST(inferred_with_a_loop_that_names_its_batch) {
  start_alone(BSG_MODE_GUARD);
  boundary(0, "loop", NULL, 48, BSG_PHASE_FORWARD);
  refuse(64 * MIB, 7);
  free_some();
  refuse(64 * MIB, 7);
  CHECK_HAS(event_of("decision", 1), "\"sequence\":2,\"reason\":\"inferred\",\"batch\":48,\"micro_batch\":24,"
                                     "\"accumulation_steps\":2,");
  CHECK_INT(boundary(0, "loop", NULL, 48, BSG_PHASE_FORWARD).chunks, 2);
}

TEST(nothing_is_inferred_under_an_adapter) {
  fixture_start(BSG_MODE_GUARD);
  for (int i = 0; i < 10; i++) {
    refuse(64 * MIB, 7);
    free_some();
  }
  CHECK_INT(events_of("oom"), 0);
  CHECK_INT(events_of("decision"), 0);
}

TEST(observing_infers_and_decides_nothing) {
  start_alone(BSG_MODE_OBSERVE);
  refuse(64 * MIB, 7);
  free_some();
  refuse(64 * MIB, 7);
  CHECK_TEXT(order_of_events(), "start oom");
  CHECK(!file_exists("control.json"));
}

TEST(pending_at_the_end_is_an_oom_without_an_adapter) {
  start_alone(BSG_MODE_GUARD);
  refuse(64 * MIB, 7);
  refuse(64 * MIB, 7);
  stop();
  CHECK_TEXT(order_of_events(), "start oom report stop");
  CHECK_HAS(read_file("report.txt"), "verdict=unrescued ");
  CHECK_HAS(last_line(), "1 OOM met, 0 steps rescued, 1 not saved; files in ");
}

TEST(pending_at_the_end_was_absorbed_if_the_thread_went_on) {
  start_alone(BSG_MODE_GUARD);
  refuse(64 * MIB, 7);
  grant(MIB, 7); /* made do with less */
  stop();
  CHECK_TEXT(order_of_events(), "start absorbed report stop");
  CHECK_INT(fixture.line_count, 0);
}

TEST(pending_at_the_end_was_absorbed_under_an_adapter) {
  fixture_start(BSG_MODE_GUARD);
  refuse(64 * MIB, 7);
  stop();
  CHECK_TEXT(order_of_events(), "start absorbed report stop");
}

TEST(inferred_and_last_is_one_oom_in_the_end) {
  start_alone(BSG_MODE_GUARD);
  refuse(64 * MIB, 7);
  free_some();
  refuse(64 * MIB, 7);
  stop();
  CHECK_TEXT(order_of_events(), "start oom decision report stop");
  CHECK_HAS(read_file("report.txt"), "verdict=unrescued ");
  CHECK_HAS(event_of("stop", 0), "\"ooms\":1,");
}
