/* create_context.h - a context, made through what cuda.h calls cuCtxCreate: with the headers of 13.0 a newer function,
 * which takes parameters. */
#ifndef SIMGPU_CREATE_CONTEXT_H
#define SIMGPU_CREATE_CONTEXT_H

#include <cuda.h>

static inline CUresult create_context(CUcontext *out) {
#if CUDA_VERSION >= 13000
  return cuCtxCreate(out, NULL, 0, 0);
#else
  return cuCtxCreate(out, 0, 0);
#endif
}

#endif
