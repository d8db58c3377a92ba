/*
 * store.h - the known-good store: what sizes a job ran in, for its next run. One small file a job, under a folder of
 * the user's own; a job is (script and arguments, framework, device model and size, ranks).
 *
 * A file holds lines of JSON: a head that names the schema, the version that wrote it and the job; then one line for
 * each (boundary, signature). What is not exactly that is refused whole. Files are replaced by renaming, under a lock
 * that is never waited for, so jobs side by side are safe; links and files of other users are never followed or read.
 * Nothing is allocated, and a store that cannot be used costs a job nothing but what it would have remembered.
 */
#ifndef BSG_POLICY_STORE_H
#define BSG_POLICY_STORE_H

#include <stddef.h>
#include <stdint.h>

#include "policy/json_read.h"
#include "policy/records.h"

#define BSG_STORE_RECORDS 96

struct bsg_store_job {
  const char *command;   /* for people; the arguments are in the number below */
  uint64_t arguments;    /* a hash of the script's place and its arguments */
  const char *framework; /* name and version */
  const char *device;    /* model */
  uint64_t total_bytes;  /* of the device, BSGUARD_MEMORY_LIMIT where that is smaller */
  int ranks;             /* 1: one process */
};

struct bsg_store_record {
  bool evaluation;            /* sizes of calls that no training step depends on */
  int64_t batch, micro_batch; /* samples */
  uint64_t peak_bytes;        /* of a step in such pieces; 0: not known */
  uint64_t base_bytes;        /* held whether a piece runs or not; 0: not known */
  int64_t refused_batch;      /* samples in the smallest piece that ran out, more than micro_batch; 0: none is known */
  uint64_t refused_bytes, refused_base_bytes; /* there were so many then, so many of them held whatever runs */
  char boundary[BSG_BOUNDARY_ROOM];
  char signature[BSG_SIGNATURE_ROOM];
};

/* Name of the job's file inside the folder. room: 32 at least. */
void bsg_store_name(const struct bsg_store_job *job, char *out, size_t room);

/*
 * Reads what is known of a job: the number of records. -ENOENT: nothing yet. -EPERM: the folder or the file belongs to
 * somebody else, or others may write to it. -ELOOP, -EINVAL: a link, or no plain file. -EFBIG: too large. -EBADMSG: not
 * such a file, or of another job or schema; `why` then says what.
 */
int bsg_store_read(const char *folder, const struct bsg_store_job *job, struct bsg_json_document *document,
                   struct bsg_store_record *records, int room, const char **why);

/* Replaces what is known of a job; makes the folder. -EAGAIN: another job writes just now. */
int bsg_store_write(const char *folder, const struct bsg_store_job *job, const struct bsg_store_record *records,
                    int count);

#endif
