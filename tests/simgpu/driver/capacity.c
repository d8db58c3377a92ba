/*
 * capacity.c - what each device has, has handed out for what, and had handed out at most. Figures only: no addresses.
 *
 * A device hands out units of SIMGPU_GRANULARITY. A request of more than half a unit has units of its own; smaller ones
 * of a kind share, packed without gaps (a real driver leaves some). Kinds from SIMGPU_PINNED on take nothing. Figures
 * are this process's; what other processes use of the same capacity (shared.c) only counts for what is left.
 */
#include "internal.h"

#define SMALLEST 512 /* what small requests are rounded up to before they are packed */

struct part {
  uint64_t own, shared;     /* bytes lost: in units of their own, and small ones before they are packed */
  uint64_t requested, live; /* what clients hold */
};

static struct {
  struct account {
    uint64_t total, used, peak;
    struct part part[SIMGPU_KINDS];
    bool known;
  } device[SIM_MAX_DEVICES];
} state;

static struct account *account(int device) {
  struct account *a = &state.device[device];
  if (!a->known) {
    a->total = sim_config()->memory;
    a->known = true;
  }
  return a;
}

static uint64_t lost(const struct part *part) {
  return part->own + sim_round_up(part->shared, sim_config()->granularity);
}

/* The sum that a request of this size belongs to, and what it adds there. */
static uint64_t *share(struct part *part, uint64_t bytes, uint64_t *out) {
  uint64_t unit = sim_config()->granularity;
  bool own = bytes > unit / 2;
  *out = sim_round_up(bytes, own ? unit : SMALLEST);
  return own ? &part->own : &part->shared;
}

/* Takes so much more of a device, unless it has not that much left. */
static bool enlarge(int device, struct account *a, uint64_t growth) {
  bool fits;
  sim_shared_enter();
  fits = a->used + growth + sim_shared_others(device) <= a->total;
  if (fits) {
    a->used += growth;
    sim_shared_publish(device, a->used);
  }
  sim_shared_leave();
  if (a->used > a->peak)
    a->peak = a->used;
  return fits;
}

/* Adds to a sum of a part, unless the device has not that much left. */
static bool add(int device, struct part *part, uint64_t *sum, uint64_t bytes) {
  uint64_t before = lost(part), growth;
  *sum += bytes;
  growth = lost(part) - before;
  if (growth == 0 || enlarge(device, account(device), growth))
    return true;
  *sum -= bytes;
  return false;
}

static void subtract(int device, struct part *part, uint64_t *sum, uint64_t bytes) {
  struct account *a = account(device);
  uint64_t before = lost(part);
  *sum -= bytes;
  a->used -= before - lost(part);
  sim_shared_publish(device, a->used);
}

bool sim_capacity_charge(int device, enum simgpu_kind kind, uint64_t bytes) {
  struct account *a = account(device);
  uint64_t *sum, rounded;
  if (kind < SIMGPU_PINNED) {
    if (bytes > a->total) /* also keeps the rounding below from overflowing */
      return false;
    sum = share(&a->part[kind], bytes, &rounded);
    if (!add(device, &a->part[kind], sum, rounded))
      return false;
  }
  sim_capacity_hand_out(device, kind, bytes);
  return true;
}

void sim_capacity_refund(int device, enum simgpu_kind kind, uint64_t bytes) {
  struct account *a = account(device);
  uint64_t *sum, rounded;
  if (kind < SIMGPU_PINNED) {
    sum = share(&a->part[kind], bytes, &rounded);
    subtract(device, &a->part[kind], sum, rounded);
  }
  sim_capacity_hand_in(device, kind, bytes);
}

bool sim_capacity_take(int device, enum simgpu_kind kind, uint64_t bytes) {
  struct account *a = account(device);
  return bytes <= a->total && add(device, &a->part[kind], &a->part[kind].own, bytes);
}

void sim_capacity_return(int device, enum simgpu_kind kind, uint64_t bytes) {
  struct account *a = account(device);
  subtract(device, &a->part[kind], &a->part[kind].own, bytes);
}

void sim_capacity_hand_out(int device, enum simgpu_kind kind, uint64_t bytes) {
  struct part *part = &account(device)->part[kind];
  part->requested += bytes;
  part->live++;
}

void sim_capacity_hand_in(int device, enum simgpu_kind kind, uint64_t bytes) {
  struct part *part = &account(device)->part[kind];
  part->requested -= bytes;
  part->live--;
}

uint64_t sim_capacity_total(int device) {
  return account(device)->total;
}

uint64_t sim_capacity_used(int device) {
  return account(device)->used;
}

uint64_t sim_capacity_left(int device) {
  const struct account *a = account(device);
  uint64_t used = a->used + sim_shared_others(device);
  return used < a->total ? a->total - used : 0;
}

uint64_t sim_capacity_live(int device) {
  const struct account *a = account(device);
  uint64_t live = 0;
  for (int kind = SIMGPU_PLAIN; kind <= SIMGPU_ARRAY; kind++)
    live += a->part[kind].live;
  return live;
}

uint64_t sim_capacity_used_by(int device, enum simgpu_kind kind) {
  return lost(&account(device)->part[kind]);
}

uint64_t sim_capacity_requested_by(int device, enum simgpu_kind kind) {
  return account(device)->part[kind].requested;
}

uint64_t sim_capacity_live_by(int device, enum simgpu_kind kind) {
  return account(device)->part[kind].live;
}

uint64_t sim_capacity_peak(int device, bool reset) {
  struct account *a = account(device);
  uint64_t peak = a->peak;
  if (reset)
    a->peak = a->used;
  return peak;
}

void sim_capacity_set(int device, uint64_t bytes) {
  account(device)->total = bytes;
}
