/* test_reports.c - the post-mortem: complete, adding up, with advice only where it is true. */
#include <unistd.h>

#include "check.h"
#include "fixture.h"

static void unrescued(int phase) {
  bsg_policy_unrescued(fixture.policy, now(), 0, "MemoryError: \n\n----- C++ Traceback",
                       (struct bsg_where){fixture.step, phase});
}

static void hold(int count) {
  fixture.holder_count = count;
  for (int i = 0; i < count && i < 16; i++)
    fixture.holders[i] = (struct bsg_holder_fact){.api = i % 2 ? "cuMemAlloc_v2" : "cuMemAllocPitch_v2",
                                                  .bytes = (uint64_t)(100 - i) * MIB,
                                                  .site = (uint32_t)(i / 2) + 40,
                                                  .where = {i, BSG_PHASE_FORWARD}};
}

/* To the floor, in a job like the one of the manual. */
static void die_at_the_floor(void) {
  fixture_start(BSG_MODE_GUARD);
  hold(12);
  boundary(0, "ResNet", "float32[3,224,224]", 4, BSG_PHASE_FORWARD);
  for (int i = 0; i < 3; i++) {
    refuse(64 * MIB, 7);
    refuse(64 * MIB, 7);
    struct bsg_oom oom = {.size = sizeof(oom),
                          .boundary = "ResNet",
                          .signature = "float32[3,224,224]",
                          .batch = 4,
                          .phase = BSG_PHASE_BACKWARD,
                          .exactness = BSG_EQUIVALENT,
                          .because = "dropout",
                          .exception = "ResourceExhaustedError: first line\nsecond line"};
    bsg_policy_terminal(fixture.policy, now(), &oom, (struct bsg_where){117, BSG_PHASE_BACKWARD}, NULL);
  }
  bsg_policy_unrescued(fixture.policy, now(), 0, NULL, (struct bsg_where){117, BSG_PHASE_BACKWARD});
}

/* A loop that catches the error and goes on is not told of each. */
TEST(few_lines_for_many) {
  fixture_start(BSG_MODE_GUARD);
  for (int i = 0; i < 20; i++) {
    refuse(64 * MIB, 7);
    unrescued(BSG_PHASE_OTHER);
  }
  CHECK(fixture.line_count == 3);
  CHECK_HAS(last_line(), "further ones are told in events.jsonl only");
}

TEST(text_says_it_all) {
  die_at_the_floor();
  const char *text = read_file("report.txt");
  CHECK(strncmp(text,
                "===== bsguard report START =====\nverdict=unrescued cause=activations culprit=ResNet answer=floor "
                "device=0 phase=backward step=117 "
                "api=cuMemAlloc_v2 request_bytes=67108864 free_bytes=33554432 live_bytes=23622320128 "
                "capacity_bytes=24159191040 batch=4 micro_batch=1 ooms=3 rescued_steps=0 decisions=3\n",
                strlen("===== bsguard report START =====\n") + 150) == 0);
  CHECK_HAS(text, "batch=4 micro_batch=1 ooms=3 rescued_steps=0 decisions=3\n");
  CHECK_TEXT(text + strlen(text) - strlen("===== bsguard report END =====\n"), "===== bsguard report END =====\n");
  CHECK_HAS(text, "  command    train.py\n");
  CHECK_HAS(text, "  framework  paddle 3.3.1\n");
  CHECK_HAS(text, "gpu:0 NVIDIA A10, driver 13.0\n");
  CHECK_HAS(text, "where      device 0, phase backward, step 117\n");
  CHECK_HAS(text, "asked for  64.0 MiB (67108864) by cuMemAlloc_v2, refused 2 times\n");
  CHECK_HAS(text, "boundary   ResNet, batch 4 as 4 x at most 1\n");
  CHECK_HAS(text, "exception  ResourceExhaustedError: first line\n");
  CHECK(!strstr(text, "second line"));
  CHECK_HAS(text, "function_102a+0x1 (libtest.so)"); /* site 42, the request's own */
  CHECK_HAS(text, "site 42, the request that failed\n");
  CHECK_HAS(text, "Decisions (3)\n");
  CHECK_HAS(text,
            "batch 4 as 4 x at most 1  ResNet  (gpu:0 refused 64.0 MiB, 32.0 MiB free of 22.5 GiB; micro-batch was 2)");
  CHECK_INT(fixture.holders_asked, 10);
}

TEST(figures_add_up) {
  die_at_the_floor();
  const char *text = read_file("report.txt"), *json = read_file("report.json");
  /* 22.5 GiB less 32 MiB free less 22 GiB live are somewhere else. */
  CHECK_HAS(text, "not in the ledger     480.0 MiB (503316480)\n");
  CHECK_HAS(json, "\"not_in_ledger_bytes\": 503316480,");
  /* 100 + 99 + ... + 91 MiB */
  CHECK_HAS(text, "The largest live allocations (10 of 100, together 955.0 MiB)\n");
  CHECK_HAS(json, "\"holders_bytes\": 1001390080,");
  CHECK_HAS(json, "{\"bytes\": 104857600, \"api\": \"cuMemAllocPitch_v2\", \"step\": null, \"phase\": \"forward\", "
                  "\"site\": 40, \"kind\": \"plain\"}");
}

TEST(each_site_is_printed_once) {
  die_at_the_floor();
  const char *text = read_file("report.txt");
  int sites = 0;
  for (const char *at = text; (at = strstr(at, "\n  site ")); at++)
    sites++;
  CHECK_INT(sites, 5); /* 40 to 44, and 42 is the request's as well */
}

TEST(the_line_names_the_report) {
  die_at_the_floor();
  CHECK_INT(fixture.line_count, 1);
  char expected[700];
  snprintf(expected, sizeof(expected),
           "OOM in backward at step 117 could not be saved (gpu:0 refused 64.0 MiB, 32.0 MiB free of 22.5 GiB; the "
           "micro-batch is 1 already): see %s/report.txt",
           run_folder());
  CHECK_TEXT(last_line(), expected);
  CHECK_HAS(event_of("report", 0), "\"path\":\"report.txt\",\"why\":\"unrescued\"}");
}

TEST(advice_at_the_floor) {
  die_at_the_floor();
  const char *text = read_file("report.txt");
  CHECK_HAS(
      text,
      "Batch 4 was run one sample at a time and still did not fit: 22.0 GiB are held by this process of 22.5 GiB.");
  CHECK_HAS(text, "A smaller batch cannot help.");
  CHECK(!strstr(text, "480.0 MiB of the device are used but")); /* nobody else is there */
  CHECK(!strstr(text, "FLAGS_gpu_memory_limit_mb"));
  CHECK(!strstr(text, "in pieces"));
}

static void others(bool own_seen, int count) {
  fixture.others = (struct bsg_others_fact){.own_seen = own_seen, .count = count};
  for (int i = 0; i < count && i < BSG_MAX_OTHERS; i++) {
    fixture.others.list[i] = (struct bsg_other_fact){.pid = 900 + i, .bytes = (uint64_t)(200 - i) * MIB};
    fixture.others.listed++;
  }
}

static void die_with_others(void) {
  boundary(0, "Net", "float32[8]", 32, BSG_PHASE_FORWARD);
  refuse(64 * MIB, 7);
  CHECK_INT(fixture.others_asked, 0); /* never where memory is asked for */
  terminal(32, BSG_PHASE_FORWARD, BSG_EXACT);
  CHECK_INT(fixture.others_asked, 0);
  unrescued(BSG_PHASE_FORWARD);
  CHECK_INT(fixture.others_asked, 1);
}

TEST(other_processes_are_listed) {
  fixture_start(BSG_MODE_GUARD);
  others(true, 3);
  strcpy(fixture.others.list[0].name, "py\x1bthon3");
  fixture.others.list[2].bytes = UINT64_MAX;
  die_with_others();
  const char *text = read_file("report.txt"), *json = read_file("report.json");
  CHECK_HAS(text, "\nOther processes on the device (3, together 399.0 MiB)\n"
                  "           bytes         pid  name\n"
                  "       209715200         900  py thon3\n"
                  "       208666624         901  not known\n"
                  "       not known         902  not known\n\n");
  CHECK_HAS(text, "not in the ledger     480.0 MiB (503316480)\n"); /* and in no figure of ours */
  CHECK_HAS(text, "; the processes that NVML names are listed above.");
  CHECK(!strstr(text, "nvidia-smi"));
  CHECK_HAS(json, "\"total\": 3,");
  CHECK_HAS(json, "\"own_pid_seen\": true,");
  CHECK_HAS(json, "{\"pid\": 901, \"name\": null, \"bytes\": 208666624}");
  CHECK_HAS(json, "{\"pid\": 902, \"name\": null, \"bytes\": null}");
}

TEST(of_many_other_processes_the_first_are_listed) {
  fixture_start(BSG_MODE_GUARD);
  others(true, 40);
  die_with_others();
  CHECK_HAS(read_file("report.txt"), "\nOther processes on the device (40, the largest 16, together ");
  CHECK_HAS(read_file("report.txt"), "         915  not known\n\n");
  CHECK_HAS(read_file("report.json"), "\"total\": 40,");
}

TEST(the_end_keeps_who_else_was_there) {
  fixture_start(BSG_MODE_GUARD);
  others(true, 1);
  die_with_others();
  others(true, 0);
  stop();
  CHECK_INT(events_of("report"), 2);
  CHECK_INT(fixture.others_asked, 1);
  CHECK_HAS(read_file("report.txt"), "\nOther processes on the device (1, together 200.0 MiB)\n");
}

TEST(nobody_else_is_there) {
  fixture_start(BSG_MODE_GUARD);
  die_with_others();
  CHECK_HAS(read_file("report.txt"), "\nOther processes on the device\n  none\n");
  CHECK(!strstr(read_file("report.txt"), "other processes on the device"));
  CHECK_HAS(read_file("report.json"), "\"processes\": []");
}

TEST(nobody_can_say_who_else_is_there) {
  fixture_start(BSG_MODE_GUARD);
  fixture.no_others = true;
  die_with_others();
  CHECK_HAS(read_file("report.txt"), "\nOther processes on the device\n  not asked (no NVML)\n");
  CHECK_HAS(read_file("report.txt"), "look with nvidia-smi who else is there.");
  CHECK_HAS(read_file("report.json"), "\"others\": null,");
}

TEST(pids_of_a_host_are_not_taken_for_others) {
  fixture_start(BSG_MODE_GUARD);
  others(false, 1);
  die_with_others();
  const char *text = read_file("report.txt");
  CHECK_HAS(text, "\nProcesses on the device (1, together 200.0 MiB)\n");
  CHECK(!strstr(text, "Other processes"));
  CHECK_HAS(text, "one of these may be this process)\n");
  CHECK_HAS(read_file("report.json"), "\"own_pid_seen\": false,");
}

TEST(no_advice_without_its_condition) {
  fixture_start(BSG_MODE_GUARD);
  fixture.memory.live_bytes = fixture.memory.total_bytes - fixture.memory.free_bytes; /* nobody else is there */
  boundary(0, "Net", "float32[8]", 32, BSG_PHASE_FORWARD);
  refuse(64 * MIB, 7);
  terminal(32, BSG_PHASE_FORWARD, BSG_EXACT);
  unrescued(BSG_PHASE_FORWARD);
  CHECK(!strstr(read_file("report.txt"), "What would help"));
  CHECK_HAS(read_file("report.json"), "\"advice\": []");
}

TEST(advice_where_free_memory_was_in_pieces) {
  fixture_start(BSG_MODE_GUARD);
  fixture.memory.free_bytes = 128 * MIB;
  refuse(64 * MIB, 7);
  terminal(0, BSG_PHASE_FORWARD, BSG_EXACT);
  unrescued(BSG_PHASE_FORWARD);
  CHECK_HAS(read_file("report.txt"), "The driver refused 64.0 MiB with 128.0 MiB free: the free memory is in pieces");
}

TEST(advice_where_the_framework_has_a_limit) {
  fixture_start(BSG_MODE_GUARD);
  terminal(0, BSG_PHASE_FORWARD, BSG_EXACT);
  unrescued(BSG_PHASE_FORWARD);
  CHECK_HAS(read_file("report.txt"), "No driver call was refused");
  CHECK_HAS(read_file("report.txt"), "FLAGS_gpu_memory_limit_mb");
}

TEST(advice_where_a_split_was_refused) {
  fixture_start(BSG_MODE_GUARD);
  boundary(0, "Net", "float32[8]", 32, BSG_PHASE_FORWARD);
  bsg_policy_refused(fixture.policy, now(), "Net", "rows depend on their neighbours");
  bsg_policy_refused(fixture.policy, now(), "Other", "never asked for");
  refuse(64 * MIB, 7);
  terminal_of(0, "Net", 32, BSG_PHASE_FORWARD, BSG_REFUSED, "rows depend on their neighbours");
  unrescued(BSG_PHASE_FORWARD);
  const char *text = read_file("report.txt");
  CHECK_HAS(text, "Net was not split: rows depend on their neighbours. A smaller batch, set by hand, is the way out.");
  CHECK(!strstr(text, "left alone"));
  CHECK(!strstr(text, "never asked for"));
}

TEST(no_smaller_batch_is_advised_where_there_is_none) {
  fixture_start(BSG_MODE_GUARD);
  boundary(0, "Net", "float32[8]", 1, BSG_PHASE_FORWARD);
  refuse(64 * MIB, 7);
  terminal_of(0, "Net", 1, BSG_PHASE_FORWARD, BSG_REFUSED, "a batch of one sample cannot be split");
  unrescued(BSG_PHASE_FORWARD);
  CHECK_HAS(read_file("report.txt"), "Net was not split: a batch of one sample cannot be split.\n");
  CHECK(!strstr(read_file("report.txt"), "smaller batch"));
}

TEST(advice_for_the_optimizer) {
  fixture_start(BSG_MODE_GUARD);
  refuse(64 * MIB, 7);
  terminal(32, BSG_PHASE_OPTIMIZER, BSG_EXACT);
  unrescued(BSG_PHASE_OPTIMIZER);
  CHECK_HAS(read_file("report.txt"),
            "phase optimizer, whose need does not depend on the micro-batch. An optimizer with less state");
}

TEST(an_oom_that_nobody_reported) {
  fixture_start(BSG_MODE_GUARD);
  hold(1);
  refuse(64 * MIB, 7);
  unrescued(BSG_PHASE_OTHER);
  const char *text = read_file("report.txt");
  CHECK_HAS(text, "verdict=unrescued cause=unknown culprit=unknown answer=none device=0 phase=other");
  CHECK_HAS(text, "api=cuMemAlloc_v2 request_bytes=67108864");
}

TEST(the_end_keeps_the_picture_of_what_was_not_saved) {
  fixture_start(BSG_MODE_GUARD);
  hold(1);
  boundary(0, "Net", "float32[8]", 32, BSG_PHASE_FORWARD);
  fixture.step = 7;
  refuse(64 * MIB, 7);
  terminal_of(0, "Net", 32, BSG_PHASE_FORWARD, BSG_REFUSED, "why");
  unrescued(BSG_PHASE_FORWARD);
  /* The user's code went on, and another OOM was rescued. */
  hold(0);
  fixture.step = 8;
  refuse(2 * MIB, 7);
  struct bsg_decision decision = terminal(32, BSG_PHASE_FORWARD, BSG_EXACT);
  applied(&decision);
  end_step();
  stop();
  const char *text = read_file("report.txt");
  CHECK_HAS(text, "verdict=unrescued cause=activations culprit=Net answer=cannot device=0 phase=forward step=7 "
                  "api=cuMemAlloc_v2 request_bytes=67108864");
  CHECK_HAS(text, "ooms=2 rescued_steps=1 decisions=2");
  CHECK_HAS(text, "       104857600  cuMemAllocPitch_v2");
  CHECK_HAS(read_file("report.json"), "\"why\": \"end\"");
  CHECK_HAS(event_of("report", 1), "\"why\":\"end\"");
}

TEST(the_end_of_a_rescued_run) {
  fixture_start(BSG_MODE_GUARD);
  boundary(0, "Net", "float32[8]", 32, BSG_PHASE_FORWARD);
  refuse(64 * MIB, 7);
  struct bsg_decision decision = terminal(32, BSG_PHASE_FORWARD, BSG_EXACT);
  applied(&decision);
  end_step();
  stop();
  CHECK_HAS(read_file("report.txt"), "verdict=rescued cause=activations culprit=Net answer=shrink ");
  CHECK_INT(events_of("report"), 1);
}

TEST(a_rescued_evaluation) {
  fixture_start(BSG_MODE_GUARD);
  refuse(64 * MIB, 7);
  terminal(32, BSG_PHASE_EVALUATION, BSG_EXACT);
  boundary(0, "Net", "float32[8]", 32, BSG_PHASE_EVALUATION);
  stop();
  CHECK_HAS(read_file("report.txt"),
            "verdict=rescued cause=evaluation culprit=Net answer=shrink device=0 phase=evaluation");
}

TEST(only_the_last_decisions_are_listed_and_all_are_counted) {
  char name[32];

  fixture_start(BSG_MODE_GUARD);
  for (int i = 0; i < 100; i++) {
    snprintf(name, sizeof(name), "Net%d", i);
    boundary(0, name, "s", 32, BSG_PHASE_FORWARD);
    terminal_of(0, name, 32, BSG_PHASE_FORWARD, BSG_EXACT, NULL);
  }
  unrescued(BSG_PHASE_FORWARD);
  const char *text = read_file("report.txt"), *json = read_file("report.json");
  CHECK_HAS(text, "Decisions (101, the last 64)\n    38  ");
  CHECK_HAS(text, "\n   101  ");
  CHECK(!strstr(text, "\n    37  "));
  CHECK_HAS(json, "\"decisions_total\": 101,");
  CHECK_HAS(json, "{\"sequence\": 38, ");
}

TEST(without_evidence_it_says_not_known) {
  fixture_open(BSG_MODE_GUARD);
  fixture.config.evidence = (struct bsg_evidence){0};
  fixture_reopen();
  bsg_policy_attach(fixture.policy, now(), NULL, NULL);
  use_device(0);
  fixture.memory.free_bytes = UINT64_MAX;
  refuse(64 * MIB, 7);
  terminal(32, BSG_PHASE_FORWARD, BSG_EXACT);
  unrescued(BSG_PHASE_FORWARD);
  const char *text = read_file("report.txt");
  CHECK_HAS(text, "free_bytes=unknown");
  CHECK_HAS(text, "  free                  not known\n");
  CHECK_HAS(text, "  framework  none attached\n");
  CHECK_HAS(text, "    not known\n"); /* the stack */
  CHECK_HAS(event_of("oom", 0), "\"free_bytes\":null");
}

TEST(hostile_texts_stay_texts) {
  fixture_start(BSG_MODE_GUARD);
  char name[3000];
  memset(name, 'n', sizeof(name) - 1);
  name[sizeof(name) - 1] = '\0';
  memcpy(name, "a\"b\\c\n\x1b[31m\xff\xed\xa0\x80", 15);
  boundary(0, name, name, 32, BSG_PHASE_FORWARD);
  struct bsg_oom oom = {
      .size = sizeof(oom), .boundary = name, .signature = name, .batch = 32, .because = name, .exception = name};
  bsg_policy_terminal(fixture.policy, now(), &oom, (struct bsg_where){1, BSG_PHASE_FORWARD}, NULL);
  bsg_policy_applied(fixture.policy, now(), 2, 0, name, 32, 16, BSG_EXACT, name,
                     (struct bsg_where){1, BSG_PHASE_FORWARD});
  bsg_policy_refused(fixture.policy, now(), name, name);
  bsg_policy_disarmed(fixture.policy, now(), name, name, name, 1);
  bsg_policy_unrescued(fixture.policy, now(), 0, name, (struct bsg_where){1, BSG_PHASE_FORWARD});
  for (int i = 0; i < fixture.line_count; i++)
    CHECK(!strpbrk(fixture.lines[i], "\n\x1b\xff"));
  CHECK(!strpbrk(read_file("report.txt"), "\x1b\xff"));
  CHECK(!strpbrk(read_file("events.jsonl"), "\x1b\xff"));
  CHECK_INT(boundary(0, name, name, 32, BSG_PHASE_FORWARD).chunks, 2);
}
