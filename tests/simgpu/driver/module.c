/*
 * module.c - modules and libraries: handles that may cost memory (SIMGPU_MODULE_MEMORY) and may fail for the want of
 * it. They hold nothing that could be looked up. A module ends with its context; a library is the process's, charged to
 * the device that was current, if one was.
 */
#include <stdlib.h>
#include <unistd.h>

#include "internal.h"

struct CUmod_st {
  CUmodule next;
  CUcontext context;
};

struct CUlib_st {
  CUlibrary next;
  int device; /* -1: charged to none */
};

static struct {
  CUmodule modules;
  CUlibrary libraries;
} state;

/* ---- modules ---- */
static CUresult load(CUmodule *out, bool valid) {
  CUcontext context;
  CUmodule module;
  CUresult result = sim_current(&context);
  if (result)
    return result;
  if (!out || !valid)
    return CUDA_ERROR_INVALID_VALUE;
  module = calloc(1, sizeof *module);
  if (!module)
    return CUDA_ERROR_OUT_OF_MEMORY;
  module->context = context;
  sim_lock();
  result = sim_overhead_take(context->device, SIMGPU_MODULE);
  if (!result) {
    module->next = state.modules;
    state.modules = module;
    *out = module;
  }
  sim_unlock();
  if (result)
    free(module);
  return result;
}

CUresult cuModuleLoad(CUmodule *out, const char *file) {
  if (file && access(file, R_OK))
    return CUDA_ERROR_FILE_NOT_FOUND;
  return load(out, file);
}
CUresult cuModuleLoadData(CUmodule *out, const void *image) {
  return load(out, image);
}
CUresult cuModuleLoadDataEx(CUmodule *out, const void *image, unsigned int count, CUjit_option *options,
                            void **values) {
  (void)count, (void)options, (void)values;
  return load(out, image);
}
CUresult cuModuleLoadFatBinary(CUmodule *out, const void *image) {
  return load(out, image);
}

/* Caller holds the lock. */
static void unload(CUmodule *link) {
  CUmodule module = *link;
  *link = module->next;
  sim_overhead_return(module->context->device, SIMGPU_MODULE);
  free(module);
}

CUresult cuModuleUnload(CUmodule module) {
  CUmodule *link;
  CUresult result = sim_ready();
  if (result)
    return result;
  sim_lock();
  for (link = &state.modules; *link && *link != module; link = &(*link)->next)
    ;
  if (*link)
    unload(link);
  else
    result = CUDA_ERROR_INVALID_HANDLE;
  sim_unlock();
  return result;
}

CUresult cuModuleGetFunction(CUfunction *out, CUmodule module, const char *name) {
  CUresult result = sim_ready();
  (void)module;
  if (!result)
    result = out && name ? CUDA_ERROR_NOT_FOUND : CUDA_ERROR_INVALID_VALUE;
  return result;
}

void sim_module_drop(CUcontext context) {
  for (CUmodule *link = &state.modules; *link;) {
    if ((*link)->context == context)
      unload(link);
    else
      link = &(*link)->next;
  }
}

/* ---- libraries ---- */
static CUresult load_library(CUlibrary *out, bool valid) {
  CUcontext context;
  CUlibrary library;
  CUresult result = sim_ready();
  if (result)
    return result;
  if (!out || !valid)
    return CUDA_ERROR_INVALID_VALUE;
  library = calloc(1, sizeof *library);
  if (!library)
    return CUDA_ERROR_OUT_OF_MEMORY;
  library->device = sim_current(&context) ? -1 : context->device;
  sim_lock();
  result = library->device < 0 ? CUDA_SUCCESS : sim_overhead_take(library->device, SIMGPU_MODULE);
  if (!result) {
    library->next = state.libraries;
    state.libraries = library;
    *out = library;
  }
  sim_unlock();
  if (result)
    free(library);
  return result;
}

CUresult cuLibraryLoadData(CUlibrary *out, const void *code, CUjit_option *jit_options, void **jit_values,
                           unsigned int jit_count, CUlibraryOption *options, void **values, unsigned int count) {
  (void)jit_options, (void)jit_values, (void)jit_count, (void)options, (void)values, (void)count;
  return load_library(out, code);
}

CUresult cuLibraryLoadFromFile(CUlibrary *out, const char *file, CUjit_option *jit_options, void **jit_values,
                               unsigned int jit_count, CUlibraryOption *options, void **values, unsigned int count) {
  (void)jit_options, (void)jit_values, (void)jit_count, (void)options, (void)values, (void)count;
  if (file && access(file, R_OK))
    return CUDA_ERROR_FILE_NOT_FOUND;
  return load_library(out, file);
}

CUresult cuLibraryUnload(CUlibrary library) {
  CUlibrary *link;
  CUresult result = sim_ready();
  if (result)
    return result;
  sim_lock();
  for (link = &state.libraries; *link && *link != library; link = &(*link)->next)
    ;
  if (*link) {
    *link = library->next;
    if (library->device >= 0)
      sim_overhead_return(library->device, SIMGPU_MODULE);
    free(library);
  } else {
    result = CUDA_ERROR_INVALID_HANDLE;
  }
  sim_unlock();
  return result;
}

CUresult cuLibraryGetKernel(CUkernel *out, CUlibrary library, const char *name) {
  CUresult result = sim_ready();
  (void)library;
  if (!result)
    result = out && name ? CUDA_ERROR_NOT_FOUND : CUDA_ERROR_INVALID_VALUE;
  return result;
}
