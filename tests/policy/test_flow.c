/* test_flow.c - the life of a run: from the first device to the end, in training and in evaluation. */
#include <errno.h>
#include <unistd.h>

#include "check.h"
#include "fixture.h"

TEST(nothing_is_left_before_a_device_is_used) {
  fixture_open(BSG_MODE_GUARD);
  bsg_policy_attach(fixture.policy, now(), "paddle 3.3.1", "x.py");
  bsg_policy_unhooked(fixture.policy, now(), "cuMemCreate", 14000);
  struct bsg_decision decision = boundary(0, "Net", "s", 32, BSG_PHASE_FORWARD);
  CHECK_INT(decision.chunks, 1);
  end_step();
  stop();
  CHECK_INT(run_folders(), 0);
  CHECK_INT(access(fixture.parent, F_OK), -1);
  CHECK_INT(fixture.line_count, 0);
}

TEST(what_was_decided_before_a_device_was_used_is_in_control) {
  fixture_open(BSG_MODE_GUARD);
  terminal(32, BSG_PHASE_FORWARD, BSG_EXACT);
  CHECK_INT(run_folders(), 0);
  use_device(0);
  CHECK_HAS(read_file("control.json"), "\"sequence\": 1,");
  CHECK_HAS(read_file("control.json"), "\"micro_batch\": 16,");
  CHECK_INT(boundary(0, "Net", "float32[8]", 32, BSG_PHASE_FORWARD).sequence, 1);
}

TEST(the_first_device_makes_the_folder_and_the_start_event) {
  fixture_open(BSG_MODE_GUARD);
  bsg_policy_unhooked(fixture.policy, now(), "cuMemCreate", 14000);
  bsg_policy_attach(fixture.policy, now(), "paddle 3.3.1", NULL);
  use_device(0);
  use_device(1);
  CHECK_TEXT(order_of_events(), "start unhooked");
  const char *start = event_of("start", 0);
  CHECK_HAS(start, "{\"schema\":\"bsguard.event/1\",\"seq\":1,\"type\":\"start\",\"time\":\"2026-11-30T18:30:12.");
  CHECK_HAS(start,
            "\"pid\":4711,\"rank\":null,\"version\":\"" BSG_VERSION "\",\"command\":\"train.py\",\"driver\":13000,"
            "\"devices\":[{\"device\":0,\"name\":\"NVIDIA A10\",\"total_bytes\":24159191040}],"
            "\"framework\":\"paddle 3.3.1\",\"mode\":\"guard\"}");
  CHECK(!file_exists("control.json"));
  CHECK_HAS(read_file(".gitignore"), "*");
  CHECK_INT(fixture.line_count, 0);
}

TEST(the_first_boundary_writes_control) {
  fixture_start(BSG_MODE_GUARD);
  struct bsg_decision decision = boundary(0, "ResNet", "float32[3,224,224]", 32, BSG_PHASE_FORWARD);
  CHECK_INT(decision.verdict, BSG_KEEP);
  CHECK_INT(decision.sequence, 1);
  CHECK_INT(decision.chunks, 1);
  CHECK_INT(decision.micro_batch, 32);
  CHECK_TEXT(
      read_file("control.json"),
      "{\n  \"schema\": \"bsguard.control/1\",\n  \"sequence\": 1,\n  \"pid\": 4711,\n  \"rank\": null,\n"
      "  \"time\": \"2026-11-30T18:30:12.003Z\",\n  \"reason\": \"start\",\n  \"inferred\": false,\n  \"batch\": 32,\n"
      "  \"micro_batch\": 32,\n  \"accumulation_steps\": 1,\n  \"previous\": null,\n  \"trigger\": null,\n"
      "  \"exactness\": null,\n  \"entries\": [\n"
      "    {\"device\": 0, \"boundary\": \"ResNet\", \"signature\": \"float32[3,224,224]\", \"batch\": 32, "
      "\"micro_batch\": 32, \"accumulation_steps\": 1}\n  ]\n}\n");
  CHECK_TEXT(order_of_events(), "start decision");
  boundary(0, "ResNet", "float32[3,224,224]", 32, BSG_PHASE_FORWARD);
  boundary(0, "Head", "float32[8]", 32, BSG_PHASE_FORWARD);
  CHECK_INT(events_of("decision"), 1);
}

/* The example of the file format, word for word but for times. */
TEST(control_after_two_ooms_is_the_documented_one) {
  fixture_start(BSG_MODE_GUARD);
  boundary(0, "ResNet", "float32[3,224,224]", 32, BSG_PHASE_FORWARD);
  for (int i = 0; i < 2; i++) {
    fixture.step = 116 + i;
    for (int j = 0; j < 8; j++)
      refuse(64 * MIB, 7);
    struct bsg_decision decision = {.size = sizeof(decision)};
    struct bsg_oom oom = {.size = sizeof(oom),
                          .boundary = "ResNet",
                          .signature = "float32[3,224,224]",
                          .batch = 32,
                          .phase = BSG_PHASE_BACKWARD,
                          .exactness = BSG_EQUIVALENT,
                          .because = "dropout"};
    bsg_policy_terminal(fixture.policy, now(), &oom, (struct bsg_where){fixture.step, BSG_PHASE_BACKWARD}, &decision);
    CHECK_INT(decision.verdict, BSG_SHRINK);
  }
  const char *control = read_file("control.json");
  CHECK_HAS(control, "\"sequence\": 3,\n");
  CHECK_HAS(control,
            "  \"reason\": \"oom\",\n  \"inferred\": false,\n  \"batch\": 32,\n  \"micro_batch\": 8,\n  "
            "\"accumulation_steps\": 4,\n"
            "  \"previous\": {\"sequence\": 2, \"micro_batch\": 16, \"accumulation_steps\": 2},\n"
            "  \"trigger\": {\"api\": \"cuMemAlloc_v2\", \"bytes\": 67108864, \"device\": 0, \"phase\": \"backward\", "
            "\"step\": 117, \"site\": 42},\n  \"exactness\": \"equivalent\",\n  \"entries\": [\n"
            "    {\"device\": 0, \"boundary\": \"ResNet\", \"signature\": \"float32[3,224,224]\", \"batch\": 32, "
            "\"micro_batch\": 8, \"accumulation_steps\": 4}\n  ]\n}\n");
  CHECK_HAS(event_of("oom", 1),
            "\"device\":0,\"api\":\"cuMemAlloc_v2\",\"request_bytes\":67108864,\"attempts\":8,"
            "\"live_bytes\":23622320128,\"free_bytes\":33554432,\"step\":117,\"phase\":\"backward\","
            "\"boundary\":\"ResNet\",\"site\":42}");
}

TEST(a_later_step_says_how_exact_the_size_is) {
  fixture_start(BSG_MODE_GUARD);
  boundary(0, "Net", "float32[8]", 32, BSG_PHASE_FORWARD);
  refuse(64 * MIB, 7);
  struct bsg_decision decision = terminal(32, BSG_PHASE_BACKWARD, BSG_APPROXIMATE);
  CHECK_HAS(read_file("control.json"), "\"exactness\": \"approximate\"");
  bsg_policy_applied(fixture.policy, now(), decision.sequence, 0, "Net", 32, 16, BSG_APPROXIMATE, "masks",
                     (struct bsg_where){1, BSG_PHASE_BACKWARD});
  CHECK_HAS(read_file("control.json"), "\"exactness\": \"approximate\"");
  bsg_policy_applied(fixture.policy, now(), decision.sequence, 0, "Net", 32, 16, BSG_EXACT, NULL,
                     (struct bsg_where){2, BSG_PHASE_FORWARD});
  CHECK_HAS(read_file("control.json"), "\"exactness\": \"exact\"");
}

TEST(oom_decision_applied_step_in_this_order) {
  fixture_start(BSG_MODE_GUARD);
  boundary(0, "Net", "float32[8]", 32, BSG_PHASE_FORWARD);
  refuse(64 * MIB, 7);
  refuse(64 * MIB, 7);
  struct bsg_decision decision = terminal(32, BSG_PHASE_BACKWARD, BSG_EQUIVALENT);
  CHECK_INT(decision.sequence, 2);
  CHECK_INT(decision.chunks, 2);
  CHECK_INT(decision.micro_batch, 16);
  CHECK(!bsg_policy_waiting(fixture.policy));
  bsg_policy_applied(fixture.policy, now(), 2, 0, "Net", 32, 16, BSG_EQUIVALENT, "dropout",
                     (struct bsg_where){1, BSG_PHASE_BACKWARD});
  end_step();
  stop();
  CHECK_TEXT(order_of_events(), "start decision oom decision applied step report stop");
  for (int i = 0; i < events_of(NULL); i++)
    CHECK_INT(number_in(event_of(NULL, i), "seq"), i + 1);
  CHECK_HAS(event_of("decision", 1),
            "\"sequence\":2,\"reason\":\"oom\",\"batch\":32,\"micro_batch\":16,"
            "\"accumulation_steps\":2,\"why\":\"gpu:0 refused 64.0 MiB, 32.0 MiB free of 22.5 GiB; "
            "micro-batch was 32\"}");
  CHECK_HAS(event_of("applied", 0),
            "\"sequence\":2,\"step\":1,\"phase\":\"backward\",\"exactness\":\"equivalent\",\"because\":[\"dropout\"]}");
  CHECK_HAS(event_of("step", 0), "\"step\":1,\"phase\":\"optimizer\",\"device\":0,\"batch\":32,\"micro_batch\":16,"
                                 "\"accumulation_steps\":2,\"peak_bytes\":23622320128,\"allocated_peak_bytes\":null}");
  CHECK_HAS(event_of("stop", 0), "\"ooms\":1,\"absorbed\":0,\"rescued_steps\":1,\"peak_bytes\":23622320128}");
  CHECK_INT(fixture.line_count, 2);
  CHECK_TEXT(fixture.lines[0], "OOM in backward at step 1 (gpu:0 refused 64.0 MiB, 32.0 MiB free of 22.5 GiB): Net now "
                               "runs 32 as 2 x 16 [equivalent: dropout]");
  CHECK_HAS(last_line(), "1 OOM met, 1 step rescued, micro-batch 16 of 32 (accumulation 2); files in /");
}

TEST(a_step_is_rescued_once_and_only_if_it_ends) {
  fixture_start(BSG_MODE_GUARD);
  boundary(0, "Net", "float32[8]", 64, BSG_PHASE_FORWARD);
  terminal(64, BSG_PHASE_BACKWARD, BSG_EXACT);
  terminal(64, BSG_PHASE_BACKWARD, BSG_EXACT); /* two in one step */
  end_step();
  boundary(0, "Net", "float32[8]", 64, BSG_PHASE_FORWARD);
  end_step();
  terminal(64, BSG_PHASE_FORWARD, BSG_EXACT);
  bsg_policy_unrescued(fixture.policy, now(), 0, "x", (struct bsg_where){3, BSG_PHASE_FORWARD});
  end_step();
  stop();
  CHECK_HAS(event_of("stop", 0), "\"ooms\":3,\"absorbed\":0,\"rescued_steps\":1,");
  CHECK_HAS(last_line(), "3 OOMs met, 1 step rescued, 1 not saved, micro-batch ");
}

TEST(sequence_rises_by_one_down_to_the_floor) {
  fixture_start(BSG_MODE_GUARD);
  boundary(0, "Net", "float32[8]", 32, BSG_PHASE_FORWARD);
  /* Halved; the second without a clean step shows that halving is too slow; at last one by one. */
  static const int64_t micro_batches[] = {32, 16, 2, 1};
  for (int i = 1; i <= 3; i++) {
    struct bsg_decision decision = terminal(32, BSG_PHASE_FORWARD, BSG_EXACT);
    CHECK_INT(decision.verdict, BSG_SHRINK);
    CHECK_INT(decision.sequence, i + 1);
    CHECK_INT(decision.micro_batch, micro_batches[i]);
    CHECK_INT(decision.chunks, 32 / micro_batches[i]);
    CHECK_INT(number_in(event_of("decision", i), "sequence"), i + 1);
    CHECK_INT(boundary(0, "Net", "float32[8]", 32, BSG_PHASE_FORWARD).chunks, 32 / micro_batches[i]);
  }
  struct bsg_decision decision = terminal(32, BSG_PHASE_FORWARD, BSG_EXACT);
  CHECK_INT(decision.verdict, BSG_FLOOR);
  CHECK_INT(decision.sequence, 4);
  CHECK_INT(decision.chunks, 32);
  CHECK_INT(events_of("oom"), 4);
  CHECK_INT(events_of("decision"), 4);
}

TEST(a_framework_limit_has_no_driver_call) {
  fixture_start(BSG_MODE_GUARD);
  boundary(0, "Net", "float32[8]", 32, BSG_PHASE_FORWARD);
  struct bsg_oom oom = {.size = sizeof(oom),
                        .boundary = "Net",
                        .signature = "float32[8]",
                        .batch = 32,
                        .phase = BSG_PHASE_FORWARD,
                        .request_bytes = 5 * MIB};
  struct bsg_decision decision = {.size = sizeof(decision)};
  bsg_policy_terminal(fixture.policy, now(), &oom, (struct bsg_where){3, BSG_PHASE_FORWARD}, &decision);
  CHECK_INT(decision.verdict, BSG_SHRINK);
  CHECK_HAS(event_of("oom", 0), "\"api\":null,\"request_bytes\":5242880,\"attempts\":0,\"live_bytes\":23622320128,"
                                "\"free_bytes\":33554432,\"step\":3");
  CHECK_HAS(event_of("decision", 1), "\"reason\":\"framework-limit\"");
  CHECK_HAS(read_file("control.json"), "\"reason\": \"framework-limit\"");
  CHECK_HAS(read_file("control.json"), "\"trigger\": {\"api\": null, \"bytes\": 5242880, ");
}

TEST(enough_free_bytes_and_still_refused_is_fragmentation) {
  fixture_start(BSG_MODE_GUARD);
  boundary(0, "Net", "float32[8]", 32, BSG_PHASE_FORWARD);
  refuse(8 * MIB, 7); /* 32 MiB are free */
  struct bsg_decision decision = terminal(32, BSG_PHASE_FORWARD, BSG_EXACT);
  CHECK_INT(decision.verdict, BSG_SHRINK);
  applied(&decision);
  CHECK_HAS(event_of("decision", 1), "\"reason\":\"fragmentation\"");
  CHECK_HAS(event_of("decision", 1), "32.0 MiB free of 22.5 GiB, fragmented");
  CHECK_HAS(read_file("control.json"), "\"reason\": \"fragmentation\"");
  CHECK_HAS(last_line(), "fragmented)");

  refuse(64 * MIB, 7); /* more than is free */
  terminal(32, BSG_PHASE_FORWARD, BSG_EXACT);
  CHECK_HAS(event_of("decision", 2), "\"reason\":\"oom\"");
}

TEST(what_must_not_be_split_is_logged_and_left) {
  fixture_start(BSG_MODE_GUARD);
  boundary(0, "Net", "float32[8]", 32, BSG_PHASE_FORWARD);
  CHECK_INT(terminal(32, BSG_PHASE_FORWARD, BSG_REFUSED).verdict, BSG_CANNOT);
  CHECK_INT(terminal(0, BSG_PHASE_FORWARD, BSG_EXACT).verdict, BSG_CANNOT);
  CHECK_INT(terminal_of(0, NULL, 32, BSG_PHASE_FORWARD, BSG_EXACT, NULL).verdict, BSG_CANNOT);
  CHECK_INT(terminal(32, BSG_PHASE_OPTIMIZER, BSG_EXACT).verdict, BSG_CANNOT);
  CHECK_INT(terminal(1, BSG_PHASE_FORWARD, BSG_EXACT).verdict, BSG_FLOOR);
  CHECK_INT(events_of("oom"), 5);
  CHECK_INT(events_of("decision"), 1);
  CHECK_INT(number_in(read_file("events.jsonl"), "seq"), 1);
  CHECK_INT(boundary(0, "Net", "float32[8]", 32, BSG_PHASE_FORWARD).chunks, 1);
}

TEST(evaluation_has_sizes_of_its_own) {
  fixture_start(BSG_MODE_GUARD);
  CHECK_INT(boundary(0, "Net", "float32[8]", 64, BSG_PHASE_EVALUATION).sequence, 0);
  CHECK(!file_exists("control.json"));
  boundary(0, "Net", "float32[8]", 32, BSG_PHASE_FORWARD);
  terminal(32, BSG_PHASE_FORWARD, BSG_EXACT);
  const char *before = read_file("control.json");
  struct bsg_decision decision = terminal(64, BSG_PHASE_EVALUATION, BSG_EXACT);
  CHECK_INT(decision.verdict, BSG_SHRINK);
  CHECK_INT(decision.sequence, 2);
  CHECK_INT(decision.chunks, 2);
  CHECK_TEXT(read_file("control.json"), before);
  CHECK_INT(events_of("oom"), 2);
  CHECK_INT(events_of("decision"), 2);
  CHECK_INT(boundary(0, "Net", "float32[8]", 64, BSG_PHASE_EVALUATION).chunks, 2);
  CHECK_INT(boundary(0, "Net", "float32[8]", 64, BSG_PHASE_FORWARD).chunks, 4); /* 16 at most, in training */
  CHECK_INT(boundary(0, "Net", "float32[8]", 32, BSG_PHASE_EVALUATION).chunks, 1);
  /* Taken up under sequence 0: said each time, and no step is counted as rescued. */
  bsg_policy_applied(fixture.policy, now(), 0, 0, "Net", 64, 32, BSG_EXACT, NULL,
                     (struct bsg_where){1, BSG_PHASE_EVALUATION});
  CHECK_HAS(last_line(), "OOM in evaluation at step 1");
  CHECK_HAS(event_of("applied", 0), "\"sequence\":0,");
}

TEST(observing_changes_nothing) {
  fixture_start(BSG_MODE_OBSERVE);
  for (int i = 0; i < 3; i++) {
    struct bsg_decision decision = boundary(0, "Net", "float32[8]", 32, BSG_PHASE_FORWARD);
    CHECK_INT(decision.verdict, BSG_KEEP);
    CHECK_INT(decision.chunks, 1);
    refuse(64 * MIB, 7);
    decision = terminal(32, BSG_PHASE_FORWARD, BSG_EXACT);
    CHECK_INT(decision.verdict, BSG_KEEP);
    CHECK_INT(decision.chunks, 1);
    bsg_policy_unrescued(fixture.policy, now(), 0, "MemoryError", (struct bsg_where){1, BSG_PHASE_FORWARD});
  }
  write_file("request.json", "{\"schema\": \"bsguard.request/1\", \"micro_batch\": 4}");
  end_step();
  CHECK_HAS(event_of("request", 0), "\"obeyed\":false");
  stop();
  CHECK(!file_exists("control.json"));
  CHECK_INT(events_of("oom"), 3);
  CHECK_INT(events_of("decision"), 0);
  CHECK(file_exists("report.txt"));
  CHECK_HAS(event_of("start", 0), "\"mode\":\"observe\"");
}

TEST(a_shorter_structure_is_neither_read_nor_written_beyond) {
  struct {
    struct bsg_decision decision;
    uint8_t guard[8];
  } small;
  struct bsg_oom oom = {.size = offsetof(struct bsg_oom, phase),
                        .boundary = "Net",
                        .signature = "s",
                        .batch = 32,
                        .phase = BSG_PHASE_OPTIMIZER,
                        .exactness = BSG_REFUSED};

  fixture_start(BSG_MODE_GUARD);
  memset(&small, 0x5A, sizeof(small));
  small.decision.size = offsetof(struct bsg_decision, batch);
  bsg_policy_terminal(fixture.policy, now(), &oom, (struct bsg_where){1, 0}, &small.decision);
  CHECK_INT(small.decision.verdict, BSG_SHRINK);
  CHECK_INT(small.decision.size, offsetof(struct bsg_decision, batch));
  for (size_t i = offsetof(struct bsg_decision, batch); i < sizeof(small); i++)
    CHECK_INT(((uint8_t *)&small)[i], 0x5A);
}

TEST(wrong_arguments_are_refused) {
  struct bsg_decision decision = {.size = sizeof(decision)};
  struct bsg_oom oom = {.size = sizeof(oom), .device = 64, .boundary = "Net", .batch = 32};
  struct bsg_where where = {1, BSG_PHASE_FORWARD};

  fixture_start(BSG_MODE_GUARD);
  CHECK_INT(bsg_policy_boundary(fixture.policy, now(), -1, "N", "s", 32, BSG_PHASE_FORWARD, &decision), -EINVAL);
  CHECK_INT(bsg_policy_boundary(fixture.policy, now(), 64, "N", "s", 32, BSG_PHASE_FORWARD, &decision), -EINVAL);
  CHECK_INT(bsg_policy_boundary(fixture.policy, now(), 0, "N", "s", 0, BSG_PHASE_FORWARD, &decision), -EINVAL);
  CHECK_INT(decision.chunks, 1);
  CHECK_INT(bsg_policy_terminal(fixture.policy, now(), &oom, where, &decision), -EINVAL);
  CHECK_INT(bsg_policy_applied(fixture.policy, now(), 99, 0, "N", 32, 16, BSG_EXACT, NULL, where), -EINVAL);
  CHECK_INT(bsg_policy_applied(fixture.policy, now(), -1, 0, "N", 32, 16, BSG_EXACT, NULL, where), -EINVAL);
  CHECK_INT(bsg_policy_unrescued(fixture.policy, now(), -1, NULL, where), -EINVAL);
  CHECK_INT(bsg_policy_boundary(NULL, now(), 0, "N", "s", 32, BSG_PHASE_FORWARD, &decision), -ENODEV);
  CHECK_INT(events_of(NULL), 1);
}

TEST(a_mark_at_a_step_only_where_its_peak_changed) {
  fixture_start(BSG_MODE_GUARD);
  end_step();
  end_step();
  CHECK_INT(events_of("mark"), 1);
  fixture.memory.step_peak_bytes -= MIB;
  end_step();
  CHECK_INT(events_of("mark"), 2);
  CHECK_HAS(event_of("mark", 1), "\"device\":0,\"live_bytes\":23621271552,\"peak_bytes\":23622320128,\"step\":3,"
                                 "\"phase\":\"optimizer\",\"request_bytes\":null,\"site\":null}");
  CHECK_HAS(event_of("step", 0), "\"batch\":null,\"micro_batch\":null,\"accumulation_steps\":null");
  struct bsg_mark_fact mark = {.live_bytes = MIB, .peak_bytes = 2 * MIB, .request_bytes = 512, .site = 3};
  bsg_policy_mark(fixture.policy, now(), &mark);
  CHECK_HAS(event_of("mark", 2), "\"live_bytes\":1048576,\"peak_bytes\":2097152,\"step\":null,\"phase\":\"init\","
                                 "\"request_bytes\":512,\"site\":3}");
}

TEST(devices_are_kept_apart) {
  fixture_start(BSG_MODE_GUARD);
  use_device(1);
  boundary(0, "Net", "float32[8]", 32, BSG_PHASE_FORWARD);
  boundary(1, "Net", "float32[8]", 32, BSG_PHASE_FORWARD);
  refuse_on(1, 8 * MIB, 7);
  refuse_on(0, 4 * MIB, 7);
  CHECK_INT(terminal_of(1, "Net", 32, BSG_PHASE_FORWARD, BSG_EXACT, NULL).chunks, 2);
  CHECK_HAS(event_of("oom", 0), "\"device\":1,\"api\":\"cuMemAlloc_v2\",\"request_bytes\":8388608,");
  CHECK(bsg_policy_waiting(fixture.policy));
  CHECK_INT(boundary(0, "Net", "float32[8]", 32, BSG_PHASE_FORWARD).chunks, 1);
  CHECK_INT(boundary(1, "Net", "float32[8]", 32, BSG_PHASE_FORWARD).chunks, 2);
}

TEST(a_retry_that_went_through_is_told_and_counts_as_rescued) {
  fixture_start(BSG_MODE_GUARD);
  CHECK_INT(bsg_policy_retried(fixture.policy, now(), 0, "the copy"), -ENOENT); /* of what? */
  for (int i = 0; i < 3; i++) {
    refuse(8 * MIB, 7);
    CHECK_INT(terminal_of(0, NULL, 0, BSG_PHASE_DATA, BSG_REFUSED, "nothing to split").verdict, BSG_CANNOT);
    CHECK_INT(bsg_policy_retried(fixture.policy, now(), 0, "the copy to the device"), 0);
    CHECK_INT(bsg_policy_retried(fixture.policy, now(), 0, "the copy to the device"), -ENOENT);
    end_step();
  }
  CHECK_INT(events_of("retried"), 3);
  CHECK_HAS(event_of("retried", 0), "\"phase\":\"data\",\"what\":\"the copy to the device\"}");
  CHECK_INT(fixture.line_count, 1);
  CHECK_HAS(fixture.lines[0], "the copy to the device went through at the next try");
  CHECK_INT(events_of("decision"), 0);
}

TEST(refused_and_disarmed_are_said_once) {
  fixture_start(BSG_MODE_GUARD);
  for (int i = 0; i < 3; i++) {
    bsg_policy_refused(fixture.policy, now(), "Encoder", "rows depend on their neighbours (split proof)");
    bsg_policy_disarmed(fixture.policy, now(), "Net", "s", "predicted peak is 61 % of capacity", 0);
    bsg_policy_disarmed(fixture.policy, now(), "Many", "s", "more than a few boundaries a step", 1);
  }
  bsg_policy_refused(fixture.policy, now(), "Decoder", "rows depend on their neighbours (split proof)");
  CHECK_INT(events_of("refused"), 2);
  CHECK_INT(events_of("disarmed"), 6);
  CHECK_INT(fixture.line_count, 3);
  CHECK_TEXT(fixture.lines[0], "Encoder will not be split: rows depend on their neighbours (split proof)");
  CHECK_HAS(event_of("disarmed", 1),
            "\"boundary\":\"Many\",\"signature\":\"s\",\"why\":\"more than a few boundaries a step\","
            "\"for_good\":true}");
}

TEST(a_run_without_an_oom_is_silent) {
  fixture_start(BSG_MODE_GUARD);
  for (int i = 0; i < 10; i++) {
    boundary(0, "Net", "s", 32, BSG_PHASE_FORWARD);
    refuse(MIB, 7);
    grant(MIB, 7);
    end_step();
  }
  stop();
  stop();
  CHECK_INT(fixture.line_count, 0);
  CHECK_HAS(read_file("report.txt"), "verdict=none cause=none");
  CHECK_INT(events_of("stop"), 1);
  CHECK_HAS(event_of("stop", 0), "\"ooms\":0,\"absorbed\":10,\"rescued_steps\":0");
}

TEST(after_stop_nothing_is_written) {
  fixture_start(BSG_MODE_GUARD);
  stop();
  boundary(0, "Net", "s", 32, BSG_PHASE_FORWARD);
  terminal(32, BSG_PHASE_FORWARD, BSG_EXACT);
  end_step();
  CHECK_TEXT(order_of_events(), "start report stop");
}

TEST(a_child_after_fork_starts_clean) {
  fixture_start(BSG_MODE_GUARD);
  boundary(0, "Net", "float32[8]", 32, BSG_PHASE_FORWARD);
  terminal(32, BSG_PHASE_FORWARD, BSG_EXACT);
  refuse(MIB, 7);
  const char *events = read_file("events.jsonl");
  bsg_policy_forget(fixture.policy); /* as the child does */
  CHECK(!bsg_policy_waiting(fixture.policy));
  CHECK_INT(bsg_policy_boundary(fixture.policy, now(), 0, "N", "s", 32, BSG_PHASE_FORWARD, NULL), -ENODEV);
  CHECK_INT(bsg_policy_stop(fixture.policy, now(), (struct bsg_where){1, 0}), -ENODEV);
  CHECK_TEXT(read_file("events.jsonl"), events);
  fixture.config.pid = 4712;
  fixture.policy = bsg_policy_create(&fixture.config);
  CHECK_INT(boundary(0, "Net", "float32[8]", 32, BSG_PHASE_FORWARD).chunks, 1);
  CHECK_INT(run_folders(), 1); /* the parent's; the child has used no device */
}

TEST(more_boundaries_than_there_is_room_for) {
  char name[32];

  fixture_start(BSG_MODE_GUARD);
  boundary(0, "Net", "float32[8]", 32, BSG_PHASE_FORWARD);
  terminal(32, BSG_PHASE_FORWARD, BSG_EXACT);
  for (int i = 0; i < 5000; i++) {
    snprintf(name, sizeof(name), "float32[%d]", i + 100);
    CHECK_INT(boundary(0, "Net", name, 32, BSG_PHASE_FORWARD).chunks, 1);
  }
  /* What was learnt from an OOM is kept before what never met one. */
  CHECK_INT(boundary(0, "Net", "float32[8]", 32, BSG_PHASE_FORWARD).chunks, 2);
  CHECK_INT(terminal(32, BSG_PHASE_FORWARD, BSG_EXACT).chunks, 16);
  CHECK_HAS(read_file("control.json"), "\"signature\": \"float32[5099]\"");
}

TEST(a_decision_for_many_boundaries_is_said_once) {
  struct bsg_where where = {1, BSG_PHASE_FORWARD};

  fixture_start(BSG_MODE_GUARD);
  boundary(0, "Net", "float32[8]", 10, BSG_PHASE_FORWARD);
  struct bsg_decision decision = terminal(10, BSG_PHASE_FORWARD, BSG_EXACT);
  decision = terminal(10, BSG_PHASE_FORWARD, BSG_EXACT);
  for (int i = 0; i < 3; i++)
    bsg_policy_applied(fixture.policy, now(), decision.sequence, 0, "Net", 10, 3, BSG_EXACT, NULL, where);
  CHECK_INT(events_of("applied"), 3);
  CHECK_INT(fixture.line_count, 1);
  CHECK_HAS(last_line(), "Net now runs 10 as 4 x at most 3 [exact]");
}
