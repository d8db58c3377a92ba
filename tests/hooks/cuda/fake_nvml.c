/* fake_nvml.c - an NVML that has one device, the first of the simulated GPU, and says what a test told it to: under
 * FAKE_NVML_FAMILY, that a process has 1 GiB of it and its parent 2. With FAKE_NVML_EMPTY: a library of that name
 * without any of its entries. */
#include "fake_nvml.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifndef FAKE_NVML_EMPTY

#define EXPORT __attribute__((visibility("default")))

enum { SUCCESS, UNINITIALIZED, NOT_FOUND = 6, TOO_SMALL = 7, LIBRARY_MISMATCH = 18 };

struct process {
  unsigned int pid;
  unsigned long long bytes;
  unsigned int gpu_instance, compute_instance;
};

extern struct fake_nvml fake_nvml;
EXPORT struct fake_nvml fake_nvml;

int nvmlInit_v2(void);
int nvmlShutdown(void);
int nvmlDeviceGetHandleByPciBusId_v2(const char *name, void **device);
int nvmlDeviceGetHandleByUUID(const char *name, void **device);
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned int *count, void *out);

EXPORT int nvmlInit_v2(void) {
  fake_nvml.starts++;
  if (getenv("FAKE_NVML_FAMILY")) {
    fake_nvml.count = 2;
    fake_nvml.pid[0] = (unsigned int)getpid();
    fake_nvml.bytes[0] = 1 << 30;
    fake_nvml.pid[1] = (unsigned int)getppid();
    fake_nvml.bytes[1] = (unsigned long long)2 << 30;
  }
  if (fake_nvml.broken)
    return LIBRARY_MISMATCH;
  fake_nvml.started++;
  return SUCCESS;
}

EXPORT int nvmlShutdown(void) {
  return fake_nvml.started-- > 0 ? SUCCESS : UNINITIALIZED;
}

static int find(const char *name, const char *wanted, bool there, void **device) {
  if (fake_nvml.started <= 0)
    return UNINITIALIZED;
  if (!there || strcmp(name, wanted) != 0)
    return NOT_FOUND;
  *device = &fake_nvml;
  return SUCCESS;
}

EXPORT int nvmlDeviceGetHandleByPciBusId_v2(const char *name, void **device) {
  return find(name, "0000:01:00.0", !fake_nvml.mig, device);
}

EXPORT int nvmlDeviceGetHandleByUUID(const char *name, void **device) {
  return find(name, "MIG-00010203-0405-0607-0809-0a0b0c0d0e0f", fake_nvml.mig, device);
}

EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned int *count, void *out) {
  unsigned int room = *count;
  size_t stride = sizeof(struct process) + (fake_nvml.long_answer ? sizeof(unsigned long long) : 0);

  fake_nvml.questions++;
  if (device != &fake_nvml || fake_nvml.started <= 0)
    return UNINITIALIZED;
  *count = fake_nvml.count;
  if (fake_nvml.count > room)
    return TOO_SMALL;
  memset(out, 0, fake_nvml.count * stride);
  for (unsigned int i = 0; i < fake_nvml.count; i++) {
    struct process process = {.pid = fake_nvml.pid[i], .bytes = fake_nvml.bytes[i], .gpu_instance = 0xffffffff};
    memcpy((char *)out + i * stride, &process, sizeof process);
  }
  return SUCCESS;
}

#endif
