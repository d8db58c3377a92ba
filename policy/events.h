/*
 * events.h - events.jsonl: one line a thing that happened, each written at once and whole, `seq` rising by one. This is
 * the only place that knows the fields of an event and their order. A line that could not be written leaves a gap in
 * `seq`, so that a reader sees that something is missing.
 */
#ifndef BSG_POLICY_EVENTS_H
#define BSG_POLICY_EVENTS_H

#include "policy/json_write.h"
#include "policy/records.h"
#include "policy/runfolder.h"

#define BSG_EVENT_ROOM 65536

struct bsg_events {
  struct bsg_runfolder *folder;
  int64_t seq;
  struct bsg_out out;
  struct bsg_json json;
  char line[BSG_EVENT_ROOM];
};

struct bsg_start {
  int pid, rank;
  const char *command, *framework;
  int mode;
  const struct bsg_device_fact *devices;
  int device_count;
};

struct bsg_step_record {
  struct bsg_where where;
  int device;
  struct bsg_split split; /* batch 0: not known; chunks 0: no boundary was asked for on this device */
  uint64_t peak_bytes, allocated_peak_bytes;
};

struct bsg_totals {
  int64_t ooms, absorbed, rescued_steps, unrescued;
  uint64_t peak_bytes;
};

void bsg_events_init(struct bsg_events *events, struct bsg_runfolder *folder);

/* Each returns 0 or the negative errno of the write. */
int bsg_event_start(struct bsg_events *events, struct bsg_when now, const struct bsg_start *start);
int bsg_event_mark(struct bsg_events *events, struct bsg_when now, const struct bsg_mark_fact *mark);
int bsg_event_oom(struct bsg_events *events, struct bsg_when now, const struct bsg_oom_record *oom);
int bsg_event_absorbed(struct bsg_events *events, struct bsg_when now, const struct bsg_trigger *trigger,
                       int64_t attempts);
int bsg_event_decision(struct bsg_events *events, struct bsg_when now, const struct bsg_change *change);
int bsg_event_applied(struct bsg_events *events, struct bsg_when now, int64_t sequence, struct bsg_where where,
                      int exactness, const char *because);
int bsg_event_step(struct bsg_events *events, struct bsg_when now, const struct bsg_step_record *step);
/* micro_batch 0: none could be read. why NULL: obeyed. */
int bsg_event_request(struct bsg_events *events, struct bsg_when now, int64_t micro_batch, int64_t sequence,
                      const char *why);
/* waited_ms: until so much was free, or in vain. others_bytes: what they held when memory ran out. */
int bsg_event_waited(struct bsg_events *events, struct bsg_when now, const struct bsg_trigger *trigger,
                     uint64_t others_bytes, int64_t waited_ms, uint64_t free_bytes, bool met);
int bsg_event_retried(struct bsg_events *events, struct bsg_when now, const struct bsg_trigger *trigger,
                      const char *what);
int bsg_event_refused(struct bsg_events *events, struct bsg_when now, const char *boundary, const char *why);
int bsg_event_disarmed(struct bsg_events *events, struct bsg_when now, const char *boundary, const char *signature,
                       const char *why, bool for_good);
int bsg_event_unhooked(struct bsg_events *events, struct bsg_when now, const char *name, int version);
int bsg_event_report(struct bsg_events *events, struct bsg_when now, const char *path, const char *why);
int bsg_event_stop(struct bsg_events *events, struct bsg_when now, const struct bsg_totals *totals);

#endif
