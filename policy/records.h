/*
 * records.h - what the policy remembers of the things that happened, in the form that events, control.json and reports
 * are written from. Data only. Text fields are copies, cut to their room; "" stands for "not known".
 */
#ifndef BSG_POLICY_RECORDS_H
#define BSG_POLICY_RECORDS_H

#include <stdbool.h>
#include <stdint.h>

#include "policy/decide.h"
#include "policy/names.h"
#include "shim/facts.h"

#define BSG_BOUNDARY_ROOM 96
#define BSG_SIGNATURE_ROOM 256
#define BSG_WHY_ROOM 256
#define BSG_EXCEPTION_ROOM 512
#define BSG_STACK_ROOM 8192
#define BSG_BYTES_UNKNOWN UINT64_MAX
#define BSG_EXACTNESS_UNKNOWN (-1)

/* The allocation that could not be had. */
struct bsg_trigger {
  const char *api; /* static storage; NULL: no driver call was refused */
  uint64_t bytes;  /* 0: not known */
  int device;
  uint32_t site;
  struct bsg_where where;
  uint64_t thread; /* kernel thread id; 0: not known */
};

/* One OOM. */
struct bsg_oom_record {
  struct bsg_trigger trigger;
  int64_t attempts;                /* refused calls; 0 with a limit of the framework's own */
  uint64_t live_bytes, free_bytes; /* BSG_BYTES_UNKNOWN */
  char boundary[BSG_BOUNDARY_ROOM];
  char signature[BSG_SIGNATURE_ROOM];
};

/* What the framework said of its memory; BSG_BYTES_UNKNOWN where it does not know. */
struct bsg_framework_told {
  bool told;
  uint64_t allocated_bytes, reserved_bytes, allocated_peak_bytes, reserved_peak_bytes;
  uint64_t parameter_bytes, gradient_bytes, optimizer_bytes;
};

#define BSG_HELD_KEPT 8

/* A container of the program that holds tensors. */
struct bsg_held_kept {
  char what[160];
  uint64_t tensors, with_graph, bytes;
};

#define BSG_NOTES_KEPT 16

struct bsg_note_kept {
  char name[32];
  char value[1024];
};

/* One change of control.json. */
struct bsg_change {
  struct bsg_when when;
  int64_t sequence;
  enum bsg_reason reason;
  struct bsg_split split;
  bool has_previous;
  int64_t previous_sequence;
  struct bsg_split previous;
  bool has_trigger;
  struct bsg_trigger trigger;
  int exactness; /* enum bsg_exactness, BSG_EXACTNESS_UNKNOWN */
  char boundary[BSG_BOUNDARY_ROOM];
  char why[BSG_WHY_ROOM];
};

#endif
