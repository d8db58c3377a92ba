/* policy_framework.c - see policy.h: the facts of a framework adapter, or of a loop written by hand, and the answers.
 */
#include <errno.h>
#include <stddef.h>
#include <string.h>

#include "policy/policy_state.h"

#define UNRESCUED_LINES 3 /* said to the user in one run */

static bool valid_device(int device) {
  return device >= 0 && device < BSG_MAX_DEVICES;
}

/* Structures grow at their end: what the caller does not know is neither read nor written. */
static void answer(struct bsg_decision *out, int verdict, int64_t sequence, const struct bsg_split *split,
                   const struct bsg_again *again) {
  struct bsg_decision full = {.size = sizeof(full),
                              .verdict = verdict,
                              .sequence = sequence,
                              .batch = split->batch,
                              .micro_batch = split->micro_batch,
                              .accumulation_steps = split->accumulation_steps,
                              .chunks = split->chunks,
                              .wait_ms = again ? again->wait_ms : 0,
                              .wait_free_bytes = again ? again->free_bytes : 0};
  if (!out)
    return;
  size_t size = out->size == 0 || out->size > sizeof(full) ? sizeof(full) : out->size;
  full.size = (uint32_t)size;
  memcpy(out, &full, size);
}

int bsg_policy_attach(struct bsg_policy *p, struct bsg_when now, const char *framework, const char *command) {
  (void)now;
  if (!p || !p->live)
    return -ENODEV;
  p->adapter = true;
  if (framework)
    bsg_copy_text(p->framework, sizeof(p->framework), framework);
  if (command)
    bsg_copy_text(p->command, sizeof(p->command), command);
  return 0;
}

int bsg_policy_boundary(struct bsg_policy *p, struct bsg_when now, int device, const char *boundary,
                        const char *signature, int64_t batch, int phase, struct bsg_decision *out) {
  struct bsg_split split = bsg_split_of(batch, 1);
  struct bsg_entry *entry;

  answer(out, BSG_KEEP, 0, &split, NULL);
  if (!p || !p->live)
    return -ENODEV;
  if (!valid_device(device) || batch <= 0)
    return -EINVAL;
  bsg_state_settle(p, now, device, true);
  bsg_state_went_on(p, device);
  if (phase == BSG_PHASE_EVALUATION) {
    entry = bsg_entries_obtain(&p->evaluation, device, boundary, signature, batch);
    split = bsg_state_sizes_evaluate(p, entry, batch);
  } else {
    entry = bsg_entries_obtain(&p->training, device, boundary, signature, batch);
    bsg_state_start(p, now, entry);
    split = bsg_state_sizes_begin(p, now, entry, batch);
    p->devices[device].last = split;
    if (p->devices[device].input != entry->hash) {
      p->devices[device].input = entry->hash;
      bsg_copy_text(p->devices[device].boundary, sizeof(p->devices[device].boundary), boundary);
      bsg_copy_text(p->devices[device].signature, sizeof(p->devices[device].signature), signature);
    }
  }
  answer(out, split.chunks > 1 ? BSG_SHRINK : BSG_KEEP, p->sequence, &split, NULL);
  return 0;
}

/* ---- a terminal OOM ---- */

/* What is known of it: the refused calls of this device, or a limit of the framework's own. */
static void gather(struct bsg_policy *p, const struct bsg_oom *oom, struct bsg_where where,
                   struct bsg_oom_record *record) {
  struct bsg_refusal *blamed = bsg_refusals_blamed(&p->refusals, oom->device, oom->request_bytes);
  struct bsg_memory_fact memory;

  *record = (struct bsg_oom_record){.live_bytes = BSG_BYTES_UNKNOWN, .free_bytes = BSG_BYTES_UNKNOWN};
  if (blamed) {
    *record = blamed->record;
    bsg_refusals_forget(&p->refusals, oom->device, blamed->thread);
  } else
    record->trigger.bytes = oom->request_bytes;
  record->trigger.device = oom->device;
  /* By the time that nobody has caught it the optimizer's step is over, and the phase with it. */
  bool of_optimizer = blamed && oom->phase == BSG_PHASE_OTHER && record->trigger.where.phase == BSG_PHASE_OPTIMIZER;
  record->trigger.where =
      (struct bsg_where){.step = where.step, .phase = of_optimizer ? BSG_PHASE_OPTIMIZER : oom->phase};
  bsg_copy_text(record->boundary, sizeof(record->boundary), oom->boundary);
  bsg_copy_text(record->signature, sizeof(record->signature), oom->signature);
  if ((record->live_bytes == BSG_BYTES_UNKNOWN || record->free_bytes == BSG_BYTES_UNKNOWN) &&
      p->config.evidence.memory && p->config.evidence.memory(p->config.evidence.context, oom->device, &memory) == 0) {
    if (record->live_bytes == BSG_BYTES_UNKNOWN)
      record->live_bytes = memory.live_bytes;
    if (record->free_bytes == BSG_BYTES_UNKNOWN)
      record->free_bytes = memory.free_bytes;
  }
}

static void shrink_training(struct bsg_policy *p, struct bsg_when now, const struct bsg_oom *oom,
                            const struct bsg_oom_record *record, const struct bsg_split *before,
                            const struct bsg_split *after, struct bsg_entry *entry) {
  struct bsg_change change = {.reason = !record->trigger.api           ? BSG_REASON_FRAMEWORK_LIMIT
                                        : bsg_state_fragmented(record) ? BSG_REASON_FRAGMENTATION
                                                                       : BSG_REASON_OOM,
                              .split = *after,
                              .has_trigger = true,
                              .trigger = record->trigger,
                              .exactness = oom->exactness};
  struct bsg_out why;

  bsg_entry_accept(entry, after);
  entry->exactness = oom->exactness;
  p->devices[oom->device].oom_in_step = true;
  p->devices[oom->device].last = *after;
  bsg_copy_text(change.boundary, sizeof(change.boundary), oom->boundary);
  bsg_out_buffer(&why, change.why, sizeof(change.why));
  bsg_state_describe(p, record, &why);
  bsg_out_format(&why, "; micro-batch was %lld", (long long)before->micro_batch);
  bsg_out_string(&why);
  bsg_state_change(p, now, &change);
}

int bsg_policy_terminal(struct bsg_policy *p, struct bsg_when now, const struct bsg_oom *given, struct bsg_where where,
                        struct bsg_decision *out) {
  struct bsg_oom oom = {0};
  struct bsg_oom_record record;
  struct bsg_split before, after;
  struct bsg_entry *entry = NULL;
  struct bsg_again again = {0};
  enum bsg_verdict verdict;

  memcpy(&oom, given, given->size == 0 || given->size > sizeof(oom) ? sizeof(oom) : given->size);
  before = bsg_split_of(oom.batch, 1);
  answer(out, BSG_KEEP, 0, &before, NULL);
  if (!p || !p->live)
    return -ENODEV;
  if (!valid_device(oom.device))
    return -EINVAL;
  p->adapter = true;

  bool evaluation = oom.phase == BSG_PHASE_EVALUATION;
  bool can_split = oom.exactness != BSG_REFUSED && oom.boundary && oom.batch > 0 && bsg_phase_can_split(oom.phase);
  if (can_split) {
    entry = bsg_entries_obtain(evaluation ? &p->evaluation : &p->training, oom.device, oom.boundary, oom.signature,
                               oom.batch);
    before = bsg_entry_split(entry, oom.batch);
    if (!evaluation)
      bsg_state_start(p, now, entry); /* a first word in control.json, in case that no boundary was asked for */
  }

  p->totals.ooms++;
  gather(p, &oom, where, &record);
  BSG_EVENT(p, bsg_event_oom(&p->events, now, &record));
  bsg_state_oom_met(p, now, &record);
  p->devices[oom.device].disturbed = true;

  bool may_wait = out && out->size >= sizeof(*out);
  if (p->config.mode != BSG_MODE_GUARD) {
    verdict = BSG_KEEP;
    after = before;
  } else if (may_wait && bsg_state_again(p, &oom, &record, can_split, &again)) {
    verdict = BSG_AGAIN;
    after = before;
  } else if (entry && !evaluation) {
    verdict = bsg_state_sizes_shrink(p, entry, &before, &oom, &record, &after);
  } else {
    verdict = bsg_decide_oom(&before, can_split, &after);
  }
  /* What must not be cut must not be run twice either: of the boundaries, only those that could be cut further down. */
  if (may_wait && (verdict == BSG_FLOOR || (verdict == BSG_CANNOT && !oom.boundary)) &&
      bsg_state_last_resort(p, &record, &again))
    verdict = BSG_AGAIN;
  p->latest.verdict = (int)verdict;
  p->latest.exactness = oom.exactness;
  p->latest.split = before;
  bsg_copy_text(p->latest.because, sizeof(p->latest.because), oom.because);
  bsg_copy_text(p->latest.exception, sizeof(p->latest.exception), oom.exception);

  if (verdict != BSG_SHRINK || !entry) {
    /* nothing changes */
  } else if (evaluation) {
    bsg_entry_accept(entry, &after);
    p->store_behind = true;
    entry->exactness = oom.exactness;
  } else {
    shrink_training(p, now, &oom, &record, &before, &after, entry);
  }
  answer(out, (int)verdict, p->sequence, &after, &again);
  return 0;
}

/* ---- what came of it ---- */

static void say_applied(struct bsg_policy *p, int64_t sequence, const char *boundary, int64_t batch,
                        int64_t micro_batch, int exactness, const char *because) {
  const struct bsg_change *change = NULL;
  struct bsg_split split = bsg_split_under(batch, micro_batch);
  const char *exact = bsg_exactness_name(exactness);
  char text[BSG_LINE_ROOM];
  struct bsg_out line;

  for (int64_t i = 0; sequence && i < BSG_CHANGES_KEPT && i < p->change_total && !change; i++) {
    const struct bsg_change *each = &p->changes[(p->change_total - 1 - i) % BSG_CHANGES_KEPT];
    if (each->sequence == sequence)
      change = each;
  }
  bsg_out_buffer(&line, text, sizeof(text));
  if (change && change->reason == BSG_REASON_MANUAL) {
    bsg_out_text(&line, "asked by request.json");
  } else if (change && change->reason == BSG_REASON_REGROW) {
    bsg_out_text(&line, "growing back");
  } else if (change && change->reason == BSG_REASON_RESTORED) {
    bsg_out_text(&line, "known from an earlier run");
  } else if (p->latest.taken) {
    const struct bsg_oom_record *oom = &p->latest.oom;
    bsg_out_format(&line, "OOM in %s", bsg_phase_name(oom->trigger.where.phase));
    if (oom->trigger.where.step)
      bsg_out_format(&line, " at step %lld", (long long)oom->trigger.where.step);
    bsg_out_text(&line, " (");
    bsg_state_describe(p, oom, &line);
    bsg_out_text(&line, ")");
  } else {
    bsg_out_text(&line, "as decided");
  }
  bsg_out_text(&line, ": ");
  bsg_out_clean(&line, boundary && *boundary ? boundary : "the model", 80);
  bsg_out_format(&line, " now runs %lld as %lld x %s%lld", (long long)batch, (long long)split.accumulation_steps,
                 split.accumulation_steps * micro_batch == batch ? "" : "at most ", (long long)micro_batch);
  if (exact) {
    bsg_out_format(&line, " [%s", exact);
    if (because && *because) {
      bsg_out_text(&line, ": ");
      bsg_out_clean(&line, because, 120);
    }
    bsg_out_text(&line, "]");
  }
  /* On the way up there may be several, and the last of them is told when it has run. */
  bsg_state_say(p, change && change->reason == BSG_REASON_REGROW ? 1 : 0, &line);
}

int bsg_policy_applied(struct bsg_policy *p, struct bsg_when now, int64_t sequence, int device, const char *boundary,
                       int64_t batch, int64_t micro_batch, int exactness, const char *because, struct bsg_where where) {
  if (!p || !p->live)
    return -ENODEV;
  if (!valid_device(device) || sequence < 0 || sequence > p->sequence || batch <= 0 || micro_batch <= 0)
    return -EINVAL;
  BSG_EVENT(p, bsg_event_applied(&p->events, now, sequence, where, exactness, because));
  /* Several boundaries may take up one decision; the user is told once. */
  if (sequence == 0 || sequence != p->applied_sequence)
    say_applied(p, sequence, boundary, batch, micro_batch, exactness, because);
  if (sequence)
    p->applied_sequence = sequence;
  return 0;
}

int bsg_policy_unrescued(struct bsg_policy *p, struct bsg_when now, int device, const char *exception,
                         struct bsg_where where) {
  char text[BSG_LINE_ROOM];
  struct bsg_out line;
  int error;

  if (!p || !p->live)
    return -ENODEV;
  if (!valid_device(device))
    return -EINVAL;
  p->totals.unrescued++;
  p->devices[device].oom_in_step = false;
  if (!p->latest.taken || p->latest.oom.trigger.device != device || p->latest.outcome != BSG_OUTCOME_OPEN) {
    /* Never reported as terminal: the picture is of now. */
    struct bsg_oom oom = {.size = sizeof(oom), .device = device, .phase = where.phase, .exactness = BSG_REFUSED};
    struct bsg_oom_record record;
    gather(p, &oom, where, &record);
    bsg_state_oom_met(p, now, &record);
  }
  p->latest.outcome = BSG_OUTCOME_UNRESCUED;
  if (exception)
    bsg_copy_text(p->latest.exception, sizeof(p->latest.exception), exception);
  p->unrescued = p->latest;
  error = bsg_state_report(p, now, &p->unrescued, "unrescued");

  bsg_out_buffer(&line, text, sizeof(text));
  bsg_out_format(&line, "OOM in %s", bsg_phase_name(p->latest.oom.trigger.where.phase));
  if (p->latest.oom.trigger.where.step)
    bsg_out_format(&line, " at step %lld", (long long)p->latest.oom.trigger.where.step);
  bsg_out_text(&line, " could not be saved (");
  bsg_state_describe(p, &p->latest.oom, &line);
  if (p->latest.verdict == BSG_FLOOR)
    bsg_out_text(&line, "; the micro-batch is 1 already");
  else if (p->latest.verdict == BSG_CANNOT && p->latest.because[0]) {
    bsg_out_text(&line, "; ");
    bsg_out_clean(&line, p->latest.because, 200);
  }
  bsg_out_text(&line, "): ");
  if (error) {
    bsg_out_format(&line, "no report could be written: %s", bsg_errno_text(error));
  } else {
    bsg_out_text(&line, "see ");
    bsg_out_clean(&line, p->folder.path, 400);
    bsg_out_text(&line, "/report.txt");
  }
  if (p->totals.unrescued == UNRESCUED_LINES)
    bsg_out_text(&line, "; further ones are told in events.jsonl only");
  if (p->totals.unrescued <= UNRESCUED_LINES) /* a loop may catch the error and go on, for ever */
    bsg_state_say(p, 0, &line);
  return 0;
}

/* True for what was not said before. The oldest is forgotten where there is no room, and may then be said again. */
static bool new_reason(struct bsg_policy *p, const char *boundary, const char *why) {
  struct bsg_reason_kept reason;

  bsg_copy_text(reason.boundary, sizeof(reason.boundary), boundary);
  bsg_copy_text(reason.why, sizeof(reason.why), why);
  for (int i = 0; i < p->reason_count; i++)
    if (strcmp(p->reasons[i].boundary, reason.boundary) == 0 && strcmp(p->reasons[i].why, reason.why) == 0)
      return false;
  p->reasons[p->reason_next] = reason;
  p->reason_next = (p->reason_next + 1) % BSG_REASONS_KEPT;
  if (p->reason_count < BSG_REASONS_KEPT)
    p->reason_count++;
  return true;
}

int bsg_policy_retried(struct bsg_policy *p, struct bsg_when now, int device, const char *what) {
  char text[BSG_LINE_ROOM];
  struct bsg_out line;

  if (!p || !p->live)
    return -ENODEV;
  if (!valid_device(device))
    return -EINVAL;
  if (!p->latest.taken || p->latest.oom.trigger.device != device || p->latest.outcome != BSG_OUTCOME_OPEN)
    return -ENOENT;
  p->latest.outcome = BSG_OUTCOME_RESCUED;
  p->devices[device].patience_ms = 0;
  /* Nothing was decided: a later step that is left as it is says nothing of this one. */
  p->devices[device].oom_in_step = p->latest.oom.trigger.where.phase != BSG_PHASE_EVALUATION;
  BSG_EVENT(p, bsg_event_retried(&p->events, now, &p->latest.oom.trigger, what));
  if (!new_reason(p, "retried", what))
    return 0;
  bsg_out_buffer(&line, text, sizeof(text));
  bsg_out_format(&line, "OOM in %s", bsg_phase_name(p->latest.oom.trigger.where.phase));
  if (p->latest.oom.trigger.where.step)
    bsg_out_format(&line, " at step %lld", (long long)p->latest.oom.trigger.where.step);
  bsg_out_text(&line, " (");
  bsg_state_describe(p, &p->latest.oom, &line);
  bsg_out_text(&line, "): caches given back, ");
  bsg_out_clean(&line, what && *what ? what : "it", 120);
  bsg_out_text(&line, " went through at the next try");
  bsg_state_say(p, 0, &line);
  return 0;
}

static void say_left_alone(struct bsg_policy *p, const char *boundary, const char *what, const char *why) {
  char text[BSG_LINE_ROOM];
  struct bsg_out line;

  bsg_out_buffer(&line, text, sizeof(text));
  bsg_out_clean(&line, boundary && *boundary ? boundary : "the model", 80);
  bsg_out_format(&line, " %s: ", what);
  bsg_out_clean(&line, why && *why ? why : "no reason was given", 400);
  bsg_state_say(p, 0, &line);
}

int bsg_policy_refused(struct bsg_policy *p, struct bsg_when now, const char *boundary, const char *why) {
  if (!p || !p->live)
    return -ENODEV;
  if (!new_reason(p, boundary, why))
    return 0;
  BSG_EVENT(p, bsg_event_refused(&p->events, now, boundary, why));
  say_left_alone(p, boundary, "will not be split", why);
  return 0;
}

int bsg_policy_disarmed(struct bsg_policy *p, struct bsg_when now, const char *boundary, const char *signature,
                        const char *why, int for_good) {
  if (!p || !p->live)
    return -ENODEV;
  BSG_EVENT(p, bsg_event_disarmed(&p->events, now, boundary, signature, why, for_good != 0));
  if (for_good && new_reason(p, boundary, why))
    say_left_alone(p, boundary, "is left alone from now on", why);
  return 0;
}

int bsg_policy_step(struct bsg_policy *p, struct bsg_when now, const struct bsg_memory_fact *memory,
                    uint64_t allocated_peak, struct bsg_where where) {
  struct bsg_device_state *device;

  if (!p || !p->live)
    return -ENODEV;
  if (!valid_device(memory->device))
    return -EINVAL;
  if (!p->device_seen)
    return 0;
  device = &p->devices[memory->device];
  bsg_state_settle(p, now, memory->device, false);
  bsg_state_went_on(p, memory->device);
  bsg_state_note_elsewhere(p, memory);
  device->patience_ms = 0;
  if (device->oom_in_step) {
    device->oom_in_step = false;
    p->totals.rescued_steps++;
  }
  if (memory->peak_bytes > p->totals.peak_bytes)
    p->totals.peak_bytes = memory->peak_bytes;

  if (memory->step_peak_bytes != device->step_peak) {
    struct bsg_mark_fact mark = {.device = memory->device,
                                 .live_bytes = memory->step_peak_bytes,
                                 .peak_bytes = memory->peak_bytes,
                                 .where = where};
    device->step_peak = memory->step_peak_bytes;
    BSG_EVENT(p, bsg_event_mark(&p->events, now, &mark));
  }
  struct bsg_step_record step = {.where = where,
                                 .device = memory->device,
                                 .split = device->last,
                                 .peak_bytes = memory->step_peak_bytes,
                                 .allocated_peak_bytes = allocated_peak};
  BSG_EVENT(p, bsg_event_step(&p->events, now, &step));
  bool told = device->framework.told;
  struct bsg_step_end end = {.step = where.step,
                             .held_bytes = told ? device->framework.allocated_bytes : memory->live_bytes,
                             .idle_bytes = told && device->framework.reserved_bytes != BSG_BYTES_UNKNOWN &&
                                                   device->framework.reserved_bytes >= device->framework.allocated_bytes
                                               ? device->framework.reserved_bytes - device->framework.allocated_bytes
                                               : BSG_BYTES_UNKNOWN,
                             .peak_bytes = memory->step_peak_bytes};
  if (device->used)
    bsg_history_step(&p->histories[memory->device], &end, told, device->input, device->last.micro_batch,
                     allocated_peak);
  bsg_state_sizes_step(p, now, memory, allocated_peak, where);
  if (p->control_behind)
    bsg_state_write_control(p);
  bsg_state_answer_request(p, now);
  return 0;
}
