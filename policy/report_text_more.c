/* report_text_more.c - the sections of report.txt that explain: see report_text.c. */
#include "policy/report.h"
#include "policy/report_text.h"

static bool known(uint64_t bytes) {
  return bytes != BSG_BYTES_UNKNOWN;
}

void bsg_report_text_accounting(const struct bsg_report *report, struct bsg_out *out) {
  const struct bsg_accounting *accounting = &report->accounting;
  uint64_t sum = 0;

  bsg_out_text(out, "\nWhere the capacity is\n");
  if (!accounting->known) {
    bsg_out_text(out, "  not known\n");
    return;
  }
  for (int part = 0; part < BSG_PART_COUNT; part++) {
    uint64_t bytes = accounting->bytes[part];
    bool told = accounting->framework_told || part > BSG_PART_FRAMEWORK_CACHED;
    if (!told || (part == BSG_PART_NOT_TOLD_APART && bytes == 0))
      continue;
    bsg_out_format(out, "  %14llu  %3llu %%  %s", (unsigned long long)bytes,
                   (unsigned long long)(accounting->capacity_bytes ? bytes * 100 / accounting->capacity_bytes : 0),
                   bsg_part_label((enum bsg_part)part));
    bsg_out_text(out, part == BSG_PART_PROCESS_OTHER && !accounting->framework_told ? " and the framework's\n" : "\n");
    sum += bytes;
  }
  bsg_out_format(out, "  %14llu  capacity\n", (unsigned long long)sum);
}

void bsg_report_text_fit(const struct bsg_report *report, struct bsg_out *out) {
  const struct bsg_framework_told *framework = &report->oom->framework;
  const struct bsg_fit *fit = &report->fit;

  bsg_out_text(out, "\nThe fixed part and the part of each sample\n");
  if (framework->told && known(framework->parameter_bytes)) {
    bsg_out_text(out, "  weights ");
    bsg_out_size(out, framework->parameter_bytes);
    if (known(framework->gradient_bytes)) {
      bsg_out_text(out, ", gradients ");
      bsg_out_size(out, framework->gradient_bytes);
    }
    if (known(framework->optimizer_bytes)) {
      bsg_out_text(out, ", optimizer state ");
      bsg_out_size(out, framework->optimizer_bytes);
    }
    bsg_out_text(out, "\n");
  }
  if (!report->has_fit) {
    bsg_out_text(out, "  no fit: fewer than two sizes were measured\n");
    return;
  }
  bsg_out_text(out, "  peak = ");
  bsg_out_size(out, fit->fixed_bytes);
  bsg_out_text(out, " + ");
  bsg_out_size(out, fit->per_sample_bytes);
  bsg_out_format(out, " a sample, by %d points of the %s", report->point_count,
                 report->points_of_framework ? "framework" : "driver");
  if (fit->method == BSG_FIT_BASE_AND_PEAK)
    bsg_out_text(out, " (what is held between steps, and one size)");
  if (fit->error_permille >= 0)
    bsg_out_format(out, ", median error %lld.%lld %%", (long long)(fit->error_permille / 10),
                   (long long)(fit->error_permille % 10));
  bsg_out_text(out, "\n ");
  for (int i = 0; i < report->point_count; i++) {
    bsg_out_format(out, " %lld: ", (long long)report->points[i].micro_batch);
    bsg_out_size(out, report->points[i].peak_bytes);
    bsg_out_text(out, i + 1 < report->point_count ? "," : "\n");
  }
  if (report->fits >= 0) {
    bsg_out_format(out, "  largest micro-batch that fits: %lld (of ", (long long)report->fits);
    bsg_out_size(out, report->available_bytes);
    bsg_out_text(out, " that are this process's to use)\n");
  }
}

static void group_lines(const struct bsg_group_fact *list, int count, uint64_t total, struct bsg_out *out) {
  bsg_out_format(out, "  %14s  %5s  %8s  %-10s  %s\n", "bytes", "share", "pieces", "phase", "site");
  for (int i = 0; i < count; i++) {
    bsg_out_format(out, "  %14llu  %3llu %%  %8llu  %-10s  ", (unsigned long long)list[i].bytes,
                   (unsigned long long)(total ? list[i].bytes * 100 / total : 0), (unsigned long long)list[i].count,
                   bsg_phase_name(list[i].phase));
    if (list[i].site != BSG_NO_SITE)
      bsg_out_format(out, "%u\n", list[i].site);
    else
      bsg_out_text(out, "- (no stack was taken)\n");
  }
}

void bsg_report_text_groups(const struct bsg_report *report, struct bsg_out *out) {
  const struct bsg_census_fact *census = &report->oom->census;
  uint64_t listed = 0;

  if (!report->oom->has_census)
    return;
  for (int i = 0; i < census->group_count; i++)
    listed += census->groups[i].bytes;
  bsg_out_text(out, "\nWho holds it, by phase and site (");
  bsg_out_size(out, listed);
  bsg_out_text(out, " of ");
  bsg_out_size(out, census->total_bytes);
  bsg_out_format(out, " in %llu pieces; %llu %% with a stack)\n ", (unsigned long long)census->count,
                 (unsigned long long)(census->total_bytes ? census->with_site_bytes * 100 / census->total_bytes : 0));
  for (int phase = 0; phase < BSG_PHASES; phase++)
    if (census->phase_count[phase]) {
      bsg_out_format(out, " %s ", bsg_phase_name(phase));
      bsg_out_size(out, census->phase_bytes[phase]);
      bsg_out_text(out, ";");
    }
  bsg_out_text(out, "\n");
  group_lines(census->groups, census->group_count, census->total_bytes, out);
}

void bsg_report_text_fragmentation(const struct bsg_report *report, struct bsg_out *out) {
  const struct bsg_census_fact *census = &report->oom->census;

  bsg_out_text(out, "\nFragmentation\n  idle in the framework's cache: ");
  if (report->accounting.known && report->accounting.framework_told)
    bsg_out_size(out, report->accounting.bytes[BSG_PART_FRAMEWORK_CACHED]);
  else
    bsg_out_text(out, "not known");
  bsg_out_text(out, "\n  largest free piece: ");
  if (known(report->piece_below)) {
    bsg_out_text(out, "less than ");
    bsg_out_size(out, report->piece_below);
    bsg_out_format(out, " (%llu), by what was refused\n", (unsigned long long)report->piece_below);
  } else {
    bsg_out_text(out, "not known\n");
  }
  if (!report->oom->has_census || census->map_to <= census->map_from)
    return;
  bsg_out_text(out, "  map   [");
  for (int i = 0; i < BSG_MAP_CELLS; i++)
    bsg_out_format(out, "%c", census->map[i] ? '0' + census->map[i] : '.');
  bsg_out_text(out, "]\n  (");
  bsg_out_size(out, census->map_to - census->map_from);
  bsg_out_text(out, " of addresses; tenths of each cell that this process has allocated, . for none)\n");
}

void bsg_report_text_timeline(const struct bsg_report *report, struct bsg_out *out) {
  const struct bsg_history *history = report->history;

  if (!history || !history->rise_count)
    return;
  bsg_out_format(out, "\nHigh-water marks (%d of %lld)\n  %-24s  %14s  %8s  %s\n", history->rise_count,
                 (long long)history->rise_total, "time", "live bytes", "step", "phase");
  for (int i = 0; i < history->rise_count; i++) {
    const struct bsg_rise *rise = &history->rises[i];
    bsg_out_text(out, "  ");
    bsg_out_time(out, rise->when.unix_ms);
    bsg_out_format(out, "  %14llu  %8lld  %s\n", (unsigned long long)rise->mark.live_bytes,
                   (long long)rise->mark.where.step, bsg_phase_name(rise->mark.where.phase));
  }
}

void bsg_report_text_growth(const struct bsg_report *report, struct bsg_out *out) {
  static const char *const says[] = {
      [BSG_TREND_UNKNOWN] = "not known: too few steps",
      [BSG_TREND_FLAT] = "flat",
      [BSG_TREND_LEAK] = "what is held between steps keeps rising",
      [BSG_TREND_CACHE] = "what lies idle in the framework's cache keeps rising",
      [BSG_TREND_SHAPES] = "flat; the step that failed ran on an input of a shape that no step before had"};
  const struct bsg_snapshot *oom = report->oom;
  const struct bsg_growth *growth = &report->growth;

  bsg_out_text(out, "\nWhat grew\n  trend of the run: ");
  bsg_out_text(out, says[growth->trend]);
  if (growth->steps > 0) {
    bsg_out_text(out, " (from ");
    bsg_out_size(out, growth->first_bytes);
    bsg_out_text(out, " to ");
    bsg_out_size(out, growth->last_bytes);
    bsg_out_format(out, " in %lld steps)", (long long)growth->steps);
  }
  bsg_out_text(out, "\n");
  for (int i = 0; i < report->held_count; i++) {
    bsg_out_text(out, "  ");
    bsg_out_clean(out, report->held[i].what, sizeof(report->held[i].what));
    bsg_out_format(out, ": %llu tensors, ", (unsigned long long)report->held[i].tensors);
    bsg_out_size(out, report->held[i].bytes);
    if (report->held[i].with_graph)
      bsg_out_format(out, ", %llu with a graph", (unsigned long long)report->held[i].with_graph);
    bsg_out_text(out, "\n");
  }
  if (!oom->has_census || !oom->last_good_step)
    return;
  bsg_out_format(out, "  since step %lld, the last good one: ", (long long)oom->last_good_step);
  bsg_out_size(out, oom->census.since_bytes);
  bsg_out_text(out, " more from the driver\n");
  if (oom->census.since_count)
    group_lines(oom->census.since, oom->census.since_count, oom->census.since_bytes, out);
}

void bsg_report_text_advice(const struct bsg_report *report, struct bsg_out *out) {
  if (!report->advice_count)
    return;
  bsg_out_text(out, "\nWhat would help\n");
  for (int i = 0; i < report->advice_count; i++) {
    bsg_out_text(out, "  - ");
    bsg_out_text(out, report->advice[i].text);
    if (report->advice[i].source) {
      bsg_out_text(out, " [");
      bsg_out_text(out, report->advice[i].source);
      bsg_out_text(out, "]");
    }
    bsg_out_text(out, "\n");
  }
}

void bsg_report_text_notes(const struct bsg_report *report, struct bsg_out *out) {
  bsg_out_format(out, "\nVersions and settings\n  control.json: sequence %lld, taken up %lld\n",
                 (long long)report->sequence, (long long)report->applied_sequence);
  for (int i = 0; i < report->note_count; i++) {
    bsg_out_text(out, "  ");
    bsg_out_clean(out, report->notes[i].name, sizeof(report->notes[i].name));
    bsg_out_text(out, ": ");
    bsg_out_clean(out, report->notes[i].value, sizeof(report->notes[i].value));
    bsg_out_text(out, "\n");
  }
  for (int i = 0; i < report->module_count; i++) {
    bsg_out_text(out, "  ");
    bsg_out_clean(out, report->modules[i].path, sizeof(report->modules[i].path));
    bsg_out_text(out, report->modules[i].build_id[0] ? " " : " (no build-id)");
    bsg_out_text(out, report->modules[i].build_id);
    bsg_out_text(out, "\n");
  }
  if (report->missing_count)
    bsg_out_text(out, "\nWhat could not be recorded\n");
  for (int i = 0; i < report->missing_count; i++) {
    bsg_out_text(out, "  - ");
    bsg_out_text(out, report->missing[i]);
    bsg_out_text(out, "\n");
  }
}
