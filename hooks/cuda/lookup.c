/*
 * lookup.c - the wrappers of cuGetProcAddress: the driver answers, and where its answer is an entry of ours it is
 * replaced by our wrapper. (Answers to dlsym() are the shim's business.)
 */
#include "hooks/cuda/host.h"
#include "hooks/cuda/record.h"
#include "shim/bsguard.h"

static void replace(const char *name, void **entry, int version, cuuint64_t flags) {
  if (name && entry && *entry && bsg_hook_match(name, version, flags, entry) == BSG_MATCH_UNHOOKED)
    bsg_cuda_host.unhooked(name, version);
}

BSG_EXPORT CUresult cuGetProcAddress(const char *name, void **entry, int version, cuuint64_t flags) {
  bsg_fn_cuGetProcAddress real = BSG_REAL(cuGetProcAddress);
  CUresult result;
  if (!real)
    return CUDA_ERROR_NOT_INITIALIZED;
  if (!bsg_record_enter())
    return real(name, entry, version, flags);
  result = real(name, entry, version, flags);
  if (result == CUDA_SUCCESS)
    replace(name, entry, version, flags);
  bsg_record_leave();
  return result;
}

BSG_EXPORT CUresult cuGetProcAddress_v2(const char *name, void **entry, int version, cuuint64_t flags,
                                        CUdriverProcAddressQueryResult *status) {
  bsg_fn_cuGetProcAddress_v2 real = BSG_REAL(cuGetProcAddress_v2);
  CUresult result;
  if (!real)
    return CUDA_ERROR_NOT_INITIALIZED;
  if (!bsg_record_enter())
    return real(name, entry, version, flags, status);
  result = real(name, entry, version, flags, status);
  if (result == CUDA_SUCCESS)
    replace(name, entry, version, flags);
  bsg_record_leave();
  return result;
}
