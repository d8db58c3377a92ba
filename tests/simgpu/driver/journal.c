/*
 * journal.c - SIMGPU_LOG, one line an event, and SIMGPU_STATS, one line at exit. Writes with one write() a line, so
 * that several processes may share a file. A log that cannot be opened is said once and then forgotten.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "internal.h"

static struct { int fd; /* 0: not opened yet, -1: none */ } state;

static int file(void) {
  const char *name = sim_config()->log;
  if (state.fd)
    return state.fd;
  state.fd = name ? open(name, O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0644) : -1;
  if (name && state.fd < 0)
    fprintf(stderr, "simgpu: SIMGPU_LOG=%s cannot be opened: %s; nothing is logged\n", name, strerror(errno));
  return state.fd;
}

static const char *const kinds[SIMGPU_KINDS] = {"plain",   "managed", "pool",  "graph",  "vmm",   "array",
                                                "context", "module",  "queue", "pinned", "mapped"};

static void entry(const char *event, int device, enum simgpu_kind kind, uint64_t bytes, uint64_t address,
                  const char *cause) {
  char line[256];
  struct timespec now;
  int length;
  if (file() < 0)
    return;
  clock_gettime(CLOCK_MONOTONIC, &now);
  length = snprintf(
      line, sizeof line,
      "%lld.%06ld %d %s device=%d bytes=%" PRIu64 " address=0x%" PRIx64 " used=%" PRIu64 " call=%" PRIu64 "%s%s%s%s\n",
      (long long)now.tv_sec, now.tv_nsec / 1000, getpid(), event, device, bytes, address, sim_capacity_used(device),
      sim_fault_calls(), kind ? " kind=" : "", kind ? kinds[kind] : "", cause ? " cause=" : "", cause ? cause : "");
  if (write(state.fd, line, (size_t)length) < 0)
    state.fd = -1; /* a full disk must not disturb the job */
}

void sim_journal_alloc(int device, enum simgpu_kind kind, uint64_t bytes, uint64_t address, const char *cause) {
  if (cause)
    sim_fault_refused();
  entry(cause ? "fail" : "alloc", device, kind, bytes, address, cause);
}

void sim_journal_free(int device, enum simgpu_kind kind, uint64_t bytes, uint64_t address) {
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
