/*
 * policy_framework.c - see policy.h: the facts of a framework adapter, or of a loop written by hand, and the answers.
 * What came of an answer is policy_outcome.c's.
 */
#include <errno.h>
#include <stddef.h>
#include <string.h>

#include "policy/policy_state.h"

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

void bsg_state_gather(struct bsg_policy *p, const struct bsg_oom *oom, struct bsg_where where,
                      struct bsg_oom_record *record) {
  struct bsg_caught *caught = &p->caught;
  bool is_caught = caught->taken && oom->boundary && caught->record.trigger.device == oom->device &&
                   caught->request_bytes == oom->request_bytes;
  struct bsg_refusal *blamed = bsg_refusals_blamed(&p->refusals, oom->device, oom->request_bytes);
  struct bsg_memory_fact memory;

  *record = (struct bsg_oom_record){.live_bytes = BSG_BYTES_UNKNOWN, .free_bytes = BSG_BYTES_UNKNOWN};
  if (blamed) {
    *record = blamed->record;
    bsg_refusals_forget(&p->refusals, oom->device, blamed->thread);
  } else
    record->trigger.bytes = oom->request_bytes;
  if (is_caught) { /* whatever was refused since was refused to a trial */
    *record = caught->record;
    p->refused = caught->refused;
    caught->taken = false;
  }
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

int bsg_policy_caught(struct bsg_policy *p, int device, uint64_t request_bytes, struct bsg_where where) {
  struct bsg_oom oom = {.size = sizeof(oom), .device = device, .phase = where.phase, .request_bytes = request_bytes};

  if (!p || !p->live)
    return -ENODEV;
  bsg_state_gather(p, &oom, where, &p->caught.record);
  p->caught.refused = p->refused;
  p->caught.request_bytes = request_bytes;
  p->caught.taken = true;
  return 0;
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
  bsg_state_gather(p, &oom, where, &record);
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
                             .peak_bytes = memory->step_peak_bytes,
                             .allocated_peak_bytes = allocated_peak};
  if (device->used)
    bsg_history_step(&p->histories[memory->device], &end, told, device->input, device->last.micro_batch,
                     allocated_peak);
  bsg_state_sizes_step(p, now, memory, allocated_peak, where);
  if (p->control_behind)
    bsg_state_write_control(p);
  bsg_state_answer_request(p, now);
  return 0;
}
