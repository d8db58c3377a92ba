/*
 * record.c - see record.h. Ties ledger, marks, sites and driver together and tells the host. Depends on nothing of the
 * shim but the host's functions. Never holds a lock of its own while it tells the host, but for one: that of a device's
 * first use, so that nothing is told of a device before who it is. The host may ask back, but never allocate.
 */
#include "hooks/cuda/record.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "hooks/cuda/contexts.h"
#include "hooks/cuda/driver.h"
#include "hooks/cuda/host.h"
#include "hooks/cuda/marks.h"
#include "hooks/cuda/physical.h"
#include "hooks/cuda/reserves.h"
#include "hooks/cuda/sites.h"

_Static_assert(BSG_HOOK_COUNT <= 256, "the ledger keeps them in a byte");

static struct {
  pthread_mutex_t first_use;                 /* held while a device is introduced */
  _Atomic uint64_t known;                    /* bit set of devices introduced */
  _Atomic uint64_t total[BSG_MAX_DEVICES];   /* capacity, after the limit */
  _Atomic uint64_t before[BSG_MAX_DEVICES];  /* in use when the device was introduced, but not by us */
  _Atomic uint64_t charged[BSG_MAX_DEVICES]; /* under a memory limit: live bytes and those being asked for */
  atomic_bool stranger;                      /* said that somebody reaches the driver past us */
} state = {.first_use = PTHREAD_MUTEX_INITIALIZER};

static uint64_t thread_id(void) {
  return (uint64_t)syscall(SYS_gettid);
}

static uint64_t smaller(uint64_t a, uint64_t b) {
  return a < b ? a : b;
}

bool bsg_record_enter(void) {
  if (bsg_hooks_depth > 0 || !bsg_cuda_host.active())
    return false;
  bsg_hooks_depth++;
  return true;
}

void bsg_record_leave(void) {
  bsg_hooks_depth--;
}

/* ---- devices ---- */

/* The first allocation on a device, granted (`bytes`) or refused: who is it? Told before anything else about it is. */
static void introduce(int device, uint64_t bytes) {
  struct bsg_device_fact fact;
  uint64_t limit = bsg_cuda_host.memory_limit(), bytes_free, bytes_total, before = UINT64_MAX;

  pthread_mutex_lock(&state.first_use);
  if (!(atomic_load(&state.known) >> device & 1)) {
    bsg_driver_describe(device, &fact);
    if (limit && (fact.total_bytes == 0 || limit < fact.total_bytes))
      fact.total_bytes = limit;
    if (bsg_driver_memory(device, bsg_contexts_any(device), &bytes_free, &bytes_total) == 0)
      before = bytes_total - bytes_free - smaller(bytes, bytes_total - bytes_free);
    atomic_store(&state.before[device], before);
    atomic_store(&state.total[device], fact.total_bytes);
    bsg_marks_capacity(device, fact.total_bytes);
    bsg_cuda_host.device(&fact);
    atomic_fetch_or(&state.known, (uint64_t)1 << device);
  }
  pthread_mutex_unlock(&state.first_use);
}

static inline void ensure_known(int device, uint64_t bytes) {
  if (__builtin_expect(!(atomic_load_explicit(&state.known, memory_order_acquire) >> device & 1), 0))
    introduce(device, bytes);
}

/* ---- the memory limit ---- */

/* Adds to what counts against the limit; false, and nothing added, where that passes it. */
static bool charge(int device, uint64_t bytes, uint64_t limit) {
  uint64_t before = atomic_load(&state.charged[device]);
  do {
    if (bytes > limit || before > limit - bytes)
      return false;
  } while (!atomic_compare_exchange_weak(&state.charged[device], &before, before + bytes));
  return true;
}

static void uncharge(int device, uint64_t bytes) {
  atomic_fetch_sub(&state.charged[device], bytes);
}

/* What the driver reserved by itself counts too, if only afterwards. */
static void reserve_changed(int device, uint64_t before, uint64_t now) {
  if (bsg_cuda_host.memory_limit() != 0)
    atomic_fetch_add(&state.charged[device], now - before);
}

static inline void begin(struct bsg_call *call, enum bsg_hook_id hook, const void *caller, uint64_t bytes, int device) {
  call->hook = hook;
  call->caller = caller;
  call->request_bytes = bytes;
  call->charged_bytes = 0;
  call->device = device;
  call->context = 0;
  call->pool = 0;
}

static inline void find_device(struct bsg_call *call) {
  struct bsg_context context;
  if (call->device >= 0)
    return;
  context = bsg_contexts_current();
  call->device = context.device;
  call->context = context.number;
}

static CUresult check_limit(struct bsg_call *call, uint64_t bytes, uint64_t limit) {
  find_device(call);
  if (!charge(call->device, bytes, limit))
    return CUDA_ERROR_OUT_OF_MEMORY;
  call->charged_bytes = bytes;
  return CUDA_SUCCESS;
}

CUresult bsg_record_request(struct bsg_call *call, enum bsg_hook_id hook, const void *caller, uint64_t bytes) {
  uint64_t limit = bsg_cuda_host.memory_limit();
  begin(call, hook, caller, bytes, -1);
  return __builtin_expect(limit == 0, 1) ? CUDA_SUCCESS : check_limit(call, bytes, limit);
}

/* Whoever names a device that cannot be gets the driver's answer, and no entry of a table of ours. */
static int valid(int device) {
  return device >= 0 && device < BSG_MAX_DEVICES ? device : 0;
}

CUresult bsg_record_request_on(struct bsg_call *call, enum bsg_hook_id hook, const void *caller, uint64_t bytes,
                               int device) {
  uint64_t limit = bsg_cuda_host.memory_limit();
  begin(call, hook, caller, bytes, valid(device));
  return limit == 0 ? CUDA_SUCCESS : check_limit(call, bytes, limit);
}

CUresult bsg_record_request_pooled(struct bsg_call *call, enum bsg_hook_id hook, const void *caller, uint64_t bytes,
                                   CUmemoryPool pool, int device) {
  uint64_t limit = bsg_cuda_host.memory_limit();
  begin(call, hook, caller, bytes, valid(device));
  call->pool = bsg_reserves_pool(pool, call->device);
  if (limit == 0)
    return CUDA_SUCCESS;
  bsg_reserves_refresh(call->device, reserve_changed); /* idle memory may be back with the device by now */
  return check_limit(call, bsg_reserves_wanting(pool, bytes), limit);
}

/* ---- what came of it ---- */

static void fill_fact(const struct bsg_call *call, CUresult result, const struct bsg_totals *totals,
                      struct bsg_alloc_fact *fact) {
  fact->api = bsg_hook_symbol(call->hook);
  fact->device = call->device;
  fact->result = (int32_t)result;
  fact->request_bytes = call->request_bytes;
  fact->live_bytes = totals->live_bytes;
  fact->peak_bytes = totals->peak_bytes;
  fact->free_bytes = UINT64_MAX;
  fact->freed_bytes = totals->freed_bytes;
  fact->thread = thread_id();
  fact->site = BSG_NO_SITE;
  fact->where = bsg_cuda_host.where();
}

static void refused(const struct bsg_call *call, CUresult result) {
  struct bsg_totals totals;
  struct bsg_alloc_fact fact;
  uint64_t total_bytes;

  bsg_reserves_refresh(call->device, reserve_changed);
  bsg_ledger_totals(call->device, &totals);
  fill_fact(call, result, &totals, &fact);
  fact.site = bsg_sites_here(call->caller);
  if (bsg_driver_memory(call->device, bsg_contexts_any(call->device), &fact.free_bytes, &total_bytes) == 0)
    bsg_record_limit_info(call->device, &fact.free_bytes, &total_bytes);
  bsg_cuda_host.refused(&fact);
}

static void marked(const struct bsg_call *call, uint64_t key, uint64_t bytes, const struct bsg_totals *totals,
                   struct bsg_where where) {
  struct bsg_mark_fact fact = {.device = call->device,
                               .live_bytes = totals->live_bytes,
                               .peak_bytes = totals->peak_bytes,
                               .request_bytes = bytes,
                               .where = where};
  fact.site = bsg_sites_sometimes_here(call->caller);
  if (fact.site != BSG_NO_SITE)
    bsg_ledger_set_site(key, fact.site);
  bsg_cuda_host.mark(&fact);
}

static inline void fill_entry(const struct bsg_call *call, enum bsg_kind kind, uint64_t key, uint64_t bytes,
                              struct bsg_where where, struct bsg_allocation *out) {
  *out = (struct bsg_allocation){.key = key,
                                 .bytes = bytes,
                                 .step = where.step < 0            ? 0
                                         : where.step > UINT32_MAX ? UINT32_MAX
                                                                   : (uint32_t)where.step,
                                 .site = BSG_NO_SITE,
                                 /* Neither belongs to a context: they outlive it. */
                                 .context = kind == BSG_KIND_VIRTUAL || kind == BSG_KIND_POOLED ? 0 : call->context,
                                 .api = (uint8_t)call->hook,
                                 .device = (uint8_t)call->device,
                                 .kind = (uint8_t)kind,
                                 .phase = (uint8_t)where.phase,
                                 .pool = call->pool};
}

/* A new high-water mark is to be a true one: what pools gave back meanwhile is taken off first. */
static void settle_before(int device, uint64_t bytes) {
  struct bsg_totals totals;
  bsg_ledger_totals(device, &totals);
  if (totals.live_bytes + bytes > totals.peak_bytes || totals.live_bytes + bytes > totals.step_peak_bytes)
    bsg_reserves_refresh(device, reserve_changed);
}

static void granted(struct bsg_call *call, enum bsg_kind kind, uint64_t key, uint64_t bytes) {
  struct bsg_where where = bsg_cuda_host.where();
  struct bsg_allocation allocation;
  struct bsg_totals totals;
  struct bsg_alloc_fact fact;

  /* The driver may have given more than was asked for (a pitch). */
  if (__builtin_expect(call->charged_bytes != 0 && kind != BSG_KIND_POOLED && bytes != call->charged_bytes, 0))
    atomic_fetch_add(&state.charged[call->device], bytes - call->charged_bytes);
  fill_entry(call, kind, key, bytes, where, &allocation);
  if (__builtin_expect(kind != BSG_KIND_POOLED && bsg_reserves_any(call->device), 0))
    settle_before(call->device, bytes);
  if (key == 0 || bsg_ledger_add(&allocation, &totals) != 0) {
    if (call->charged_bytes != 0)
      uncharge(call->device, kind == BSG_KIND_POOLED ? call->charged_bytes : bytes);
    return;
  }
  if (kind == BSG_KIND_POOLED) {
    if (call->charged_bytes != 0) /* what it really reserved is charged by itself */
      uncharge(call->device, call->charged_bytes);
    bsg_reserves_taken(call->pool, reserve_changed);
    bsg_ledger_totals(call->device, &totals);
  }
  if (__builtin_expect(bsg_marks_due(call->device, totals.live_bytes), 0))
    marked(call, key, bytes, &totals, where);
  if (__builtin_expect(bsg_cuda_host.waiting(), 0)) {
    fill_fact(call, CUDA_SUCCESS, &totals, &fact);
    bsg_cuda_host.granted(&fact);
  }
}

void bsg_record_outcome(struct bsg_call *call, CUresult result, enum bsg_kind kind, uint64_t key, uint64_t bytes) {
  if (__builtin_expect(result != CUDA_SUCCESS, 0)) {
    if (call->charged_bytes != 0)
      uncharge(call->device, call->charged_bytes);
    if (result != CUDA_ERROR_OUT_OF_MEMORY)
      return;
    find_device(call);
    ensure_known(call->device, 0);
    refused(call, result);
    return;
  }
  bsg_ledger_expect(key);
  find_device(call);
  ensure_known(call->device, bytes);
  granted(call, kind, key, bytes);
}

void bsg_record_apart(enum bsg_hook_id hook, enum bsg_kind kind, uint64_t key, uint64_t bytes, int device) {
  struct bsg_call call;
  struct bsg_allocation allocation;
  struct bsg_totals totals;

  begin(&call, hook, NULL, bytes, device < 0 ? -1 : valid(device));
  find_device(&call);
  fill_entry(&call, kind, key, bytes, bsg_cuda_host.where(), &allocation);
  bsg_ledger_add(&allocation, &totals);
}

void bsg_record_unsaid(enum bsg_hook_id hook, const void *caller, int device) {
  struct bsg_call call;
  begin(&call, hook, caller, 0, device < 0 ? -1 : valid(device));
  find_device(&call);
  ensure_known(call.device, 0);
  refused(&call, CUDA_ERROR_OUT_OF_MEMORY);
}

/* ---- frees ---- */

bool bsg_record_take(uint64_t key, struct bsg_allocation *taken) {
  return key != 0 && bsg_ledger_take(key, taken) == 0;
}

void bsg_record_gone_bytes(int device, uint64_t bytes) {
  if (bsg_cuda_host.memory_limit() != 0)
    uncharge(device, bytes);
}

void bsg_record_gone(const struct bsg_allocation *allocation) {
  if (allocation->kind < BSG_KIND_APART)
    bsg_record_gone_bytes(allocation->device, allocation->bytes);
}

void bsg_record_freed(const struct bsg_allocation *taken, CUresult result) {
  if (__builtin_expect(result != CUDA_SUCCESS, 0)) {
    bsg_ledger_put_back(taken);
    return;
  }
  bsg_record_gone(taken);
  if (__builtin_expect(taken->pool != 0, 0))
    bsg_reserves_freed(taken->pool, reserve_changed);
}

void bsg_record_stranger(enum bsg_hook_id hook) {
  int version = 0;
  /* Graphs hand out memory that we do not enter; and what we had no room for is our own fault. */
  if (bsg_reserves_graph_devices() || bsg_ledger_missed() || atomic_exchange(&state.stranger, true))
    return;
  version = bsg_driver_version();
  bsg_cuda_host.unhooked(bsg_hook_symbol(hook), version);
}

/* ---- reserves ---- */

void bsg_record_reserves(int device) {
  uint64_t devices = device >= 0 ? (uint64_t)1 << valid(device) : bsg_reserves_graph_devices();
  for (; devices; devices &= devices - 1)
    bsg_reserves_refresh(__builtin_ctzll(devices), reserve_changed);
}

void bsg_record_reserves_reset(int device) {
  bsg_reserves_reset(valid(device), reserve_changed);
}

/* ---- asked by others ---- */

void bsg_record_limit_info(int device, uint64_t *free_bytes, uint64_t *total_bytes) {
  uint64_t limit = bsg_cuda_host.memory_limit();
  uint64_t charged = atomic_load(&state.charged[device]);
  if (limit == 0)
    return;
  *total_bytes = smaller(*total_bytes, limit);
  *free_bytes = smaller(*free_bytes, charged < limit ? limit - charged : 0);
}

int bsg_record_memory(int device, bool ask, struct bsg_memory_fact *out) {
  struct bsg_totals totals;
  uint64_t total_bytes;

  if (device < 0 || device >= BSG_MAX_DEVICES || !(atomic_load(&state.known) >> device & 1))
    return -ENODEV;
  bsg_hooks_depth++; /* the driver's look-ups, if it has any, are its own business */
  bsg_reserves_refresh(device, reserve_changed);
  bsg_ledger_totals(device, &totals);
  memset(out, 0, sizeof *out);
  bsg_ledger_kinds(device, out->kind_bytes);
  out->device = device;
  out->total_bytes = atomic_load(&state.total[device]);
  out->free_bytes = UINT64_MAX;
  out->live_bytes = totals.live_bytes;
  out->peak_bytes = totals.peak_bytes;
  out->step_peak_bytes = totals.step_peak_bytes;
  out->live_count = totals.live_count;
  out->missed_count = bsg_ledger_missed();
  out->before_bytes = atomic_load(&state.before[device]);
  if (ask && bsg_driver_memory(device, bsg_contexts_any(device), &out->free_bytes, &total_bytes) == 0)
    bsg_record_limit_info(device, &out->free_bytes, &total_bytes);
  bsg_hooks_depth--;
  return 0;
}

uint64_t bsg_record_devices(void) {
  return atomic_load(&state.known);
}

void bsg_record_forget(void) {
  pthread_mutex_init(&state.first_use, NULL);
  atomic_store(&state.known, 0);
  atomic_store(&state.stranger, false);
  for (int device = 0; device < BSG_MAX_DEVICES; device++)
    atomic_store(&state.charged[device], 0);
  bsg_hooks_depth = 0;
  bsg_contexts_forget();
  bsg_ledger_forget();
  bsg_physical_forget();
  bsg_reserves_forget();
  bsg_marks_forget();
  bsg_sites_forget();
}
