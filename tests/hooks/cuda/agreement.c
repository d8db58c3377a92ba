/*
 * agreement.c - the ledger against the driver, kind by kind and to the byte: the stress test of the simulated driver
 * (tests/simgpu/stress.c: all routes, at random, from many threads, with failures at random), its calls going through
 * our wrappers, which are linked into this program. Whenever its threads have met it asks how much the device has
 * handed out; here that question is answered only after the two were compared.
 *
 *   test_agreement THREADS OPERATIONS [SEED]      operations of each thread
 *
 * 16 threads and 625000 operations are 10^7.
 */
#include <dlfcn.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hooks/cuda/host.h"
#include "hooks/cuda/ledger.h"
#include "hooks/cuda/record.h"
#include "shim/bsguard.h"
#include "tests/simgpu/driver/simgpu.h"

static atomic_int wrong, refusals, unhooked;
static uint64_t most[BSG_KIND_COUNT]; /* bytes of a kind that agreed at once */

static void *driver_entry(const char *symbol) {
  return dlsym(dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD), symbol);
}

static bool active(void) {
  return true;
}

static uint64_t memory_limit(void) {
  return 0;
}

static struct bsg_where where(void) {
  return (struct bsg_where){.step = 1, .phase = BSG_PHASE_FORWARD};
}

static bool waiting(void) {
  return true;
}

static void on_device(const struct bsg_device_fact *fact) {
  (void)fact;
}

static void on_alloc(const struct bsg_alloc_fact *fact) {
  atomic_fetch_add(&refusals, fact->result != CUDA_SUCCESS);
}

static void on_mark(const struct bsg_mark_fact *fact) {
  (void)fact;
}

static void on_unhooked(const char *name, int version) {
  fprintf(stderr, "agreement: unhooked: %s at %d\n", name, version);
  atomic_fetch_add(&unhooked, 1);
}

const struct bsg_cuda_host bsg_cuda_host = {
    .active = active,
    .driver_entry = driver_entry,
    .next_entry = driver_entry,
    .memory_limit = memory_limit,
    .where = where,
    .waiting = waiting,
    .device = on_device,
    .refused = on_alloc,
    .granted = on_alloc,
    .mark = on_mark,
    .unhooked = on_unhooked,
};

static void compare(void) {
  /* What clients asked for, or what the device lost. */
  static const struct {
    const char *name;
    enum bsg_kind ours;
    enum simgpu_kind theirs;
    uint64_t (*figure)(int device, int kind);
  } kinds[] = {{"plain", BSG_KIND_PLAIN, SIMGPU_PLAIN, simgpu_requested_by},
               {"managed", BSG_KIND_MANAGED, SIMGPU_MANAGED, simgpu_requested_by},
               {"array", BSG_KIND_ARRAY, SIMGPU_ARRAY, simgpu_requested_by},
               {"virtual", BSG_KIND_VIRTUAL, SIMGPU_VMM, simgpu_requested_by},
               {"pool, reserved", BSG_KIND_POOL, SIMGPU_POOL, simgpu_used_by},
               {"pool, handed out", BSG_KIND_POOLED, SIMGPU_POOL, simgpu_requested_by},
               {"graph, reserved", BSG_KIND_GRAPH, SIMGPU_GRAPH, simgpu_used_by},
               {"pinned", BSG_KIND_PINNED, SIMGPU_PINNED, simgpu_requested_by},
               {"mapped", BSG_KIND_MAPPED, SIMGPU_MAPPED, simgpu_requested_by}};
  struct bsg_memory_fact memory;
  if (bsg_record_memory(0, true, &memory) != 0)
    return;
  for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
    uint64_t ours = memory.kind_bytes[kinds[i].ours], theirs = kinds[i].figure(0, kinds[i].theirs);
    if (ours != theirs && atomic_fetch_add(&wrong, 1) < 20)
      fprintf(stderr, "agreement: %s: %" PRIu64 " bytes in the ledger, %" PRIu64 " at the driver\n", kinds[i].name,
              ours, theirs);
    if (ours == theirs && ours > most[kinds[i].ours])
      most[kinds[i].ours] = ours;
  }
}

/* In front of the driver's own, as this program comes first. */
uint64_t simgpu_used(int device) {
  uint64_t (*real)(int device) = (uint64_t(*)(int))driver_entry("simgpu_used");
  compare();
  return real(device);
}

/* After main(), when all was freed. */
__attribute__((destructor)) static void conclude(void) {
  struct bsg_totals totals;
  bool all = true;
  for (int kind = 0; kind < BSG_KIND_COUNT; kind++)
    if (most[kind] == 0) {
      fprintf(stderr, "agreement: kind %d was never there to be compared\n", kind);
      all = false;
    }
  bsg_ledger_totals(0, &totals);
  if (totals.live_bytes || totals.live_count)
    fprintf(stderr, "agreement: %" PRIu64 " bytes in %" PRIu64 " entries are left\n", totals.live_bytes,
            totals.live_count);
  if (atomic_load(&refusals) < (int)simgpu_failures())
    fprintf(stderr, "agreement: %d refused calls seen of %" PRIu64 "\n", refusals, simgpu_failures());
  if (!all || wrong || unhooked || totals.live_bytes || totals.live_count ||
      atomic_load(&refusals) < (int)simgpu_failures() || !refusals) {
    fflush(NULL);
    _Exit(1);
  }
}
