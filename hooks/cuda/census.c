/*
 * census.c - all live allocations of a device summed up by site and phase, those that are new, and a map of the address
 * range that they lie in. Two passes over the ledger, in a table of fixed size: nothing is allocated. Callers
 * serialise. Declared in record.h.
 */
#include <errno.h>
#include <string.h>

#include "hooks/cuda/record.h"

#define SLOTS 1024 /* of sites and phases together: sites are taken at high-water marks, about a hundred a device */
#define REST BSG_PHASES /* behind them, for what found no slot: one a phase, of no site */
#define ADDRESS_BITS 60

struct slot {
  bool used;
  struct bsg_group_fact all, since;
};

static struct census {
  struct bsg_census_fact *out;
  uint64_t since;
  uint64_t from, to;
  uint64_t cell_bytes[BSG_MAP_CELLS];
  struct slot slots[SLOTS + REST];
} state;

static void add(struct bsg_group_fact *group, const struct bsg_allocation *allocation) {
  if (group->count == 0 || allocation->step < group->first_step)
    group->first_step = allocation->step;
  if (allocation->step > group->last_step)
    group->last_step = allocation->step;
  group->bytes += allocation->bytes;
  group->count++;
}

/* The slot of a site and phase; where the table is full, that of the phase alone. */
static struct slot *slot_of(uint32_t site, int phase) {
  uint32_t at = (site * 31 + (uint32_t)phase) % SLOTS;

  for (int tries = 0; tries < SLOTS; tries++, at = (at + 1) % SLOTS) {
    struct slot *slot = &state.slots[at];
    if (!slot->used)
      *slot =
          (struct slot){.used = true, .all = {.site = site, .phase = phase}, .since = {.site = site, .phase = phase}};
    if (slot->all.site == site && slot->all.phase == phase)
      return slot;
  }
  /* Never another's slot: what is said of a site must be its own. */
  return &state.slots[SLOTS + phase];
}

static bool has_address(const struct bsg_allocation *allocation) {
  return allocation->key >> ADDRESS_BITS == 0;
}

static void count_one(const struct bsg_allocation *allocation, void *context) {
  struct bsg_census_fact *out = context;
  int phase = allocation->phase < BSG_PHASES ? allocation->phase : BSG_PHASES - 1;
  struct slot *slot = slot_of(allocation->site, phase);

  add(&slot->all, allocation);
  out->total_bytes += allocation->bytes;
  out->count++;
  out->phase_bytes[phase] += allocation->bytes;
  out->phase_count[phase]++;
  if (allocation->site != BSG_NO_SITE)
    out->with_site_bytes += allocation->bytes;
  if (allocation->step >= state.since) {
    add(&slot->since, allocation);
    out->since_bytes += allocation->bytes;
  }
  if (!has_address(allocation))
    return;
  if (state.to == 0 || allocation->key < state.from)
    state.from = allocation->key;
  if (allocation->key + allocation->bytes > state.to)
    state.to = allocation->key + allocation->bytes;
}

/* What an allocation covers of each cell. */
static void map_one(const struct bsg_allocation *allocation, void *context) {
  uint64_t cell = (uint64_t)(uintptr_t)context, at = allocation->key - state.from, end = at + allocation->bytes;

  if (!has_address(allocation))
    return;
  for (uint64_t number = at / cell; at < end && number < BSG_MAP_CELLS; number++) {
    uint64_t until = (number + 1) * cell < end ? (number + 1) * cell : end;
    state.cell_bytes[number] += until - at;
    at = until;
  }
}

static void keep_largest(const struct bsg_group_fact *group, struct bsg_group_fact *list, int *count, int room) {
  int at;

  if (group->count == 0 || (*count == room && group->bytes <= list[room - 1].bytes))
    return;
  at = *count < room ? (*count)++ : room - 1;
  for (; at > 0 && list[at - 1].bytes < group->bytes; at--)
    list[at] = list[at - 1];
  list[at] = *group;
}

static void draw_map(int device, struct bsg_census_fact *out) {
  uint64_t cell = (state.to - state.from + BSG_MAP_CELLS - 1) / BSG_MAP_CELLS;

  if (state.to <= state.from)
    return;
  bsg_ledger_each(device, map_one, (void *)(uintptr_t)cell);
  out->map_from = state.from;
  out->map_to = state.to;
  for (int i = 0; i < BSG_MAP_CELLS; i++) {
    uint64_t tenths = state.cell_bytes[i] / (cell / 10 ? cell / 10 : 1);
    out->map[i] = (uint8_t)(tenths > 9 ? 9 : tenths == 0 && state.cell_bytes[i] ? 1 : tenths);
  }
}

int bsg_record_census(int device, int64_t since, struct bsg_census_fact *out) {
  memset(out, 0, sizeof *out);
  if (device < 0 || device >= BSG_MAX_DEVICES)
    return -ENODEV;
  memset(&state, 0, sizeof state);
  state.since = since < 0 ? 0 : (uint64_t)since;
  for (int phase = 0; phase < REST; phase++) {
    struct bsg_group_fact none = {.site = BSG_NO_SITE, .phase = phase};
    state.slots[SLOTS + phase] = (struct slot){.used = true, .all = none, .since = none};
  }
  bsg_ledger_each(device, count_one, out);
  for (int i = 0; i < SLOTS + REST; i++) {
    keep_largest(&state.slots[i].all, out->groups, &out->group_count, BSG_MAX_GROUPS);
    keep_largest(&state.slots[i].since, out->since, &out->since_count, BSG_MAX_SINCE);
  }
  draw_map(device, out);
  return 0;
}
