/*
 * policy_state.h - the one state of the policy, and what its public functions (policy.c, policy_framework.c,
 * policy_outcome.c, policy_request.c) have in common. Nobody else includes this. Callers hold the lock of shim/.
 */
#ifndef BSG_POLICY_STATE_H
#define BSG_POLICY_STATE_H

#include "policy/control.h"
#include "policy/entries.h"
#include "policy/events.h"
#include "policy/history.h"
#include "policy/policy.h"
#include "policy/json_read.h"
#include "policy/refusals.h"
#include "policy/report.h"
#include "policy/runfolder.h"
#include "policy/store.h"

#define BSG_TRAINING_ROOM 1024
#define BSG_EVALUATION_ROOM 256
#define BSG_UNHOOKED_ROOM 32
#define BSG_LINE_ROOM 640
#define BSG_SIZINGS 32
#define BSG_RUNNING 16

struct bsg_device_state {
  bool used;
  struct bsg_device_fact fact;
  struct bsg_split last; /* of the boundary last asked for in training; chunks 0: none was */
  uint64_t step_peak;    /* of the step before */
  uint64_t peak;
  uint64_t input; /* hash of the boundary and signature last asked for in training; 0: none was */
  char signature[BSG_SIGNATURE_ROOM], boundary[BSG_BOUNDARY_ROOM]; /* of it */
  struct bsg_framework_told framework;                             /* as last told */
  bool elsewhere_known;
  uint64_t elsewhere_least; /* used on the device and not by us: the least seen at a step's end */
  bool again;               /* a step was tried whole once more, the last time in again_step */
  int64_t again_step;
  uint64_t waited_for, waited_others; /* bytes: what must be free; what others held */
  bool wait_said;                     /* aloud, the last time in wait_said_step */
  bool wait_aloud;                    /* the wait under way was */
  int64_t wait_said_step;
  int64_t patience_ms; /* spent on others since the last step's end, or since something went through */
  bool oom_in_step;    /* a training OOM was answered since the last step ended */
  bool disturbed;      /* memory was short since then: the step's peak says nothing of its size */
  int running_count;
  struct bsg_entry *running[BSG_RUNNING]; /* what trained since then */
};

/* What is known of the memory that the pieces of one boundary take. */
struct bsg_sizing_slot {
  bool used;
  bool met;       /* an OOM, in this run or in an earlier one: what is foreseen may be acted on */
  bool allocated; /* the framework says what it has allocated: the driver's marks, caches included, are not used */
  int device;
  uint64_t touched;
  int64_t since_x; /* the largest piece since the caches were emptied: whose peak the driver's mark is */
  char boundary[BSG_BOUNDARY_ROOM];
  struct bsg_sizing sizing;
};

struct bsg_caught {
  bool taken;
  uint64_t request_bytes; /* as the framework says: by this it is known again */
  struct bsg_oom_record record;
  struct bsg_snapshot refused;
};

struct bsg_policy {
  bool live;
  bool stopped;
  struct bsg_policy_config config; /* its texts are the copies below */
  char directory[BSG_PATH_ROOM];
  char store[BSG_PATH_ROOM];
  char command[256];
  char framework[96];

  bool adapter;     /* somebody reports terminal OOMs: nothing is inferred */
  bool device_seen; /* from then on there are files, or there was an attempt to make them */
  struct bsg_device_state devices[BSG_MAX_DEVICES];

  struct bsg_runfolder folder;
  struct bsg_events events;
  bool said_file_error;
  bool control_behind; /* control.json could not be written: tried again at each step */

  struct bsg_entries training, evaluation;
  struct bsg_sizing_slot sizings[BSG_SIZINGS];
  uint64_t sizing_clock;

  bool store_loaded, store_said;
  bool store_behind; /* sizes changed since the store was written */
  int known_count;
  struct bsg_store_record known[BSG_STORE_RECORDS];

  int64_t sequence; /* of the last change; the change itself is the newest of the ring */
  int64_t change_total;
  struct bsg_change changes[BSG_CHANGES_KEPT];
  int64_t applied_sequence; /* the last one that was taken up */

  struct bsg_refusals refusals;
  struct bsg_snapshot refused;   /* of the last refused calls: by the time that an OOM is reported much was freed */
  struct bsg_caught caught;      /* an OOM that is reported only after a trial, to which memory may be refused too */
  struct bsg_snapshot latest;    /* of the last OOM */
  struct bsg_snapshot unrescued; /* of the last OOM that was not rescued */
  struct bsg_snapshot summary;   /* of no OOM */
  struct bsg_totals totals;
  struct bsg_report report; /* being written */

  int reason_count, reason_next;
  struct bsg_reason_kept reasons[BSG_REASONS_KEPT]; /* reported by bsg_policy_refused(), each once */

  char python_stack[BSG_STACK_ROOM]; /* of the exception that the framework told of last */
  int held_count, held_device;
  struct bsg_held_kept held[BSG_HELD_KEPT];
  int note_count;
  struct bsg_note_kept notes[BSG_NOTES_KEPT];
  int files_lost; /* errno of the first file that could not be written */

  bool request_empty; /* the step before found an empty request.json */
  bool request_stuck; /* a request.json could not be removed, and that was said */
  struct bsg_json_document request_document;

  int unhooked_count; /* seen before there was a file to log them in */
  struct {
    char name[64];
    int version;
  } unhooked[BSG_UNHOOKED_ROOM];

  /* Last, and never cleared: a table knows how many of its slots are in use, and untouched pages cost nothing. */
  struct bsg_entry training_slots[BSG_TRAINING_ROOM], evaluation_slots[BSG_EVALUATION_ROOM];
  struct bsg_history histories[BSG_MAX_DEVICES]; /* each is started when its device is first used */
};

/* True where events can be written. */
bool bsg_state_writes(const struct bsg_policy *p);

/* Takes the result of writing a file: the first failure of all is said, in one line. */
void bsg_state_wrote(struct bsg_policy *p, const char *name, int error);

#define BSG_EVENT(p, write)                                                                                            \
  do {                                                                                                                 \
    if (bsg_state_writes(p))                                                                                           \
      bsg_state_wrote((p), "events.jsonl", (write));                                                                   \
  } while (0)

/* One line to the user. */
void bsg_state_say(struct bsg_policy *p, int level, struct bsg_out *line);

const struct bsg_device_state *bsg_state_device(const struct bsg_policy *p, int device); /* NULL: never used */
const struct bsg_change *bsg_state_last_change(const struct bsg_policy *p);              /* NULL: none */

/*
 * A change of control.json: numbers it, fills in `when` and what was before, remembers it, logs it, writes the file.
 */
void bsg_state_change(struct bsg_policy *p, struct bsg_when now, struct bsg_change *change);

/* Writes control.json from the last change. */
void bsg_state_write_control(struct bsg_policy *p);

/* The first change of a run: this boundary runs whole. Does nothing where there was one, or nothing may be changed. */
void bsg_state_start(struct bsg_policy *p, struct bsg_when now, const struct bsg_entry *entry);

/* Takes a picture of the device's memory as it is now. */
void bsg_state_picture(struct bsg_policy *p, struct bsg_when now, const struct bsg_oom_record *oom,
                       struct bsg_snapshot *picture);

/* A picture for a report about a device that has enough: the one used last, or the first. False: none was used. */
bool bsg_state_summary(struct bsg_policy *p, struct bsg_when now, struct bsg_where where, struct bsg_snapshot *picture);

/* `latest` becomes the picture of this OOM: the one taken when it was refused, where there is one. */
void bsg_state_oom_met(struct bsg_policy *p, struct bsg_when now, const struct bsg_oom_record *oom);

/* The job went on after the last OOM on this device (-1: on any): if it was answered, it was rescued. */
void bsg_state_went_on(struct bsg_policy *p, int device);

/* What is known of an OOM: the refused calls of its device, which are over with it, or a limit of the framework's own.
 */
void bsg_state_gather(struct bsg_policy *p, const struct bsg_oom *oom, struct bsg_where where,
                      struct bsg_oom_record *record);

/* The driver refused what it had enough free bytes for. */
bool bsg_state_fragmented(const struct bsg_oom_record *oom);

/* "gpu:0 refused 64.0 MiB, 32.0 MiB free of 22.5 GiB"; with ", fragmented" behind it where that is so */
void bsg_state_describe(const struct bsg_policy *p, const struct bsg_oom_record *oom, struct bsg_out *out);

/* What was refused on this device and not reported was absorbed; only_met: as far as the request was met since. */
void bsg_state_settle(struct bsg_policy *p, struct bsg_when now, int device, bool only_met);

/*
 * An OOM of a boundary: may the step be tried whole once more? Then `out` says how long to wait for what before, and
 * the user is told where that is not nothing. can_split: as for bsg_decide_oom().
 */
struct bsg_again {
  int64_t wait_ms;
  uint64_t free_bytes;
};
bool bsg_state_again(struct bsg_policy *p, const struct bsg_oom *oom, const struct bsg_oom_record *record,
                     bool can_split, struct bsg_again *out);

/*
 * The same where nothing smaller is left to be tried, as a last resort: only while other processes are in the way, and
 * until the patience with them is spent.
 */
bool bsg_state_last_resort(struct bsg_policy *p, const struct bsg_oom_record *record, struct bsg_again *out);

/* A step has ended: what is used on the device and not by this process. */
void bsg_state_note_elsewhere(struct bsg_policy *p, const struct bsg_memory_fact *memory);

/* Writes both reports and the event; 0 or the error. */
int bsg_state_report(struct bsg_policy *p, struct bsg_when now, struct bsg_snapshot *oom, const char *why);

/* ---- sizes: policy_sizes.c ---- */

/* A boundary is about to train `batch` samples: the pieces that it runs in. */
struct bsg_split bsg_state_sizes_begin(struct bsg_policy *p, struct bsg_when now, struct bsg_entry *entry,
                                       int64_t batch);

/* The same for an evaluation. */
struct bsg_split bsg_state_sizes_evaluate(struct bsg_policy *p, struct bsg_entry *entry, int64_t batch);

/* An OOM at `now`: takes note and decides. */
enum bsg_verdict bsg_state_sizes_shrink(struct bsg_policy *p, struct bsg_entry *entry, const struct bsg_split *now,
                                        const struct bsg_oom *oom, const struct bsg_oom_record *record,
                                        struct bsg_split *out);

/* A step ended: measures it, and lets grow what fits. allocated_peak: as bsg_step(). */
void bsg_state_sizes_step(struct bsg_policy *p, struct bsg_when now, const struct bsg_memory_fact *memory,
                          uint64_t allocated_peak, struct bsg_where where);

/* Fills in what is known of the peak of an entry's pieces. */
void bsg_state_sizes_known(struct bsg_policy *p, const struct bsg_entry *entry, struct bsg_store_record *record);

/* ---- the known-good store: policy_store.c ---- */

/* What an earlier run fitted in. */
bool bsg_state_store_find(struct bsg_policy *p, const struct bsg_entry *entry, bool evaluation,
                          struct bsg_store_record *out);

/* Writes what this run has settled at, where that changed; at_end: the process ends. */
void bsg_state_store_write(struct bsg_policy *p, bool at_end);

/* Answers a request.json, where there is one. */
void bsg_state_answer_request(struct bsg_policy *p, struct bsg_when now);

#endif
