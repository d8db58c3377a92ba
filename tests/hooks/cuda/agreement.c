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
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "hooks/cuda/ledger.h"
#include "hooks/cuda/record.h"
#include "simulated.h"

static atomic_int wrong;
static uint64_t most[BSG_KIND_COUNT]; /* bytes of a kind that agreed at once */

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
  uint64_t (*real)(int device) = (uint64_t(*)(int))simulated_entry("simgpu_used");
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
  if (atomic_load(&simulated.refusals) < (int)simgpu_failures())
    fprintf(stderr, "agreement: %d refused calls seen of %" PRIu64 "\n", simulated.refusals, simgpu_failures());
  if (!all || wrong || simulated.unhooked || totals.live_bytes || totals.live_count ||
      atomic_load(&simulated.refusals) < (int)simgpu_failures() || !simulated.refusals) {
    fflush(NULL);
    _Exit(1);
  }
}
