/*
 * fixture.h - a policy in a temporary folder, with a clock that a test sets and memory that it makes up, and ways to
 * read what the policy wrote and said. Every file of a test lies under one folder, removed at exit.
 */
#ifndef BSG_TESTS_FIXTURE_H
#define BSG_TESTS_FIXTURE_H

#include "policy/policy.h"

#define MIB ((uint64_t)1 << 20)
#define GIB ((uint64_t)1 << 30)
#define MOST_LINES 64

struct fixture {
  char root[256];   /* temporary folder of this test */
  char parent[300]; /* BSGUARD_DIR */
  struct bsg_policy *policy;
  struct bsg_policy_config config;
  int64_t now_ms;
  int64_t step;
  int line_count; /* all lines said; the last MOST_LINES are kept */
  char lines[MOST_LINES][1024];

  /* What the evidence says. */
  struct bsg_memory_fact memory;
  int holder_count;
  struct bsg_holder_fact holders[16];
  int holders_asked;
  bool no_others; /* nobody can say */
  struct bsg_others_fact others;
  int others_asked;
  bool no_census;
  struct bsg_census_fact census;
  int64_t census_since;
  const char *python; /* the thread's stack, by the interpreter */
  uint64_t freed_bytes;
};

extern struct fixture fixture;

/* A fresh folder and a policy; nothing is written yet. */
void fixture_open(enum bsg_mode mode);
/* The same, and device 0 (22.5 GiB) has been used, an adapter is attached. */
void fixture_start(enum bsg_mode mode);
/* Forgets the policy and opens another one in the same folder. */
void fixture_reopen(void);

struct bsg_when now(void); /* a millisecond later each time */

void use_device(int device);
struct bsg_decision boundary(int device, const char *name, const char *signature, int64_t batch, int phase);
/* The driver refuses (or grants) `bytes` on device 0 to a thread. */
void refuse(uint64_t bytes, uint64_t thread);
void grant(uint64_t bytes, uint64_t thread);
void refuse_on(int device, uint64_t bytes, uint64_t thread);
void grant_on(int device, uint64_t bytes, uint64_t thread);
/* A terminal OOM of the boundary "Net", signature "float32[8]", device 0. */
struct bsg_decision terminal(int64_t batch, int phase, int exactness);
struct bsg_decision terminal_of(int device, const char *name, int64_t batch, int phase, int exactness,
                                const char *because);
void applied(const struct bsg_decision *decision);
void end_step(void);
void stop(void);

/* The one run folder; "" where there is none, and the test fails where there are more. */
const char *run_folder(void);
int run_folders(void);
/* A file of the run folder as a string, NULL: there is none. Valid until the next call but three. */
const char *read_file(const char *name);
bool file_exists(const char *name);
void write_file(const char *name, const char *text);
/* Events of a type (NULL: all), and the n-th of them, counted from 0; -1: the last. NULL: there is none. */
int events_of(const char *type);
const char *event_of(const char *type, int n);
/* The types of all events but marks, joined by spaces. */
const char *order_of_events(void);
/* A number in a line of JSON; INT64_MIN: no such key. */
int64_t number_in(const char *json, const char *key);
const char *last_line(void); /* said to the user; "" where nothing was */

#endif
