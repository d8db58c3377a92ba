/*
 * report_json.c - report.json, for a program: the same as report.txt, schema bsguard.report/1. Sizes in bytes. This
 * file says the order; what explains is in report_json_more.c.
 */
#include <string.h>

#include "policy/json_write.h"
#include "policy/report.h"
#include "policy/report_json.h"
#include "shim/bsguard.h"

static const char *known(const char *text) {
  return text[0] ? text : NULL;
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

static void run_members(const struct bsg_report *report, struct bsg_json *json) {
  bsg_json_member_string(json, "schema", "bsguard.report/1");
  bsg_json_member_string(json, "why", report->why);
  bsg_json_member_time(json, "time", report->when.unix_ms);
  bsg_json_member_int(json, "pid", report->pid);
  bsg_json_member_known(json, "rank", report->rank, -1);
  bsg_json_member_string(json, "version", BSG_VERSION);
  bsg_json_member_string(json, "mode", bsg_mode_name(report->mode));
  bsg_json_member_string(json, "command", known(report->command));
  bsg_json_member_string(json, "framework", known(report->framework));
  bsg_json_key(json, "device");
  if (!report->device) {
    bsg_json_null(json);
    return;
  }
  bsg_json_object(json, BSG_JSON_INLINE);
  bsg_json_member_int(json, "device", report->device->device);
  bsg_json_member_string(json, "name", report->device->name);
  bsg_json_member_uint(json, "total_bytes", report->device->total_bytes);
  bsg_json_member_known(json, "driver", report->device->driver_version, 0);
  bsg_json_end(json);
}

static void frames(const struct bsg_report *report, struct bsg_json *json, uint32_t number) {
  const struct bsg_frame_fact *frame;
  struct bsg_site_fact site;
  char address[24];
  struct bsg_out text;

  if (!bsg_report_site(report, number, &site))
    site.frames = 0;
  bsg_json_key(json, "frames");
  bsg_json_array(json, BSG_JSON_INLINE);
  for (int n = 0; n < site.frames; n++) {
    bsg_out_buffer(&text, address, sizeof(address));
    bsg_out_format(&text, "0x%llx", (unsigned long long)site.pc[n]);
    frame = bsg_report_frame(report, site.pc[n]);
    bsg_json_string(json, frame ? frame->text : bsg_out_string(&text));
  }
  bsg_json_end(json);
  bsg_json_key(json, "raw");
  bsg_json_array(json, BSG_JSON_INLINE);
  for (int n = 0; n < site.frames; n++) {
    frame = bsg_report_frame(report, site.pc[n]);
    bsg_json_object(json, BSG_JSON_INLINE);
    bsg_json_member_known(json, "module", frame ? frame->module : -1, -1);
    bsg_json_member_uint(json, "offset", frame && frame->module >= 0 ? frame->offset : site.pc[n]);
    bsg_json_end(json);
  }
  bsg_json_end(json);
}

/* A line a frame, without what stands around it. */
static void python_stack(const struct bsg_snapshot *oom, struct bsg_json *json) {
  char line[300];

  bsg_json_key(json, "python_stack");
  bsg_json_array(json, BSG_JSON_LINES);
  for (const char *at = oom->python_stack; *at;) {
    size_t length = 0;
    at += strspn(at, " \n");
    length = strcspn(at, "\n");
    if (length) {
      size_t kept = length < sizeof(line) - 1 ? length : sizeof(line) - 1;
      memcpy(line, at, kept);
      line[kept] = '\0';
      bsg_json_string(json, line);
    }
    at += length;
  }
  bsg_json_end(json);
}

static void oom_object(const struct bsg_report *report, struct bsg_json *json) {
  const struct bsg_snapshot *oom = report->oom;

  bsg_json_key(json, "oom");
  if (!oom->met) {
    bsg_json_null(json);
    return;
  }
  bsg_json_object(json, BSG_JSON_LINES);
  bsg_json_member_time(json, "time", oom->when.unix_ms);
  bsg_json_member_int(json, "mono_ns", oom->when.mono_ns);
  bsg_json_member_string(json, "verdict", bsg_outcome_name(oom->outcome));
  bsg_json_member_string(json, "answer", oom->verdict < 0 ? NULL : bsg_verdict_name(oom->verdict));
  bsg_json_member_int(json, "device", oom->oom.trigger.device);
  where_members(json, oom->oom.trigger.where);
  bsg_json_member_string(json, "api", oom->oom.trigger.api);
  bsg_json_member_bytes(json, "request_bytes", oom->oom.trigger.bytes, 0);
  bsg_json_member_int(json, "attempts", oom->oom.attempts);
  bsg_json_member_known(json, "site", oom->oom.trigger.site, BSG_NO_SITE);
  bsg_json_member_known(json, "thread", (int64_t)oom->oom.trigger.thread, 0);
  bsg_json_member_string(json, "boundary", known(oom->oom.boundary));
  bsg_json_member_string(json, "signature", known(oom->oom.signature));
  split_members(json, &oom->split);
  bsg_json_member_string(json, "exactness", bsg_exactness_name(oom->exactness));
  bsg_json_member_string(json, "because", known(oom->because));
  bsg_json_member_string(json, "exception", known(oom->exception));
  python_stack(oom, json);
  bsg_json_end(json);
}

static void memory_object(const struct bsg_report *report, struct bsg_json *json) {
  bsg_json_key(json, "memory");
  bsg_json_object(json, BSG_JSON_LINES);
  bsg_json_member_bytes(json, "capacity_bytes", report->capacity_bytes, BSG_BYTES_UNKNOWN);
  bsg_json_member_bytes(json, "free_bytes", report->free_bytes, BSG_BYTES_UNKNOWN);
  bsg_json_member_bytes(json, "live_bytes", report->live_bytes, BSG_BYTES_UNKNOWN);
  bsg_json_member_bytes(json, "peak_bytes", report->peak_bytes, BSG_BYTES_UNKNOWN);
  bsg_json_member_bytes(json, "not_in_ledger_bytes", report->elsewhere_bytes, BSG_BYTES_UNKNOWN);
  bsg_json_member_bytes(json, "live_count",
                        report->oom->has_memory ? report->oom->memory.live_count : BSG_BYTES_UNKNOWN,
                        BSG_BYTES_UNKNOWN);
  bsg_json_end(json);
}

static const char *kind_name(int kind) {
  static const char *const names[BSG_KIND_APART] = {"plain", "managed", "array", "virtual", "pool", "graph"};
  return kind >= 0 && kind < BSG_KIND_APART ? names[kind] : "plain";
}

static void holders_array(const struct bsg_report *report, struct bsg_json *json) {
  bsg_json_key(json, "holders");
  bsg_json_array(json, BSG_JSON_LINES);
  for (int i = 0; i < report->oom->holder_count; i++) {
    const struct bsg_holder_fact *holder = &report->oom->holders[i];
    bsg_json_object(json, BSG_JSON_INLINE);
    bsg_json_member_uint(json, "bytes", holder->bytes);
    bsg_json_member_string(json, "api", holder->api);
    where_members(json, holder->where);
    bsg_json_member_known(json, "site", holder->site, BSG_NO_SITE);
    bsg_json_member_string(json, "kind", kind_name(holder->kind));
    bsg_json_end(json);
  }
  bsg_json_end(json);
  bsg_json_member_uint(json, "holders_bytes", report->holders_bytes);
}

static void others_object(const struct bsg_report *report, struct bsg_json *json) {
  const struct bsg_others_fact *others = &report->oom->others;

  bsg_json_key(json, "others");
  if (!report->oom->has_others) {
    bsg_json_null(json);
    return;
  }
  bsg_json_object(json, BSG_JSON_LINES);
  bsg_json_member_int(json, "total", others->count);
  bsg_json_member_bool(json, "own_pid_seen", others->own_seen);
  bsg_json_key(json, "processes");
  bsg_json_array(json, BSG_JSON_LINES);
  for (int i = 0; i < others->listed; i++) {
    bsg_json_object(json, BSG_JSON_INLINE);
    bsg_json_member_int(json, "pid", others->list[i].pid);
    bsg_json_member_string(json, "name", known(others->list[i].name));
    bsg_json_member_bytes(json, "bytes", others->list[i].bytes, BSG_BYTES_UNKNOWN);
    bsg_json_end(json);
  }
  bsg_json_end(json);
  bsg_json_end(json);
}

static void sites_array(const struct bsg_report *report, struct bsg_json *json) {
  bsg_json_key(json, "sites");
  bsg_json_array(json, BSG_JSON_LINES);
  for (int i = 0; i < report->site_count; i++) {
    bsg_json_object(json, BSG_JSON_INLINE);
    bsg_json_member_int(json, "site", report->sites[i]);
    frames(report, json, report->sites[i]);
    bsg_json_end(json);
  }
  bsg_json_end(json);
}

static void decisions_array(const struct bsg_report *report, struct bsg_json *json) {
  int64_t first = report->change_total > BSG_CHANGES_KEPT ? report->change_total - BSG_CHANGES_KEPT : 0;

  bsg_json_member_int(json, "decisions_total", report->change_total);
  bsg_json_key(json, "decisions");
  bsg_json_array(json, BSG_JSON_LINES);
  for (int64_t n = first; n < report->change_total; n++) {
    const struct bsg_change *change = &report->changes[n % BSG_CHANGES_KEPT];
    bsg_json_object(json, BSG_JSON_INLINE);
    bsg_json_member_int(json, "sequence", change->sequence);
    bsg_json_member_time(json, "time", change->when.unix_ms);
    bsg_json_member_string(json, "reason", bsg_reason_name(change->reason));
    bsg_json_member_string(json, "boundary", known(change->boundary));
    split_members(json, &change->split);
    bsg_json_member_string(json, "why", known(change->why));
    bsg_json_key(json, "trigger");
    if (change->has_trigger) {
      bsg_json_object(json, BSG_JSON_INLINE);
      bsg_json_member_string(json, "api", change->trigger.api);
      bsg_json_member_bytes(json, "bytes", change->trigger.bytes, 0);
      where_members(json, change->trigger.where);
      bsg_json_end(json);
    } else
      bsg_json_null(json);
    bsg_json_end(json);
  }
  bsg_json_end(json);
}

void bsg_report_json(const struct bsg_report *report, struct bsg_out *out) {
  struct bsg_json json;

  bsg_json_init(&json, out);
  bsg_json_object(&json, BSG_JSON_LINES);
  run_members(report, &json);
  bsg_report_json_verdict(report, &json);
  oom_object(report, &json);
  memory_object(report, &json);
  bsg_report_json_accounting(report, &json);
  others_object(report, &json);
  bsg_report_json_state(report, &json);
  bsg_report_json_fit(report, &json);
  bsg_report_json_groups(report, &json);
  holders_array(report, &json);
  sites_array(report, &json);
  bsg_report_json_modules(report, &json);
  bsg_report_json_fragmentation(report, &json);
  bsg_report_json_timeline(report, &json);
  bsg_report_json_growth(report, &json);
  decisions_array(report, &json);
  bsg_json_key(&json, "control");
  bsg_json_object(&json, BSG_JSON_INLINE);
  bsg_json_member_int(&json, "sequence", report->sequence);
  bsg_json_member_int(&json, "applied", report->applied_sequence);
  bsg_json_end(&json);
  bsg_json_key(&json, "totals");
  bsg_json_object(&json, BSG_JSON_INLINE);
  bsg_json_member_int(&json, "ooms", report->totals.ooms);
  bsg_json_member_int(&json, "absorbed", report->totals.absorbed);
  bsg_json_member_int(&json, "rescued_steps", report->totals.rescued_steps);
  bsg_json_member_int(&json, "unrescued", report->totals.unrescued);
  bsg_json_end(&json);
  bsg_report_json_advice(report, &json);
  bsg_report_json_notes(report, &json);
  bsg_json_end(&json);
  bsg_out_text(out, "\n");
}
