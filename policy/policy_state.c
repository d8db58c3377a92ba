/* policy_state.c - see policy_state.h. */
#include "policy/policy_state.h"

#include <errno.h>

bool bsg_state_writes(const struct bsg_policy *p) {
  return p->folder.made && !p->stopped;
}

void bsg_state_say(struct bsg_policy *p, int level, struct bsg_out *line) {
  if (p->config.say)
    p->config.say(level, bsg_out_string(line));
}

void bsg_state_wrote(struct bsg_policy *p, const char *name, int error) {
  char text[BSG_LINE_ROOM];
  struct bsg_out line;

  if (error && !p->files_lost)
    p->files_lost = error;
  if (error == 0 || p->said_file_error)
    return;
  p->said_file_error = true;
  bsg_out_buffer(&line, text, sizeof(text));
  bsg_out_text(&line, "cannot write ");
  bsg_out_clean(&line, p->folder.made ? p->folder.path : p->directory, 400);
  bsg_out_format(&line,
                 "%s%s: %s (errno %d); bsguard goes on without its files, set BSGUARD_DIR to a folder of your own",
                 *name ? "/" : "", name, bsg_errno_text(error), -error);
  bsg_state_say(p, 0, &line);
}

const struct bsg_device_state *bsg_state_device(const struct bsg_policy *p, int device) {
  return device >= 0 && device < BSG_MAX_DEVICES && p->devices[device].used ? &p->devices[device] : NULL;
}

const struct bsg_change *bsg_state_last_change(const struct bsg_policy *p) {
  return p->change_total ? &p->changes[(p->change_total - 1) % BSG_CHANGES_KEPT] : NULL;
}

void bsg_state_write_control(struct bsg_policy *p) {
  const struct bsg_change *change = bsg_state_last_change(p);
  int error;

  if (!change || !bsg_state_writes(p))
    return;
  error = bsg_control_write(&p->folder, p->config.pid, p->config.rank, change, &p->training);
  p->control_behind = error != 0;
  bsg_state_wrote(p, "control.json", error);
}

void bsg_state_change(struct bsg_policy *p, struct bsg_when now, struct bsg_change *change) {
  const struct bsg_change *before = bsg_state_last_change(p);

  change->when = now;
  change->sequence = ++p->sequence;
  change->has_previous = before != NULL;
  if (before) {
    change->previous_sequence = before->sequence;
    change->previous = before->split;
  }
  p->changes[p->change_total++ % BSG_CHANGES_KEPT] = *change;
  BSG_EVENT(p, bsg_event_decision(&p->events, now, change));
  bsg_state_write_control(p);
}

void bsg_state_start(struct bsg_policy *p, struct bsg_when now, const struct bsg_entry *entry) {
  struct bsg_change change = {.reason = BSG_REASON_START, .exactness = BSG_EXACTNESS_UNKNOWN};

  /* Before a device was used there is no folder, and a job that never uses one must not leave any. */
  if (p->sequence != 0 || !p->device_seen || p->config.mode != BSG_MODE_GUARD)
    return;
  change.split = bsg_entry_shown(entry);
  bsg_copy_text(change.boundary, sizeof(change.boundary), entry->boundary);
  bsg_copy_text(change.why, sizeof(change.why), "first step");
  bsg_state_change(p, now, &change);
}

void bsg_state_picture(struct bsg_policy *p, struct bsg_when now, const struct bsg_oom_record *oom,
                       struct bsg_snapshot *picture) {
  const struct bsg_evidence *evidence = &p->config.evidence;
  int count, device = oom->trigger.device;

  *picture = (struct bsg_snapshot){
      .taken = true, .met = true, .when = now, .oom = *oom, .verdict = -1, .exactness = BSG_EXACTNESS_UNKNOWN};
  if (bsg_state_device(p, device)) {
    picture->last_good_step = p->histories[device].last_good_step;
    picture->input = p->devices[device].input;
    /* In the first step every input is new, and that says nothing. */
    picture->new_input = picture->last_good_step > 0 && !bsg_history_knows(&p->histories[device], picture->input);
    picture->framework = p->devices[device].framework;
  }
  if (evidence->memory)
    picture->has_memory = evidence->memory(evidence->context, oom->trigger.device, &picture->memory) == 0;
  if (evidence->holders) {
    count = evidence->holders(evidence->context, oom->trigger.device, picture->holders, BSG_HOLDERS);
    picture->holder_count = count < 0 ? 0 : count > BSG_HOLDERS ? BSG_HOLDERS : count;
  }
  if (evidence->census)
    picture->has_census =
        evidence->census(evidence->context, device, picture->last_good_step + 1, &picture->census) == 0;
  if (evidence->python && oom->trigger.api)
    evidence->python(evidence->context, picture->python_stack, sizeof(picture->python_stack));
}

bool bsg_state_summary(struct bsg_policy *p, struct bsg_when now, struct bsg_where where,
                       struct bsg_snapshot *picture) {
  struct bsg_oom_record none = {.live_bytes = BSG_BYTES_UNKNOWN, .free_bytes = BSG_BYTES_UNKNOWN};
  int device = -1;

  for (int i = 0; i < BSG_MAX_DEVICES; i++)
    if (p->devices[i].used && (device < 0 || p->histories[i].last_good_step > p->histories[device].last_good_step))
      device = i;
  if (device < 0)
    return false;
  none.trigger.device = device;
  none.trigger.where = where;
  bsg_copy_text(none.boundary, sizeof(none.boundary), p->devices[device].boundary);
  bsg_copy_text(none.signature, sizeof(none.signature), p->devices[device].signature);
  bsg_state_picture(p, now, &none, picture);
  picture->met = false;
  picture->split = p->devices[device].last;
  return true;
}

void bsg_state_oom_met(struct bsg_policy *p, struct bsg_when now, const struct bsg_oom_record *oom) {
  const struct bsg_trigger *seen = &p->refused.oom.trigger;

  if (p->refused.taken && oom->trigger.api && seen->device == oom->trigger.device &&
      seen->bytes == oom->trigger.bytes) {
    p->latest = p->refused;
    p->latest.when = now; /* as in the oom event */
    p->latest.oom = *oom;
  } else {
    bsg_state_picture(p, now, oom, &p->latest);
  }
  if (bsg_state_device(p, oom->trigger.device)) {
    /* The framework's own figures are of the exception, which comes after the refused call. */
    p->latest.framework = p->devices[oom->trigger.device].framework;
    bsg_history_oom(&p->histories[oom->trigger.device]);
  }
  if (p->latest.python_stack[0] == '\0')
    bsg_copy_text(p->latest.python_stack, sizeof(p->latest.python_stack), p->python_stack);
  p->python_stack[0] = '\0';
  p->refused.taken = false;
}

void bsg_state_went_on(struct bsg_policy *p, int device) {
  if (p->latest.taken && p->latest.outcome == BSG_OUTCOME_OPEN && p->latest.verdict == BSG_SHRINK &&
      (device < 0 || p->latest.oom.trigger.device == device))
    p->latest.outcome = BSG_OUTCOME_RESCUED;
}

bool bsg_state_fragmented(const struct bsg_oom_record *oom) {
  return oom->trigger.api && bsg_decide_fragmented(oom->trigger.bytes, oom->free_bytes);
}

void bsg_state_describe(const struct bsg_policy *p, const struct bsg_oom_record *oom, struct bsg_out *out) {
  const struct bsg_device_state *device = bsg_state_device(p, oom->trigger.device);

  bsg_out_format(out, "gpu:%d", oom->trigger.device);
  if (oom->trigger.api && oom->trigger.bytes) {
    bsg_out_text(out, " refused ");
    bsg_out_size(out, oom->trigger.bytes);
  } else if (!oom->trigger.api) {
    bsg_out_text(out, ": the framework's own limit");
    if (oom->trigger.bytes) {
      bsg_out_text(out, " refused ");
      bsg_out_size(out, oom->trigger.bytes);
    }
  }
  if (oom->free_bytes != BSG_BYTES_UNKNOWN) {
    bsg_out_text(out, ", ");
    bsg_out_size(out, oom->free_bytes);
    bsg_out_text(out, " free");
    if (device && device->fact.total_bytes) {
      bsg_out_text(out, " of ");
      bsg_out_size(out, device->fact.total_bytes);
    }
    if (bsg_state_fragmented(oom))
      bsg_out_text(out, ", fragmented");
  }
}

int bsg_state_report(struct bsg_policy *p, struct bsg_when now, struct bsg_snapshot *oom, const char *why) {
  const struct bsg_device_state *device = bsg_state_device(p, oom->oom.trigger.device);
  struct bsg_report *report = &p->report;
  int error;

  if (!bsg_state_writes(p))
    return -ENOENT;
  *report = (struct bsg_report){.why = why,
                                .when = now,
                                .pid = p->config.pid,
                                .rank = p->config.rank,
                                .mode = (int)p->config.mode,
                                .command = p->command,
                                .framework = p->framework,
                                .device = device ? &device->fact : NULL,
                                .oom = oom,
                                .changes = p->changes,
                                .change_total = p->change_total,
                                .reasons = p->reasons,
                                .reason_count = p->reason_count,
                                .sequence = p->sequence,
                                .applied_sequence = p->applied_sequence,
                                .history = device ? &p->histories[oom->oom.trigger.device] : NULL,
                                .held = p->held,
                                .held_count = p->held_device == oom->oom.trigger.device ? p->held_count : 0,
                                .notes = p->notes,
                                .note_count = p->note_count,
                                .files_lost = p->files_lost,
                                .totals = p->totals,
                                .evidence = &p->config.evidence};
  bsg_report_ask_others(oom, &p->config.evidence);
  bsg_report_complete(report);
  error = bsg_report_write(report, &p->folder);
  bsg_state_wrote(p, "report.txt", error);
  if (!error)
    BSG_EVENT(p, bsg_event_report(&p->events, now, "report.txt", why));
  return error;
}
