/*
 * capacity.c - what each device has, has handed out, and had handed out at most. Figures only: no addresses.
 *
 * A device hands out units of SIMGPU_GRANULARITY. A request of more than half a unit has units of its own; smaller ones
 * share, packed without gaps (a real driver leaves some).
 */
#include "internal.h"

#define SMALLEST 512 /* what small requests are rounded up to before they are packed */

static struct {
  struct account {
    uint64_t total, own, shared, context, peak, live;
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

static uint64_t used(const struct account *a) {
  return a->own + sim_round_up(a->shared, sim_config()->granularity) + a->context;
}

/* The sum that a request of this size belongs to, and what it adds there. */
static uint64_t *share(struct account *a, uint64_t bytes, uint64_t *part) {
  uint64_t unit = sim_config()->granularity;
  bool own = bytes > unit / 2;
  *part = sim_round_up(bytes, own ? unit : SMALLEST);
  return own ? &a->own : &a->shared;
}

bool sim_capacity_charge(int device, uint64_t bytes) {
  struct account *a = account(device);
  uint64_t part, *sum;
  if (bytes > a->total) /* also keeps the rounding below from overflowing */
    return false;
  sum = share(a, bytes, &part);
  *sum += part;
  if (used(a) > a->total) {
    *sum -= part;
    return false;
  }
  a->live++;
  if (used(a) > a->peak)
    a->peak = used(a);
  return true;
}

void sim_capacity_refund(int device, uint64_t bytes) {
  struct account *a = account(device);
  uint64_t part, *sum = share(a, bytes, &part);
  *sum -= part;
  a->live--;
}

bool sim_capacity_context(int device, bool take) {
  struct account *a = account(device);
  uint64_t wanted = take ? sim_config()->context_memory : 0;
  if (wanted > a->context && used(a) - a->context + wanted > a->total)
    return false;
  a->context = wanted;
  if (used(a) > a->peak)
    a->peak = used(a);
  return true;
}

uint64_t sim_capacity_total(int device) {
  return account(device)->total;
}

uint64_t sim_capacity_used(int device) {
  return used(account(device));
}

uint64_t sim_capacity_live(int device) {
  return account(device)->live;
}

uint64_t sim_capacity_peak(int device, bool reset) {
  struct account *a = account(device);
  uint64_t peak = a->peak;
  if (reset)
    a->peak = used(a);
  return peak;
}

void sim_capacity_set(int device, uint64_t bytes) {
  account(device)->total = bytes;
}
