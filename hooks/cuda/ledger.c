/*
 * ledger.c - see ledger.h. Depends on lock.h and pages.h. Never calls the driver, the policy or malloc(), and never
 * gives up the process for want of memory.
 *
 * A table of its own, where others would take a general one: with many live allocations a pair of calls costs its cache
 * misses, of which uthash has five (bucket, entry, neighbours in the chain) and this has two, one for each call; and
 * with few, its branches that cannot be foreseen. The table is of cache lines, and a line of two entries of 32 bytes.
 * An entry lies in the line that its key names, or, where that was full, in the next line with room; its own line
 * counts how many were spilled so, nearly always none. An entry never moves while the table keeps its size, and a
 * removal leaves nothing behind. At most half full: 64 to 128 bytes a live allocation, and 192 while it is grown.
 */
#include "hooks/cuda/ledger.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>

#include "hooks/cuda/lock.h"
#include "hooks/cuda/pages.h"

_Static_assert(BSG_MAX_POOLS <= 256 && BSG_MAX_DEVICES <= 256, "they are kept in a byte");
_Static_assert(BSG_KIND_COUNT <= 16, "they are kept in four bits");

#define FIRST_LINES 64u

/* A key of 0: a free place. `spilled` of the first place is the line's, not the entry's. */
struct line {
  struct bsg_allocation places[2];
};
_Static_assert(sizeof(struct line) == 64, "a line of the table is to be one of the cache");

struct device {
  struct bsg_totals totals;
  uint64_t kinds[BSG_KIND_COUNT];
};

static struct {
  struct bsg_lock lock;
  _Atomic(struct line *) lines; /* atomic for bsg_ledger_expect() alone */
  _Atomic uint64_t mask;        /* how many, less one */
  uint64_t count;               /* entries */
  struct device devices[BSG_MAX_DEVICES];
  uint64_t pooled[BSG_MAX_POOLS];
  uint64_t missed;
} state;

static inline struct line *lines(void) {
  return atomic_load_explicit(&state.lines, memory_order_relaxed);
}

static inline uint64_t mask(void) {
  return atomic_load_explicit(&state.mask, memory_order_relaxed);
}

/* Addresses differ in their middle bits, and the table takes the low ones. */
static inline uint64_t mix(uint64_t key) {
  return (key * 0x9E3779B97F4A7C15u) >> 32;
}

static inline struct line *home_of(uint64_t key) {
  return &lines()[mix(key) & mask()];
}

static inline struct line *after(struct line *line) {
  return line == &lines()[mask()] ? lines() : line + 1;
}

/* All below but the functions of ledger.h expect the lock to be held, and from here to there a table. */

/* Among those that a line has spilled. */
static struct bsg_allocation *find_spilled(struct line *home, uint64_t key) {
  uint32_t left = home->places[0].spilled;
  for (struct line *line = after(home); left > 0 && line != home; line = after(line))
    for (int i = 0; i < 2; i++) {
      struct bsg_allocation *entry = &line->places[i];
      if (entry->key == key)
        return entry;
      left -= entry->key != 0 && home_of(entry->key) == home;
    }
  return NULL;
}

static inline struct bsg_allocation *find(struct line *home, uint64_t key) {
  struct bsg_allocation *entry = &home->places[home->places[1].key == key];
  if (__builtin_expect(entry->key == key, 1))
    return entry;
  return __builtin_expect(home->places[0].spilled > 0, 0) ? find_spilled(home, key) : NULL;
}

/* A free place for an entry of a line; NULL: there is none in the whole table. */
static inline struct bsg_allocation *make_place(struct line *home) {
  struct bsg_allocation *entry = &home->places[home->places[0].key != 0];
  if (__builtin_expect(entry->key == 0, 1))
    return entry;
  for (struct line *line = after(home); line != home; line = after(line)) {
    entry = &line->places[line->places[0].key != 0];
    if (entry->key == 0) {
      home->places[0].spilled++;
      return entry;
    }
  }
  return NULL;
}

static inline void fill(struct bsg_allocation *place, const struct bsg_allocation *allocation) {
  uint32_t spilled = place->spilled;
  *place = *allocation;
  place->spilled = spilled;
}

static inline void vacate(struct line *home, struct bsg_allocation *entry) {
  if (__builtin_expect(entry != &home->places[0] && entry != &home->places[1], 0))
    home->places[0].spilled--;
  entry->key = 0;
  state.count--;
}

/* Twice the lines, or the first. -ENOMEM: as it was. */
static int grow(void) {
  struct line *before = lines();
  uint64_t count = before ? mask() + 1 : 0, wanted = count ? count * 2 : FIRST_LINES;
  struct line *larger = bsg_pages_map(wanted * sizeof *larger);

  if (!larger)
    return -ENOMEM;
  atomic_store_explicit(&state.lines, larger, memory_order_relaxed);
  atomic_store_explicit(&state.mask, wanted - 1, memory_order_relaxed);
  for (uint64_t i = 0; i < 2 * count; i++) {
    const struct bsg_allocation *entry = &before[i / 2].places[i % 2];
    if (entry->key)
      fill(make_place(home_of(entry->key)), entry);
  }
  if (before)
    bsg_pages_unmap(before, count * sizeof *before);
  return 0;
}

/* A table with room for one more. Where it cannot be had the one there is gets fuller. */
static inline bool have_room(void) {
  uint64_t room = lines() ? 2 * (mask() + 1) : 0;
  if (__builtin_expect(state.count < room / 2, 1))
    return true;
  return grow() == 0 || state.count + room / 16 < room;
}

/* ---- sums ---- */

static inline bool counts(enum bsg_kind kind) {
  return kind < BSG_KIND_APART;
}

static inline bool is_device_memory(enum bsg_kind kind) {
  return kind != BSG_KIND_MAPPED && kind != BSG_KIND_PINNED;
}

static inline void sum_up(const struct bsg_allocation *allocation) {
  struct device *device = &state.devices[allocation->device];
  device->kinds[allocation->kind] += allocation->bytes;
  if (counts(allocation->kind))
    device->totals.live_bytes += allocation->bytes;
  device->totals.live_count += is_device_memory(allocation->kind);
  if (allocation->pool)
    state.pooled[allocation->pool] += allocation->bytes;
}

static inline void take_off(const struct bsg_allocation *allocation) {
  struct device *device = &state.devices[allocation->device];
  device->kinds[allocation->kind] -= allocation->bytes;
  if (counts(allocation->kind))
    device->totals.live_bytes -= allocation->bytes;
  device->totals.live_count -= is_device_memory(allocation->kind);
  if (allocation->pool)
    state.pooled[allocation->pool] -= allocation->bytes;
}

static inline void raise_peaks(struct bsg_totals *totals) {
  if (totals->live_bytes > totals->peak_bytes)
    totals->peak_bytes = totals->live_bytes;
  if (totals->live_bytes > totals->step_peak_bytes)
    totals->step_peak_bytes = totals->live_bytes;
}

static inline int enter(const struct bsg_allocation *allocation) {
  struct line *home;
  struct bsg_allocation *entry;

  if (__builtin_expect(!have_room(), 0)) {
    state.missed++;
    return -ENOMEM;
  }
  home = home_of(allocation->key);
  entry = find(home, allocation->key);
  if (__builtin_expect(entry != NULL, 0))
    take_off(entry);
  else {
    entry = make_place(home);
    state.count++;
  }
  fill(entry, allocation);
  sum_up(allocation);
  return 0;
}

void bsg_ledger_expect(uint64_t key) {
  const struct line *table = lines();
  if (__builtin_expect(table != NULL, 1))
    __builtin_prefetch(&table[mix(key) & mask()], 1);
}

int bsg_ledger_add(const struct bsg_allocation *allocation, struct bsg_totals *after) {
  struct bsg_totals *totals = &state.devices[allocation->device].totals;
  int result;

  bsg_lock_take(&state.lock);
  result = enter(allocation);
  if (result == 0)
    raise_peaks(totals);
  *after = *totals;
  bsg_lock_give(&state.lock);
  return result;
}

int bsg_ledger_take(uint64_t key, struct bsg_allocation *out) {
  int result = -ENOENT;
  struct bsg_allocation *entry;
  struct line *home;

  bsg_lock_take(&state.lock);
  if (lines() && key != 0 && (entry = find(home = home_of(key), key))) {
    *out = *entry;
    take_off(entry);
    if (counts(entry->kind))
      state.devices[entry->device].totals.freed_bytes += entry->bytes;
    vacate(home, entry);
    result = 0;
  }
  bsg_lock_give(&state.lock);
  return result;
}

int bsg_ledger_put_back(const struct bsg_allocation *allocation) {
  int result;
  bsg_lock_take(&state.lock);
  if (counts(allocation->kind))
    state.devices[allocation->device].totals.freed_bytes -= allocation->bytes;
  result = enter(allocation);
  bsg_lock_give(&state.lock);
  return result;
}

void bsg_ledger_set_site(uint64_t key, uint32_t site) {
  struct bsg_allocation *entry;
  bsg_lock_take(&state.lock);
  if (lines() && (entry = find(home_of(key), key)) && site <= UINT16_MAX)
    entry->site = (uint16_t)site;
  bsg_lock_give(&state.lock);
}

/* Number n of all places of the table. */
static struct bsg_allocation *place(uint64_t n) {
  return &lines()[n / 2].places[n % 2];
}

static uint64_t places(void) {
  return lines() ? 2 * (mask() + 1) : 0;
}

static void drop_if(bool (*of)(const struct bsg_allocation *entry, unsigned number), unsigned number,
                    uint64_t bytes[BSG_MAX_DEVICES]) {
  for (uint64_t n = 0; n < places(); n++) {
    struct bsg_allocation *entry = place(n);
    if (entry->key == 0 || !of(entry, number))
      continue;
    take_off(entry);
    if (counts(entry->kind)) {
      state.devices[entry->device].totals.freed_bytes += entry->bytes;
      if (bytes)
        bytes[entry->device] += entry->bytes;
    }
    vacate(home_of(entry->key), entry);
  }
}

static bool of_context(const struct bsg_allocation *entry, unsigned context) {
  return entry->context == context;
}

static bool of_pool(const struct bsg_allocation *entry, unsigned pool) {
  return entry->pool == pool;
}

void bsg_ledger_drop_context(uint16_t context, uint64_t bytes[BSG_MAX_DEVICES]) {
  memset(bytes, 0, BSG_MAX_DEVICES * sizeof bytes[0]);
  bsg_lock_take(&state.lock);
  drop_if(of_context, context, bytes);
  bsg_lock_give(&state.lock);
}

void bsg_ledger_drop_pool(uint8_t pool) {
  bsg_lock_take(&state.lock);
  drop_if(of_pool, pool, NULL);
  bsg_lock_give(&state.lock);
}

uint64_t bsg_ledger_reserve(int device, enum bsg_kind kind, uint64_t bytes, struct bsg_totals *after) {
  struct device *of = &state.devices[device];
  uint64_t before;

  bsg_lock_take(&state.lock);
  before = of->kinds[kind];
  of->kinds[kind] = bytes;
  of->totals.live_bytes += bytes - before;
  if (bytes < before)
    of->totals.freed_bytes += before - bytes;
  raise_peaks(&of->totals);
  *after = of->totals;
  bsg_lock_give(&state.lock);
  return before;
}

uint64_t bsg_ledger_pooled(uint8_t pool) {
  uint64_t bytes;
  bsg_lock_take(&state.lock);
  bytes = state.pooled[pool];
  bsg_lock_give(&state.lock);
  return bytes;
}

void bsg_ledger_totals(int device, struct bsg_totals *out) {
  bsg_lock_take(&state.lock);
  *out = state.devices[device].totals;
  bsg_lock_give(&state.lock);
}

void bsg_ledger_kinds(int device, uint64_t bytes[BSG_KIND_COUNT]) {
  bsg_lock_take(&state.lock);
  memcpy(bytes, state.devices[device].kinds, sizeof state.devices[device].kinds);
  bsg_lock_give(&state.lock);
}

void bsg_ledger_step(int device) {
  struct bsg_totals *totals = &state.devices[device].totals;
  bsg_lock_take(&state.lock);
  totals->step_peak_bytes = totals->live_bytes;
  bsg_lock_give(&state.lock);
}

/* Keeps the largest seen so far in order, at most `room`. Returns how many there are now. */
static int keep_largest(const struct bsg_allocation *entry, struct bsg_allocation *out, int count, int room) {
  int at;
  if (count == room && (room == 0 || entry->bytes <= out[room - 1].bytes))
    return count;
  at = count < room ? count++ : room - 1;
  for (; at > 0 && out[at - 1].bytes < entry->bytes; at--)
    out[at] = out[at - 1];
  out[at] = *entry;
  return count;
}

int bsg_ledger_largest(int device, struct bsg_allocation *out, int room) {
  int count = 0;

  bsg_lock_take(&state.lock);
  for (uint64_t n = 0; n < places(); n++) {
    const struct bsg_allocation *entry = place(n);
    if (entry->key && is_device_memory(entry->kind) && (device < 0 || entry->device == device))
      count = keep_largest(entry, out, count, room);
  }
  bsg_lock_give(&state.lock);
  return count;
}

void bsg_ledger_each(int device, void (*visit)(const struct bsg_allocation *allocation, void *context), void *context) {
  bsg_lock_take(&state.lock);
  for (uint64_t n = 0; n < places(); n++) {
    const struct bsg_allocation *entry = place(n);
    if (entry->key && is_device_memory(entry->kind) && entry->device == device)
      visit(entry, context);
  }
  bsg_lock_give(&state.lock);
}

uint64_t bsg_ledger_missed(void) {
  uint64_t missed;
  bsg_lock_take(&state.lock);
  missed = state.missed;
  bsg_lock_give(&state.lock);
  return missed;
}

void bsg_ledger_forget(void) {
  /* The parent's table may have been half-changed by a thread that does not exist here: its pages are left alone. */
  memset(&state, 0, sizeof state);
}
