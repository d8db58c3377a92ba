/*
 * policy_again.c - what is tried once more as it was, because what was missing may come back by itself: memory in pieces
 * is whole again once the caches were given back, and another process may end or get smaller. Waiting is the adapter's;
 * here is decided for how long and for what, and it is said aloud.
 *
 * A step that could be split is tried whole never twice in a few steps: a job that does not fit must get smaller. Where
 * nothing smaller is left (the loss, the optimizer, a copy, chunks of one sample) others are waited for as often as it
 * takes, BSGUARD_WAIT altogether from one success to the next. Nobody is waited for who holds less than was missing.
 */
#include <errno.h>

#include "policy/policy_state.h"

#define STEPS_BETWEEN 10
#define DRIVER_UNIT (UINT64_C(2) << 20)
#define LEAST_WAIT_MS 50 /* counted for each try: memory that others take again and again is no endless loop */

static uint64_t more(uint64_t left, uint64_t right) {
  return left > right ? left - right : 0;
}

/* Used on the device, and not by this process; false: not known. */
static bool elsewhere(uint64_t total, uint64_t free_bytes, uint64_t live, uint64_t *out) {
  if (total == BSG_BYTES_UNKNOWN || free_bytes == BSG_BYTES_UNKNOWN || live == BSG_BYTES_UNKNOWN)
    return false;
  *out = more(more(total, free_bytes), live);
  return true;
}

void bsg_state_note_elsewhere(struct bsg_policy *p, const struct bsg_memory_fact *memory) {
  struct bsg_device_state *device = &p->devices[memory->device];
  uint64_t now;

  if (!elsewhere(memory->total_bytes, memory->free_bytes, memory->live_bytes, &now))
    return;
  if (!device->elsewhere_known || now < device->elsewhere_least)
    device->elsewhere_least = now;
  device->elsewhere_known = true;
}

/*
 * What other processes hold of `used` bytes that are not ours. Where NVML does not say, what came since there was least
 * of it: that least may be the driver's own, and nobody would ever give it back.
 */
static uint64_t held_by_others(struct bsg_policy *p, const struct bsg_memory_fact *memory, uint64_t used) {
  const struct bsg_device_state *device = &p->devices[memory->device];
  const struct bsg_evidence *evidence = &p->config.evidence;
  struct bsg_others_fact others;
  uint64_t least = memory->before_bytes, held = 0;

  if (evidence->others && evidence->others(evidence->context, memory->device, &others) == 0 && others.own_seen) {
    for (int i = 0; i < others.listed; i++)
      if (others.list[i].bytes != BSG_BYTES_UNKNOWN)
        held += others.list[i].bytes;
    return held < used ? held : used;
  }
  if (device->elsewhere_known && device->elsewhere_least < least)
    least = device->elsewhere_least;
  return least == BSG_BYTES_UNKNOWN ? 0 : more(used, least);
}

static void say_waiting(struct bsg_policy *p, const struct bsg_oom_record *oom, uint64_t others, const char *before) {
  struct bsg_device_state *device = &p->devices[oom->trigger.device];
  int64_t step = oom->trigger.where.step;
  char text[BSG_LINE_ROOM];
  struct bsg_out line;

  device->wait_aloud = !device->wait_said || step >= device->wait_said_step + STEPS_BETWEEN;
  if (!device->wait_aloud)
    return;
  device->wait_said = true;
  device->wait_said_step = step;
  bsg_out_buffer(&line, text, sizeof(text));
  bsg_out_format(&line, "OOM in %s", bsg_phase_name(oom->trigger.where.phase));
  if (step)
    bsg_out_format(&line, " at step %lld", (long long)step);
  bsg_out_text(&line, " (");
  bsg_state_describe(p, oom, &line);
  bsg_out_text(&line, "): other processes hold ");
  bsg_out_size(&line, others);
  bsg_out_format(&line, "; waiting up to %lld s for them before %s (BSGUARD_WAIT)",
                 (long long)(p->config.wait_ms / 1000), before);
  bsg_state_say(p, 0, &line);
}

/*
 * Would the request have been met but for other processes? Then `out` says for what to wait. whole: it was a part of a
 * step, all of which is needed again. before: what follows if they stay, in words.
 */
static bool others_are_in_the_way(struct bsg_policy *p, const struct bsg_oom_record *oom, bool whole,
                                  const char *before, struct bsg_again *out) {
  struct bsg_device_state *device = &p->devices[oom->trigger.device];
  uint64_t need = (oom->trigger.bytes + DRIVER_UNIT - 1) / DRIVER_UNIT * DRIVER_UNIT, used, others;
  struct bsg_memory_fact memory;

  if (!oom->trigger.api || oom->trigger.bytes == 0 || oom->trigger.bytes > UINT64_MAX / 2 ||
      !p->config.evidence.memory ||
      p->config.evidence.memory(p->config.evidence.context, oom->trigger.device, &memory) != 0 ||
      !elsewhere(memory.total_bytes, oom->free_bytes, oom->live_bytes, &used))
    return false;
  uint64_t missing = more(need, oom->free_bytes);
  if (missing == 0 || used < missing || (others = held_by_others(p, &memory, used)) < missing)
    return false;
  /* Of a step, with as much of ours as there was when the request came. */
  out->free_bytes = whole ? more(oom->live_bytes + need, memory.live_bytes) : need;
  if (memory.free_bytes != BSG_BYTES_UNKNOWN && memory.free_bytes >= out->free_bytes) {
    out->free_bytes = 0; /* they have gone already */
    return true;
  }
  out->wait_ms = more((uint64_t)p->config.wait_ms, (uint64_t)device->patience_ms);
  device->waited_for = out->free_bytes;
  device->waited_others = others;
  say_waiting(p, oom, others, before);
  return true;
}

bool bsg_state_again(struct bsg_policy *p, const struct bsg_oom *oom, const struct bsg_oom_record *record,
                     bool can_split, struct bsg_again *out) {
  struct bsg_device_state *device = &p->devices[oom->device];
  int64_t step = record->trigger.where.step;

  *out = (struct bsg_again){0};
  if (p->config.wait_ms <= 0 || !oom->boundary || oom->batch <= 0 ||
      (device->again && step < device->again_step + STEPS_BETWEEN))
    return false;
  /* What must not be cut must not be run twice either: its forward may count or remember. */
  if (!can_split)
    return false;
  /* A forward that nobody was prepared for may have moved BatchNorm's statistics before it failed. */
  if (oom->phase == BSG_PHASE_FORWARD && oom->exactness == BSG_APPROXIMATE)
    return false;
  if (!bsg_state_fragmented(record) &&
      (device->patience_ms >= p->config.wait_ms ||
       !others_are_in_the_way(p, record, true, "anything is split", out)))
    return false;
  device->again = true;
  device->again_step = step;
  return true;
}

bool bsg_state_last_resort(struct bsg_policy *p, const struct bsg_oom_record *record, struct bsg_again *out) {
  struct bsg_device_state *device = &p->devices[record->trigger.device];

  *out = (struct bsg_again){0};
  if (device->patience_ms >= p->config.wait_ms || !others_are_in_the_way(p, record, false, "it is given up", out))
    return false;
  device->patience_ms += LEAST_WAIT_MS;
  return true;
}

int bsg_policy_waited(struct bsg_policy *p, struct bsg_when now, int device, int64_t waited_ms) {
  struct bsg_memory_fact memory;
  struct bsg_device_state *state;
  char text[BSG_LINE_ROOM];
  struct bsg_out line;

  if (!p || !p->live)
    return -ENODEV;
  if (device < 0 || device >= BSG_MAX_DEVICES || waited_ms < 0)
    return -EINVAL;
  state = &p->devices[device];
  state->patience_ms += waited_ms;
  if (!p->latest.taken || p->latest.oom.trigger.device != device || p->latest.verdict != BSG_AGAIN ||
      !state->waited_for)
    return -ENOENT;
  if (!p->config.evidence.memory || p->config.evidence.memory(p->config.evidence.context, device, &memory) != 0 ||
      memory.free_bytes == BSG_BYTES_UNKNOWN)
    memory.free_bytes = 0;
  bool met = memory.free_bytes >= state->waited_for;
  BSG_EVENT(p, bsg_event_waited(&p->events, now, &p->latest.oom.trigger, state->waited_others, waited_ms,
                                memory.free_bytes, met));
  bsg_out_buffer(&line, text, sizeof(text));
  bsg_out_format(&line, "waited %lld.%lld s for other processes%s: ", (long long)(waited_ms / 1000),
                 (long long)(waited_ms % 1000 / 100), met ? "" : " in vain");
  bsg_out_size(&line, memory.free_bytes);
  bsg_out_text(&line, " free of the ");
  bsg_out_size(&line, state->waited_for);
  bsg_out_text(&line, " needed; it is tried once more");
  if (state->wait_aloud)
    bsg_state_say(p, 0, &line);
  state->waited_for = 0;
  return 0;
}
