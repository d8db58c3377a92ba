/*
 * test_random.c - a hundred thousand random operations: nothing crashes (run it under the sanitizers), decisions stay
 * possible, and what is in the files at the end is in order. A seed may be given in BSG_SEED.
 */
#include <errno.h>

#include "check.h"
#include "fixture.h"
#include "policy/json_read.h"

static uint64_t seed;

static uint64_t draw(uint64_t below) {
  /* xorshift64*: the same numbers everywhere */
  seed ^= seed >> 12;
  seed ^= seed << 25;
  seed ^= seed >> 27;
  return (seed * UINT64_C(2685821657736338717) >> 11) % below;
}

static const char *text(void) {
  static const char *const texts[] = {
      NULL, "", "Net", "ResNet", "float32[3,224,224]", "a\"b\\\n", "\xff\xfe", "dropout,batch_norm", ",,"};
  return texts[draw(sizeof(texts) / sizeof(texts[0]))];
}

static int device(void) {
  return draw(20) == 0 ? (int)draw(80) - 8 : (int)draw(3);
}
static int64_t batch(void) {
  return draw(20) == 0 ? (int64_t)draw(3) - 1 : (int64_t)draw(70);
}

static void check_decision(const struct bsg_decision *decision, int64_t asked) {
  CHECK(decision->verdict >= BSG_KEEP && decision->verdict <= BSG_CANNOT);
  if (asked <= 0)
    return;
  CHECK_INT(decision->batch, asked);
  CHECK(decision->micro_batch >= 1 && decision->micro_batch <= asked);
  CHECK(decision->chunks >= 1 && decision->chunks <= asked);
  CHECK_INT(decision->micro_batch, (asked + decision->chunks - 1) / decision->chunks);
  CHECK_INT(decision->accumulation_steps, (asked + decision->micro_batch - 1) / decision->micro_batch);
}

static void ask(void) {
  static const char *const requests[] = {"{\"schema\": \"bsguard.request/1\", \"micro_batch\": 4}",
                                         "{\"schema\": \"bsguard.request/1\", \"micro_batch\": 1000}",
                                         "{\"schema\": \"bsguard.request/1\", \"micro_batch\": 0}",
                                         "{",
                                         "",
                                         "{\"schema\": \"bsguard.request/1\", \"micro_batch\": 2, \"device\": 1}"};
  if (run_folder()[0])
    write_file("request.json", requests[draw(6)]);
}

static void one_operation(void) {
  struct bsg_policy *p = fixture.policy;
  struct bsg_where where = {(int64_t)draw(100), (int32_t)draw(11) - 1};
  struct bsg_decision decision = {.size = sizeof(decision)};
  int64_t samples = batch();

  switch (draw(16)) {
  case 0:
  case 1:
    if (bsg_policy_boundary(p, now(), device(), text(), text(), samples, (int)draw(9), &decision) == 0)
      check_decision(&decision, samples);
    break;
  case 2:
  case 3:
  case 4:
    refuse_on((int)draw(3), draw(8) * MIB, draw(4));
    break;
  case 5:
  case 6:
    grant_on((int)draw(3), draw(8) * MIB, draw(4));
    break;
  case 7:
    fixture.freed_bytes += draw(2) * MIB;
    break;
  case 8: {
    struct bsg_oom oom = {.size = sizeof(oom),
                          .device = device(),
                          .boundary = text(),
                          .signature = text(),
                          .batch = samples,
                          .phase = where.phase,
                          .exactness = (int32_t)draw(5),
                          .because = text(),
                          .request_bytes = draw(2) * draw(100) * MIB,
                          .exception = text()};
    if (bsg_policy_terminal(p, now(), &oom, where, &decision) == 0)
      check_decision(&decision, samples);
    break;
  }
  case 9:
    bsg_policy_applied(p, now(), (int64_t)draw(40), device(), text(), samples, batch(), (int)draw(5), text(), where);
    break;
  case 10:
    if (draw(20) == 0)
      bsg_policy_unrescued(p, now(), device(), text(), where);
    break;
  case 11:
    bsg_policy_refused(p, now(), text(), text());
    bsg_policy_retried(p, now(), device(), text());
    bsg_policy_disarmed(p, now(), text(), text(), text(), (int)draw(2));
    break;
  case 12:
    fixture.memory.device = device();
    fixture.memory.step_peak_bytes = draw(3) * GIB;
    bsg_policy_step(p, now(), &fixture.memory, draw(2) * GIB, where);
    break;
  case 13: {
    struct bsg_mark_fact mark = {
        .device = (int)draw(3), .live_bytes = draw(GIB), .peak_bytes = draw(GIB), .where = where};
    bsg_policy_mark(p, now(), &mark);
    break;
  }
  case 14:
    fixture.holder_count = (int)draw(11);
    if (draw(50) == 0)
      ask();
    break;
  default:
    bsg_policy_unhooked(p, now(), "cuX", (int)draw(20000));
    if (draw(100) == 0)
      use_device((int)draw(3));
    if (draw(2000) == 0)
      bsg_policy_attach(p, now(), text(), text());
  }
}

TEST(a_hundred_thousand_operations) {
  static struct bsg_json_document document;
  const char *given = getenv("BSG_SEED");

  seed = given ? strtoull(given, NULL, 0) : 20261130;
  fprintf(stderr, "seed %llu\n", (unsigned long long)seed);
  for (int round = 0; round < 10; round++) {
    fixture_open(round % 4 == 3 ? BSG_MODE_OBSERVE : BSG_MODE_GUARD);
    use_device(0);
    for (int i = 0; i < 10000; i++)
      one_operation();
    stop();
    const char *line = read_file("events.jsonl");
    int64_t seq = 0, sequence = 0;
    for (; *line; line = strchr(line, '\n') + 1) {
      CHECK_INT(bsg_json_parse(&document, line, strcspn(line, "\n")), 0);
      CHECK_INT(bsg_json_find(&document, "seq")->integer, ++seq);
      if (strcmp(bsg_json_find(&document, "type")->string, "decision") == 0)
        CHECK_INT(bsg_json_find(&document, "sequence")->integer, ++sequence);
    }
    CHECK(seq > 1000);
    CHECK_INT(sequence != 0, fixture.config.mode == BSG_MODE_GUARD);
    if (sequence)
      CHECK_HAS(read_file("control.json"), "\"schema\": \"bsguard.control/1\"");
  }
}
