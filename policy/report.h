/*
 * report.h - the post-mortem: one picture of what is known about an OOM, and two writers of it, for a person
 * (report.txt) and for a program (report.json). Nothing on this path allocates on the heap.
 */
#ifndef BSG_POLICY_REPORT_H
#define BSG_POLICY_REPORT_H

#include "policy/accounting.h"
#include "policy/culprit.h"
#include "policy/events.h"
#include "policy/history.h"
#include "policy/policy.h"
#include "policy/records.h"
#include "policy/runfolder.h"

#define BSG_HOLDERS 10
#define BSG_CHANGES_KEPT 64
#define BSG_REASONS_KEPT 64
#define BSG_ADVICE_MOST 12
#define BSG_ADVICE_ROOM 512
#define BSG_REPORT_SITES (BSG_HOLDERS + 1 + BSG_MAX_GROUPS + BSG_MAX_SINCE)
#define BSG_MISSING_MOST 12
#define BSG_MISSING_ROOM 200

/* How an OOM ended. */
enum bsg_outcome {
  BSG_OUTCOME_OPEN = 0, /* not known: the job went on, or ended, without a word */
  BSG_OUTCOME_RESCUED,
  BSG_OUTCOME_UNRESCUED
};

/* What was true when the OOM was met: later, the memory that it was about may be free again. Or, where none was met, at
 * the time of the report. */
struct bsg_snapshot {
  bool taken;
  bool met; /* an OOM; false: a picture of a device that has enough */
  struct bsg_when when;
  struct bsg_oom_record oom;
  enum bsg_outcome outcome;
  int verdict; /* enum bsg_verdict; -1: nobody reported the OOM */
  int exactness;
  struct bsg_split split; /* that it was met at; chunks 0: not known */
  char because[BSG_WHY_ROOM];
  char exception[BSG_EXCEPTION_ROOM];
  bool has_memory;
  struct bsg_memory_fact memory;
  int holder_count;
  struct bsg_holder_fact holders[BSG_HOLDERS];
  bool has_census;
  struct bsg_census_fact census;
  int64_t last_good_step;
  struct bsg_framework_told framework;
  char python_stack[BSG_STACK_ROOM];
  uint64_t input;    /* hash of boundary and signature; 0: not known */
  bool new_input;    /* no step of it had ended */
  bool others_asked; /* when the first report of it was written, not when it was met */
  bool has_others;
  struct bsg_others_fact others;
};

/* One piece of advice. */
struct bsg_advice {
  const char *measure; /* a word of the schema */
  const char *source;  /* of its figures, where they are not of this run; NULL */
  char text[BSG_ADVICE_ROOM];
};

/* A reason that an adapter gave for leaving a boundary alone. */
struct bsg_reason_kept {
  char boundary[BSG_BOUNDARY_ROOM];
  char why[BSG_WHY_ROOM];
};

struct bsg_report {
  const char *why; /* "unrescued", "end", "request" */
  struct bsg_when when;
  int pid, rank, mode;
  const char *command, *framework;
  const struct bsg_device_fact *device; /* NULL: not known */
  const struct bsg_snapshot *oom;
  const struct bsg_change
      *changes; /* ring of BSG_CHANGES_KEPT; number n of `change_total` is at n % BSG_CHANGES_KEPT */
  int64_t change_total;
  const struct bsg_reason_kept *reasons;
  int reason_count;
  int64_t sequence, applied_sequence;
  struct bsg_totals totals;
  const struct bsg_evidence *evidence;
  const struct bsg_history *history; /* of the device; NULL: never used */
  const struct bsg_held_kept *held;
  int held_count;
  const struct bsg_note_kept *notes;
  int note_count;
  int files_lost; /* the errno of the first file that could not be written */

  /* Worked out by bsg_report_complete(). */
  uint64_t capacity_bytes, free_bytes, live_bytes, peak_bytes; /* BSG_BYTES_UNKNOWN */
  uint64_t elsewhere_bytes; /* used on the device but not by the ledger: the driver's own and other processes */
  uint64_t holders_bytes;   /* of the listed allocations together */
  uint64_t others_bytes;    /* of the listed processes together, where it is known of any */
  int site_count;
  uint32_t sites[BSG_REPORT_SITES]; /* each once; that of the failing request first */
  int frame_count, module_count;
  struct bsg_frame_fact frames[BSG_MOST_FRAMES]; /* each address once, rising */
  struct bsg_module_fact modules[BSG_MOST_MODULES];
  struct bsg_accounting accounting;
  int point_count;
  bool points_of_framework;
  struct bsg_fit_point points[BSG_FIT_POINTS];
  bool has_fit;
  struct bsg_fit fit;
  uint64_t available_bytes; /* to a step of this process: the capacity less what is not its own */
  int64_t fits;             /* the largest micro-batch; -1: not known */
  bool fits_matters;        /* a smaller one is an answer to what happened, or nothing did */
  struct bsg_growth growth;
  uint64_t kept_graphs, kept_data;
  struct bsg_culprit culprit;
  char who[200];                        /* the culprit in words; "": none has a name */
  uint64_t piece_below, piece_at_least; /* bounds of the largest free piece; BSG_BYTES_UNKNOWN */
  int advice_count;
  struct bsg_advice advice[BSG_ADVICE_MOST];
  int missing_count;
  char missing[BSG_MISSING_MOST][BSG_MISSING_ROOM];
};

/* Asks once who else is on the device. */
void bsg_report_ask_others(struct bsg_snapshot *oom, const struct bsg_evidence *evidence);

/* Advice: report_advice.c. What could not be recorded: report_missing.c. */
void bsg_report_advise(struct bsg_report *report);
void bsg_report_miss(struct bsg_report *report);

/* Fills in what follows from the rest. Advice is given only where its condition was measured. */
void bsg_report_complete(struct bsg_report *report);

const char *bsg_outcome_name(int outcome);
const char *bsg_verdict_name(int verdict);

/* A frame of a site; NULL: it was not named, for want of room. */
const struct bsg_frame_fact *bsg_report_frame(const struct bsg_report *report, uint64_t pc);
bool bsg_report_site(const struct bsg_report *report, uint32_t site, struct bsg_site_fact *out);

void bsg_report_text(const struct bsg_report *report, struct bsg_out *out);
void bsg_report_json(const struct bsg_report *report, struct bsg_out *out);

/* Writes report.txt and report.json; the first error, if any, but tries both. */
int bsg_report_write(const struct bsg_report *report, struct bsg_runfolder *folder);

#endif
