/*
 * report.h - the post-mortem: one picture of what is known about an OOM, and two writers of it, for a person
 * (report.txt) and for a program (report.json). Nothing on this path allocates on the heap.
 */
#ifndef BSG_POLICY_REPORT_H
#define BSG_POLICY_REPORT_H

#include "policy/events.h"
#include "policy/policy.h"
#include "policy/records.h"
#include "policy/runfolder.h"

#define BSG_HOLDERS 10
#define BSG_CHANGES_KEPT 64
#define BSG_REASONS_KEPT 64
#define BSG_ADVICE_MOST 8
#define BSG_ADVICE_ROOM 384
#define BSG_REPORT_SITES (BSG_HOLDERS + 1)

/* How an OOM ended. */
enum bsg_outcome {
  BSG_OUTCOME_OPEN = 0, /* not known: the job went on, or ended, without a word */
  BSG_OUTCOME_RESCUED,
  BSG_OUTCOME_UNRESCUED
};

/* What was true when the OOM was met: later, the memory that it was about may be free again. */
struct bsg_snapshot {
  bool taken;
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
  bool others_asked; /* when the first report of it was written, not when it was met */
  bool has_others;
  struct bsg_others_fact others;
};

/* A reason that an adapter gave for leaving a boundary alone. */
struct bsg_reason_kept {
  char boundary[BSG_BOUNDARY_ROOM];
  char why[BSG_WHY_ROOM];
};

struct bsg_report {
  const char *why; /* "unrescued", "end" */
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
  struct bsg_totals totals;
  const struct bsg_evidence *evidence;

  /* Worked out by bsg_report_complete(). */
  uint64_t capacity_bytes, free_bytes, live_bytes, peak_bytes; /* BSG_BYTES_UNKNOWN */
  uint64_t elsewhere_bytes; /* used on the device but not by the ledger: the driver's own and other processes */
  uint64_t holders_bytes;   /* of the listed allocations together */
  uint64_t others_bytes;    /* of the listed processes together, where it is known of any */
  int site_count;
  uint32_t sites[BSG_REPORT_SITES]; /* each once; that of the failing request first */
  int advice_count;
  char advice[BSG_ADVICE_MOST][BSG_ADVICE_ROOM];
};

/* Asks once who else is on the device. */
void bsg_report_ask_others(struct bsg_snapshot *oom, const struct bsg_evidence *evidence);

/* Fills in what follows from the rest. Advice is given only where its condition was measured. */
void bsg_report_complete(struct bsg_report *report);

const char *bsg_outcome_name(int outcome);
const char *bsg_verdict_name(int verdict);

/* The frames of a site as text, one a call; false when there are no more. */
bool bsg_report_frame(const struct bsg_report *report, const struct bsg_site_fact *site, int frame, char *out,
                      size_t room);
bool bsg_report_site(const struct bsg_report *report, uint32_t site, struct bsg_site_fact *out);

void bsg_report_text(const struct bsg_report *report, struct bsg_out *out);
void bsg_report_json(const struct bsg_report *report, struct bsg_out *out);

/* Writes report.txt and report.json; the first error, if any, but tries both. */
int bsg_report_write(const struct bsg_report *report, struct bsg_runfolder *folder);

#endif
