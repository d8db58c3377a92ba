/*
 * test_others.c - who else is on a device, by the NVML of fake_nvml.c. `nothing`: by a library that has no entries.
 * `none`: without any.
 */
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "fake.h"
#include "fake_nvml.h"
#include "hooks/cuda/others.h"
#include "tests/shim/check.h"

#define MIB ((uint64_t)1 << 20)

static struct fake_nvml *nvml;
static struct bsg_others_fact others;

static CUresult bus(char *out, int room, CUdevice device) {
  if (device != 0)
    return CUDA_ERROR_INVALID_DEVICE;
  snprintf(out, (size_t)room, "0000:01:00.0");
  return CUDA_SUCCESS;
}

static CUresult uuid(CUuuid *out, CUdevice device) {
  for (int i = 0; i < 16; i++)
    out->bytes[i] = (char)i;
  return device == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

static void *entry(const char *symbol) {
  if (strcmp(symbol, "cuDeviceGetPCIBusId") == 0)
    return (void *)bus;
  if (strcmp(symbol, "cuDeviceGetUuid_v2") == 0)
    return (void *)uuid;
  return fake_entry(symbol);
}

static void tell(unsigned int pid, uint64_t bytes) {
  nvml->pid[nvml->count] = pid;
  nvml->bytes[nvml->count++] = bytes;
}

static void named(void) {
  nvml->count = 0;
  tell((unsigned int)getppid(), 30 * MIB);
  tell((unsigned int)getpid(), 500 * MIB);
  tell(0x7ffffff0, UINT64_MAX); /* no such process */
  tell(0x7ffffff1, 40 * MIB);
  CHECK_EQUAL(bsg_others_list(0, &others), 0);
  CHECK(others.own_seen);
  CHECK_EQUAL(others.count, 3); /* the second is us */
  CHECK_EQUAL(others.listed, 3);
  CHECK_EQUAL(others.list[0].pid, 0x7ffffff1);
  CHECK_EQUAL(others.list[1].pid, getppid());
  CHECK_EQUAL(others.list[1].bytes, 30 * MIB);
  CHECK(others.list[1].name[0] && !strchr(others.list[1].name, '\n'));
  CHECK_EQUAL(others.list[2].pid, 0x7ffffff0);
  CHECK(others.list[2].bytes == UINT64_MAX);
  CHECK(!others.list[2].name[0]);
  CHECK_EQUAL(nvml->started, 0); /* let go of */
}

static void many(void) {
  nvml->count = 0;
  for (unsigned int i = 0; i < 100; i++)
    tell(0x7fff0000 + i, (i * 37 % 100 + 1) * MIB);
  CHECK_EQUAL(bsg_others_list(0, &others), 0);
  CHECK_EQUAL(others.count, 100);
  CHECK_EQUAL(others.listed, BSG_MAX_OTHERS);
  for (int i = 0; i < BSG_MAX_OTHERS; i++)
    CHECK_EQUAL(others.list[i].bytes, (uint64_t)(100 - i) * MIB);
  nvml->count = 200; /* more than there is room for */
  CHECK_EQUAL(bsg_others_list(0, &others), -ENOSYS);
  CHECK_EQUAL(nvml->started, 0);
}

static void of_a_host(void) {
  nvml->count = 0;
  tell((unsigned int)getppid(), 30 * MIB); /* by chance the number of one in our container */
  CHECK_EQUAL(bsg_others_list(0, &others), 0);
  CHECK(!others.own_seen);
  CHECK_EQUAL(others.listed, 1);
  CHECK(!others.list[0].name[0]);
}

static void refused(void) {
  int questions = nvml->questions;
  nvml->broken = true;
  CHECK_EQUAL(bsg_others_list(0, &others), -ENOSYS);
  CHECK_EQUAL(nvml->questions, questions);
  CHECK_EQUAL(nvml->started, 0);
  nvml->broken = false;
  CHECK_EQUAL(bsg_others_list(1, &others), -ENOSYS); /* never met */
  bsg_others_meet(1);                                /* the driver does not know it */
  CHECK_EQUAL(bsg_others_list(1, &others), -ENOSYS);
  CHECK_EQUAL(bsg_others_list(-1, &others), -ENOSYS);
  CHECK_EQUAL(bsg_others_list(BSG_MAX_DEVICES, &others), -ENOSYS);
  CHECK_EQUAL(nvml->started, 0);
}

int main(int argc, char **argv) {
  void *library = dlopen("libnvidia-ml.so.1", RTLD_LAZY | RTLD_LOCAL);

  fake.entry = entry;
  if (argc > 1 && strcmp(argv[1], "none") == 0 && library) {
    printf("skipped: this machine has an NVML\n");
    return 77;
  }
  bsg_others_prepare();
  CHECK(!dlerror());
  bsg_others_meet(0);
  if (argc > 1) {
    CHECK(strcmp(argv[1], "none") == 0 || library);
    CHECK_EQUAL(bsg_others_list(0, &others), -ENOSYS);
    return 0;
  }
  CHECK(library);
  nvml = dlsym(library, "fake_nvml");
  CHECK(nvml);
  CHECK_EQUAL(nvml->starts, 0); /* nothing is asked before a report is */
  for (int round = 0; round < 4; round++) {
    nvml->mig = round & 1;
    nvml->long_answer = round & 2;
    named();
    many();
    of_a_host();
    refused();
  }
  return 0;
}
