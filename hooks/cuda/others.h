/*
 * others.h - who else holds memory on a device, as NVML knows it: for reports only, and in no sum of ours. Where NVML
 * is missing, too old or refuses, there is no answer, and nothing else changes.
 */
#ifndef BSG_CUDA_OTHERS_H
#define BSG_CUDA_OTHERS_H

#include "shim/facts.h"

/*
 * Opens libnvidia-ml.so.1 privately and finds its entries, so that nothing has to be loaded when memory is short; asks
 * it nothing. Call before the first allocation, outside of any lock.
 */
void bsg_others_prepare(void);

/*
 * Asks the driver by which names NVML knows this device. Call when the device is there; callers of this and of
 * bsg_others_list() serialise.
 */
void bsg_others_meet(int device);

/*
 * The processes but this one that hold memory of a device. NVML is started for the question and let go of after it.
 * -ENOSYS: there is no NVML, or it does not say. Allocates nothing itself.
 */
int bsg_others_list(int device, struct bsg_others_fact *out);

#endif
