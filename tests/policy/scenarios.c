/*
 * scenarios.c - writes one run folder for each thing that can happen to a job under the folder given, with the lines
 * that the user would see in lines.txt: what test_formats.py holds against the schemas.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "fixture.h"

static const char *target;

static void begin(const char *name, enum bsg_mode mode, int rank, bool adapter) {
  fixture_open(mode);
  snprintf(fixture.parent, sizeof(fixture.parent), "%s/%s", target, name);
  fixture.config.rank = rank;
  fixture.config.wait_ms = strcmp(name, "waited") == 0 ? 3000 : 0; /* the only one that is tried whole once more */
  fixture_reopen();
  if (adapter)
    bsg_policy_attach(fixture.policy, now(), "paddle 3.3.1", NULL);
  bsg_policy_unhooked(fixture.policy, now(), "cuMemCreate", 14000);
  use_device(0);
  fixture.others = (struct bsg_others_fact){
      .own_seen = true,
      .count = 2,
      .listed = 2,
      .list = {{.pid = 77, .bytes = GIB, .name = "python3"}, {.pid = 78, .bytes = UINT64_MAX}}};
  fixture.no_others = rank >= 0;
  fixture.holder_count = 3;
  for (int i = 0; i < 3; i++)
    fixture.holders[i] = (struct bsg_holder_fact){
        .api = "cuMemAlloc_v2", .bytes = (uint64_t)(3 - i) * GIB, .site = 40, .where = {i, BSG_PHASE_FORWARD}};
  fixture.python = "  File \"/usr/lib/python3.11/site-packages/paddle/nn/layer/common.py\", line 234 in forward\n"
                   "  File \"train.py\", line 12 in forward\n  File \"train.py\", line 40 in <module>\n";
  fixture.census = (struct bsg_census_fact){
      .total_bytes = 7 * GIB,
      .count = 9,
      .with_site_bytes = 6 * GIB,
      .phase_bytes = {[BSG_PHASE_FORWARD] = 6 * GIB, [BSG_PHASE_OPTIMIZER] = GIB},
      .phase_count = {[BSG_PHASE_FORWARD] = 8, [BSG_PHASE_OPTIMIZER] = 1},
      .group_count = 2,
      .groups =
          {{.site = 40, .phase = BSG_PHASE_FORWARD, .bytes = 6 * GIB, .count = 8, .first_step = 1, .last_step = 9},
           {.phase = BSG_PHASE_OPTIMIZER, .bytes = GIB / 2, .count = 1, .first_step = 1, .last_step = 1}},
      .since_bytes = GIB,
      .since_count = 1,
      .since = {{.site = 41, .phase = BSG_PHASE_FORWARD, .bytes = GIB, .count = 2}},
      .map_from = 0x7f0000000000,
      .map_to = 0x7f0200000000,
      .map = {9, 9, 5, 0, 1}};
}

/* What an adapter tells at a step's end. */
static void tell(uint64_t allocated, uint64_t reserved) {
  struct bsg_framework framework = {.size = sizeof(framework),
                                    .allocated_bytes = allocated,
                                    .reserved_bytes = reserved,
                                    .allocated_peak_bytes = allocated * 2,
                                    .reserved_peak_bytes = allocated * 2 + 64 * MIB,
                                    .parameter_bytes = GIB,
                                    .gradient_bytes = GIB,
                                    .optimizer_bytes = 2 * GIB};
  bsg_policy_framework(fixture.policy, &framework);
  bsg_policy_note(fixture.policy, "python", "3.11.7");
  bsg_policy_note(fixture.policy, "amp", "off");
  bsg_policy_held(fixture.policy, 0, NULL, 0, 0, 0);
  bsg_policy_held(fixture.policy, 0, "list losses in train.py", 12, 12, 48);
}

static void finish(void) {
  char path[700];

  stop();
  snprintf(path, sizeof(path), "%s/lines.txt", fixture.parent);
  FILE *file = fopen(path, "w");
  for (int i = 0; file && i < fixture.line_count; i++)
    fprintf(file, "%s\n", fixture.lines[i]);
  if (!file || fclose(file) != 0)
    exit(1);
  bsg_policy_forget(fixture.policy);
}

static void training_oom(void) {
  boundary(0, "Net", "float32[8]", 32, BSG_PHASE_FORWARD);
  refuse(64 * MIB, 7);
  refuse(64 * MIB, 7);
  tell(20 * GIB, 21 * GIB);
  struct bsg_decision decision = terminal(32, BSG_PHASE_BACKWARD, BSG_EQUIVALENT);
  applied(&decision);
  end_step();
}

static void quiet(void) {
  begin("quiet", BSG_MODE_GUARD, -1, true);
  for (int i = 0; i < 3; i++) {
    boundary(0, "Net", "float32[8]", 32 - 8 * i, BSG_PHASE_FORWARD);
    fixture.memory.step_peak_bytes = (uint64_t)(22 - i) * GIB;
    tell((uint64_t)(6 + i) * GIB, 8 * GIB);
    end_step();
  }
  finish();
}

static void rescued(void) {
  begin("rescued", BSG_MODE_GUARD, -1, true);
  training_oom();
  training_oom();
  refuse(8 * MIB, 7);
  grant(8 * MIB, 7);
  end_step();
  finish();
}

static void unrescued(void) {
  begin("unrescued", BSG_MODE_GUARD, -1, true);
  training_oom();
  bsg_policy_refused(fixture.policy, now(), "Head", "rows depend on \"their\" neighbours");
  bsg_policy_disarmed(fixture.policy, now(), "Net", "float32[8]", "predicted peak is 61 % of capacity", 0);
  terminal_of(0, "Head", 32, BSG_PHASE_FORWARD, BSG_REFUSED, "rows depend on \"their\" neighbours");
  bsg_policy_unrescued(fixture.policy, now(), 0, "MemoryError: \xff",
                       (struct bsg_where){fixture.step, BSG_PHASE_FORWARD});
  finish();
}

static void retried(void) {
  begin("retried", BSG_MODE_GUARD, -1, true);
  terminal_of(0, NULL, 0, BSG_PHASE_DATA, BSG_REFUSED, "nothing to split");
  bsg_policy_retried(fixture.policy, now(), 0, "the copy to the device");
  end_step();
  finish();
}

static void waited(void) {
  begin("waited", BSG_MODE_GUARD, -1, true);
  refuse(64 * MIB, 7);
  if (terminal(32, BSG_PHASE_FORWARD, BSG_EXACT).verdict == BSG_AGAIN)
    bsg_policy_waited(fixture.policy, now(), 0, 1250);
  end_step();
  finish();
}

static void evaluation(void) {
  begin("evaluation", BSG_MODE_GUARD, -1, true);
  boundary(0, "Net", "float32[8]", 32, BSG_PHASE_FORWARD);
  terminal(64, BSG_PHASE_EVALUATION, BSG_EXACT);
  bsg_policy_applied(fixture.policy, now(), 0, 0, "Net", 64, 32, BSG_EXACT, NULL,
                     (struct bsg_where){1, BSG_PHASE_EVALUATION});
  finish();
}

static void inferred(void) {
  begin("inferred", BSG_MODE_GUARD, -1, false);
  refuse(64 * MIB, 7);
  fixture.freed_bytes += MIB;
  refuse(64 * MIB, 7);
  grant(64 * MIB, 7);
  refuse(64 * MIB, 7);
  fixture.freed_bytes += MIB;
  refuse(64 * MIB, 7);
  finish();
}

static void requests(void) {
  begin("requests", BSG_MODE_GUARD, -1, true);
  boundary(0, "Net", "float32[8]", 32, BSG_PHASE_FORWARD);
  write_file("request.json",
             "{\"schema\": \"bsguard.request/1\", \"micro_batch\": 4, \"device\": 0, \"boundary\": \"Net\"}");
  end_step();
  write_file("request.json", "{\"schema\": \"bsguard.request/1\", \"micro_batch\": 0}");
  end_step();
  write_file("request.json", "micro_batch: 4");
  end_step();
  write_file("request.json", "{\"schema\": \"bsguard.request/1\", \"report\": true}");
  end_step();
  finish();
}

static void observed(void) {
  begin("observed", BSG_MODE_OBSERVE, -1, true);
  boundary(0, "Net", "float32[8]", 32, BSG_PHASE_FORWARD);
  terminal(32, BSG_PHASE_LOSS, BSG_APPROXIMATE);
  bsg_policy_unrescued(fixture.policy, now(), 0, NULL, (struct bsg_where){1, BSG_PHASE_LOSS});
  finish();
}

static void rank(void) {
  begin("rank", BSG_MODE_GUARD, 3, true);
  boundary(0, "Net", "float32[8]", 32, BSG_PHASE_FORWARD);
  terminal(32, BSG_PHASE_FORWARD, BSG_EXACT);
  finish();
}

int main(int argc, char **argv) {
  if (argc != 2 || strlen(argv[1]) > 200) {
    fprintf(stderr, "usage: %s FOLDER\n", argv[0]);
    return 2;
  }
  target = argv[1];
  quiet();
  rescued();
  unrescued();
  retried();
  waited();
  evaluation();
  inferred();
  requests();
  observed();
  rank();
  return 0;
}
