/*
 * entries.h - the table of sizes: for each (device, boundary, signature) the split that its batch is run in. A fixed
 * table, nothing is allocated; one for training and one for evaluation, which has sizes of its own.
 *
 * An entry that never met an OOM has no limit: every batch runs whole. After one, another batch of the same signature
 * is cut into pieces of at most the micro-batch that was decided, so that the short last batch of an epoch is not split
 * needlessly.
 */
#ifndef BSG_POLICY_ENTRIES_H
#define BSG_POLICY_ENTRIES_H

#include "policy/records.h"
#include "policy/regrow.h"

struct bsg_entry {
  bool used;
  int device;
  int exactness;    /* of a split, as last reported; BSG_EXACTNESS_UNKNOWN */
  uint64_t hash;    /* of device, boundary and signature, the whole texts */
  uint64_t touched; /* the table's count of look-ups when this one was last asked for */
  int64_t batch;    /* samples, of the last decision; 0: not known (no adapter) */
  int64_t largest;  /* batch ever asked for: what stands in control.json, not the short one at an epoch's end */
  int64_t chunks;   /* k of `batch` */
  int64_t most;     /* micro-batch limit for any batch; 0: none */
  int64_t elements; /* in a sample; 0: not asked for yet */
  int64_t in_step;  /* the largest piece of the step under way, in samples; 0: it does not run in it */
  bool ran_out;     /* in the step under way */
  bool grown;       /* and the user was not told yet */
  struct bsg_regrowth growth;
  char boundary[BSG_BOUNDARY_ROOM];
  char signature[BSG_SIGNATURE_ROOM];
};

struct bsg_entries {
  struct bsg_entry *slots;
  int room;
  int high; /* slots ever used */
  uint64_t clock;
};

void bsg_entries_init(struct bsg_entries *table, struct bsg_entry *slots, int room);

/* The entry, made where there is none; `batch` is the one that is about to run. When the table is full the entry
 * longest not asked for makes room, one without a limit first: forgetting it costs nothing. */
struct bsg_entry *bsg_entries_obtain(struct bsg_entries *table, int device, const char *boundary, const char *signature,
                                     int64_t batch);

/* The entry of this device that was asked for last; device -1: of any. NULL: none. */
struct bsg_entry *bsg_entries_latest(const struct bsg_entries *table, int device, const char *boundary);

/* Does a filter of an operator's request cover the entry? device -1 and boundary NULL: any. */
bool bsg_entry_matches(const struct bsg_entry *entry, int device, const char *boundary);

/* The pieces that a batch runs in now; and those of the largest. */
struct bsg_split bsg_entry_split(const struct bsg_entry *entry, int64_t batch);
struct bsg_split bsg_entry_shown(const struct bsg_entry *entry);

/* Takes a decision over. */
void bsg_entry_accept(struct bsg_entry *entry, const struct bsg_split *split);

/* Limits pieces to `micro_batch` samples because an operator wants it: nothing grows past that. */
void bsg_entry_limit(struct bsg_entry *entry, int64_t micro_batch);

#endif
