/* store.c - see store.h. */
#include "policy/store.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "policy/json_write.h"
#include "policy/out.h"
#include "policy/runfolder.h"
#include "policy/status.h"
#include "shim/bsguard.h"

#define SCHEMA "bsguard.store/1"
#define MOST_BYTES (96 * 1024)

static uint64_t hash_bytes(uint64_t hash, const void *bytes, size_t length) {
  for (const uint8_t *b = bytes; length--; b++)
    hash = (hash ^ *b) * UINT64_C(1099511628211);
  return hash;
}

static uint64_t hash_text(uint64_t hash, const char *text) {
  return hash_bytes(hash, text, strlen(text) + 1);
}

void bsg_store_name(const struct bsg_store_job *job, char *out, size_t room) {
  uint64_t hash = UINT64_C(14695981039346656037);
  int64_t ranks = job->ranks;

  hash = hash_text(hash_text(hash_text(hash, job->command), job->framework), job->device);
  hash = hash_bytes(hash, &job->arguments, sizeof(job->arguments));
  hash = hash_bytes(hash, &job->total_bytes, sizeof(job->total_bytes));
  hash = hash_bytes(hash, &ranks, sizeof(ranks));
  snprintf(out, room, "%016llx.jsonl", (unsigned long long)hash);
}

static void arguments_text(const struct bsg_store_job *job, char *out, size_t room) {
  snprintf(out, room, "%016llx", (unsigned long long)job->arguments);
}

/* ---- reading ---- */

static bool is_text(const struct bsg_json_document *d, const char *key, const char *expected) {
  const struct bsg_json_value *value = bsg_json_find(d, key);
  return value && value->type == BSG_JSON_STRING && strcmp(value->string, expected) == 0;
}

/* The number of a key, -1 where there is none or it is below `least`. */
static int64_t number(const struct bsg_json_document *d, const char *key, int64_t least) {
  const struct bsg_json_value *value = bsg_json_find(d, key);
  return value && value->type == BSG_JSON_NUMBER && value->is_integer && value->integer >= least ? value->integer : -1;
}

static const char *check_head(const struct bsg_json_document *d, const struct bsg_store_job *job) {
  char arguments[32];

  arguments_text(job, arguments, sizeof(arguments));
  if (!is_text(d, "schema", SCHEMA))
    return "its schema is not " SCHEMA;
  if (!is_text(d, "command", job->command) || !is_text(d, "arguments", arguments) ||
      !is_text(d, "framework", job->framework) || !is_text(d, "device", job->device) ||
      number(d, "total_bytes", 0) != (int64_t)job->total_bytes || number(d, "ranks", 1) != job->ranks)
    return "it is of another job";
  return NULL;
}

/* As number(), 0 where it is not there: an earlier version did not write it. */
static int64_t later_number(const struct bsg_json_document *d, const char *key) {
  return bsg_json_find(d, key) ? number(d, key, 0) : 0;
}

static bool take_record(const struct bsg_json_document *d, struct bsg_store_record *record) {
  const struct bsg_json_value *boundary = bsg_json_find(d, "boundary"), *signature = bsg_json_find(d, "signature");
  const struct bsg_json_value *evaluation = bsg_json_find(d, "evaluation");
  int64_t batch = number(d, "batch", 1), micro_batch = number(d, "micro_batch", 1);
  int64_t peak = number(d, "peak_bytes", 0), base = number(d, "base_bytes", 0);
  int64_t refused = later_number(d, "refused_batch"), refused_bytes = later_number(d, "refused_bytes");
  int64_t refused_base = later_number(d, "refused_base_bytes");

  if (!boundary || boundary->type != BSG_JSON_STRING || !signature || signature->type != BSG_JSON_STRING || batch < 1 ||
      !evaluation || evaluation->type != BSG_JSON_BOOL || micro_batch < 1 || micro_batch > batch || peak < 0 ||
      base < 0 || refused < 0 || (refused > 0 && refused <= micro_batch) || refused_bytes < 0 || refused_base < 0)
    return false;
  *record = (struct bsg_store_record){.evaluation = evaluation->boolean,
                                      .batch = batch,
                                      .micro_batch = micro_batch,
                                      .peak_bytes = (uint64_t)peak,
                                      .base_bytes = (uint64_t)base,
                                      .refused_batch = refused,
                                      .refused_bytes = (uint64_t)refused_bytes,
                                      .refused_base_bytes = (uint64_t)refused_base};
  bsg_copy_text(record->boundary, sizeof(record->boundary), boundary->string);
  bsg_copy_text(record->signature, sizeof(record->signature), signature->string);
  return true;
}

static int parse(char *text, size_t length, const struct bsg_store_job *job, struct bsg_json_document *d,
                 struct bsg_store_record *records, int room, const char **why) {
  int count = -1; /* the head comes first */

  for (char *line = text, *end; line < text + length; line = end + 1, count++) {
    end = memchr(line, '\n', (size_t)(text + length - line));
    if (!end || end - line > BSG_JSON_TEXT_ROOM || bsg_json_parse(d, line, (size_t)(end - line)) != 0 ||
        d->values[0].type != BSG_JSON_OBJECT) {
      *why = end ? "a line of it is not JSON" : "its last line is cut short";
      return -EBADMSG;
    }
    if (count < 0) {
      if ((*why = check_head(d, job)))
        return -EBADMSG;
      continue;
    }
    if (count == room) {
      *why = "it has too many lines";
      return -EBADMSG;
    }
    if (!take_record(d, &records[count])) {
      *why = "a line of it lacks a boundary, a signature or sizes that make sense";
      return -EBADMSG;
    }
  }
  if (count < 0) {
    *why = "it is empty";
    return -EBADMSG;
  }
  return count;
}

int bsg_store_read(const char *path, const struct bsg_store_job *job, struct bsg_json_document *document,
                   struct bsg_store_record *records, int room, const char **why) {
  static char text[MOST_BYTES]; /* callers serialise */
  struct bsg_runfolder folder;
  char name[32];
  struct stat status;
  size_t used = 0;
  ssize_t n = 0;
  int error, fd;

  *why = NULL;
  bsg_store_name(job, name, sizeof(name));
  error = bsg_runfolder_enter(&folder, path, false);
  if (error)
    return error;
  fd = openat(folder.folder.fd, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
  error = fd < 0 ? -errno : 0;
  bsg_runfolder_close(&folder);
  if (error)
    return error;
  if (bsg_status_of(fd, &status) != 0)
    error = -errno;
  else if (!S_ISREG(status.st_mode))
    error = -EINVAL;
  else if (status.st_uid != geteuid() || (status.st_mode & 022) != 0)
    error = -EPERM;
  else if (status.st_size > MOST_BYTES)
    error = -EFBIG;
  while (!error && used < sizeof(text) && (n = read(fd, text + used, sizeof(text) - used)) != 0) {
    if (n > 0)
      used += (size_t)n;
    else if (errno != EINTR)
      error = -errno;
  }
  close(fd);
  return error ? error : parse(text, used, job, document, records, room, why);
}

/* ---- writing ---- */

static void write_lines(struct bsg_out *out, const struct bsg_store_job *job, const struct bsg_store_record *records,
                        int count) {
  struct bsg_json json;
  char arguments[32];

  arguments_text(job, arguments, sizeof(arguments));
  bsg_json_init(&json, out);
  bsg_json_object(&json, BSG_JSON_TIGHT);
  bsg_json_member_string(&json, "schema", SCHEMA);
  bsg_json_member_string(&json, "version", BSG_VERSION);
  bsg_json_member_string(&json, "command", job->command);
  bsg_json_member_string(&json, "arguments", arguments);
  bsg_json_member_string(&json, "framework", job->framework);
  bsg_json_member_string(&json, "device", job->device);
  bsg_json_member_uint(&json, "total_bytes", job->total_bytes);
  bsg_json_member_int(&json, "ranks", job->ranks);
  bsg_json_end(&json);
  bsg_out_text(out, "\n");
  for (int i = 0; i < count; i++) {
    const struct bsg_store_record *record = &records[i];
    bsg_json_init(&json, out);
    bsg_json_object(&json, BSG_JSON_TIGHT);
    bsg_json_member_string(&json, "boundary", record->boundary);
    bsg_json_member_string(&json, "signature", record->signature);
    bsg_json_member_bool(&json, "evaluation", record->evaluation);
    bsg_json_member_int(&json, "batch", record->batch);
    bsg_json_member_int(&json, "micro_batch", record->micro_batch);
    bsg_json_member_uint(&json, "peak_bytes", record->peak_bytes);
    bsg_json_member_uint(&json, "base_bytes", record->base_bytes);
    bsg_json_member_int(&json, "refused_batch", record->refused_batch);
    bsg_json_member_uint(&json, "refused_bytes", record->refused_bytes);
    bsg_json_member_uint(&json, "refused_base_bytes", record->refused_base_bytes);
    bsg_json_end(&json);
    bsg_out_text(out, "\n");
  }
}

int bsg_store_write(const char *path, const struct bsg_store_job *job, const struct bsg_store_record *records,
                    int count) {
  struct bsg_runfolder folder;
  struct bsg_replacement file;
  struct bsg_out out;
  char buffer[4096], name[32];
  int lock, error;

  bsg_store_name(job, name, sizeof(name));
  error = bsg_runfolder_enter(&folder, path, true);
  if (error)
    return error;
  lock = openat(folder.folder.fd, "lock", O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600);
  if (lock < 0)
    error = -errno;
  else if (flock(lock, LOCK_EX | LOCK_NB) != 0)
    error = errno == EWOULDBLOCK ? -EAGAIN : -errno;
  if (!error)
    error = bsg_replacement_open(&file, &folder, name);
  if (!error) {
    bsg_out_through(&out, buffer, sizeof(buffer), bsg_replacement_write, &file);
    write_lines(&out, job, records, count);
    error = bsg_replacement_close(&file, bsg_out_finish(&out));
  }
  if (lock >= 0)
    close(lock);
  bsg_runfolder_close(&folder);
  return error;
}
