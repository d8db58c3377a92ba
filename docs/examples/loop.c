/*
 * loop.c - a training loop written by hand that lets bsguard choose its micro-batch.
 *
 *   cc -I PREFIX/include loop.c -lcuda -o loop && LD_PRELOAD=libbsguard.so ./loop
 *
 * The functions are declared weak: without the preload they are null, and the loop runs as it always did.
 */
#include <bsguard.h>
#include <cuda.h>
#include <stdio.h>

#pragma weak bsg_attach
#pragma weak bsg_boundary
#pragma weak bsg_terminal
#pragma weak bsg_applied
#pragma weak bsg_memory
#pragma weak bsg_step

enum { BATCH = 64, STEPS = 5, BYTES_PER_SAMPLE = 1 << 20 };

/* Forward and backward of so many samples; here only what they allocate. The gradients would be summed. */
static CUresult run(int64_t samples) {
  CUdeviceptr activations;
  CUresult result = cuMemAlloc(&activations, (size_t)samples * BYTES_PER_SAMPLE);
  return result == CUDA_SUCCESS ? cuMemFree(activations) : result;
}

int main(void) {
  CUcontext context;
  if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context))
    return 1;
  if (bsg_attach)
    bsg_attach("loop.c", NULL); /* from now on we say which failure was final, nothing is inferred */

  for (int step = 0; step < STEPS; step++) {
    struct bsg_decision now = {.size = sizeof now, .micro_batch = BATCH};
    if (bsg_boundary)
      bsg_boundary(0, "loop", "float32[262144]", BATCH, BSG_PHASE_FORWARD, &now);
    for (int64_t done = 0; done < BATCH;) {
      int64_t samples = now.micro_batch < BATCH - done ? now.micro_batch : BATCH - done;
      if (run(samples) == CUDA_SUCCESS) {
        done += samples;
        continue;
      }
      struct bsg_oom oom = {.size = sizeof oom,
                            .boundary = "loop",
                            .signature = "float32[262144]",
                            .batch = BATCH,
                            .phase = BSG_PHASE_FORWARD,
                            .exactness = BSG_EXACT};
      if (!bsg_terminal || bsg_terminal(&oom, &now) || now.verdict != BSG_SHRINK)
        return fprintf(stderr, "out of memory with %lld samples\n", (long long)samples), 1;
      bsg_applied(now.sequence, 0, "loop", BSG_PHASE_FORWARD, BATCH, now.micro_batch, BSG_EXACT, NULL);
      done = 0; /* the step again from its start, in smaller pieces */
    }
    if (bsg_step) { /* the optimizer has stepped; what this took is how bsguard learns what fits */
      struct bsg_memory memory = {.size = sizeof memory};
      bsg_memory(0, &memory);
      bsg_step(0, memory.step_peak_bytes);
    }
    printf("step %d: %d samples, %lld at a time\n", step, BATCH, (long long)now.micro_batch);
  }
  return 0;
}
