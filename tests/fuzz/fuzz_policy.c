/*
 * fuzz_policy.c - facts in any order and with any texts: every decision can be carried out, and every line that was
 * written is one object of JSON.
 */
#include <errno.h>

#include "fuzz.h"
#include "policy/json_read.h"
#include "tests/policy/fixture.h"

#define MOST_OPERATIONS 200

static void check_decision(const struct bsg_decision *decision, int64_t asked) {
  ENSURE(decision->verdict >= BSG_KEEP && decision->verdict <= BSG_CANNOT);
  if (asked <= 0)
    return;
  ENSURE(decision->batch == asked);
  ENSURE(decision->micro_batch >= 1 && decision->micro_batch <= asked);
  ENSURE(decision->chunks >= 1 && decision->chunks <= asked);
  ENSURE(decision->accumulation_steps == (asked + decision->micro_batch - 1) / decision->micro_batch);
}

static void one_operation(struct bytes *bytes) {
  char name[64], signature[64], why[128];
  struct bsg_policy *p = fixture.policy;
  struct bsg_decision decision = {.size = sizeof(decision)};
  struct bsg_where where = {(int64_t)take(bytes, 1), (int32_t)(take(bytes, 1) % 12) - 1};
  int64_t batch = (int64_t)(int16_t)take(bytes, 2);
  int device = (int)(int8_t)take(bytes, 1);

  switch (take(bytes, 1) % 12) {
  case 0:
    if (bsg_policy_boundary(p, now(), device, take_text(bytes, name, sizeof(name)),
                            take_text(bytes, signature, sizeof(signature)), batch, where.phase, &decision) == 0)
      check_decision(&decision, batch);
    break;
  case 1:
    refuse_on(device & 1, take(bytes, 5), take(bytes, 1));
    break;
  case 2:
    grant_on(device & 1, take(bytes, 5), take(bytes, 1));
    break;
  case 3: {
    struct bsg_oom oom = {.size = sizeof(oom),
                          .device = device,
                          .boundary = take_text(bytes, name, sizeof(name)),
                          .signature = take_text(bytes, signature, sizeof(signature)),
                          .batch = batch,
                          .phase = where.phase,
                          .exactness = (int32_t)take(bytes, 1) - 1,
                          .because = take_text(bytes, why, sizeof(why)),
                          .request_bytes = take(bytes, 5),
                          .exception = why};
    if (bsg_policy_terminal(p, now(), &oom, where, &decision) == 0)
      check_decision(&decision, batch);
    break;
  }
  case 4:
    bsg_policy_applied(p, now(), (int64_t)take(bytes, 1), device, take_text(bytes, name, sizeof(name)), batch,
                       (int64_t)(int8_t)take(bytes, 1), (int)take(bytes, 1) - 1, take_text(bytes, why, sizeof(why)),
                       where);
    break;
  case 5:
    bsg_policy_unrescued(p, now(), device, take_text(bytes, why, sizeof(why)), where);
    break;
  case 6:
    bsg_policy_refused(p, now(), take_text(bytes, name, sizeof(name)), take_text(bytes, why, sizeof(why)));
    break;
  case 7:
    bsg_policy_disarmed(p, now(), take_text(bytes, name, sizeof(name)), take_text(bytes, signature, sizeof(signature)),
                        take_text(bytes, why, sizeof(why)), (int)take(bytes, 1) % 2);
    break;
  case 8:
    fixture.memory.device = device;
    fixture.memory.step_peak_bytes = take(bytes, 5);
    bsg_policy_step(p, now(), &fixture.memory, take(bytes, 5), where);
    break;
  case 9: {
    struct bsg_mark_fact mark = {
        .device = device & 1, .live_bytes = take(bytes, 5), .peak_bytes = take(bytes, 5), .where = where};
    bsg_policy_mark(p, now(), &mark);
    break;
  }
  case 10:
    if (run_folder()[0])
      write_file("request.json", take_text(bytes, why, sizeof(why)));
    break;
  default:
    bsg_policy_attach(p, now(), take_text(bytes, name, sizeof(name)), take_text(bytes, why, sizeof(why)));
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static struct bsg_json_document document;
  static char line[BSG_JSON_TEXT_ROOM];
  struct bytes bytes = {data, size};

  fixture_open(take(&bytes, 1) % 4 == 3 ? BSG_MODE_OBSERVE : BSG_MODE_GUARD);
  use_device(0);
  for (int i = 0; i < MOST_OPERATIONS && bytes.left; i++)
    one_operation(&bytes);
  stop();
  for (const char *text = read_file("events.jsonl"); text && *text; text = strchr(text, '\n') + 1) {
    size_t length = strcspn(text, "\n");
    ENSURE(text[length] == '\n'); /* never torn */
    if (length >= sizeof(line))
      continue;
    memcpy(line, text, length);
    ENSURE(bsg_json_parse(&document, line, length) != -EINVAL);
  }
  return 0;
}
