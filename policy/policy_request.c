/* policy_request.c - an operator's request.json: taken at a step's end, obeyed or refused, answered either way. */
#include <errno.h>
#include <string.h>

#include "policy/policy_state.h"
#include "policy/request.h"

#define NAME "request.json"

static void refuse(struct bsg_policy *p, struct bsg_when now, int64_t micro_batch, const char *why) {
  char text[BSG_LINE_ROOM];
  struct bsg_out line;

  BSG_EVENT(p, bsg_event_request(&p->events, now, micro_batch, p->sequence, why));
  bsg_out_buffer(&line, text, sizeof(text));
  bsg_out_text(&line, NAME " is refused: ");
  bsg_out_clean(&line, why, 500);
  bsg_state_say(p, 0, &line);
}

/* "no boundary "Head" on gpu:1; there are ResNet (gpu:0), Head (gpu:0)" */
static void explain_no_match(const struct bsg_policy *p, const struct bsg_request *request, struct bsg_out *why) {
  int named = 0;

  bsg_out_text(why, "boundary ");
  if (request->has_boundary) {
    bsg_out_text(why, "\"");
    bsg_out_clean(why, request->boundary, 80);
    bsg_out_text(why, "\"");
  } else {
    bsg_out_text(why, "(any)");
  }
  if (request->device >= 0)
    bsg_out_format(why, " on device %d", request->device);
  bsg_out_text(why, " has not run");
  for (int i = 0; i < p->training.high; i++) {
    const struct bsg_entry *entry = &p->training.slots[i];
    bool seen = !entry->used || entry->largest <= 0;
    for (int j = 0; j < i && !seen; j++)
      seen =
          p->training.slots[j].device == entry->device && strcmp(p->training.slots[j].boundary, entry->boundary) == 0;
    if (seen)
      continue;
    if (named == 6) {
      bsg_out_text(why, ", and others");
      break;
    }
    bsg_out_text(why, named++ ? ", " : ": allowed are ");
    bsg_out_clean(why, entry->boundary, 40);
    bsg_out_format(why, " (device %d)", entry->device);
  }
  if (named == 0)
    bsg_out_text(why, "; none has run yet, ask again after the first step");
}

static void obey(struct bsg_policy *p, struct bsg_when now, const struct bsg_request *request) {
  const char *boundary = request->has_boundary ? request->boundary : NULL;
  struct bsg_change change = {.reason = BSG_REASON_MANUAL};
  struct bsg_entry *latest = NULL;
  char text[BSG_WHY_ROOM * 2];
  struct bsg_out why;

  for (int i = 0; i < p->training.high; i++) {
    struct bsg_entry *entry = &p->training.slots[i];
    if (entry->largest <= 0 || !bsg_entry_matches(entry, request->device, boundary))
      continue;
    bsg_entry_limit(entry, request->micro_batch);
    if (!latest || entry->touched > latest->touched)
      latest = entry;
  }
  if (!latest) {
    bsg_out_buffer(&why, text, sizeof(text));
    explain_no_match(p, request, &why);
    refuse(p, now, request->micro_batch, bsg_out_string(&why));
    return;
  }
  bsg_state_start(p, now, latest);
  BSG_EVENT(p, bsg_event_request(&p->events, now, request->micro_batch, p->sequence + 1, NULL));
  change.split = bsg_entry_shown(latest);
  change.exactness = latest->exactness;
  bsg_copy_text(change.boundary, sizeof(change.boundary), latest->boundary);
  bsg_out_buffer(&why, change.why, sizeof(change.why));
  bsg_out_format(&why, NAME " asks for micro_batch %lld", (long long)request->micro_batch);
  bsg_out_string(&why);
  bsg_state_change(p, now, &change);
}

/* alone: nothing else was asked for, so that this is the answer. */
static void report(struct bsg_policy *p, struct bsg_when now, bool alone) {
  struct bsg_where where = {.step = 0, .phase = BSG_PHASE_OTHER};
  int error;

  for (int i = 0; i < BSG_MAX_DEVICES; i++)
    if (p->devices[i].used && p->histories[i].last_good_step > where.step)
      where.step = p->histories[i].last_good_step;
  error = bsg_policy_report(p, now, where);
  if (error)
    refuse(p, now, 0, "no report could be written");
  else if (alone)
    BSG_EVENT(p, bsg_event_request(&p->events, now, 0, p->sequence, NULL));
}

void bsg_state_answer_request(struct bsg_policy *p, struct bsg_when now) {
  char text[BSG_JSON_TEXT_ROOM], why[BSG_WHY_ROOM];
  struct bsg_request request;
  struct bsg_out out;
  unsigned owner;
  bool removed;

  if (!bsg_state_writes(p))
    return;
  /* An empty file may be one whose writer has only just opened it: it gets one more step. */
  ssize_t length = bsg_runfolder_take(&p->folder, NAME, !p->request_empty, text, sizeof(text), &owner, &removed);
  p->request_empty = length == -EAGAIN;
  if (length == -EAGAIN)
    return;
  if (length == -ENOENT) {
    p->request_stuck = false;
    return;
  }
  if (!removed && p->request_stuck)
    return; /* it cannot be removed, and that was said */
  p->request_stuck = !removed;

  bsg_out_buffer(&out, why, sizeof(why));
  switch (length) {
  case -ELOOP:
    bsg_out_text(&out, "it is a symbolic link: a plain file of your own is allowed");
    break;
  case -EISDIR:
    bsg_out_text(&out, "it is a folder, and cannot be removed: a plain file is allowed");
    break;
  case -EINVAL:
  case -ENXIO:
    bsg_out_text(&out, "it is not a plain file: only that is allowed");
    break;
  case -EPERM:
    bsg_out_format(&out, "it belongs to user %u: a file of the job's own user is allowed", owner);
    break;
  case -EFBIG:
    bsg_out_format(&out, "it is too large: at most %d bytes are allowed", BSG_JSON_TEXT_ROOM);
    break;
  default:
    if (length < 0)
      bsg_out_format(&out, "it cannot be read: %s (errno %d)", bsg_errno_text((int)length), (int)-length);
  }
  if (length < 0) {
    refuse(p, now, 0, bsg_out_string(&out));
    return;
  }
  if (!removed) {
    refuse(p, now, 0, "it cannot be removed, and would be obeyed again at each step");
    return;
  }
  if (bsg_request_parse(&p->request_document, text, (size_t)length, &request, why, sizeof(why)) != 0)
    refuse(p, now, request.micro_batch, why);
  else {
    if (request.micro_batch && p->config.mode != BSG_MODE_GUARD)
      refuse(p, now, request.micro_batch, "BSGUARD=observe changes nothing: start the job with BSGUARD=1");
    else if (request.micro_batch)
      obey(p, now, &request);
    if (request.report)
      report(p, now, request.micro_batch == 0);
  }
}
