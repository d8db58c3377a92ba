/* report.c - see report.h: what follows from what is known. */
#include "policy/report.h"

#include <string.h>

#include "policy/out.h"

const char *bsg_outcome_name(int outcome) {
  static const char *const names[] = {"open", "rescued", "unrescued"};
  return outcome >= 0 && outcome <= BSG_OUTCOME_UNRESCUED ? names[outcome] : "open";
}

const char *bsg_verdict_name(int verdict) {
  static const char *const names[] = {"keep", "shrink", "floor", "cannot", "again"};
  return verdict >= 0 && verdict <= BSG_AGAIN ? names[verdict] : "none";
}

static void add_site(struct bsg_report *report, uint32_t site) {
  if (site == BSG_NO_SITE)
    return;
  for (int i = 0; i < report->site_count; i++)
    if (report->sites[i] == site)
      return;
  if (report->site_count < BSG_REPORT_SITES)
    report->sites[report->site_count++] = site;
}

void bsg_report_ask_others(struct bsg_snapshot *oom, const struct bsg_evidence *evidence) {
  struct bsg_others_fact *others = &oom->others;

  if (oom->others_asked)
    return;
  oom->others_asked = true;
  oom->has_others = evidence->others && evidence->others(evidence->context, oom->oom.trigger.device, others) == 0;
  if (others->listed > BSG_MAX_OTHERS)
    others->listed = BSG_MAX_OTHERS;
}

static uint64_t told(const struct bsg_report *report, uint64_t bytes) {
  return report->oom->framework.told ? bytes : BSG_BYTES_UNKNOWN;
}

static uint64_t idle_bytes(const struct bsg_report *report) {
  return report->accounting.known && report->accounting.framework_told
             ? report->accounting.bytes[BSG_PART_FRAMEWORK_CACHED]
             : BSG_BYTES_UNKNOWN;
}

static void account(struct bsg_report *report) {
  const struct bsg_snapshot *oom = report->oom;
  struct bsg_accounting_input input = {.capacity_bytes = report->capacity_bytes,
                                       .free_bytes = report->free_bytes,
                                       .live_bytes = report->live_bytes,
                                       .allocated_bytes = told(report, oom->framework.allocated_bytes),
                                       .reserved_bytes = told(report, oom->framework.reserved_bytes),
                                       .others = oom->has_others ? &oom->others : NULL};
  uint64_t idle;

  bsg_account(&input, &report->accounting);
  report->piece_below = report->piece_at_least = BSG_BYTES_UNKNOWN;
  if (!oom->met || !oom->oom.trigger.api || oom->oom.trigger.bytes == 0)
    return;
  /* That it was refused says how large a piece there was not; whatever is idle is in pieces of its own. */
  idle = idle_bytes(report);
  if (report->free_bytes != BSG_BYTES_UNKNOWN) {
    report->piece_below = report->free_bytes < oom->oom.trigger.bytes ? report->free_bytes + 1 : oom->oom.trigger.bytes;
    if (idle != BSG_BYTES_UNKNOWN && idle >= report->piece_below)
      report->piece_below = idle < oom->oom.trigger.bytes ? idle + 1 : oom->oom.trigger.bytes;
  }
}

/* What a step of this process may take: the capacity less what is not its own, and less what the framework needs
 * besides what it has in use. */
static uint64_t available(const struct bsg_report *report) {
  const struct bsg_framework_told *framework = &report->oom->framework;
  const uint64_t *part = report->accounting.bytes;
  uint64_t bytes = report->capacity_bytes, taken;

  if (!report->accounting.known)
    return BSG_BYTES_UNKNOWN;
  taken = part[BSG_PART_DRIVER] + part[BSG_PART_OTHER_PROCESSES] + part[BSG_PART_NOT_TOLD_APART];
  if (report->accounting.framework_told && report->points_of_framework) {
    taken += part[BSG_PART_PROCESS_OTHER];
    if (framework->reserved_peak_bytes != BSG_BYTES_UNKNOWN && framework->allocated_peak_bytes != BSG_BYTES_UNKNOWN &&
        framework->reserved_peak_bytes > framework->allocated_peak_bytes)
      taken += framework->reserved_peak_bytes - framework->allocated_peak_bytes;
  }
  return bytes > taken ? bytes - taken : 0;
}

static void fit(struct bsg_report *report) {
  report->fits = -1;
  report->point_count = 0;
  report->has_fit = false;
  if (!report->history)
    return;
  report->point_count =
      bsg_history_points(report->history, report->oom->input, report->points, &report->points_of_framework);
  report->has_fit = bsg_fit_solve(report->points, report->point_count, &report->fit) == 0;
  report->available_bytes = available(report);
  if (report->has_fit && report->available_bytes != BSG_BYTES_UNKNOWN)
    report->fits = bsg_fit_largest(&report->fit, report->available_bytes);
}

static void kept(struct bsg_report *report) {
  report->kept_graphs = report->kept_data = 0;
  for (int i = 0; i < report->held_count; i++) {
    report->kept_graphs += report->held[i].with_graph;
    report->kept_data += report->held[i].tensors - report->held[i].with_graph;
  }
}

/* The culprit in words, where it has a name. */
static void name_it(struct bsg_report *report) {
  const struct bsg_snapshot *oom = report->oom;
  struct bsg_out out;

  bsg_out_buffer(&out, report->who, sizeof(report->who));
  switch (report->culprit.cause) {
  case BSG_CAUSE_OTHER_PROCESS:
    if (!oom->has_others || !oom->others.listed)
      break;
    bsg_out_format(&out, "process %lld", (long long)oom->others.list[0].pid);
    if (oom->others.list[0].name[0]) {
      bsg_out_text(&out, " ");
      bsg_out_clean(&out, oom->others.list[0].name, sizeof(oom->others.list[0].name));
    }
    break;
  case BSG_CAUSE_LEAK:
  case BSG_CAUSE_GROWING_CACHE:
    if (report->held_count)
      bsg_out_clean(&out, report->held[0].what, sizeof(report->held[0].what));
    break;
  case BSG_CAUSE_ONE_REQUEST:
  case BSG_CAUSE_ACTIVATIONS:
  case BSG_CAUSE_EVALUATION:
    bsg_out_clean(&out, oom->oom.boundary, BSG_BOUNDARY_ROOM);
    break;
  default:
    break;
  }
  bsg_out_string(&out);
}

static void blame(struct bsg_report *report) {
  const struct bsg_snapshot *oom = report->oom;
  const struct bsg_framework_told *framework = &oom->framework;
  struct bsg_culprit_input input = {.driver_refused = oom->oom.trigger.api != NULL,
                                    .phase = oom->oom.trigger.where.phase,
                                    .micro_batch = oom->split.micro_batch,
                                    .at_the_floor = oom->verdict == BSG_FLOOR,
                                    .request_bytes = oom->oom.trigger.bytes,
                                    .capacity_bytes = report->capacity_bytes,
                                    .free_bytes = report->free_bytes,
                                    .live_bytes = report->live_bytes,
                                    .allocated_bytes = told(report, framework->allocated_bytes),
                                    .idle_bytes = idle_bytes(report),
                                    .others_bytes = oom->has_others && oom->others.own_seen && report->others_bytes
                                                        ? report->others_bytes
                                                        : BSG_BYTES_UNKNOWN,
                                    .elsewhere_bytes = report->elsewhere_bytes,
                                    .parameter_bytes = told(report, framework->parameter_bytes),
                                    .gradient_bytes = told(report, framework->gradient_bytes),
                                    .optimizer_bytes = told(report, framework->optimizer_bytes),
                                    .growth = &report->growth,
                                    .fit = report->has_fit ? &report->fit : NULL};

  report->fits_matters = !oom->met;
  report->growth = (struct bsg_growth){0};
  report->culprit = (struct bsg_culprit){BSG_CAUSE_NONE, BSG_BYTES_UNKNOWN};
  report->who[0] = '\0';
  if (report->history)
    bsg_history_trend(report->history, report->capacity_bytes, oom->met && oom->new_input, &report->growth);
  kept(report);
  input.kept_graphs = report->kept_graphs;
  input.kept_data = report->kept_data;
  if (!oom->met)
    return;
  bsg_culprit_find(&input, &report->culprit);
  name_it(report);
  report->fits_matters = report->culprit.cause == BSG_CAUSE_ACTIVATIONS;
  /* It did not fit at this size, whatever a line says. */
  if (report->culprit.cause == BSG_CAUSE_ACTIVATIONS && oom->split.micro_batch > 0 &&
      report->fits >= oom->split.micro_batch)
    report->fits = oom->split.micro_batch - 1;
}

bool bsg_report_site(const struct bsg_report *report, uint32_t site, struct bsg_site_fact *out) {
  const struct bsg_evidence *evidence = report->evidence;

  if (site == BSG_NO_SITE || !evidence->site || evidence->site(evidence->context, site, out) != 0)
    return false;
  if (out->frames > BSG_MAX_FRAMES)
    out->frames = BSG_MAX_FRAMES;
  return out->frames > 0;
}

/* Where an address is among the frames, or where it would be. */
static int place_of(const struct bsg_report *report, uint64_t pc) {
  int low = 0, high = report->frame_count;

  while (low < high) {
    int middle = (low + high) / 2;
    if (report->frames[middle].pc < pc)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

const struct bsg_frame_fact *bsg_report_frame(const struct bsg_report *report, uint64_t pc) {
  int at = place_of(report, pc);

  return at < report->frame_count && report->frames[at].pc == pc && report->frames[at].text[0] ? &report->frames[at]
                                                                                               : NULL;
}

/* All at once: to name an address its library's symbols are read through, which takes a while. */
static void name_frames(struct bsg_report *report) {
  const struct bsg_evidence *evidence = report->evidence;
  struct bsg_site_fact site;

  report->frame_count = report->module_count = 0;
  for (int i = 0; i < report->site_count; i++) {
    if (!bsg_report_site(report, report->sites[i], &site))
      continue;
    for (int n = 0; n < site.frames; n++) {
      int at = place_of(report, site.pc[n]);
      if ((at < report->frame_count && report->frames[at].pc == site.pc[n]) || report->frame_count == BSG_MOST_FRAMES)
        continue;
      memmove(&report->frames[at + 1], &report->frames[at],
              (size_t)(report->frame_count - at) * sizeof(report->frames[0]));
      report->frames[at] = (struct bsg_frame_fact){.pc = site.pc[n], .module = -1};
      report->frame_count++;
    }
  }
  if (evidence->frames)
    report->module_count =
        evidence->frames(evidence->context, report->frames, report->frame_count, report->modules, BSG_MOST_MODULES);
}

void bsg_report_complete(struct bsg_report *report) {
  const struct bsg_snapshot *oom = report->oom;

  report->capacity_bytes = oom->has_memory  ? oom->memory.total_bytes
                           : report->device ? report->device->total_bytes
                                            : BSG_BYTES_UNKNOWN;
  /* At the refused call where there was one: what was free a moment later is another figure. */
  report->free_bytes = oom->oom.free_bytes != BSG_BYTES_UNKNOWN ? oom->oom.free_bytes
                       : oom->has_memory                        ? oom->memory.free_bytes
                                                                : BSG_BYTES_UNKNOWN;
  report->live_bytes = oom->oom.live_bytes != BSG_BYTES_UNKNOWN ? oom->oom.live_bytes
                       : oom->has_memory                        ? oom->memory.live_bytes
                                                                : BSG_BYTES_UNKNOWN;
  report->peak_bytes = oom->has_memory ? oom->memory.peak_bytes : BSG_BYTES_UNKNOWN;
  report->elsewhere_bytes = BSG_BYTES_UNKNOWN;
  if (report->capacity_bytes != BSG_BYTES_UNKNOWN && report->free_bytes != BSG_BYTES_UNKNOWN &&
      report->live_bytes != BSG_BYTES_UNKNOWN && report->free_bytes <= report->capacity_bytes) {
    uint64_t used = report->capacity_bytes - report->free_bytes;
    report->elsewhere_bytes = used > report->live_bytes ? used - report->live_bytes : 0;
  }

  report->holders_bytes = 0;
  report->site_count = 0;
  add_site(report, oom->oom.trigger.site);
  for (int i = 0; i < oom->holder_count; i++) {
    report->holders_bytes += oom->holders[i].bytes;
    add_site(report, oom->holders[i].site);
  }
  for (int i = 0; oom->has_census && i < oom->census.group_count; i++)
    add_site(report, oom->census.groups[i].site);
  for (int i = 0; oom->has_census && i < oom->census.since_count; i++)
    add_site(report, oom->census.since[i].site);

  report->others_bytes = 0;
  for (int i = 0; oom->has_others && i < oom->others.listed; i++)
    if (oom->others.list[i].bytes != BSG_BYTES_UNKNOWN)
      report->others_bytes += oom->others.list[i].bytes;

  name_frames(report);
  account(report);
  fit(report);
  blame(report);
  bsg_report_advise(report);
  bsg_report_miss(report);
}

static int write_one(const struct bsg_report *report, struct bsg_runfolder *folder, const char *name,
                     void (*writer)(const struct bsg_report *, struct bsg_out *)) {
  struct bsg_replacement file;
  struct bsg_out out;
  char buffer[4096];
  int error = bsg_replacement_open(&file, folder, name);

  if (error)
    return error;
  bsg_out_through(&out, buffer, sizeof(buffer), bsg_replacement_write, &file);
  writer(report, &out);
  return bsg_replacement_close(&file, bsg_out_finish(&out));
}

int bsg_report_write(const struct bsg_report *report, struct bsg_runfolder *folder) {
  int json = write_one(report, folder, "report.json", bsg_report_json);
  int text = write_one(report, folder, "report.txt", bsg_report_text);

  return text ? text : json;
}
