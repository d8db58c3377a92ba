/* report_json_more.c - the parts of report.json that explain: see report_json.c and docs/formats/. */
#include "policy/json_write.h"
#include "policy/report.h"
#include "policy/report_json.h"

void bsg_report_json_verdict(const struct bsg_report *report, struct bsg_json *json) {
  bsg_json_key(json, "verdict");
  bsg_json_object(json, BSG_JSON_LINES);
  bsg_json_member_string(json, "outcome", report->oom->met ? bsg_outcome_name(report->oom->outcome) : "none");
  bsg_json_member_string(json, "cause", bsg_cause_name(report->culprit.cause));
  bsg_json_member_string(json, "culprit", report->who[0] ? report->who : NULL);
  bsg_json_member_bytes(json, "cause_bytes", report->culprit.bytes, BSG_BYTES_UNKNOWN);
  bsg_json_member_known(json, "fits_micro_batch", report->fits_matters ? report->fits : -1, -1);
  bsg_json_end(json);
}

void bsg_report_json_accounting(const struct bsg_report *report, struct bsg_json *json) {
  const struct bsg_accounting *accounting = &report->accounting;
  uint64_t sum = 0;

  bsg_json_key(json, "accounting");
  if (!accounting->known) {
    bsg_json_null(json);
    return;
  }
  bsg_json_object(json, BSG_JSON_LINES);
  bsg_json_member_uint(json, "capacity_bytes", accounting->capacity_bytes);
  bsg_json_key(json, "parts");
  bsg_json_array(json, BSG_JSON_LINES);
  for (int part = 0; part < BSG_PART_COUNT; part++) {
    bsg_json_object(json, BSG_JSON_INLINE);
    bsg_json_member_string(json, "part", bsg_part_name((enum bsg_part)part));
    bsg_json_member_uint(json, "bytes", accounting->bytes[part]);
    bsg_json_end(json);
    sum += accounting->bytes[part];
  }
  bsg_json_end(json);
  bsg_json_member_uint(json, "sum_bytes", sum);
  bsg_json_member_bool(json, "framework_told", accounting->framework_told);
  bsg_json_end(json);
}

void bsg_report_json_state(const struct bsg_report *report, struct bsg_json *json) {
  const struct bsg_framework_told *framework = &report->oom->framework;

  bsg_json_key(json, "state");
  if (!framework->told) {
    bsg_json_null(json);
    return;
  }
  bsg_json_object(json, BSG_JSON_INLINE);
  bsg_json_member_bytes(json, "parameter_bytes", framework->parameter_bytes, BSG_BYTES_UNKNOWN);
  bsg_json_member_bytes(json, "gradient_bytes", framework->gradient_bytes, BSG_BYTES_UNKNOWN);
  bsg_json_member_bytes(json, "optimizer_bytes", framework->optimizer_bytes, BSG_BYTES_UNKNOWN);
  bsg_json_end(json);
}

void bsg_report_json_fit(const struct bsg_report *report, struct bsg_json *json) {
  const struct bsg_fit *fit = &report->fit;
  const struct bsg_oom_record *oom = &report->oom->oom;

  bsg_json_key(json, "fit");
  if (!report->has_fit) {
    bsg_json_null(json);
    return;
  }
  bsg_json_object(json, BSG_JSON_LINES);
  bsg_json_member_string(json, "boundary", oom->boundary[0] ? oom->boundary : NULL);
  bsg_json_member_string(json, "signature", oom->signature[0] ? oom->signature : NULL);
  bsg_json_member_string(json, "method", bsg_fit_method_name(fit->method));
  bsg_json_member_string(json, "peaks_of", report->points_of_framework ? "framework" : "driver");
  bsg_json_key(json, "points");
  bsg_json_array(json, BSG_JSON_LINES);
  for (int i = 0; i < report->point_count; i++) {
    bsg_json_object(json, BSG_JSON_INLINE);
    bsg_json_member_int(json, "micro_batch", report->points[i].micro_batch);
    bsg_json_member_uint(json, "peak_bytes", report->points[i].peak_bytes);
    bsg_json_member_int(json, "steps", report->points[i].steps);
    bsg_json_end(json);
  }
  bsg_json_end(json);
  bsg_json_member_uint(json, "fixed_bytes", fit->fixed_bytes);
  bsg_json_member_uint(json, "per_sample_bytes", fit->per_sample_bytes);
  bsg_json_member_uint(json, "margin_bytes", fit->margin_bytes);
  bsg_json_member_known(json, "error_permille", fit->error_permille, -1);
  bsg_json_member_bytes(json, "available_bytes", report->available_bytes, BSG_BYTES_UNKNOWN);
  bsg_json_member_known(json, "largest_micro_batch", report->fits, -1);
  bsg_json_end(json);
}

static void groups(const struct bsg_group_fact *list, int count, bool steps, struct bsg_json *json) {
  bsg_json_array(json, BSG_JSON_LINES);
  for (int i = 0; i < count; i++) {
    bsg_json_object(json, BSG_JSON_INLINE);
    bsg_json_member_known(json, "site", list[i].site, BSG_NO_SITE);
    bsg_json_member_string(json, "phase", bsg_phase_name(list[i].phase));
    bsg_json_member_uint(json, "bytes", list[i].bytes);
    bsg_json_member_uint(json, "allocations", list[i].count);
    if (steps) {
      bsg_json_member_known(json, "first_step", list[i].first_step, 0);
      bsg_json_member_known(json, "last_step", list[i].last_step, 0);
    }
    bsg_json_end(json);
  }
  bsg_json_end(json);
}

void bsg_report_json_groups(const struct bsg_report *report, struct bsg_json *json) {
  const struct bsg_census_fact *census = &report->oom->census;
  uint64_t listed = 0;

  bsg_json_key(json, "groups");
  if (!report->oom->has_census) {
    bsg_json_null(json);
    return;
  }
  for (int i = 0; i < census->group_count; i++)
    listed += census->groups[i].bytes;
  bsg_json_object(json, BSG_JSON_LINES);
  bsg_json_member_uint(json, "total_bytes", census->total_bytes);
  bsg_json_member_uint(json, "listed_bytes", listed);
  bsg_json_member_uint(json, "with_site_bytes", census->with_site_bytes);
  bsg_json_key(json, "phases");
  bsg_json_array(json, BSG_JSON_LINES);
  for (int phase = 0; phase < BSG_PHASES; phase++) {
    if (census->phase_count[phase] == 0)
      continue;
    bsg_json_object(json, BSG_JSON_INLINE);
    bsg_json_member_string(json, "phase", bsg_phase_name(phase));
    bsg_json_member_uint(json, "bytes", census->phase_bytes[phase]);
    bsg_json_member_uint(json, "allocations", census->phase_count[phase]);
    bsg_json_end(json);
  }
  bsg_json_end(json);
  bsg_json_key(json, "rows");
  groups(census->groups, census->group_count, true, json);
  bsg_json_end(json);
}

void bsg_report_json_fragmentation(const struct bsg_report *report, struct bsg_json *json) {
  const struct bsg_census_fact *census = &report->oom->census;
  bool told = report->accounting.known && report->accounting.framework_told;
  char cells[BSG_MAP_CELLS + 1] = {0};

  bsg_json_key(json, "fragmentation");
  bsg_json_object(json, BSG_JSON_LINES);
  bsg_json_member_bytes(json, "idle_in_framework_bytes",
                        told ? report->accounting.bytes[BSG_PART_FRAMEWORK_CACHED] : BSG_BYTES_UNKNOWN,
                        BSG_BYTES_UNKNOWN);
  bsg_json_member_bytes(json, "largest_free_piece_below_bytes", report->piece_below, BSG_BYTES_UNKNOWN);
  bsg_json_member_bytes(json, "largest_free_piece_at_least_bytes", report->piece_at_least, BSG_BYTES_UNKNOWN);
  bsg_json_key(json, "map");
  if (!report->oom->has_census || census->map_to <= census->map_from) {
    bsg_json_null(json);
  } else {
    for (int i = 0; i < BSG_MAP_CELLS; i++)
      cells[i] = census->map[i] ? (char)('0' + census->map[i]) : '.';
    bsg_json_object(json, BSG_JSON_INLINE);
    bsg_json_member_uint(json, "from", census->map_from);
    bsg_json_member_uint(json, "to", census->map_to);
    bsg_json_member_string(json, "cells", cells);
    bsg_json_end(json);
  }
  bsg_json_end(json);
}

void bsg_report_json_timeline(const struct bsg_report *report, struct bsg_json *json) {
  const struct bsg_history *history = report->history;

  bsg_json_member_int(json, "timeline_total", history ? history->rise_total : 0);
  bsg_json_key(json, "timeline");
  bsg_json_array(json, BSG_JSON_LINES);
  for (int i = 0; history && i < history->rise_count; i++) {
    const struct bsg_rise *rise = &history->rises[i];
    bsg_json_object(json, BSG_JSON_INLINE);
    bsg_json_member_time(json, "time", rise->when.unix_ms);
    bsg_json_member_int(json, "mono_ns", rise->when.mono_ns);
    bsg_json_member_int(json, "device", rise->mark.device);
    bsg_json_member_known(json, "step", rise->mark.where.step, 0);
    bsg_json_member_string(json, "phase", bsg_phase_name(rise->mark.where.phase));
    bsg_json_member_uint(json, "live_bytes", rise->mark.live_bytes);
    bsg_json_member_uint(json, "peak_bytes", rise->mark.peak_bytes);
    bsg_json_member_bytes(json, "request_bytes", rise->mark.request_bytes, 0);
    bsg_json_member_known(json, "site", rise->mark.site, BSG_NO_SITE);
    bsg_json_end(json);
  }
  bsg_json_end(json);
}

void bsg_report_json_growth(const struct bsg_report *report, struct bsg_json *json) {
  const struct bsg_snapshot *oom = report->oom;
  const struct bsg_growth *growth = &report->growth;
  bool compared = growth->steps > 0;

  bsg_json_key(json, "growth");
  bsg_json_object(json, BSG_JSON_LINES);
  bsg_json_member_known(json, "last_good_step", oom->last_good_step, 0);
  bsg_json_member_bytes(json, "since_bytes", oom->has_census ? oom->census.since_bytes : BSG_BYTES_UNKNOWN,
                        BSG_BYTES_UNKNOWN);
  bsg_json_key(json, "since");
  groups(oom->census.since, oom->has_census ? oom->census.since_count : 0, false, json);
  bsg_json_member_string(json, "trend", bsg_trend_name(growth->trend));
  bsg_json_member_int(json, "steps", growth->steps);
  bsg_json_member_bytes(json, "held_first_bytes", compared ? growth->first_bytes : BSG_BYTES_UNKNOWN,
                        BSG_BYTES_UNKNOWN);
  bsg_json_member_bytes(json, "held_last_bytes", compared ? growth->last_bytes : BSG_BYTES_UNKNOWN, BSG_BYTES_UNKNOWN);
  if (compared)
    bsg_json_member_int(json, "bytes_per_step", growth->bytes_per_step);
  else
    bsg_json_member_null(json, "bytes_per_step");
  bsg_json_end(json);

  bsg_json_key(json, "held");
  bsg_json_array(json, BSG_JSON_LINES);
  for (int i = 0; i < report->held_count; i++) {
    bsg_json_object(json, BSG_JSON_INLINE);
    bsg_json_member_string(json, "what", report->held[i].what);
    bsg_json_member_uint(json, "tensors", report->held[i].tensors);
    bsg_json_member_uint(json, "with_graph", report->held[i].with_graph);
    bsg_json_member_uint(json, "bytes", report->held[i].bytes);
    bsg_json_end(json);
  }
  bsg_json_end(json);
}

void bsg_report_json_modules(const struct bsg_report *report, struct bsg_json *json) {
  bsg_json_key(json, "modules");
  bsg_json_array(json, BSG_JSON_LINES);
  for (int i = 0; i < report->module_count; i++) {
    bsg_json_object(json, BSG_JSON_INLINE);
    bsg_json_member_string(json, "path", report->modules[i].path);
    bsg_json_member_string(json, "build_id", report->modules[i].build_id[0] ? report->modules[i].build_id : NULL);
    bsg_json_end(json);
  }
  bsg_json_end(json);
}

void bsg_report_json_notes(const struct bsg_report *report, struct bsg_json *json) {
  bsg_json_key(json, "notes");
  bsg_json_object(json, BSG_JSON_LINES);
  for (int i = 0; i < report->note_count; i++)
    bsg_json_member_string(json, report->notes[i].name, report->notes[i].value);
  bsg_json_end(json);
  bsg_json_key(json, "missing");
  bsg_json_array(json, BSG_JSON_LINES);
  for (int i = 0; i < report->missing_count; i++)
    bsg_json_string(json, report->missing[i]);
  bsg_json_end(json);
}

void bsg_report_json_advice(const struct bsg_report *report, struct bsg_json *json) {
  bsg_json_key(json, "advice");
  bsg_json_array(json, BSG_JSON_LINES);
  for (int i = 0; i < report->advice_count; i++) {
    bsg_json_object(json, BSG_JSON_INLINE);
    bsg_json_member_string(json, "measure", report->advice[i].measure);
    bsg_json_member_string(json, "text", report->advice[i].text);
    bsg_json_member_string(json, "source", report->advice[i].source);
    bsg_json_end(json);
  }
  bsg_json_end(json);
}
