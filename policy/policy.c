/* policy.c - see policy.h: the life of the policy and the facts of hooks/cuda. The rest is in policy_framework.c. */
#include "policy/policy.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>

#include "policy/policy_state.h"

static struct bsg_policy state;

struct bsg_policy *bsg_policy_create(const struct bsg_policy_config *config) {
  struct bsg_policy *p = &state;

  memset(p, 0, offsetof(struct bsg_policy, training_slots));
  p->config = *config;
  bsg_copy_text(p->directory, sizeof(p->directory), config->directory);
  bsg_copy_text(p->command, sizeof(p->command), config->command);
  bsg_copy_text(p->store, sizeof(p->store), config->store);
  p->config.directory = p->directory;
  p->config.store = p->store;
  p->config.command = p->command;
  bsg_runfolder_init(&p->folder);
  bsg_events_init(&p->events, &p->folder);
  bsg_entries_init(&p->training, p->training_slots, BSG_TRAINING_ROOM);
  bsg_entries_init(&p->evaluation, p->evaluation_slots, BSG_EVALUATION_ROOM);
  p->live = true;
  return p;
}

void bsg_policy_launched(struct bsg_policy *p, int rank, int ranks, int launcher, int64_t launched_ms) {
  if (!p || !p->live || p->device_seen)
    return;
  p->config.rank = rank;
  p->config.ranks = ranks;
  p->config.launcher = launcher;
  p->config.launched_ms = launched_ms;
}

void bsg_policy_forget(struct bsg_policy *p) {
  if (!p)
    return;
  if (p->live)
    bsg_runfolder_close(&p->folder);
  memset(p, 0, offsetof(struct bsg_policy, training_slots));
  bsg_runfolder_init(&p->folder);
}

/* ---- facts from hooks/cuda ---- */

static void make_files(struct bsg_policy *p, struct bsg_when now, const struct bsg_device_fact *device) {
  struct bsg_start start = {.pid = p->config.pid,
                            .rank = p->config.rank,
                            .command = p->command,
                            .framework = p->framework,
                            .mode = (int)p->config.mode,
                            .devices = device,
                            .device_count = 1};

  bool shared = p->config.rank >= 0 && p->config.launcher > 0;
  int error = bsg_runfolder_make(&p->folder, p->directory, shared ? p->config.launcher : p->config.pid, p->config.rank,
                                 shared ? p->config.launched_ms : now.unix_ms);
  if (error) {
    bsg_state_wrote(p, "", error);
    return;
  }
  BSG_EVENT(p, bsg_event_start(&p->events, now, &start));
  for (int i = 0; i < p->unhooked_count; i++)
    BSG_EVENT(p, bsg_event_unhooked(&p->events, now, p->unhooked[i].name, p->unhooked[i].version));
  bsg_state_write_control(p); /* where something was decided before there was a file */
}

int bsg_policy_device(struct bsg_policy *p, struct bsg_when now, const struct bsg_device_fact *device) {
  if (!p || !p->live)
    return -ENODEV;
  if (device->device < 0 || device->device >= BSG_MAX_DEVICES)
    return -EINVAL;
  if (!p->devices[device->device].used)
    bsg_history_start(&p->histories[device->device]);
  p->devices[device->device].used = true;
  p->devices[device->device].fact = *device;
  if (!p->device_seen) {
    p->device_seen = true;
    make_files(p, now, device);
  }
  return 0;
}

static void note_peak(struct bsg_policy *p, int device, uint64_t peak) {
  if (device >= 0 && device < BSG_MAX_DEVICES && peak > p->devices[device].peak)
    p->devices[device].peak = peak;
  if (peak > p->totals.peak_bytes)
    p->totals.peak_bytes = peak;
}

int bsg_policy_mark(struct bsg_policy *p, struct bsg_when now, const struct bsg_mark_fact *mark) {
  if (!p || !p->live)
    return -ENODEV;
  note_peak(p, mark->device, mark->peak_bytes);
  if (bsg_state_device(p, mark->device))
    bsg_history_rise(&p->histories[mark->device], now, mark);
  BSG_EVENT(p, bsg_event_mark(&p->events, now, mark));
  return 0;
}

static void absorbed(struct bsg_policy *p, struct bsg_when now, const struct bsg_refusal *refusal) {
  if (refusal->reported)
    return;
  p->totals.absorbed++;
  if (refusal->record.trigger.device >= 0 && refusal->record.trigger.device < BSG_MAX_DEVICES)
    p->devices[refusal->record.trigger.device].disturbed = true;
  BSG_EVENT(p, bsg_event_absorbed(&p->events, now, &refusal->record.trigger, refusal->record.attempts));
}

void bsg_state_settle(struct bsg_policy *p, struct bsg_when now, int device, bool only_met) {
  struct bsg_refusal refusal;

  while (bsg_refusals_take(&p->refusals, device, only_met, &refusal))
    absorbed(p, now, &refusal);
}

static void say_inferred(struct bsg_policy *p, const struct bsg_oom_record *oom, const struct bsg_change *change) {
  char text[BSG_LINE_ROOM];
  struct bsg_out line;

  bsg_out_buffer(&line, text, sizeof(text));
  bsg_out_text(&line, "OOM inferred (");
  bsg_state_describe(p, oom, &line);
  bsg_out_format(&line,
                 ", again after memory was freed; no adapter is loaded): control.json asks for %lld accumulation steps",
                 (long long)change->split.accumulation_steps);
  if (change->split.batch)
    bsg_out_format(&line, ", micro-batch %lld of %lld", (long long)change->split.micro_batch,
                   (long long)change->split.batch);
  bsg_state_say(p, 0, &line);
}

/* No adapter says what was terminal, and this refusal shows it. */
static void infer(struct bsg_policy *p, struct bsg_when now, struct bsg_refusal *refusal) {
  struct bsg_oom_record *oom = &refusal->record;
  int device = oom->trigger.device;
  struct bsg_change change = {.reason = BSG_REASON_INFERRED, .has_trigger = true, .trigger = oom->trigger};
  struct bsg_out why;

  refusal->concluded = refusal->reported = true;
  p->totals.ooms++;
  BSG_EVENT(p, bsg_event_oom(&p->events, now, oom));
  bsg_state_oom_met(p, now, oom);
  if (p->config.mode != BSG_MODE_GUARD || device < 0 || device >= BSG_MAX_DEVICES)
    return;

  struct bsg_entry *entry = bsg_entries_latest(&p->training, device, NULL);
  if (!entry)
    entry = bsg_entries_obtain(&p->training, device, NULL, NULL, 0);
  struct bsg_split before = bsg_entry_shown(entry);
  p->latest.split = before;
  p->latest.verdict = (int)bsg_decide_inferred(&before, &change.split);
  if (p->latest.verdict != BSG_SHRINK)
    return;
  bsg_entry_accept(entry, &change.split);
  p->devices[device].oom_in_step = true;
  p->devices[device].last = change.split;
  change.exactness = entry->exactness;
  bsg_copy_text(change.boundary, sizeof(change.boundary), entry->boundary);
  bsg_out_buffer(&why, change.why, sizeof(change.why));
  bsg_state_describe(p, oom, &why);
  bsg_out_text(&why, "; refused again after memory was freed, nothing succeeded in between");
  bsg_out_string(&why);
  bsg_state_change(p, now, &change);
  say_inferred(p, oom, &change);
}

int bsg_policy_refused_call(struct bsg_policy *p, struct bsg_when now, const struct bsg_alloc_fact *fact) {
  struct bsg_refusal *refusal, over;
  struct bsg_repeated repeated;

  if (!p || !p->live)
    return -ENODEV;
  note_peak(p, fact->device, fact->peak_bytes);
  refusal = bsg_refusals_note(&p->refusals, fact, &repeated, &over);
  if (over.used)
    absorbed(p, now, &over);
  /* A framework that tries again eight times without freeing anything shows the same picture. */
  if (refusal->record.attempts <= 2 || repeated.freed_now > repeated.freed_before)
    bsg_state_picture(p, now, &refusal->record, &p->refused);
  if (!p->adapter && bsg_decide_terminal(&repeated))
    infer(p, now, refusal);
  return 0;
}

int bsg_policy_granted_call(struct bsg_policy *p, struct bsg_when now, const struct bsg_alloc_fact *fact) {
  if (!p || !p->live)
    return -ENODEV;
  bsg_refusals_grant(&p->refusals, fact);
  if (!p->adapter)
    bsg_state_settle(p, now, fact->device, true);
  return 0;
}

bool bsg_policy_waiting(const struct bsg_policy *p) {
  return p && atomic_load_explicit(&p->refusals.waiting, memory_order_relaxed) > 0;
}

int bsg_policy_unhooked(struct bsg_policy *p, struct bsg_when now, const char *name, int version) {
  if (!p || !p->live)
    return -ENODEV;
  /* Look-ups come before the first allocation, and until then there is no file. */
  if (!p->device_seen && p->unhooked_count < BSG_UNHOOKED_ROOM) {
    bsg_copy_text(p->unhooked[p->unhooked_count].name, sizeof(p->unhooked[0].name), name);
    p->unhooked[p->unhooked_count++].version = version;
  }
  BSG_EVENT(p, bsg_event_unhooked(&p->events, now, name, version));
  return 0;
}

/* ---- the end ---- */

/* What still waits for its outcome when the process ends. */
static void settle_at_end(struct bsg_policy *p, struct bsg_when now) {
  struct bsg_refusal refusal;

  while (bsg_refusals_take(&p->refusals, -1, false, &refusal)) {
    if (refusal.reported) {
      if (!refusal.granted && p->latest.outcome == BSG_OUTCOME_OPEN) {
        p->latest.outcome = BSG_OUTCOME_UNRESCUED; /* inferred, and it was the last that happened */
        p->unrescued = p->latest;
        p->totals.unrescued++;
      }
      continue;
    }
    if (p->adapter || refusal.granted_thread) {
      absorbed(p, now, &refusal); /* an adapter would have said; or the thread got over it */
      continue;
    }
    p->totals.ooms++;
    BSG_EVENT(p, bsg_event_oom(&p->events, now, &refusal.record));
    bsg_state_oom_met(p, now, &refusal.record);
    p->latest.outcome = BSG_OUTCOME_UNRESCUED;
    p->unrescued = p->latest;
    p->totals.unrescued++;
  }
}

static void say_summary(struct bsg_policy *p) {
  const struct bsg_change *change = bsg_state_last_change(p);
  const struct bsg_totals *totals = &p->totals;
  char text[BSG_LINE_ROOM];
  struct bsg_out line;

  bsg_out_buffer(&line, text, sizeof(text));
  bsg_out_format(&line, "%lld OOM%s met, %lld step%s rescued", (long long)totals->ooms, totals->ooms == 1 ? "" : "s",
                 (long long)totals->rescued_steps, totals->rescued_steps == 1 ? "" : "s");
  if (totals->unrescued)
    bsg_out_format(&line, ", %lld not saved", (long long)totals->unrescued);
  if (change && change->split.chunks > 1 && change->split.batch)
    bsg_out_format(&line, ", micro-batch %lld of %lld (accumulation %lld)", (long long)change->split.micro_batch,
                   (long long)change->split.batch, (long long)change->split.accumulation_steps);
  else if (change && change->split.chunks > 1)
    bsg_out_format(&line, ", accumulation %lld", (long long)change->split.accumulation_steps);
  if (p->folder.made) {
    bsg_out_text(&line, "; files in ");
    bsg_out_clean(&line, p->folder.path, 400);
  }
  bsg_state_say(p, 0, &line);
}

int bsg_policy_stop(struct bsg_policy *p, struct bsg_when now, struct bsg_where where) {
  struct bsg_memory_fact memory;

  if (!p || !p->live)
    return -ENODEV;
  if (p->stopped || !p->device_seen)
    return 0;
  settle_at_end(p, now);
  /* An adapter would have said if the smaller pieces had not fitted either. */
  if (p->adapter)
    bsg_state_went_on(p, -1);
  for (int i = 0; i < BSG_MAX_DEVICES; i++)
    if (p->devices[i].used && p->config.evidence.memory &&
        p->config.evidence.memory(p->config.evidence.context, i, &memory) == 0)
      note_peak(p, i, memory.peak_bytes);
  struct bsg_snapshot *oom = p->unrescued.taken ? &p->unrescued : &p->latest;
  if (!oom->taken && bsg_state_summary(p, now, where, &p->summary))
    oom = &p->summary;
  if (oom->taken)
    bsg_state_report(p, now, oom, "end");
  bsg_state_store_write(p, true);
  BSG_EVENT(p, bsg_event_stop(&p->events, now, &p->totals));
  if (p->totals.ooms)
    say_summary(p);
  p->stopped = true;
  bsg_runfolder_close(&p->folder);
  return 0;
}
