/* refusals.c - see refusals.h. */
#include "policy/refusals.h"

#include <stddef.h>

/* What a framework says it asked for, rounded for people, may be a little more than what it asked the driver for. */
#define ROUNDING 65536

static void count(struct bsg_refusals *refusals, int change) {
  atomic_fetch_add_explicit(&refusals->waiting, change, memory_order_relaxed);
}

static void drop(struct bsg_refusals *refusals, struct bsg_refusal *refusal) {
  if (!refusal->met)
    count(refusals, -1);
  refusal->used = false;
}

static struct bsg_refusal *find(struct bsg_refusals *refusals, const struct bsg_alloc_fact *fact) {
  for (int i = 0; i < BSG_REFUSALS_ROOM; i++) {
    struct bsg_refusal *refusal = &refusals->slots[i];
    if (refusal->used && refusal->record.trigger.device == fact->device && refusal->thread == fact->thread &&
        refusal->record.trigger.bytes == fact->request_bytes)
      return refusal;
  }
  return NULL;
}

static struct bsg_refusal *make_room(struct bsg_refusals *refusals, struct bsg_refusal *over) {
  struct bsg_refusal *oldest = NULL;

  for (int i = 0; i < BSG_REFUSALS_ROOM; i++) {
    struct bsg_refusal *refusal = &refusals->slots[i];
    if (!refusal->used)
      return refusal;
    if (!oldest || refusal->order < oldest->order)
      oldest = refusal;
  }
  *over = *oldest;
  drop(refusals, oldest);
  return oldest;
}

struct bsg_refusal *bsg_refusals_note(struct bsg_refusals *refusals, const struct bsg_alloc_fact *fact,
                                      struct bsg_repeated *repeated, struct bsg_refusal *over) {
  struct bsg_refusal *refusal = find(refusals, fact);

  over->used = false;
  if (refusal && refusal->met) {
    *over = *refusal;
    drop(refusals, refusal);
    refusal = NULL;
  }
  if (refusal) {
    if (refusal->granted)
      refusal->concluded = refusal->reported = false;
    *repeated = (struct bsg_repeated){.freed_before = refusal->freed,
                                      .freed_now = fact->freed_bytes,
                                      .granted_between = refusal->granted,
                                      .concluded = refusal->concluded};
  } else {
    refusal = make_room(refusals, over);
    *refusal = (struct bsg_refusal){.used = true, .thread = fact->thread};
    count(refusals, 1);
    *repeated = (struct bsg_repeated){.freed_before = fact->freed_bytes, .freed_now = fact->freed_bytes};
  }
  refusal->granted = refusal->granted_thread = false;
  refusal->freed = fact->freed_bytes;
  refusal->order = ++refusals->clock;
  refusal->record.attempts++;
  refusal->record.live_bytes = fact->live_bytes;
  refusal->record.free_bytes = fact->free_bytes;
  refusal->record.trigger = (struct bsg_trigger){.api = fact->api,
                                                 .bytes = fact->request_bytes,
                                                 .device = fact->device,
                                                 .site = fact->site,
                                                 .where = fact->where,
                                                 .thread = fact->thread};
  return refusal;
}

void bsg_refusals_grant(struct bsg_refusals *refusals, const struct bsg_alloc_fact *fact) {
  for (int i = 0; i < BSG_REFUSALS_ROOM; i++) {
    struct bsg_refusal *refusal = &refusals->slots[i];
    if (!refusal->used || refusal->record.trigger.device != fact->device)
      continue;
    refusal->granted = true;
    if (refusal->thread != fact->thread)
      continue;
    refusal->granted_thread = true;
    if (!refusal->met && fact->request_bytes >= refusal->record.trigger.bytes) {
      refusal->met = true;
      count(refusals, -1);
    }
  }
}

struct bsg_refusal *bsg_refusals_blamed(struct bsg_refusals *refusals, int device, uint64_t request_bytes) {
  struct bsg_refusal *blamed = NULL;

  for (int i = 0; i < BSG_REFUSALS_ROOM; i++) {
    struct bsg_refusal *refusal = &refusals->slots[i];
    if (!refusal->used || refusal->record.trigger.device != device)
      continue;
    /* A framework asks the driver for no less than it was asked for itself: a smaller one, met since, was another. */
    if (refusal->met && refusal->record.trigger.bytes + ROUNDING < request_bytes)
      continue;
    if (!blamed || refusal->order > blamed->order)
      blamed = refusal;
  }
  return blamed;
}

void bsg_refusals_forget(struct bsg_refusals *refusals, int device, uint64_t thread) {
  for (int i = 0; i < BSG_REFUSALS_ROOM; i++) {
    struct bsg_refusal *refusal = &refusals->slots[i];
    if (refusal->used && refusal->record.trigger.device == device && refusal->thread == thread)
      drop(refusals, refusal);
  }
}

bool bsg_refusals_take(struct bsg_refusals *refusals, int device, bool only_met, struct bsg_refusal *taken) {
  struct bsg_refusal *first = NULL;

  for (int i = 0; i < BSG_REFUSALS_ROOM; i++) {
    struct bsg_refusal *refusal = &refusals->slots[i];
    if (refusal->used && (device < 0 || refusal->record.trigger.device == device) && (refusal->met || !only_met) &&
        (!first || refusal->order < first->order))
      first = refusal;
  }
  if (!first)
    return false;
  *taken = *first;
  drop(refusals, first);
  return true;
}
