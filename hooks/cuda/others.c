/*
 * others.c - see others.h. Depends on libc and driver.h; on libnvidia-ml.so.1 where it is found, whose few types are
 * declared here. Never holds NVML between two questions: the program may use it too, and start and end it as it likes.
 */
#include "hooks/cuda/others.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "hooks/cuda/driver.h"
#include "hooks/cuda/hooks.h"

/* ---- of NVML ---- */

#define SUCCESS 0
#define NOT_KNOWN UINT64_MAX /* bytes: the system does not tell, or the user may not know */

typedef struct handle *nvml_device; /* opaque */

struct nvml_process {
  unsigned int pid;
  unsigned long long bytes;
  unsigned int gpu_instance, compute_instance; /* of MIG */
};

/* What some drivers of 535 write for the third version of the question, without another name for it. */
struct nvml_long_process {
  struct nvml_process process;
  unsigned long long protected_bytes;
};

typedef int (*init_fn)(void);
typedef int (*find_fn)(const char *name, nvml_device *device);
typedef int (*processes_fn)(nvml_device device, unsigned int *count, struct nvml_process *processes);

/* ---- state ---- */

#define MOST_PROCESSES 128 /* of one device: with more there is no answer */

struct names {
  char bus[32];
  char instance[48]; /* as an instance of MIG, which the device may be */
};

static struct {
  atomic_bool usable; /* all of what follows is there */
  init_fn init, shutdown;
  find_fn by_bus, by_uuid;
  processes_fn processes;
  struct names names[BSG_MAX_DEVICES];
} state;

void bsg_others_prepare(void) {
  void *library = dlopen("libnvidia-ml.so.1", RTLD_LAZY | RTLD_LOCAL);
  if (library) {
    state.init = (init_fn)dlsym(library, "nvmlInit_v2");
    state.shutdown = (init_fn)dlsym(library, "nvmlShutdown");
    state.by_bus = (find_fn)dlsym(library, "nvmlDeviceGetHandleByPciBusId_v2");
    state.by_uuid = (find_fn)dlsym(library, "nvmlDeviceGetHandleByUUID");
    /* The second version first: its processes have had one size in all drivers. */
    state.processes = (processes_fn)dlsym(library, "nvmlDeviceGetComputeRunningProcesses_v2");
    if (!state.processes)
      state.processes = (processes_fn)dlsym(library, "nvmlDeviceGetComputeRunningProcesses_v3");
    atomic_store(&state.usable, state.init && state.shutdown && state.by_bus && state.by_uuid && state.processes);
  }
  dlerror(); /* what we tried is no news to the program */
}

void bsg_others_meet(int device) {
  unsigned char uuid[16];
  struct names *names;
  size_t used;

  if (device < 0 || device >= BSG_MAX_DEVICES || !atomic_load(&state.usable))
    return;
  names = &state.names[device];
  memset(names, 0, sizeof *names);
  bsg_hooks_depth++;
  bsg_driver_bus(device, names->bus, sizeof names->bus);
  if (bsg_driver_uuid(device, uuid) == 0) {
    used = (size_t)snprintf(names->instance, sizeof names->instance, "MIG");
    for (size_t i = 0; i < sizeof uuid; i++)
      used += (size_t)snprintf(names->instance + used, sizeof names->instance - used, "%s%02x",
                               i == 0 || i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", uuid[i]);
  }
  bsg_hooks_depth--;
}

/* ---- the question ---- */

/* Only an instance of MIG is found by the first name; whole devices are by the second. */
static int find(const struct names *names, nvml_device *device) {
  if (names->instance[0] && state.by_uuid(names->instance, device) == SUCCESS)
    return 0;
  return names->bus[0] && state.by_bus(names->bus, device) == SUCCESS ? 0 : -ENODEV;
}

/*
 * All processes; returns how many, or -ENOSYS. Of which size NVML's are is seen by what it left untouched: short ones
 * end before the room of the long ones does.
 */
static int ask(nvml_device device, struct nvml_process *out) {
  struct nvml_long_process answer[MOST_PROCESSES];
  unsigned int count = MOST_PROCESSES;
  const unsigned char *bytes = (const unsigned char *)answer;
  bool is_long = false;

  memset(answer, 0xa5, sizeof answer);
  if (state.processes(device, &count, (struct nvml_process *)answer) != SUCCESS || count > MOST_PROCESSES)
    return -ENOSYS;
  for (size_t i = count * sizeof *out; i < count * sizeof *answer; i++)
    is_long |= bytes[i] != 0xa5;
  for (unsigned int i = 0; i < count; i++)
    memcpy(&out[i], bytes + i * (is_long ? sizeof *answer : sizeof *out), sizeof *out);
  return (int)count;
}

/* ---- the answer ---- */

static void name_of(int64_t pid, char *out, size_t room) {
  char path[48];
  ssize_t length = 0;
  int fd;

  snprintf(path, sizeof path, "/proc/%lld/comm", (long long)pid);
  fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd >= 0) {
    length = read(fd, out, room - 1);
    close(fd);
  }
  out[length > 0 ? length : 0] = '\0';
  out[strcspn(out, "\n")] = '\0';
}

/* More memory comes first; what is not known comes last. */
static bool before(uint64_t left, uint64_t right) {
  return left != NOT_KNOWN && (right == NOT_KNOWN || left > right);
}

/* The largest are kept, largest first. */
static void enter(struct bsg_others_fact *out, const struct nvml_process *process) {
  int at = out->listed;

  out->count++;
  while (at > 0 && before(process->bytes, out->list[at - 1].bytes))
    at--;
  if (at == BSG_MAX_OTHERS)
    return;
  if (out->listed < BSG_MAX_OTHERS)
    out->listed++;
  memmove(&out->list[at + 1], &out->list[at], (size_t)(out->listed - 1 - at) * sizeof out->list[0]);
  out->list[at] = (struct bsg_other_fact){.pid = process->pid, .bytes = process->bytes};
}

int bsg_others_list(int device, struct bsg_others_fact *out) {
  struct nvml_process processes[MOST_PROCESSES];
  nvml_device handle = NULL;
  int saved = errno, count = -ENOSYS;
  unsigned int own = (unsigned int)getpid();

  memset(out, 0, sizeof *out);
  if (device < 0 || device >= BSG_MAX_DEVICES || !atomic_load(&state.usable))
    return -ENOSYS;
  bsg_hooks_depth++;
  if (state.init() == SUCCESS) {
    if (find(&state.names[device], &handle) == 0)
      count = ask(handle, processes);
    state.shutdown();
  }
  bsg_hooks_depth--;
  if (count >= 0) {
    for (int i = 0; i < count; i++)
      if (processes[i].pid == own)
        out->own_seen = true;
      else
        enter(out, &processes[i]);
    /* Without us the numbers are of a host outside of our container: here they may be those of others. */
    for (int i = 0; i < out->listed && out->own_seen; i++)
      name_of(out->list[i].pid, out->list[i].name, sizeof out->list[i].name);
  }
  errno = saved;
  return count < 0 ? count : 0;
}
