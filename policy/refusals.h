/*
 * refusals.h - driver calls that were refused and whose outcome is not known yet: the framework may free its caches and
 * try again (absorbed), or give up (terminal). A fixed table keyed by (device, thread, size); it may be looked at from
 * inside a failed allocation.
 */
#ifndef BSG_POLICY_REFUSALS_H
#define BSG_POLICY_REFUSALS_H

#include <stdatomic.h>

#include "policy/records.h"

#define BSG_REFUSALS_ROOM 32

struct bsg_refusal {
  bool used;
  bool reported;       /* an oom event was written for it */
  bool concluded;      /* an OOM was inferred, and nothing succeeded since */
  bool granted;        /* something succeeded on the device since the last refusal */
  bool granted_thread; /* the same, on the thread that was refused: it went on */
  bool met; /* the thread was granted as much as it had asked for: absorbed, unless a terminal OOM is reported */
  uint64_t thread;
  uint64_t freed; /* bytes freed on the device so far, at the last refusal */
  uint64_t order; /* rises with each refusal */
  struct bsg_oom_record record;
};

struct bsg_refusals {
  atomic_int waiting; /* slots in use whose request was not met; read without the lock */
  uint64_t clock;
  struct bsg_refusal slots[BSG_REFUSALS_ROOM];
};

/*
 * Records a refused call. `repeated` says what is needed to tell whether it is terminal; `over` (used false: none) is a
 * refusal that is thereby over: it had been met before, or had to make room.
 */
struct bsg_refusal *bsg_refusals_note(struct bsg_refusals *refusals, const struct bsg_alloc_fact *fact,
                                      struct bsg_repeated *repeated, struct bsg_refusal *over);

/*
 * Records a call that succeeded. What it meets is not over yet: an adapter may have caught the exception, freed memory
 * and run something else before it reports the OOM. bsg_refusals_take_met() is for the moment when that is ruled out.
 */
void bsg_refusals_grant(struct bsg_refusals *refusals, const struct bsg_alloc_fact *fact);

/* The last refusal on this device, which a terminal OOM is about; request_bytes: as the framework says, 0: not known.
 * NULL: there is none that fits. */
struct bsg_refusal *bsg_refusals_blamed(struct bsg_refusals *refusals, int device, uint64_t request_bytes);

/* Forgets all of this device and thread. */
void bsg_refusals_forget(struct bsg_refusals *refusals, int device, uint64_t thread);

/* Takes the oldest of this device (-1: of all) out of the table; only_met: of those that were met. */
bool bsg_refusals_take(struct bsg_refusals *refusals, int device, bool only_met, struct bsg_refusal *taken);

#endif
