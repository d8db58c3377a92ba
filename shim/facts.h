/*
 * facts.h - the vocabulary that the hooks speak and the policy hears. Data only: no functions, no state, no cuda.h, so
 * that hooks/cuda/ and policy/ need not know each other. All sizes in bytes.
 */
#ifndef BSG_FACTS_H
#define BSG_FACTS_H

#include <stdbool.h>
#include <stdint.h>

#define BSG_MAX_DEVICES 64
#define BSG_MAX_FRAMES 32
#define BSG_NO_SITE 0u

/* What an allocation is. The kinds before BSG_KIND_APART are what the device lost to this process; their sum is its
 * live_bytes. The others are kept apart and are in no sum. */
enum bsg_kind {
  BSG_KIND_PLAIN = 0, /* cuMemAlloc and its like */
  BSG_KIND_MANAGED,
  BSG_KIND_ARRAY,   /* arrays and mipmapped arrays, as their descriptors say; the driver pads them */
  BSG_KIND_VIRTUAL, /* cuMemCreate: until all its handles and mappings are gone */
  BSG_KIND_POOL,    /* reserved by stream-ordered pools, in use or not */
  BSG_KIND_GRAPH,   /* reserved by the allocation nodes of graphs */
  BSG_KIND_APART,
  BSG_KIND_POOLED = BSG_KIND_APART, /* handed out by a pool: part of BSG_KIND_POOL */
  BSG_KIND_MAPPED,                  /* of another process or interface, mapped here */
  BSG_KIND_PINNED,                  /* host memory, page-locked */
  BSG_KIND_COUNT
};

/* A moment. The policy has no clock of its own: whoever calls it says when. */
struct bsg_when {
  int64_t mono_ns; /* CLOCK_MONOTONIC */
  int64_t unix_ms; /* CLOCK_REALTIME, milliseconds */
};

/* Where the job is. */
struct bsg_where {
  int64_t step;  /* training steps ended so far, plus one; 0 before an adapter or loop reported any */
  int32_t phase; /* enum bsg_phase */
};

struct bsg_device_fact {
  int device;
  char name[96];
  uint64_t total_bytes; /* capacity, after BSGUARD_MEMORY_LIMIT */
  int driver_version;   /* 13000 is 13.0 */
};

/* A driver call that asked for device memory, and what came of it. */
struct bsg_alloc_fact {
  const char *api; /* the driver's name, static storage */
  int device;
  int32_t result; /* CUresult */
  uint64_t request_bytes;
  uint64_t live_bytes; /* of this device and process, after the call */
  uint64_t peak_bytes;
  uint64_t free_bytes;  /* on the device; UINT64_MAX: not asked, or not known */
  uint64_t freed_bytes; /* freed through the driver by this process on this device, total so far (monotonic) */
  uint64_t thread;      /* kernel thread id */
  uint32_t site;        /* 0: none */
  struct bsg_where where;
};

/* A new high-water mark of live_bytes. */
struct bsg_mark_fact {
  int device;
  uint64_t live_bytes;
  uint64_t peak_bytes;
  uint64_t request_bytes; /* the allocation that raised it; 0 for the mark at a step's end */
  uint32_t site;
  struct bsg_where where;
};

/* One live allocation, for reports. */
struct bsg_holder_fact {
  const char *api;
  int device;
  uint64_t address;
  uint64_t bytes;
  uint32_t site;
  struct bsg_where where;
  int32_t kind; /* enum bsg_kind */
};

/* Another process that holds memory of a device. */
struct bsg_other_fact {
  int64_t pid;
  uint64_t bytes; /* UINT64_MAX: not known */
  char name[32];  /* "": not known */
};

#define BSG_MAX_OTHERS 16

struct bsg_others_fact {
  /* This process was among those that hold memory, under its own pid. If not, pids and memory are as a host outside of
     our container or a server between us and the device sees them: one of the others may be this process. */
  bool own_seen;
  int count; /* of others; the largest are listed, largest first */
  int listed;
  struct bsg_other_fact list[BSG_MAX_OTHERS];
};

struct bsg_memory_fact {
  int device;
  uint64_t total_bytes, free_bytes, live_bytes, peak_bytes, step_peak_bytes;
  uint64_t live_count; /* allocations */
  uint64_t kind_bytes[BSG_KIND_COUNT];
  uint64_t missed_count; /* allocations that could not be entered */
  uint64_t before_bytes; /* used on the device, but not by the ledger, when it was first used: the context, others;
                            UINT64_MAX: not known */
};

/* Live allocations of one site and phase together. site BSG_NO_SITE: those that no stack was taken for. */
struct bsg_group_fact {
  uint32_t site;
  int32_t phase;
  uint64_t bytes, count;
  uint32_t first_step, last_step; /* that they were made in */
};

#define BSG_MAX_GROUPS 16
#define BSG_MAX_SINCE 8
#define BSG_MAP_CELLS 64
#define BSG_PHASES 9

/* All live allocations of a device, summed up. Largest groups first. */
struct bsg_census_fact {
  uint64_t total_bytes, count;
  uint64_t with_site_bytes;
  uint64_t phase_bytes[BSG_PHASES], phase_count[BSG_PHASES];
  int group_count;
  struct bsg_group_fact groups[BSG_MAX_GROUPS];
  uint64_t since_bytes; /* made in the step that was asked about, or later */
  int since_count;
  struct bsg_group_fact since[BSG_MAX_SINCE];
  uint64_t map_from, map_to;  /* addresses; equal: there is no map */
  uint8_t map[BSG_MAP_CELLS]; /* tenths of the cell that are in use: 0 nothing at all, 9 nine and more */
};

/* A code address in words, and where it is, for symbolizing offline. */
struct bsg_frame_fact {
  uint64_t pc;
  uint64_t offset; /* from where its module was loaded */
  int module;      /* index; -1: in none */
  char text[224];  /* "name+0x12 (file)" */
};

struct bsg_module_fact {
  char path[256];
  char build_id[41]; /* hexadecimal; "": it has none */
};

#define BSG_MOST_FRAMES 512
#define BSG_MOST_MODULES 32

struct bsg_site_fact {
  uint32_t site;
  int frames;
  uint64_t pc[BSG_MAX_FRAMES];
};

#endif
