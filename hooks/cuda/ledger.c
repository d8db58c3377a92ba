/*
 * ledger.c - see ledger.h. Depends on pages.h. Never calls the driver, the policy or malloc(), and never gives up the
 * process for want of memory.
 *
 * A table of its own, where the rest of bsguard uses uthash: at 100 000 live allocations what a pair of calls costs is
 * the cache misses, of which uthash has five (bucket, entry and neighbours in the chain) and this has two. Open
 * addressing by linear probing, entries of 32 bytes in the table itself, at most half full; a removal shifts back what
 * follows it, so there are no tombstones. Half full means 64 to 128 bytes a live allocation, and 192 while it is grown.
 */
#include "hooks/cuda/ledger.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "hooks/cuda/pages.h"

#define FIRST_ENTRIES 256u

_Static_assert(sizeof(struct bsg_allocation) == 32, "two entries of the ledger are to share a cache line");
_Static_assert(BSG_MAX_POOLS <= 256 && BSG_MAX_DEVICES <= 256, "they are kept in a byte");

struct device {
  struct bsg_totals totals;
  uint64_t kinds[BSG_KIND_COUNT];
};

static struct {
  pthread_mutex_t lock;
  _Atomic(struct bsg_allocation *) table; /* key 0: free; atomic for expect() alone */
  _Atomic uint64_t mask;                  /* entries in the table, less one */
  uint64_t count;
  struct device devices[BSG_MAX_DEVICES];
  uint64_t pooled[BSG_MAX_POOLS];
  uint64_t missed;
} state = {.lock = PTHREAD_MUTEX_INITIALIZER};

static struct bsg_allocation *table(void) {
  return atomic_load_explicit(&state.table, memory_order_relaxed);
}

static uint64_t mask(void) {
  return atomic_load_explicit(&state.mask, memory_order_relaxed);
}

/* Addresses differ in their middle bits, and the table takes the low ones. */
static inline uint64_t mix(uint64_t key) {
  return (key * 0x9E3779B97F4A7C15u) >> 32;
}

/* Fetches a key's place into the cache while the lock is being taken. What was fetched in vain does no harm. */
static inline void expect(uint64_t hash) {
  const struct bsg_allocation *entries = table();
  if (entries)
    __builtin_prefetch(&entries[hash & mask()], 1);
}

/* The entry of a key, or the free one where it belongs. The table is there, and never full. */
static inline struct bsg_allocation *place(uint64_t key) {
  struct bsg_allocation *entries = table();
  uint64_t last = mask(), at = mix(key) & last;
  while (entries[at].key != key && entries[at].key != 0)
    at = (at + 1) & last;
  return &entries[at];
}

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

/* Makes an entry free; what had to make way for it moves back towards where it belongs. */
static inline void vacate(struct bsg_allocation *entry) {
  struct bsg_allocation *entries = table();
  uint64_t last = mask(), hole = (uint64_t)(entry - entries), at = hole;

  for (;;) {
    uint64_t home;
    at = (at + 1) & last;
    if (entries[at].key == 0)
      break;
    home = mix(entries[at].key) & last;
    if (((at - home) & last) < ((at - hole) & last)) /* its home lies behind the hole */
      continue;
    entries[hole] = entries[at];
    hole = at;
  }
  entries[hole].key = 0;
  state.count--;
}

/* Twice the room, or the first. -ENOMEM: as it was. */
static int grow(void) {
  struct bsg_allocation *before = table(), *larger;
  uint64_t entries = before ? mask() + 1 : 0, wanted = entries ? entries * 2 : FIRST_ENTRIES;

  larger = bsg_pages_map(wanted * sizeof *larger);
  if (!larger)
    return -ENOMEM;
  atomic_store_explicit(&state.table, larger, memory_order_relaxed);
  atomic_store_explicit(&state.mask, wanted - 1, memory_order_relaxed);
  for (uint64_t i = 0; i < entries; i++)
    if (before[i].key)
      *place(before[i].key) = before[i];
  if (before)
    bsg_pages_unmap(before, entries * sizeof *before);
  return 0;
}

/* Room for one more entry? Where the table cannot grow it is filled further, but never to the last place. */
static inline bool have_room(void) {
  uint64_t entries = table() ? mask() + 1 : 0;
  if (__builtin_expect(state.count < entries / 2, 1))
    return true;
  return grow() == 0 || state.count + entries / 16 < entries;
}

/* Caller holds the lock. */
static inline int enter(const struct bsg_allocation *allocation) {
  struct bsg_allocation *entry;

  if (__builtin_expect(!have_room(), 0)) {
    state.missed++;
    return -ENOMEM;
  }
  entry = place(allocation->key);
  if (__builtin_expect(entry->key != 0, 0))
    take_off(entry);
  else
    state.count++;
  *entry = *allocation;
  sum_up(allocation);
  return 0;
}

int bsg_ledger_add(const struct bsg_allocation *allocation, struct bsg_totals *after) {
  struct bsg_totals *totals = &state.devices[allocation->device].totals;
  int result;

  expect(mix(allocation->key));
  pthread_mutex_lock(&state.lock);
  result = enter(allocation);
  if (result == 0)
    raise_peaks(totals);
  *after = *totals;
  pthread_mutex_unlock(&state.lock);
  return result;
}

int bsg_ledger_take(uint64_t key, struct bsg_allocation *out) {
  int result = -ENOENT;
  struct bsg_allocation *entry;

  expect(mix(key));
  pthread_mutex_lock(&state.lock);
  if (table() && (entry = place(key))->key != 0) {
    *out = *entry;
    take_off(entry);
    if (counts(entry->kind))
      state.devices[entry->device].totals.freed_bytes += entry->bytes;
    vacate(entry);
    result = 0;
  }
  pthread_mutex_unlock(&state.lock);
  return result;
}

int bsg_ledger_put_back(const struct bsg_allocation *allocation) {
  int result;
  pthread_mutex_lock(&state.lock);
  if (counts(allocation->kind))
    state.devices[allocation->device].totals.freed_bytes -= allocation->bytes;
  result = enter(allocation);
  pthread_mutex_unlock(&state.lock);
  return result;
}

void bsg_ledger_set_site(uint64_t key, uint32_t site) {
  struct bsg_allocation *entry;
  pthread_mutex_lock(&state.lock);
  if (table() && (entry = place(key))->key != 0 && site <= UINT16_MAX)
    entry->site = (uint16_t)site;
  pthread_mutex_unlock(&state.lock);
}

/* Caller holds the lock. A removal may shift an entry into the place just looked at, so that is looked at again. */
static void drop_if(bool (*of)(const struct bsg_allocation *entry, unsigned number), unsigned number,
                    uint64_t bytes[BSG_MAX_DEVICES]) {
  struct bsg_allocation *entries = table();
  for (uint64_t i = 0; entries && i <= mask();) {
    struct bsg_allocation *entry = &entries[i];
    if (entry->key == 0 || !of(entry, number)) {
      i++;
      continue;
    }
    take_off(entry);
    if (counts(entry->kind)) {
      state.devices[entry->device].totals.freed_bytes += entry->bytes;
      if (bytes)
        bytes[entry->device] += entry->bytes;
    }
    vacate(entry);
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
  pthread_mutex_lock(&state.lock);
  drop_if(of_context, context, bytes);
  pthread_mutex_unlock(&state.lock);
}

void bsg_ledger_drop_pool(uint8_t pool) {
  pthread_mutex_lock(&state.lock);
  drop_if(of_pool, pool, NULL);
  pthread_mutex_unlock(&state.lock);
}

uint64_t bsg_ledger_reserve(int device, enum bsg_kind kind, uint64_t bytes, struct bsg_totals *after) {
  struct device *of = &state.devices[device];
  uint64_t before;

  pthread_mutex_lock(&state.lock);
  before = of->kinds[kind];
  of->kinds[kind] = bytes;
  of->totals.live_bytes += bytes - before;
  if (bytes < before)
    of->totals.freed_bytes += before - bytes;
  raise_peaks(&of->totals);
  *after = of->totals;
  pthread_mutex_unlock(&state.lock);
  return before;
}

uint64_t bsg_ledger_pooled(uint8_t pool) {
  uint64_t bytes;
  pthread_mutex_lock(&state.lock);
  bytes = state.pooled[pool];
  pthread_mutex_unlock(&state.lock);
  return bytes;
}

void bsg_ledger_totals(int device, struct bsg_totals *out) {
  pthread_mutex_lock(&state.lock);
  *out = state.devices[device].totals;
  pthread_mutex_unlock(&state.lock);
}

void bsg_ledger_kinds(int device, uint64_t bytes[BSG_KIND_COUNT]) {
  pthread_mutex_lock(&state.lock);
  memcpy(bytes, state.devices[device].kinds, sizeof state.devices[device].kinds);
  pthread_mutex_unlock(&state.lock);
}

void bsg_ledger_step(int device) {
  struct bsg_totals *totals = &state.devices[device].totals;
  pthread_mutex_lock(&state.lock);
  totals->step_peak_bytes = totals->live_bytes;
  pthread_mutex_unlock(&state.lock);
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
  const struct bsg_allocation *entries;
  int count = 0;

  pthread_mutex_lock(&state.lock);
  entries = table();
  for (uint64_t i = 0; entries && i <= mask(); i++)
    if (entries[i].key && is_device_memory(entries[i].kind) && (device < 0 || entries[i].device == device))
      count = keep_largest(&entries[i], out, count, room);
  pthread_mutex_unlock(&state.lock);
  return count;
}

uint64_t bsg_ledger_missed(void) {
  uint64_t missed;
  pthread_mutex_lock(&state.lock);
  missed = state.missed;
  pthread_mutex_unlock(&state.lock);
  return missed;
}

void bsg_ledger_forget(void) {
  /* The parent's table may have been half-changed by a thread that does not exist here: its pages are left alone. */
  memset(&state, 0, sizeof state);
  pthread_mutex_init(&state.lock, NULL);
}
