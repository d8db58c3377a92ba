/* reserves.c - see reserves.h. Depends on driver.h and ledger.h. Never calls the host. */
#include "hooks/cuda/reserves.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "hooks/cuda/driver.h"
#include "hooks/cuda/ledger.h"

/* A pool may have grown without need, for want of a piece that is large enough: so it is also asked at each so many. */
#define ASK_EVERY 16
/* What a pool that can no longer be asked is taken to hold: what is out, in pieces of this size. */
#define PIECE ((uint64_t)2 << 20)

struct pool {
  CUmemoryPool handle; /* NULL: destroyed */
  uint64_t reserved;
  uint32_t taken; /* since it was last asked */
  int16_t device;
  bool used; /* the slot */
};

static struct {
  pthread_mutex_t lock;
  struct pool pools[BSG_MAX_POOLS]; /* from 1 */
  int count;                        /* slots in use lie below */
  _Atomic uint64_t pool_devices;    /* bit sets: devices that have any */
  _Atomic uint64_t graph_devices;
  atomic_int destroyed; /* pools that are, but for what is still out */
} state = {.lock = PTHREAD_MUTEX_INITIALIZER, .count = 1};

static uint64_t bit(int device) {
  return (uint64_t)1 << device;
}

/* All below with `at` in its name, and find(), expect the lock to be held. */
static int find(CUmemoryPool handle) {
  for (int n = 1; handle && n < state.count; n++)
    if (state.pools[n].used && state.pools[n].handle == handle)
      return n;
  return 0;
}

uint8_t bsg_reserves_pool(CUmemoryPool handle, int device) {
  int n = 0;
  if (!handle)
    return 0;
  pthread_mutex_lock(&state.lock);
  n = find(handle);
  if (!n) {
    for (n = 1; n < BSG_MAX_POOLS && state.pools[n].used; n++)
      ;
    if (n < BSG_MAX_POOLS) {
      state.pools[n] = (struct pool){.handle = handle, .device = (int16_t)device, .used = true};
      if (n >= state.count)
        state.count = n + 1;
      atomic_fetch_or(&state.pool_devices, bit(device));
    } else
      n = 0;
  }
  pthread_mutex_unlock(&state.lock);
  return (uint8_t)n;
}

int bsg_reserves_device(CUmemoryPool handle) {
  int device = -1, n;
  pthread_mutex_lock(&state.lock);
  n = find(handle);
  if (n)
    device = state.pools[n].device;
  pthread_mutex_unlock(&state.lock);
  return device;
}

static void ask_at(int n) {
  struct pool *pool = &state.pools[n];
  uint64_t pooled, pieces;

  pool->taken = 0;
  if (pool->handle && bsg_driver_pool_bytes(pool->handle, false, &pool->reserved) == 0)
    return;
  pooled = bsg_ledger_pooled((uint8_t)n);
  pieces = (pooled + PIECE - 1) / PIECE * PIECE;
  if (!pool->handle && pooled > 0) /* destroyed: it holds on to its pieces until the last allocation is freed */
    pool->reserved = pool->reserved < pieces ? pieces : pool->reserved;
  else
    pool->reserved = pooled > 0 ? pieces : 0;
  if (!pool->handle && pooled == 0) {
    pool->used = false;
    atomic_fetch_sub(&state.destroyed, 1);
  }
}

static void sum_at(int device, bsg_reserve_changed changed) {
  struct bsg_totals after;
  uint64_t bytes = 0, before;
  for (int n = 1; n < state.count; n++)
    if (state.pools[n].used && state.pools[n].device == device)
      bytes += state.pools[n].reserved;
  before = bsg_ledger_reserve(device, BSG_KIND_POOL, bytes, &after);
  if (before != bytes)
    changed(device, before, bytes);
}

static void refresh_at(int device, bsg_reserve_changed changed) {
  for (int n = 1; n < state.count; n++)
    if (state.pools[n].used && state.pools[n].device == device)
      ask_at(n);
  sum_at(device, changed);
}

void bsg_reserves_taken(uint8_t number, bsg_reserve_changed changed) {
  struct pool *pool = &state.pools[number];
  pthread_mutex_lock(&state.lock);
  if (pool->used && (++pool->taken >= ASK_EVERY || bsg_ledger_pooled(number) > pool->reserved))
    refresh_at(pool->device, changed);
  pthread_mutex_unlock(&state.lock);
}

uint64_t bsg_reserves_wanting(CUmemoryPool handle, uint64_t bytes) {
  uint64_t idle = 0, pooled;
  int n;
  pthread_mutex_lock(&state.lock);
  n = find(handle);
  if (n) {
    ask_at(n);
    pooled = bsg_ledger_pooled((uint8_t)n);
    idle = state.pools[n].reserved > pooled ? state.pools[n].reserved - pooled : 0;
  }
  pthread_mutex_unlock(&state.lock);
  return bytes > idle ? bytes - idle : 0;
}

static void refresh_graphs(int device, bsg_reserve_changed changed) {
  struct bsg_totals after;
  uint64_t bytes, before;
  if (bsg_driver_graph_bytes(device, &bytes) != 0)
    return;
  before = bsg_ledger_reserve(device, BSG_KIND_GRAPH, bytes, &after);
  if (before != bytes)
    changed(device, before, bytes);
}

void bsg_reserves_refresh(int device, bsg_reserve_changed changed) {
  bool pools = atomic_load_explicit(&state.pool_devices, memory_order_relaxed) & bit(device);
  bool graphs = atomic_load_explicit(&state.graph_devices, memory_order_relaxed) & bit(device);
  if (!pools && !graphs)
    return;
  pthread_mutex_lock(&state.lock);
  if (pools)
    refresh_at(device, changed);
  if (graphs)
    refresh_graphs(device, changed);
  pthread_mutex_unlock(&state.lock);
}

uint8_t bsg_reserves_take_pool(CUmemoryPool handle) {
  int n;
  uint64_t pooled, pieces;
  pthread_mutex_lock(&state.lock);
  n = find(handle);
  if (n) {
    ask_at(n);
    state.pools[n].handle = NULL;
    atomic_fetch_add(&state.destroyed, 1);
    pooled = bsg_ledger_pooled((uint8_t)n);
    pieces = (pooled + PIECE - 1) / PIECE * PIECE;
    if (pieces < state.pools[n].reserved)
      state.pools[n].reserved = pieces;
  }
  pthread_mutex_unlock(&state.lock);
  return (uint8_t)n;
}

void bsg_reserves_put_pool_back(CUmemoryPool handle, uint8_t number) {
  if (!number)
    return;
  pthread_mutex_lock(&state.lock);
  state.pools[number].handle = handle;
  atomic_fetch_sub(&state.destroyed, 1);
  pthread_mutex_unlock(&state.lock);
}

void bsg_reserves_freed(uint8_t number, bsg_reserve_changed changed) {
  struct pool *pool = &state.pools[number];
  if (atomic_load_explicit(&state.destroyed, memory_order_relaxed) == 0)
    return;
  pthread_mutex_lock(&state.lock);
  if (pool->used && !pool->handle) {
    ask_at(number);
    sum_at(pool->device, changed);
  }
  pthread_mutex_unlock(&state.lock);
}

void bsg_reserves_reset(int device, bsg_reserve_changed changed) {
  pthread_mutex_lock(&state.lock);
  for (int n = 1; n < state.count; n++)
    if (state.pools[n].used && state.pools[n].device == device) {
      bsg_ledger_drop_pool((uint8_t)n);
      if (!state.pools[n].handle)
        atomic_fetch_sub(&state.destroyed, 1);
      state.pools[n].used = false;
    }
  sum_at(device, changed);
  if (atomic_load(&state.graph_devices) & bit(device))
    refresh_graphs(device, changed);
  pthread_mutex_unlock(&state.lock);
}

bool bsg_reserves_any(int device) {
  uint64_t devices = atomic_load_explicit(&state.pool_devices, memory_order_relaxed) |
                     atomic_load_explicit(&state.graph_devices, memory_order_relaxed);
  return devices & bit(device);
}

void bsg_reserves_graph(int device) {
  if (!(atomic_load_explicit(&state.graph_devices, memory_order_relaxed) & bit(device)))
    atomic_fetch_or(&state.graph_devices, bit(device));
}

uint64_t bsg_reserves_graph_devices(void) {
  return atomic_load_explicit(&state.graph_devices, memory_order_relaxed);
}

uint64_t bsg_reserves_idle(int device) {
  uint64_t idle = 0, pooled;
  pthread_mutex_lock(&state.lock);
  for (int n = 1; n < state.count; n++)
    if (state.pools[n].used && state.pools[n].device == device) {
      pooled = bsg_ledger_pooled((uint8_t)n);
      idle += state.pools[n].reserved > pooled ? state.pools[n].reserved - pooled : 0;
    }
  pthread_mutex_unlock(&state.lock);
  return idle;
}

void bsg_reserves_forget(void) {
  memset(&state, 0, sizeof state);
  pthread_mutex_init(&state.lock, NULL);
  state.count = 1;
}
