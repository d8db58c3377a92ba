/*
 * policy_store.c - between the known-good store and the table of sizes: what an earlier run of this job fitted in is
 * taken up at the first call of a boundary, and what this one has settled at is written. A store that fails is one
 * line, and the job goes on without.
 */
#include <errno.h>
#include <string.h>

#include "policy/policy_state.h"

#define SETTLED 3 /* clean steps at a size before it is called good */

static bool uses_store(const struct bsg_policy *p) {
  return p->config.store && p->config.store[0] && p->config.mode == BSG_MODE_GUARD && p->adapter;
}

static struct bsg_store_job job_of(const struct bsg_policy *p, int device) {
  const struct bsg_device_fact *fact = &p->devices[device].fact;

  return (struct bsg_store_job){.command = p->command,
                                .arguments = p->config.arguments,
                                .framework = p->framework,
                                .device = fact->name,
                                .total_bytes = fact->total_bytes,
                                .ranks = p->config.ranks > 1 ? p->config.ranks : 1};
}

static void say_store(struct bsg_policy *p, const char *what, int error, const char *why) {
  char text[BSG_LINE_ROOM];
  struct bsg_out line;

  if (p->store_said)
    return;
  p->store_said = true;
  bsg_out_buffer(&line, text, sizeof(text));
  bsg_out_format(&line, "what earlier runs of this job fitted in cannot be %s: ", what);
  bsg_out_clean(&line, p->config.store, 300);
  if (why)
    bsg_out_format(&line, " has a file that is refused (%s), and will be replaced", why);
  else if (error == -EPERM)
    bsg_out_text(
        &line,
        " or a file in it belongs to another user, or others may write to it: make it yours alone (0700), or set "
        "XDG_STATE_HOME to another folder");
  else
    bsg_out_format(&line, ": %s (errno %d)", bsg_errno_text(error), -error);
  bsg_out_text(&line, "; BSGUARD_STORE=0 does without");
  bsg_state_say(p, 0, &line);
}

static void load(struct bsg_policy *p, int device) {
  struct bsg_store_job job = job_of(p, device);
  const char *why;
  int count;

  p->store_loaded = true;
  count = bsg_store_read(p->config.store, &job, &p->request_document, p->known, BSG_STORE_RECORDS, &why);
  p->known_count = count > 0 ? count : 0;
  if (count < 0 && count != -ENOENT)
    say_store(p, "read", count, why);
}

bool bsg_state_store_find(struct bsg_policy *p, const struct bsg_entry *entry, bool evaluation,
                          struct bsg_store_record *out) {
  if (!uses_store(p) || !p->devices[entry->device].used)
    return false;
  if (!p->store_loaded)
    load(p, entry->device);
  for (int i = 0; i < p->known_count; i++)
    if (p->known[i].evaluation == evaluation && strcmp(p->known[i].boundary, entry->boundary) == 0 &&
        strcmp(p->known[i].signature, entry->signature) == 0) {
      *out = p->known[i];
      return true;
    }
  return false;
}

/* What is known of it now, over what was read: a run that ends before an evaluation's shape came must not lose it. */
static void remember(struct bsg_policy *p, const struct bsg_store_record *record) {
  int at = 0;

  while (at < p->known_count &&
         (p->known[at].evaluation != record->evaluation || strcmp(p->known[at].boundary, record->boundary) != 0 ||
          strcmp(p->known[at].signature, record->signature) != 0))
    at++;
  if (at == p->known_count) {
    if (p->known_count == BSG_STORE_RECORDS)
      memmove(&p->known[0], &p->known[1], sizeof(p->known[0]) * (size_t)(--at));
    else
      p->known_count++;
  }
  p->known[at] = *record;
}

/* The entries of a table that are worth remembering; the device of one of them, -1: there is none. */
static int remember_all(struct bsg_policy *p, const struct bsg_entries *table, bool evaluation, int64_t clean) {
  int device = -1;

  for (int i = 0; i < table->high; i++) {
    const struct bsg_entry *entry = &table->slots[i];
    if (!entry->used || entry->most <= 0 || entry->growth.fixed || !entry->boundary[0] || entry->batch <= 0 ||
        (!evaluation && entry->growth.clean < clean))
      continue;
    struct bsg_split split = bsg_entry_split(entry, entry->batch);
    struct bsg_store_record record = {.evaluation = evaluation, .batch = split.batch, .micro_batch = split.micro_batch};
    bsg_copy_text(record.boundary, sizeof(record.boundary), entry->boundary);
    bsg_copy_text(record.signature, sizeof(record.signature), entry->signature);
    if (!evaluation)
      bsg_state_sizes_known(p, entry, &record);
    remember(p, &record);
    device = entry->device;
  }
  return device;
}

void bsg_state_store_write(struct bsg_policy *p, bool at_end) {
  int error;

  if (!p->store_behind || !uses_store(p))
    return;
  int device = remember_all(p, &p->training, false, at_end ? 1 : SETTLED);
  int evaluated = remember_all(p, &p->evaluation, true, 0);
  if (device < 0 && (evaluated < 0 || !at_end))
    return;
  struct bsg_store_job job = job_of(p, device < 0 ? evaluated : device);
  error = bsg_store_write(p->config.store, &job, p->known, p->known_count);
  p->store_behind = error == -EAGAIN; /* another job is at it: at the next step */
  if (error && error != -EAGAIN)
    say_store(p, "kept", error, NULL);
}
