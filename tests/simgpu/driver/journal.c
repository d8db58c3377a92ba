/*
 * journal.c - SIMGPU_LOG, one line an event, SIMGPU_REFUSALS, one line a refused call, and SIMGPU_STATS, one line at
 * exit. Writes with one write() a line, so that several processes may share a file. A file that cannot be opened is
 * said once and then forgotten.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "internal.h"

static struct {
  int log, refusals; /* descriptors; 0: not opened yet, -1: none */
  unsigned threads;  /* that have asked for memory or given some back */
} state;

static int file(int *fd, const char *variable, const char *name) {
  if (*fd)
    return *fd;
  *fd = name ? open(name, O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0644) : -1;
  if (name && *fd < 0)
    fprintf(stderr, "simgpu: %s=%s cannot be opened: %s; nothing is logged\n", variable, name, strerror(errno));
  return *fd;
}

static void put(int *fd, const char *line, int length) {
  if (write(*fd, line, (size_t)length) < 0)
    *fd = -1; /* a full disk must not disturb the job */
}

static const char *const kinds[SIMGPU_KINDS] = {"plain",   "managed", "pool",  "graph",  "vmm",   "array",
                                                "context", "module",  "queue", "pinned", "mapped"};

static void entry(const char *event, int device, enum simgpu_kind kind, uint64_t bytes, uint64_t address,
                  const char *cause) {
  char line[256];
  struct timespec now;
  int length;
  if (file(&state.log, "SIMGPU_LOG", sim_config()->log) < 0)
    return;
  clock_gettime(CLOCK_MONOTONIC, &now);
  length = snprintf(
      line, sizeof line,
      "%lld.%06ld %d %s device=%d bytes=%" PRIu64 " address=0x%" PRIx64 " used=%" PRIu64 " call=%" PRIu64 "%s%s%s%s\n",
      (long long)now.tv_sec, now.tv_nsec / 1000, getpid(), event, device, bytes, address, sim_capacity_used(device),
      sim_fault_calls(), kind ? " kind=" : "", kind ? kinds[kind] : "", cause ? " cause=" : "", cause ? cause : "");
  put(&state.log, line, length);
}

/* The figures that a refused caller could have seen. */
static void refusal(int device, uint64_t bytes) {
  char line[512];
  uint64_t held = 0;
  int length;
  if (file(&state.refusals, "SIMGPU_REFUSALS", sim_config()->refusals) < 0)
    return;
  for (int kind = SIMGPU_PLAIN; kind <= SIMGPU_ARRAY; kind++)
    held += sim_capacity_used_by(device, kind);
  length = snprintf(line, sizeof line,
                    "{\"pid\": %d, \"device\": %d, \"bytes\": %" PRIu64 ", \"capacity\": %" PRIu64
                    ", \"unit\": %" PRIu64 ", \"free\": %" PRIu64 ", \"used\": %" PRIu64 ", \"held\": %" PRIu64
                    ", \"others\": %" PRIu64 ", \"shared\": %s, \"resized\": %s, \"threads\": %u}\n",
                    getpid(), device, bytes, sim_capacity_total(device), sim_config()->granularity,
                    sim_capacity_left(device), sim_capacity_used(device), held, sim_shared_others(device),
                    sim_config()->shared ? "true" : "false",
                    sim_capacity_total(device) != sim_config()->memory ? "true" : "false", state.threads);
  put(&state.refusals, line, length);
}

static void count_thread(void) {
  static _Thread_local bool known;
  state.threads += !known;
  known = true;
}

void sim_journal_alloc(int device, enum simgpu_kind kind, uint64_t bytes, uint64_t address, const char *cause) {
  count_thread();
  if (cause) {
    sim_fault_refused();
    refusal(device, bytes);
  }
  entry(cause ? "fail" : "alloc", device, kind, bytes, address, cause);
}

void sim_journal_free(int device, enum simgpu_kind kind, uint64_t bytes, uint64_t address) {
  count_thread();
  entry("free", device, kind, bytes, address, NULL);
}

__attribute__((destructor)) static void at_exit(void) {
  const struct sim_config *c = sim_config();
  if (!c->stats || sim_forked() || !sim_fault_calls())
    return;
  for (int device = 0; device < c->devices; device++) {
    if (sim_capacity_peak(device, false) == 0)
      continue;
    fprintf(stderr,
            "simgpu: pid %d device %d: %" PRIu64 " allocation calls, %" PRIu64 " refused (all devices); peak %" PRIu64
            " of %" PRIu64 " bytes, %" PRIu64 " bytes in %" PRIu64 " allocations at exit\n",
            getpid(), device, sim_fault_calls(), sim_fault_refusals(), sim_capacity_peak(device, false),
            sim_capacity_total(device), sim_capacity_used(device), sim_capacity_live(device));
  }
}
