/*
 * unsaid.c - the wrappers of calls that take device memory without being asked for any: code and its data, streams,
 * events, launches (local memory, printf and malloc heaps). How much is never said, and it shows as used on the device
 * but not in the ledger; that there was none left is said by their result.
 */
#include "hooks/cuda/wrap.h"

/* ---- code ---- */

BSG_EXPORT CUresult cuModuleLoad(CUmodule *module, const char *file) {
  BSG_UNSAID(cuModuleLoad, (module, file));
}

BSG_EXPORT CUresult cuModuleLoadData(CUmodule *module, const void *image) {
  BSG_UNSAID(cuModuleLoadData, (module, image));
}

BSG_EXPORT CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int count, CUjit_option *options,
                                       void **values) {
  BSG_UNSAID(cuModuleLoadDataEx, (module, image, count, options, values));
}

BSG_EXPORT CUresult cuModuleLoadFatBinary(CUmodule *module, const void *image) {
  BSG_UNSAID(cuModuleLoadFatBinary, (module, image));
}

/* Code that is loaded when it is first needed is loaded here. */
BSG_EXPORT CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
  BSG_UNSAID(cuModuleGetFunction, (function, module, name));
}

BSG_EXPORT CUresult cuModuleGetGlobal(CUdeviceptr_v1 *address, unsigned int *bytes, CUmodule module, const char *name) {
  BSG_UNSAID(cuModuleGetGlobal, (address, bytes, module, name));
}

BSG_EXPORT CUresult cuModuleGetGlobal_v2(CUdeviceptr_v2 *address, size_t *bytes, CUmodule module, const char *name) {
  BSG_UNSAID(cuModuleGetGlobal_v2, (address, bytes, module, name));
}

BSG_EXPORT CUresult cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *jit, void **jit_values,
                                      unsigned int jit_count, CUlibraryOption *options, void **values,
                                      unsigned int count) {
  BSG_UNSAID(cuLibraryLoadData, (library, code, jit, jit_values, jit_count, options, values, count));
}

BSG_EXPORT CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *file, CUjit_option *jit, void **jit_values,
                                          unsigned int jit_count, CUlibraryOption *options, void **values,
                                          unsigned int count) {
  BSG_UNSAID(cuLibraryLoadFromFile, (library, file, jit, jit_values, jit_count, options, values, count));
}

BSG_EXPORT CUresult cuLibraryGetModule(CUmodule *module, CUlibrary library) {
  BSG_UNSAID(cuLibraryGetModule, (module, library));
}

BSG_EXPORT CUresult cuKernelGetFunction(CUfunction *function, CUkernel kernel) {
  BSG_UNSAID(cuKernelGetFunction, (function, kernel));
}

BSG_EXPORT CUresult cuFuncLoad(CUfunction function) {
  BSG_UNSAID(cuFuncLoad, (function));
}

BSG_EXPORT CUresult cuCtxSetLimit(CUlimit limit, size_t value) {
  BSG_UNSAID(cuCtxSetLimit, (limit, value));
}

/* ---- streams and events ---- */

BSG_EXPORT CUresult cuStreamCreate(CUstream *stream, unsigned int flags) {
  BSG_UNSAID(cuStreamCreate, (stream, flags));
}

BSG_EXPORT CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned int flags, int priority) {
  BSG_UNSAID(cuStreamCreateWithPriority, (stream, flags, priority));
}

BSG_EXPORT CUresult cuGreenCtxStreamCreate(CUstream *stream, CUgreenCtx green, unsigned int flags, int priority) {
  BSG_UNSAID(cuGreenCtxStreamCreate, (stream, green, flags, priority));
}

BSG_EXPORT CUresult cuEventCreate(CUevent *event, unsigned int flags) {
  BSG_UNSAID(cuEventCreate, (event, flags));
}

/* ---- launches ---- */

#define GRID                                                                                                           \
  CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x,            \
      unsigned int block_y, unsigned int block_z, unsigned int shared, CUstream stream, void **arguments

#define PASS function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream, arguments

BSG_EXPORT CUresult cuLaunchKernel(GRID, void **extra) {
  BSG_UNSAID(cuLaunchKernel, (PASS, extra));
}

BSG_EXPORT CUresult cuLaunchKernel_ptsz(GRID, void **extra) {
  BSG_UNSAID(cuLaunchKernel_ptsz, (PASS, extra));
}

BSG_EXPORT CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **arguments,
                                     void **extra) {
  BSG_UNSAID(cuLaunchKernelEx, (config, function, arguments, extra));
}

BSG_EXPORT CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction function, void **arguments,
                                          void **extra) {
  BSG_UNSAID(cuLaunchKernelEx_ptsz, (config, function, arguments, extra));
}

BSG_EXPORT CUresult cuLaunchCooperativeKernel(GRID) {
  BSG_UNSAID(cuLaunchCooperativeKernel, (PASS));
}

BSG_EXPORT CUresult cuLaunchCooperativeKernel_ptsz(GRID) {
  BSG_UNSAID(cuLaunchCooperativeKernel_ptsz, (PASS));
}

BSG_EXPORT CUresult cuLaunch(CUfunction function) {
  BSG_UNSAID(cuLaunch, (function));
}

BSG_EXPORT CUresult cuLaunchGrid(CUfunction function, int width, int height) {
  BSG_UNSAID(cuLaunchGrid, (function, width, height));
}

BSG_EXPORT CUresult cuLaunchGridAsync(CUfunction function, int width, int height, CUstream stream) {
  BSG_UNSAID(cuLaunchGridAsync, (function, width, height, stream));
}
