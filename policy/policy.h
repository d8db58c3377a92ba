/*
 * policy.h - facts in, decisions out. The policy owns control.json, events.jsonl and the reports of one run.
 *
 * It includes no cuda.h, has no clock (every call says when), starts no thread, prints through the one function that it
 * was given, and can be tested without any library loaded. Callers serialise: shim/ holds one lock around every call
 * here. Functions return 0 or a negative errno. A failure to write a file is said once, in one line, and never again;
 * decisions go on without files.
 */
#ifndef BSG_POLICY_H
#define BSG_POLICY_H

#include <stddef.h>

#include "shim/bsguard.h"
#include "shim/facts.h"

/* What a report needs to know and only the hooks can tell. Any pointer may be NULL. Called without the policy's help:
 * must not call back. */
struct bsg_evidence {
  void *context;
  int (*memory)(void *context, int device, struct bsg_memory_fact *out);
  /* The largest live allocations, largest first; returns how many were written. No heap allocation. */
  int (*holders)(void *context, int device, struct bsg_holder_fact *out, int room);
  int (*site)(void *context, uint32_t site, struct bsg_site_fact *out);
  /* Names code addresses, `pc` given and rising, and lists the modules that they are in, as many as there is room for.
   * Returns how many modules. */
  int (*frames)(void *context, struct bsg_frame_fact *frames, int count, struct bsg_module_fact *modules, int room);
  /* All live allocations summed up; `since`: the step from which on allocations count as new. No heap allocation. */
  int (*census)(void *context, int device, int64_t since, struct bsg_census_fact *out);
  /* The Python stack of the calling thread, innermost first, a line a frame; returns the length, 0: there is none.
   * Takes no lock of Python's. */
  int (*python)(void *context, char *out, size_t room);
  const char *(*unwinder)(void *context);
  /* Who else holds memory of a device; asked only where a report is written. Not 0: nobody can say. */
  int (*others)(void *context, int device, struct bsg_others_fact *out);
};

struct bsg_policy_config {
  enum bsg_mode mode;
  const char *directory; /* parent of all runs; made if missing, never changed otherwise */
  int pid;
  int rank;            /* -1: not one of many */
  int launcher;        /* pid of what started all ranks, after which their run is named; 0: unknown */
  int64_t launched_ms; /* when it started, Unix time */
  const char *command; /* may be NULL until bsg_policy_attach() */
  const char *store;   /* folder of the known-good store; NULL or "": none */
  uint64_t arguments;  /* a hash of the script's place and its arguments, for the store */
  int ranks;           /* processes of this launch; 0 stands for 1 */
  int64_t wait_ms;     /* for other processes in the way; 0: nobody is waited for, nothing tried whole once more */
  struct bsg_evidence evidence;
  /* One line to the user, without newline. level: 0 always but in quiet, 1 debug. */
  void (*say)(int level, const char *line);
};

struct bsg_policy; /* one static object inside policy.c: nothing is allocated on the heap */

/* Takes the configuration; touches no file. */
struct bsg_policy *bsg_policy_create(const struct bsg_policy_config *config);

/* Who started this process, as bsg_policy_config has it. Too late once a device was used: the folder has its name. */
void bsg_policy_launched(struct bsg_policy *p, int rank, int ranks, int launcher, int64_t launched_ms);

/* After fork(): forget everything, close what was inherited, own no folder. */
void bsg_policy_forget(struct bsg_policy *policy);

/* ---- facts from hooks/cuda ---- */
/* A device was used for the first time: the first of these makes the run folder and the start event. */
int bsg_policy_device(struct bsg_policy *p, struct bsg_when now, const struct bsg_device_fact *device);
int bsg_policy_mark(struct bsg_policy *p, struct bsg_when now, const struct bsg_mark_fact *mark);
int bsg_policy_refused_call(struct bsg_policy *p, struct bsg_when now, const struct bsg_alloc_fact *fact);
/* A call that succeeded while bsg_policy_waiting() was true. */
int bsg_policy_granted_call(struct bsg_policy *p, struct bsg_when now, const struct bsg_alloc_fact *fact);
/* True while a refused call awaits its outcome on any device. May be read without the lock. */
bool bsg_policy_waiting(const struct bsg_policy *p);
int bsg_policy_unhooked(struct bsg_policy *p, struct bsg_when now, const char *name, int version);

/* An OOM was caught that will be reported: what is known of it now counts then. */
int bsg_policy_caught(struct bsg_policy *p, int device, uint64_t request_bytes, struct bsg_where where);

/* ---- facts from a framework: see bsguard.h, same order, same meaning ---- */
int bsg_policy_attach(struct bsg_policy *p, struct bsg_when now, const char *framework, const char *command);
int bsg_policy_boundary(struct bsg_policy *p, struct bsg_when now, int device, const char *boundary,
                        const char *signature, int64_t batch, int phase, struct bsg_decision *out);
int bsg_policy_terminal(struct bsg_policy *p, struct bsg_when now, const struct bsg_oom *oom, struct bsg_where where,
                        struct bsg_decision *out);
int bsg_policy_applied(struct bsg_policy *p, struct bsg_when now, int64_t sequence, int device, const char *boundary,
                       int64_t batch, int64_t micro_batch, int exactness, const char *because, struct bsg_where where);
int bsg_policy_unrescued(struct bsg_policy *p, struct bsg_when now, int device, const char *exception,
                         struct bsg_where where);
int bsg_policy_retried(struct bsg_policy *p, struct bsg_when now, int device, const char *what);
int bsg_policy_waited(struct bsg_policy *p, struct bsg_when now, int device, int64_t waited_ms);
int bsg_policy_refused(struct bsg_policy *p, struct bsg_when now, const char *boundary, const char *why);
int bsg_policy_disarmed(struct bsg_policy *p, struct bsg_when now, const char *boundary, const char *signature,
                        const char *why, int for_good);
int bsg_policy_step(struct bsg_policy *p, struct bsg_when now, const struct bsg_memory_fact *memory,
                    uint64_t allocated_peak, struct bsg_where where);

int bsg_policy_framework(struct bsg_policy *p, const struct bsg_framework *framework);
int bsg_policy_held(struct bsg_policy *p, int device, const char *what, uint64_t tensors, uint64_t with_graph,
                    uint64_t bytes);
int bsg_policy_note(struct bsg_policy *p, const char *name, const char *value);
int bsg_policy_report(struct bsg_policy *p, struct bsg_when now, struct bsg_where where);

/* The process ends: pending refusals are settled, stop event, summary line and report where the run had an OOM. */
int bsg_policy_stop(struct bsg_policy *p, struct bsg_when now, struct bsg_where where);

#endif
