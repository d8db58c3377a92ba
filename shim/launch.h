/* launch.h - who started this rank: what the ranks of one run have in common. */
#ifndef BSG_SHIM_LAUNCH_H
#define BSG_SHIM_LAUNCH_H

#include <stdint.h>

struct bsg_launch {
  int rank;         /* -1: this process is not one of many */
  int ranks;        /* of the launch; 1: it is not one of many */
  int pid;          /* of the launcher on this machine; 0: none, or nobody can say */
  int64_t start_ms; /* when it started, Unix time, to a whole second; the same for all that ask */
};

/* Of a job of many processes, from whichever launcher says so. Allocates nothing. */
void bsg_launch_find(struct bsg_launch *out);

#endif
