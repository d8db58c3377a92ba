/*
 * record.c - see record.h. Ties ledger, marks, sites and driver together and tells the host. Depends on nothing of the
 * shim but the host's functions. Never holds a lock of its own while it tells the host.
 */
#include "hooks/cuda/record.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "hooks/cuda/driver.h"
#include "hooks/cuda/host.h"
#include "hooks/cuda/ledger.h"
#include "hooks/cuda/marks.h"
#include "hooks/cuda/sites.h"

static struct {
  pthread_mutex_t first_use;                 /* held while a device is introduced */
  _Atomic uint64_t known;                    /* bit set of devices introduced */
  _Atomic uint64_t total[BSG_MAX_DEVICES];   /* capacity, after the limit */
  _Atomic uint64_t charged[BSG_MAX_DEVICES]; /* under a memory limit: live bytes and those being asked for */
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

/* The first allocation on a device, granted or refused: who is it? Told before anything else about it is. */
static void introduce(int device) {
  struct bsg_device_fact fact;
  uint64_t limit = bsg_cuda_host.memory_limit();

  pthread_mutex_lock(&state.first_use);
  if (!(atomic_load(&state.known) >> device & 1)) {
    bsg_driver_describe(device, &fact);
    if (limit && (fact.total_bytes == 0 || limit < fact.total_bytes))
      fact.total_bytes = limit;
    bsg_driver_remember(device);
    atomic_store(&state.total[device], fact.total_bytes);
    bsg_marks_capacity(device, fact.total_bytes);
    bsg_cuda_host.device(&fact);
    atomic_fetch_or(&state.known, (uint64_t)1 << device);
  }
  pthread_mutex_unlock(&state.first_use);
}

static inline void ensure_known(int device) {
  if (__builtin_expect(!(atomic_load_explicit(&state.known, memory_order_acquire) >> device & 1), 0))
    introduce(device);
}

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

CUresult bsg_record_request(struct bsg_call *call, enum bsg_hook_id hook, const void *caller, uint64_t bytes) {
  uint64_t limit = bsg_cuda_host.memory_limit();

  call->hook = hook;
  call->caller = caller;
  call->request_bytes = bytes;
  call->charged_bytes = 0;
  call->device = -1;
  if (__builtin_expect(limit == 0, 1))
    return CUDA_SUCCESS;
  call->device = bsg_driver_device();
  if (!charge(call->device, bytes, limit))
    return CUDA_ERROR_OUT_OF_MEMORY;
  call->charged_bytes = bytes;
  return CUDA_SUCCESS;
}

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

  bsg_ledger_totals(call->device, &totals);
  fill_fact(call, result, &totals, &fact);
  fact.site = bsg_sites_here(call->caller);
  if (bsg_driver_memory(call->device, &fact.free_bytes, &total_bytes) == 0)
    bsg_record_limit_info(call->device, &fact.free_bytes, &total_bytes);
  bsg_cuda_host.refused(&fact);
}

static void marked(const struct bsg_call *call, const struct bsg_holder_fact *allocation,
                   const struct bsg_totals *totals) {
  struct bsg_mark_fact fact = {.device = call->device,
                               .live_bytes = totals->live_bytes,
                               .peak_bytes = totals->peak_bytes,
                               .request_bytes = allocation->bytes,
                               .where = allocation->where};
  fact.site = bsg_sites_sometimes_here(call->caller);
  if (fact.site != BSG_NO_SITE)
    bsg_ledger_set_site(allocation->address, fact.site);
  bsg_cuda_host.mark(&fact);
}

static void granted(struct bsg_call *call, uint64_t address, uint64_t bytes) {
  struct bsg_holder_fact allocation = {.api = bsg_hook_symbol(call->hook),
                                       .device = call->device,
                                       .address = address,
                                       .bytes = bytes,
                                       .site = BSG_NO_SITE,
                                       .where = bsg_cuda_host.where()};
  struct bsg_totals totals;
  struct bsg_alloc_fact fact;

  /* The driver may have given more than was asked for (a pitch). */
  if (call->charged_bytes != 0 && bytes != call->charged_bytes)
    atomic_fetch_add(&state.charged[call->device], bytes - call->charged_bytes);
  if (bsg_ledger_add(&allocation, &totals) != 0) {
    if (call->charged_bytes != 0)
      uncharge(call->device, bytes);
    return;
  }
  if (__builtin_expect(bsg_marks_due(call->device, totals.live_bytes), 0))
    marked(call, &allocation, &totals);
  if (__builtin_expect(bsg_cuda_host.waiting(), 0)) {
    fill_fact(call, CUDA_SUCCESS, &totals, &fact);
    bsg_cuda_host.granted(&fact);
  }
}

void bsg_record_outcome(struct bsg_call *call, CUresult result, uint64_t address, uint64_t bytes) {
  if (result != CUDA_SUCCESS && call->charged_bytes != 0)
    uncharge(call->device, call->charged_bytes);
  if (result != CUDA_SUCCESS && result != CUDA_ERROR_OUT_OF_MEMORY)
    return;
  if (call->device < 0)
    call->device = bsg_driver_device();
  ensure_known(call->device);
  if (result == CUDA_SUCCESS)
    granted(call, address, bytes);
  else
    refused(call, result);
}

bool bsg_record_take(uint64_t address, struct bsg_holder_fact *taken) {
  return address != 0 && bsg_ledger_take(address, taken) == 0;
}

void bsg_record_freed(const struct bsg_holder_fact *taken, CUresult result) {
  if (__builtin_expect(result != CUDA_SUCCESS, 0))
    bsg_ledger_put_back(taken);
  else if (bsg_cuda_host.memory_limit() != 0)
    uncharge(taken->device, taken->bytes);
}

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
  bsg_ledger_totals(device, &totals);
  memset(out, 0, sizeof *out);
  out->device = device;
  out->total_bytes = atomic_load(&state.total[device]);
  out->free_bytes = UINT64_MAX;
  out->live_bytes = totals.live_bytes;
  out->peak_bytes = totals.peak_bytes;
  out->step_peak_bytes = totals.step_peak_bytes;
  out->live_count = totals.live_count;
  if (ask && bsg_driver_memory(device, &out->free_bytes, &total_bytes) == 0)
    bsg_record_limit_info(device, &out->free_bytes, &total_bytes);
  return 0;
}

uint64_t bsg_record_devices(void) {
  return atomic_load(&state.known);
}

void bsg_record_forget(void) {
  pthread_mutex_init(&state.first_use, NULL);
  atomic_store(&state.known, 0);
  for (int device = 0; device < BSG_MAX_DEVICES; device++)
    atomic_store(&state.charged[device], 0);
  bsg_hooks_depth = 0;
  bsg_driver_forget();
  bsg_ledger_forget();
  bsg_marks_forget();
  bsg_sites_forget();
}
