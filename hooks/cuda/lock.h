/*
 * lock.h - a lock for a few dozen instructions, the cheapest there is where nobody else wants it: one atomic operation
 * to take, a plain store to give back. (A mutex needs a second atomic operation to learn whether somebody sleeps: a
 * fifth of what a wrapper may cost.) Whoever waits for it lets others run, and before long sleeps, so that a holder of
 * lower priority gets its turn. All zero: free.
 */
#ifndef BSG_CUDA_LOCK_H
#define BSG_CUDA_LOCK_H

#include <sched.h>
#include <stdatomic.h>
#include <time.h>

struct bsg_lock {
  atomic_uchar held;
};

static inline void bsg_lock_wait(struct bsg_lock *lock) {
  const struct timespec pause = {0, 50000};
  for (int tries = 0;; tries++) {
    if (!atomic_load_explicit(&lock->held, memory_order_relaxed) &&
        !atomic_exchange_explicit(&lock->held, 1, memory_order_acquire))
      return;
    if (tries < 100)
      sched_yield();
    else
      nanosleep(&pause, NULL);
  }
}

static inline void bsg_lock_take(struct bsg_lock *lock) {
  if (__builtin_expect(atomic_exchange_explicit(&lock->held, 1, memory_order_acquire), 0))
    bsg_lock_wait(lock);
}

static inline void bsg_lock_give(struct bsg_lock *lock) {
  atomic_store_explicit(&lock->held, 0, memory_order_release);
}

#endif
