/*
 * policy_outcome.c - see policy.h: what came of an answer. A decision was taken up, an OOM was met without one, or
 * could not be saved; a boundary is not split, or left alone. All of it is told to the user, each thing once; nothing
 * is decided here.
 */
#include <errno.h>
#include <stddef.h>
#include <string.h>

#include "policy/policy_state.h"

#define UNRESCUED_LINES 3 /* said to the user in one run */

static bool valid_device(int device) {
  return device >= 0 && device < BSG_MAX_DEVICES;
}

/* The change of a decision; NULL: it was long ago, or there is none. */
static struct bsg_change *change_of(struct bsg_policy *p, int64_t sequence) {
  for (int64_t i = 0; sequence && i < BSG_CHANGES_KEPT && i < p->change_total; i++) {
    struct bsg_change *change = &p->changes[(p->change_total - 1 - i) % BSG_CHANGES_KEPT];
    if (change->sequence == sequence)
      return change;
  }
  return NULL;
}

/* A step that runs by a decision knows better how exact it is than the one that led to it: masks were lost in that one
 * only. */
static void note_exactness(struct bsg_policy *p, int64_t sequence, int device, const char *boundary, int exactness) {
  struct bsg_entry *entry = bsg_entries_latest(&p->training, device, boundary);
  struct bsg_change *change = change_of(p, sequence);

  if (entry)
    entry->exactness = exactness;
  if (!change || change->exactness == exactness)
    return;
  change->exactness = exactness;
  if (sequence == p->sequence)
    bsg_state_write_control(p);
}

static void say_applied(struct bsg_policy *p, int64_t sequence, const char *boundary, int64_t batch,
                        int64_t micro_batch, int exactness, const char *because) {
  const struct bsg_change *change = change_of(p, sequence);
  struct bsg_split split = bsg_split_under(batch, micro_batch);
  const char *exact = bsg_exactness_name(exactness);
  char text[BSG_LINE_ROOM];
  struct bsg_out line;

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
  if (sequence) {
    note_exactness(p, sequence, device, boundary, exactness);
    p->applied_sequence = sequence;
  }
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
    bsg_state_gather(p, &oom, where, &record);
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
