/*
 * runfolder.h - the folder of one run, and the only place that touches files. Everything in it belongs to the user
 * alone (0700, 0600), nothing outside it is ever changed but for making the parent, and links are never followed inside
 * it.
 *
 * The process is somebody else's: it may close descriptors that it does not know (daemons do), and the number may then
 * be a file of its own. So a descriptor is used or closed only after its identity was checked, and opened again by path
 * otherwise. A full disk or a limit on file sizes is an error result, never a signal. Nothing is allocated on the heap.
 */
#ifndef BSG_POLICY_RUNFOLDER_H
#define BSG_POLICY_RUNFOLDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define BSG_PATH_ROOM 4096

/* A descriptor and whose it was when we opened it. */
struct bsg_handle {
  int fd;
  dev_t device;
  ino_t inode;
};

struct bsg_runfolder {
  bool made;
  struct bsg_handle folder, events;
  char path[BSG_PATH_ROOM]; /* absolute */
};

/* A file being replaced: written beside it, renamed over it. */
struct bsg_replacement {
  struct bsg_runfolder *folder;
  int fd;
  const char *name;
  char temporary[64];
};

void bsg_runfolder_init(struct bsg_runfolder *folder);

/*
 * Makes PARENT/UTC-PID (a number is added where that exists), for rank >= 0 with rankN inside: pid and time are those
 * of the launcher then, and its ranks share the run; .gitignore in it. -EPERM: somebody else owns it or may write into
 * it.
 */
int bsg_runfolder_make(struct bsg_runfolder *folder, const char *parent, int pid, int rank, int64_t unix_ms);

/* Another folder of the user's own, which may exist already: opened, and made with its parents where `make` is set.
 * -EPERM as above, -ENOENT: it is not there. */
int bsg_runfolder_enter(struct bsg_runfolder *folder, const char *path, bool make);

/* Closes what is ours; the folder can be made again. For the child after a fork, too. */
void bsg_runfolder_close(struct bsg_runfolder *folder);

/* One write at the end of events.jsonl; a line that did not fit is taken back whole. */
int bsg_runfolder_append(struct bsg_runfolder *folder, const char *line, size_t length);

/* open; write as a flush function of out.h, context the replacement; then close with the first error or 0. */
int bsg_replacement_open(struct bsg_replacement *replacement, struct bsg_runfolder *folder, const char *name);
int bsg_replacement_write(void *replacement, const char *bytes, size_t length);
int bsg_replacement_close(struct bsg_replacement *replacement, int error);

/*
 * Reads and removes a file that an operator put there. Returns its length, or: -ENOENT none is there (the usual case,
 * one system call); -EAGAIN it is empty and `spare_empty` was set, so that it was left (its writer may not be done);
 * -ELOOP a link; -EISDIR, -EINVAL, -ENXIO not a plain file; -EPERM another owner (`owner` says who); -EFBIG more than
 * `room`. It is removed in all cases but the first two; `removed` says whether that worked.
 */
ssize_t bsg_runfolder_take(struct bsg_runfolder *folder, const char *name, bool spare_empty, char *text, size_t room,
                           unsigned *owner, bool *removed);

#endif
