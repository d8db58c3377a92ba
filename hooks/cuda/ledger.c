/*
 * ledger.c - see ledger.h. Depends on uthash (compiled in) and pages.h. Never calls the driver, the policy or malloc(),
 * and never gives up the process for want of memory.
 */
#include "hooks/cuda/ledger.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "hooks/cuda/pages.h"

static uint32_t mix_address(uint64_t address);

#define HASH_NONFATAL_OOM 1
#define uthash_malloc(size) bsg_pages_map(size)
#define uthash_free(pages, size) bsg_pages_unmap(pages, size)
#define HASH_FUNCTION(key, length, hash) ((hash) = mix_address(*(const uint64_t *)(key)))
#define HASH_KEYCMP(a, b, length) (*(const uint64_t *)(a) != *(const uint64_t *)(b))
#include <uthash.h>

/* A page of buckets to begin with; short chains, as each link of one is a cache miss when the table is large. */
#undef HASH_INITIAL_NUM_BUCKETS
#undef HASH_INITIAL_NUM_BUCKETS_LOG2
#undef HASH_BKT_CAPACITY_THRESH
#define HASH_INITIAL_NUM_BUCKETS 256U
#define HASH_INITIAL_NUM_BUCKETS_LOG2 8U
#define HASH_BKT_CAPACITY_THRESH 4U

/* Ordered so that what a look-up reads lies beside the handle's key fields. */
struct entry {
  uint64_t address;
  UT_hash_handle hh;
  uint64_t bytes;
  const char *api;
  int64_t step;
  uint32_t site;
  int16_t device;
  int16_t phase;
};
_Static_assert(sizeof(struct entry) <= 200, "an entry of the ledger is to stay small");

static struct {
  pthread_mutex_t lock;
  _Atomic(const UT_hash_bucket *) buckets; /* where the table's buckets were last seen, and how many: see expect() */
  _Atomic uint32_t bucket_count;
  struct entry *table;
  struct entry anchor; /* stays in the table: see make_table() */
  struct bsg_slab slab;
  struct bsg_totals totals[BSG_MAX_DEVICES];
  uint64_t missed;
} state = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Addresses differ in their middle bits; uthash takes the low ones. */
static uint32_t mix_address(uint64_t address) {
  return (uint32_t)((address * 0x9E3779B97F4A7C15u) >> 32);
}

static void to_fact(const struct entry *entry, struct bsg_holder_fact *out) {
  out->api = entry->api;
  out->device = entry->device;
  out->address = entry->address;
  out->bytes = entry->bytes;
  out->site = entry->site;
  out->where.step = entry->step;
  out->where.phase = entry->phase;
}

/*
 * Fetches an address's bucket into the cache while the lock is being taken. Read without the lock: what was fetched in
 * vain does no harm.
 */
static void expect(uint32_t hash) {
  const UT_hash_bucket *buckets = atomic_load_explicit(&state.buckets, memory_order_relaxed);
  uint32_t count = atomic_load_explicit(&state.bucket_count, memory_order_relaxed);
  if (buckets)
    __builtin_prefetch(&buckets[hash & (count - 1)]);
}

static struct entry *find(uint64_t address, uint32_t hash) {
  struct entry *entry;
  HASH_FIND_BYHASHVALUE(hh, state.table, &address, sizeof address, hash, entry);
  return entry;
}

/*
 * uthash also keeps its entries in a list, in the order in which they came. Nobody asks for it here, and keeping it
 * costs two cache misses at each removal: entries are linked into their buckets only, by the macros that uthash uses
 * itself. The anchor, added in the ordinary way, holds the table, and is its list's only member.
 */
static int make_table(void) {
  HASH_ADD_BYHASHVALUE(hh, state.table, address, sizeof state.anchor.address, mix_address(0), (&state.anchor));
  return state.anchor.hh.tbl ? 0 : -ENOMEM;
}

static UT_hash_bucket *bucket_of(uint32_t hash) {
  UT_hash_table *table = state.anchor.hh.tbl;
  unsigned bucket;
  HASH_TO_BKT(hash, table->num_buckets, bucket);
  return &table->buckets[bucket];
}

/* -ENOMEM: a larger table could not be had, and the entry is not in it. */
static int insert(struct entry *entry, uint32_t hash) {
  UT_hash_table *table = state.anchor.hh.tbl;
  int oomed = 0;

  entry->hh.tbl = table;
  entry->hh.key = &entry->address;
  entry->hh.keylen = sizeof entry->address;
  entry->hh.hashv = hash;
  table->num_items++;
  HASH_ADD_TO_BKT((*bucket_of(hash)), hh, &entry->hh, oomed);
  if (oomed) {
    table->num_items--;
    return -ENOMEM;
  }
  atomic_store_explicit(&state.buckets, table->buckets, memory_order_relaxed);
  atomic_store_explicit(&state.bucket_count, table->num_buckets, memory_order_relaxed);
  return 0;
}

static void drop(struct entry *entry) {
  struct bsg_totals *totals = &state.totals[entry->device];
  HASH_DEL_IN_BKT((*bucket_of(entry->hh.hashv)), &entry->hh);
  state.anchor.hh.tbl->num_items--;
  totals->live_bytes -= entry->bytes;
  totals->live_count--;
  bsg_slab_give(&state.slab, entry);
}

/* Caller holds the lock. */
static int enter(const struct bsg_holder_fact *allocation, uint32_t hash) {
  struct entry *entry = find(allocation->address, hash);
  struct bsg_totals *totals = &state.totals[allocation->device];

  if (!state.table && make_table() != 0)
    goto missed;
  if (entry)
    drop(entry);
  entry = bsg_slab_take(&state.slab, sizeof *entry);
  if (!entry)
    goto missed;
  entry->address = allocation->address;
  entry->bytes = allocation->bytes;
  entry->api = allocation->api;
  entry->step = allocation->where.step;
  entry->site = allocation->site;
  entry->device = (int16_t)allocation->device;
  entry->phase = (int16_t)allocation->where.phase;
  if (insert(entry, hash) != 0) {
    bsg_slab_give(&state.slab, entry);
    goto missed;
  }
  totals->live_bytes += allocation->bytes;
  totals->live_count++;
  return 0;
missed:
  state.missed++;
  return -ENOMEM;
}

int bsg_ledger_add(const struct bsg_holder_fact *allocation, struct bsg_totals *after) {
  struct bsg_totals *totals = &state.totals[allocation->device];
  uint32_t hash = mix_address(allocation->address);
  int result;

  expect(hash);
  pthread_mutex_lock(&state.lock);
  result = enter(allocation, hash);
  if (result == 0) {
    if (totals->live_bytes > totals->peak_bytes)
      totals->peak_bytes = totals->live_bytes;
    if (totals->live_bytes > totals->step_peak_bytes)
      totals->step_peak_bytes = totals->live_bytes;
  }
  *after = *totals;
  pthread_mutex_unlock(&state.lock);
  return result;
}

int bsg_ledger_take(uint64_t address, struct bsg_holder_fact *out) {
  uint32_t hash = mix_address(address);
  int result = -ENOENT;
  struct entry *entry;

  expect(hash);
  pthread_mutex_lock(&state.lock);
  entry = find(address, hash);
  if (entry && entry != &state.anchor) {
    to_fact(entry, out);
    state.totals[entry->device].freed_bytes += entry->bytes;
    drop(entry);
    result = 0;
  }
  pthread_mutex_unlock(&state.lock);
  return result;
}

int bsg_ledger_put_back(const struct bsg_holder_fact *allocation) {
  int result;
  pthread_mutex_lock(&state.lock);
  state.totals[allocation->device].freed_bytes -= allocation->bytes;
  result = enter(allocation, mix_address(allocation->address));
  pthread_mutex_unlock(&state.lock);
  return result;
}

void bsg_ledger_set_site(uint64_t address, uint32_t site) {
  struct entry *entry;
  pthread_mutex_lock(&state.lock);
  entry = find(address, mix_address(address));
  if (entry)
    entry->site = site;
  pthread_mutex_unlock(&state.lock);
}

void bsg_ledger_totals(int device, struct bsg_totals *out) {
  pthread_mutex_lock(&state.lock);
  *out = state.totals[device];
  pthread_mutex_unlock(&state.lock);
}

void bsg_ledger_step(int device) {
  pthread_mutex_lock(&state.lock);
  state.totals[device].step_peak_bytes = state.totals[device].live_bytes;
  pthread_mutex_unlock(&state.lock);
}

/* Keeps the largest seen so far in order, at most `room`. Returns how many there are now. */
static int keep_largest(const struct entry *entry, struct bsg_holder_fact *out, int count, int room) {
  int at;
  if (count == room && (room == 0 || entry->bytes <= out[room - 1].bytes))
    return count;
  at = count < room ? count++ : room - 1;
  for (; at > 0 && out[at - 1].bytes < entry->bytes; at--)
    out[at] = out[at - 1];
  to_fact(entry, &out[at]);
  return count;
}

int bsg_ledger_largest(int device, struct bsg_holder_fact *out, int room) {
  const UT_hash_table *table;
  int count = 0;

  pthread_mutex_lock(&state.lock);
  table = state.anchor.hh.tbl;
  for (unsigned i = 0; table && i < table->num_buckets; i++)
    for (const UT_hash_handle *hh = table->buckets[i].hh_head; hh; hh = hh->hh_next) {
      const struct entry *entry = ELMT_FROM_HH(table, hh);
      if (entry != &state.anchor && (device < 0 || entry->device == device))
        count = keep_largest(entry, out, count, room);
    }
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
