/*
 * shared.c - SIMGPU_SHARED: what each of several processes uses of the devices, in a file that all of them map, so that
 * they share the capacity. A process has a slot in it for as long as it holds the kernel's lock on that slot's byte,
 * and the kernel lets go of the lock when the process ends, however it ends: the share of a killed process is the
 * others' again at once.
 *
 * The locks are a process's (fcntl, not flock), so a forked child does not hold its parent's slot; a process must not
 * open and close the file by itself. Callers hold sim_lock().
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "internal.h"

#define SLOTS 256

struct slot {
  atomic_uint_least64_t used[SIM_MAX_DEVICES]; /* bytes */
};

static struct {
  struct slot *slots; /* NULL: not shared */
  int fd, mine;
  bool opened;
} state;

/* Byte 0 guards the table, byte 1 + i belongs to the owner of slot i. */
static int lock(int byte, short type, int command, pid_t *holder) {
  struct flock range = {.l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
  int result;
  do
    result = fcntl(state.fd, command, &range);
  while (result < 0 && errno == EINTR);
  if (holder)
    *holder = range.l_type == F_UNLCK ? 0 : range.l_pid;
  return result;
}

static bool alive(int i) {
  pid_t holder = 0;
  return lock(1 + i, F_WRLCK, F_GETLK, &holder) == 0 && holder;
}

static int take_slot(void) {
  for (int i = 0; i < SLOTS; i++) {
    if (alive(i) || lock(1 + i, F_WRLCK, F_SETLK, NULL))
      continue;
    for (int device = 0; device < SIM_MAX_DEVICES; device++)
      state.slots[i].used[device] = 0;
    state.mine = i;
    return 0;
  }
  return -EAGAIN;
}

/* Maps the file and takes a slot; what goes wrong is one line, and the memory is this process's own then. */
static void open_table(void) {
  const char *name = sim_config()->shared;
  const size_t bytes = SLOTS * sizeof(struct slot);
  void *at;
  int error = 0;
  state.opened = true;
  if (!name)
    return;
  state.fd = open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (state.fd < 0 || ftruncate(state.fd, (off_t)bytes)) {
    error = errno;
  } else {
    at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, state.fd, 0);
    if (at == MAP_FAILED) {
      error = errno;
    } else {
      state.slots = at;
      lock(0, F_WRLCK, F_SETLKW, NULL);
      error = -take_slot();
      lock(0, F_UNLCK, F_SETLK, NULL);
    }
  }
  if (!error)
    return;
  if (state.slots)
    munmap(state.slots, bytes);
  state.slots = NULL;
  if (state.fd >= 0)
    close(state.fd);
  fprintf(stderr, "simgpu: SIMGPU_SHARED=%s cannot be used: %s; this process has the memory to itself\n", name,
          error == EAGAIN ? "256 processes share it already" : strerror(error));
}

void sim_shared_enter(void) {
  if (!state.opened)
    open_table();
  if (state.slots)
    lock(0, F_WRLCK, F_SETLKW, NULL);
}

void sim_shared_leave(void) {
  if (state.slots)
    lock(0, F_UNLCK, F_SETLK, NULL);
}

void sim_shared_publish(int device, uint64_t used) {
  if (state.slots)
    atomic_store(&state.slots[state.mine].used[device], used);
}

uint64_t sim_shared_others(int device) {
  uint64_t sum = 0, used;
  if (!state.opened)
    open_table();
  for (int i = 0; state.slots && i < SLOTS; i++) {
    used = i == state.mine ? 0 : atomic_load(&state.slots[i].used[device]);
    if (used && alive(i))
      sum += used;
  }
  return sum;
}
