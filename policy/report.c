/* report.c - see report.h: what follows from what is known. */
#include "policy/report.h"

#include <string.h>

#include "policy/out.h"

const char *bsg_outcome_name(int outcome) {
  static const char *const names[] = {"open", "rescued", "unrescued"};
  return outcome >= 0 && outcome <= BSG_OUTCOME_UNRESCUED ? names[outcome] : "open";
}

const char *bsg_verdict_name(int verdict) {
  static const char *const names[] = {"keep", "shrink", "floor", "cannot"};
  return verdict >= 0 && verdict <= BSG_CANNOT ? names[verdict] : "none";
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

/* ---- advice: each piece has the figures that make it true ---- */

static struct bsg_out advise(struct bsg_report *report) {
  struct bsg_out out;

  bsg_out_buffer(&out, report->advice[report->advice_count++], BSG_ADVICE_ROOM);
  return out;
}

static void advise_floor(struct bsg_report *report) {
  const struct bsg_snapshot *oom = report->oom;

  if (oom->verdict != BSG_FLOOR)
    return;
  struct bsg_out out = advise(report);
  bsg_out_format(&out, "Batch %lld was run one sample at a time and still did not fit", (long long)oom->split.batch);
  if (report->live_bytes != BSG_BYTES_UNKNOWN) {
    bsg_out_text(&out, ": ");
    bsg_out_size(&out, report->live_bytes);
    bsg_out_text(&out, " are held by this process");
    if (report->capacity_bytes != BSG_BYTES_UNKNOWN) {
      bsg_out_text(&out, " of ");
      bsg_out_size(&out, report->capacity_bytes);
    }
  }
  bsg_out_text(&out,
               ". A smaller batch cannot help. What can: smaller inputs or model, lower precision (AMP), recompute, an "
               "optimizer with less state, a larger device.");
  bsg_out_string(&out);
}

static void advise_cannot(struct bsg_report *report) {
  const struct bsg_snapshot *oom = report->oom;
  int phase = oom->oom.trigger.where.phase;
  struct bsg_out out;

  if (oom->verdict != BSG_CANNOT)
    return;
  if (!bsg_phase_can_split(phase)) {
    out = advise(report);
    bsg_out_format(&out, "The memory was asked for in phase %s, whose need does not depend on the micro-batch.",
                   bsg_phase_name(phase));
    if (phase == BSG_PHASE_OPTIMIZER)
      bsg_out_text(&out, " An optimizer with less state, or a larger device, is the way out.");
  } else if (oom->exactness == BSG_REFUSED && oom->because[0]) {
    out = advise(report);
    bsg_out_clean(&out, oom->oom.boundary[0] ? oom->oom.boundary : "It", 80);
    bsg_out_text(&out, " was not split: ");
    bsg_out_clean(&out, oom->because, 200);
    bsg_out_text(&out, oom->split.batch > 1 ? ". A smaller batch, set by hand, is the way out." : ".");
  } else {
    return;
  }
  bsg_out_string(&out);
}

static void advise_memory(struct bsg_report *report) {
  const struct bsg_trigger *trigger = &report->oom->oom.trigger;
  struct bsg_out out;

  if (!trigger->api) {
    out = advise(report);
    bsg_out_text(&out, "No driver call was refused: the framework stopped at a limit of its own");
    if (report->free_bytes != BSG_BYTES_UNKNOWN) {
      bsg_out_text(&out, ", with ");
      bsg_out_size(&out, report->free_bytes);
      bsg_out_text(&out, " free on the device");
    }
    bsg_out_text(&out,
                 ". Look at FLAGS_gpu_memory_limit_mb, FLAGS_fraction_of_gpu_memory_to_use and pools set up before.");
    bsg_out_string(&out);
  }
  if (trigger->api && trigger->bytes && report->free_bytes != BSG_BYTES_UNKNOWN &&
      report->free_bytes >= trigger->bytes) {
    out = advise(report);
    bsg_out_text(&out, "The driver refused ");
    bsg_out_size(&out, trigger->bytes);
    bsg_out_text(&out, " with ");
    bsg_out_size(&out, report->free_bytes);
    bsg_out_text(&out, " free: the free memory is in pieces, or a limit is set on this process (MPS, MIG, container).");
    bsg_out_string(&out);
  }
  if (trigger->bytes && report->elsewhere_bytes != BSG_BYTES_UNKNOWN && report->free_bytes != BSG_BYTES_UNKNOWN &&
      report->free_bytes < trigger->bytes && report->elsewhere_bytes >= trigger->bytes - report->free_bytes) {
    out = advise(report);
    bsg_out_size(&out, report->elsewhere_bytes);
    bsg_out_text(&out,
                 " of the device are used but were not allocated by this process through the driver: other processes "
                 "on the device, or the driver's own. ");
    bsg_out_size(&out, trigger->bytes - report->free_bytes);
    bsg_out_text(&out, " more would have been enough for this request");
    if (!report->oom->has_others)
      bsg_out_text(&out, "; look with nvidia-smi who else is there.");
    else if (report->oom->others.count)
      bsg_out_text(&out, "; the processes that NVML names are listed above.");
    else
      bsg_out_text(&out, "; NVML names no other process.");
    bsg_out_string(&out);
  }
}

static void advise_reasons(struct bsg_report *report) {
  for (int i = 0; i < report->reason_count && report->advice_count < BSG_ADVICE_MOST; i++) {
    if (strcmp(report->reasons[i].boundary, report->oom->oom.boundary) != 0 || report->oom->verdict == BSG_SHRINK ||
        strcmp(report->reasons[i].why, report->oom->because) == 0)
      continue;
    struct bsg_out out = advise(report);
    bsg_out_clean(&out, report->reasons[i].boundary[0] ? report->reasons[i].boundary : "The model", 80);
    bsg_out_text(&out, " was left alone: ");
    bsg_out_clean(&out, report->reasons[i].why, 240);
    bsg_out_text(&out, ".");
    bsg_out_string(&out);
  }
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

  report->others_bytes = 0;
  for (int i = 0; oom->has_others && i < oom->others.listed; i++)
    if (oom->others.list[i].bytes != BSG_BYTES_UNKNOWN)
      report->others_bytes += oom->others.list[i].bytes;

  report->advice_count = 0;
  advise_floor(report);
  advise_cannot(report);
  advise_memory(report);
  advise_reasons(report);
}

bool bsg_report_site(const struct bsg_report *report, uint32_t site, struct bsg_site_fact *out) {
  const struct bsg_evidence *evidence = report->evidence;

  if (site == BSG_NO_SITE || !evidence->site || evidence->site(evidence->context, site, out) != 0)
    return false;
  if (out->frames > BSG_MAX_FRAMES)
    out->frames = BSG_MAX_FRAMES;
  return out->frames > 0;
}

bool bsg_report_frame(const struct bsg_report *report, const struct bsg_site_fact *site, int frame, char *out,
                      size_t room) {
  const struct bsg_evidence *evidence = report->evidence;
  struct bsg_out text;

  if (frame >= site->frames)
    return false;
  out[0] = '\0';
  if (evidence->symbol && evidence->symbol(evidence->context, site->pc[frame], out, room) > 0 && out[0])
    return true;
  bsg_out_buffer(&text, out, room);
  bsg_out_format(&text, "0x%llx", (unsigned long long)site->pc[frame]);
  bsg_out_string(&text);
  return true;
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
