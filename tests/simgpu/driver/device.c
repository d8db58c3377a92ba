/*
 * device.c - what a device says of itself. The figures are those of a small data-centre card and are not to be relied
 * on, but for memory and the number of devices.
 */
#include <stdio.h>
#include <string.h>

#include "internal.h"

static CUresult check(CUdevice device, const void *out) {
  CUresult result = sim_ready();
  if (result)
    return result;
  if (!out)
    return CUDA_ERROR_INVALID_VALUE;
  return sim_known_device(device) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDriverGetVersion(int *out) {
  if (!out)
    return CUDA_ERROR_INVALID_VALUE;
  *out = sim_config()->driver_version;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int *out) {
  CUresult result = sim_ready();
  if (result)
    return result;
  if (!out)
    return CUDA_ERROR_INVALID_VALUE;
  *out = sim_config()->devices;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice *out, int ordinal) {
  CUresult result = check(ordinal, out);
  if (!result)
    *out = ordinal;
  return result;
}

CUresult cuDeviceGetName(char *out, int room, CUdevice device) {
  CUresult result = check(device, out);
  if (!result && room <= 0)
    result = CUDA_ERROR_INVALID_VALUE;
  if (!result)
    snprintf(out, (size_t)room, "Simulated GPU");
  return result;
}

static uint64_t total(CUdevice device) {
  uint64_t bytes;
  sim_lock();
  bytes = sim_capacity_total(device);
  sim_unlock();
  return bytes;
}

CUresult cuDeviceTotalMem_v2(size_t *out, CUdevice device) {
  CUresult result = check(device, out);
  if (!result)
    *out = total(device);
  return result;
}

/* The 32-bit form cannot say more than 4 GiB. */
CUresult cuDeviceTotalMem(unsigned int *out, CUdevice device) {
  CUresult result = check(device, out);
  if (!result)
    *out = total(device) < UINT32_MAX ? (unsigned)total(device) : UINT32_MAX;
  return result;
}

CUresult cuDeviceGetAttribute(int *out, CUdevice_attribute attribute, CUdevice device) {
  static const struct {
    CUdevice_attribute attribute;
    int value;
  } known[] = {
      {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 8},
      {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0},
      {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 16},
      {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024},
      {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, 2048},
      {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, 1024},
      {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y, 1024},
      {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z, 64},
      {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, 2147483647},
      {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y, 65535},
      {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z, 65535},
      {CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32},
      {CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1},
      {CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, 1},
      {CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, 1},
      {CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT, 512},
      {CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, 1},
      {CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 1},
      {CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1},
      {CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 1},
      {CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, 1},
  };
  CUresult result = check(device, out);
  if (result)
    return result;
  if (attribute <= 0 || attribute >= CU_DEVICE_ATTRIBUTE_MAX)
    return CUDA_ERROR_INVALID_VALUE;
  *out = 0;
  for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
    if (known[i].attribute == attribute)
      *out = known[i].value;
  }
  if (attribute == CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID)
    *out = device;
  return CUDA_SUCCESS;
}

static CUresult uuid(CUuuid *out, CUdevice device) {
  CUresult result = check(device, out);
  if (result)
    return result;
  memcpy(out->bytes, "simulated-gpu-00", sizeof out->bytes);
  out->bytes[14] = (char)('0' + device / 10);
  out->bytes[15] = (char)('0' + device % 10);
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid(CUuuid *out, CUdevice device) {
  return uuid(out, device);
}
CUresult cuDeviceGetUuid_v2(CUuuid *out, CUdevice device) {
  return uuid(out, device);
}

CUresult cuDeviceGetPCIBusId(char *out, int room, CUdevice device) {
  CUresult result = check(device, out);
  if (!result && room < 13)
    result = CUDA_ERROR_INVALID_VALUE;
  if (!result)
    snprintf(out, (size_t)room, "0000:01:%02x.0", (unsigned)device & 0xff);
  return result;
}
