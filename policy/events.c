/* events.c - see events.h. */
#include "policy/events.h"

#include <errno.h>

#include "shim/bsguard.h"

/* The longest text of somebody else's in an event; escaped it grows sixfold at most, so that a line always fits. */
#define TEXT_ROOM 1024

void bsg_events_init(struct bsg_events *events, struct bsg_runfolder *folder) {
  events->folder = folder;
  events->seq = 0;
}

static struct bsg_json *begin(struct bsg_events *events, struct bsg_when now, const char *type) {
  struct bsg_json *json = &events->json;

  bsg_out_buffer(&events->out, events->line, sizeof(events->line));
  bsg_json_init(json, &events->out);
  bsg_json_object(json, BSG_JSON_TIGHT);
  bsg_json_member_string(json, "schema", "bsguard.event/1");
  bsg_json_member_int(json, "seq", ++events->seq);
  bsg_json_member_string(json, "type", type);
  bsg_json_member_time(json, "time", now.unix_ms);
  bsg_json_member_int(json, "mono_ns", now.mono_ns);
  return json;
}

static int end(struct bsg_events *events) {
  bsg_json_end(&events->json);
  bsg_out_text(&events->out, "\n");
  if (events->out.error)
    return events->out.error;
  return bsg_runfolder_append(events->folder, events->line, events->out.used);
}

static void text(struct bsg_json *json, const char *key, const char *value) {
  char copy[TEXT_ROOM];

  bsg_copy_text(copy, sizeof(copy), value);
  bsg_json_member_string(json, key, value && *value ? copy : NULL);
}

static void where_members(struct bsg_json *json, struct bsg_where where) {
  bsg_json_member_known(json, "step", where.step, 0);
  bsg_json_member_string(json, "phase", bsg_phase_name(where.phase));
}

static void split_members(struct bsg_json *json, const struct bsg_split *split) {
  bsg_json_member_known(json, "batch", split->batch, 0);
  bsg_json_member_known(json, "micro_batch", split->micro_batch, 0);
  bsg_json_member_known(json, "accumulation_steps", split->accumulation_steps, 0);
}

int bsg_event_start(struct bsg_events *events, struct bsg_when now, const struct bsg_start *start) {
  struct bsg_json *json = begin(events, now, "start");

  bsg_json_member_int(json, "pid", start->pid);
  bsg_json_member_known(json, "rank", start->rank, -1);
  bsg_json_member_string(json, "version", BSG_VERSION);
  text(json, "command", start->command);
  bsg_json_member_known(json, "driver", start->device_count ? start->devices[0].driver_version : 0, 0);
  bsg_json_key(json, "devices");
  bsg_json_array(json, BSG_JSON_TIGHT);
  for (int i = 0; i < start->device_count; i++) {
    bsg_json_object(json, BSG_JSON_TIGHT);
    bsg_json_member_int(json, "device", start->devices[i].device);
    text(json, "name", start->devices[i].name);
    bsg_json_member_uint(json, "total_bytes", start->devices[i].total_bytes);
    bsg_json_end(json);
  }
  bsg_json_end(json);
  text(json, "framework", start->framework);
  bsg_json_member_string(json, "mode", bsg_mode_name(start->mode));
  return end(events);
}

int bsg_event_mark(struct bsg_events *events, struct bsg_when now, const struct bsg_mark_fact *mark) {
  struct bsg_json *json = begin(events, now, "mark");

  bsg_json_member_int(json, "device", mark->device);
  bsg_json_member_uint(json, "live_bytes", mark->live_bytes);
  bsg_json_member_uint(json, "peak_bytes", mark->peak_bytes);
  where_members(json, mark->where);
  bsg_json_member_bytes(json, "request_bytes", mark->request_bytes, 0);
  bsg_json_member_known(json, "site", mark->site, BSG_NO_SITE);
  return end(events);
}

int bsg_event_oom(struct bsg_events *events, struct bsg_when now, const struct bsg_oom_record *oom) {
  struct bsg_json *json = begin(events, now, "oom");

  bsg_json_member_int(json, "device", oom->trigger.device);
  bsg_json_member_string(json, "api", oom->trigger.api);
  bsg_json_member_bytes(json, "request_bytes", oom->trigger.bytes, 0);
  bsg_json_member_int(json, "attempts", oom->attempts);
  bsg_json_member_bytes(json, "live_bytes", oom->live_bytes, BSG_BYTES_UNKNOWN);
  bsg_json_member_bytes(json, "free_bytes", oom->free_bytes, BSG_BYTES_UNKNOWN);
  where_members(json, oom->trigger.where);
  text(json, "boundary", oom->boundary);
  bsg_json_member_known(json, "site", oom->trigger.site, BSG_NO_SITE);
  return end(events);
}

int bsg_event_absorbed(struct bsg_events *events, struct bsg_when now, const struct bsg_trigger *trigger,
                       int64_t attempts) {
  struct bsg_json *json = begin(events, now, "absorbed");

  bsg_json_member_int(json, "device", trigger->device);
  bsg_json_member_string(json, "api", trigger->api);
  bsg_json_member_uint(json, "request_bytes", trigger->bytes);
  bsg_json_member_int(json, "attempts", attempts);
  where_members(json, trigger->where);
  return end(events);
}

int bsg_event_decision(struct bsg_events *events, struct bsg_when now, const struct bsg_change *change) {
  struct bsg_json *json = begin(events, now, "decision");

  bsg_json_member_int(json, "sequence", change->sequence);
  bsg_json_member_string(json, "reason", bsg_reason_name(change->reason));
  split_members(json, &change->split);
  text(json, "why", change->why);
  return end(events);
}

int bsg_event_applied(struct bsg_events *events, struct bsg_when now, int64_t sequence, struct bsg_where where,
                      int exactness, const char *because) {
  struct bsg_json *json = begin(events, now, "applied");
  char reasons[TEXT_ROOM];

  bsg_copy_text(reasons, sizeof(reasons), because);
  bsg_json_member_int(json, "sequence", sequence);
  where_members(json, where);
  bsg_json_member_string(json, "exactness", bsg_exactness_name(exactness));
  bsg_json_member_list(json, "because", reasons, BSG_JSON_TIGHT);
  return end(events);
}

int bsg_event_step(struct bsg_events *events, struct bsg_when now, const struct bsg_step_record *step) {
  struct bsg_json *json = begin(events, now, "step");

  where_members(json, step->where);
  bsg_json_member_int(json, "device", step->device);
  split_members(json, &step->split);
  bsg_json_member_uint(json, "peak_bytes", step->peak_bytes);
  bsg_json_member_bytes(json, "allocated_peak_bytes", step->allocated_peak_bytes, 0);
  return end(events);
}

int bsg_event_request(struct bsg_events *events, struct bsg_when now, int64_t micro_batch, int64_t sequence,
                      const char *why) {
  struct bsg_json *json = begin(events, now, "request");

  bsg_json_member_known(json, "micro_batch", micro_batch, 0);
  bsg_json_member_bool(json, "obeyed", why == NULL);
  if (why)
    text(json, "why", why);
  else
    bsg_json_member_int(json, "sequence", sequence);
  return end(events);
}

int bsg_event_retried(struct bsg_events *events, struct bsg_when now, const struct bsg_trigger *trigger,
                      const char *what) {
  struct bsg_json *json = begin(events, now, "retried");

  bsg_json_member_int(json, "device", trigger->device);
  where_members(json, trigger->where);
  text(json, "what", what);
  return end(events);
}

int bsg_event_waited(struct bsg_events *events, struct bsg_when now, const struct bsg_trigger *trigger,
                     uint64_t others_bytes, int64_t waited_ms, uint64_t free_bytes, bool met) {
  struct bsg_json *json = begin(events, now, "waited");

  bsg_json_member_int(json, "device", trigger->device);
  where_members(json, trigger->where);
  bsg_json_member_int(json, "others_bytes", (int64_t)others_bytes);
  bsg_json_member_int(json, "waited_ms", waited_ms);
  bsg_json_member_int(json, "free_bytes", (int64_t)free_bytes);
  bsg_json_member_bool(json, "met", met);
  return end(events);
}

int bsg_event_refused(struct bsg_events *events, struct bsg_when now, const char *boundary, const char *why) {
  struct bsg_json *json = begin(events, now, "refused");

  text(json, "boundary", boundary);
  text(json, "why", why);
  return end(events);
}

int bsg_event_disarmed(struct bsg_events *events, struct bsg_when now, const char *boundary, const char *signature,
                       const char *why, bool for_good) {
  struct bsg_json *json = begin(events, now, "disarmed");

  text(json, "boundary", boundary);
  text(json, "signature", signature);
  text(json, "why", why);
  bsg_json_member_bool(json, "for_good", for_good);
  return end(events);
}

int bsg_event_unhooked(struct bsg_events *events, struct bsg_when now, const char *name, int version) {
  struct bsg_json *json = begin(events, now, "unhooked");

  text(json, "name", name);
  bsg_json_member_int(json, "version", version);
  return end(events);
}

int bsg_event_report(struct bsg_events *events, struct bsg_when now, const char *path, const char *why) {
  struct bsg_json *json = begin(events, now, "report");

  text(json, "path", path);
  text(json, "why", why);
  return end(events);
}

int bsg_event_stop(struct bsg_events *events, struct bsg_when now, const struct bsg_totals *totals) {
  struct bsg_json *json = begin(events, now, "stop");

  bsg_json_member_int(json, "ooms", totals->ooms);
  bsg_json_member_int(json, "absorbed", totals->absorbed);
  bsg_json_member_int(json, "rescued_steps", totals->rescued_steps);
  bsg_json_member_uint(json, "peak_bytes", totals->peak_bytes);
  return end(events);
}
