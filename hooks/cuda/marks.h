/*
 * marks.h - when is a rise of live_bytes worth a high-water mark: at each rise of 1 % of the device's capacity, but of
 * at least 2 MiB. So there are at most about a hundred per device. (A step's own high-water mark is the policy's, which
 * is told of each step.) Thread-safe, no lock.
 */
#ifndef BSG_CUDA_MARKS_H
#define BSG_CUDA_MARKS_H

#include <stdbool.h>
#include <stdint.h>

/* Sets the rise that counts; capacity 0: not known. */
void bsg_marks_capacity(int device, uint64_t total_bytes);

/* True for one caller at each mark: live_bytes has reached the next one. Cheap when it has not. */
bool bsg_marks_due(int device, uint64_t live_bytes);

/* After fork(). */
void bsg_marks_forget(void);

#endif
