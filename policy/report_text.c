/*
 * report_text.c - report.txt, for a person: first a line for grep, then what was asked for, who holds the memory, where
 * from, what was tried, and what would help. Sizes in both MiB/GiB and bytes.
 */
#include <string.h>

#include "policy/report.h"
#include "policy/report_text.h"

#include "shim/bsguard.h"

#define FRAMES_OF_OTHERS 10 /* of sites other than the request's own */

static const char *const cause_words[BSG_CAUSE_COUNT] = {
    [BSG_CAUSE_NONE] = "nothing ran out",
    [BSG_CAUSE_FRAMEWORK_LIMIT] = "the framework stopped at a limit of its own",
    [BSG_CAUSE_OTHER_PROCESS] = "another process holds the memory that was missing",
    [BSG_CAUSE_FRAGMENTATION] = "there is enough idle memory, but in pieces that are too small",
    [BSG_CAUSE_ONE_REQUEST] = "one request alone is huge",
    [BSG_CAUSE_LEAK] = "something keeps more memory with each step",
    [BSG_CAUSE_GROWING_CACHE] = "data that the program keeps grows with each step",
    [BSG_CAUSE_OPTIMIZER_STATE] = "the state of the optimizer does not fit",
    [BSG_CAUSE_FIXED_PART] = "the fixed part (weights, gradients, optimizer state) fills the device",
    [BSG_CAUSE_EVALUATION] = "the evaluation needs more than is left",
    [BSG_CAUSE_ACTIVATIONS] = "a step of this batch needs more than the device has",
    [BSG_CAUSE_UNKNOWN] = "the cause is not known"};

static void size_line(struct bsg_out *out, const char *label, uint64_t bytes) {
  bsg_out_format(out, "  %-22s", label);
  if (bytes == BSG_BYTES_UNKNOWN) {
    bsg_out_text(out, "not known\n");
    return;
  }
  bsg_out_size(out, bytes);
  bsg_out_format(out, " (%llu)\n", (unsigned long long)bytes);
}

static void pair(struct bsg_out *out, const char *key, uint64_t value, uint64_t not_known) {
  if (value == not_known)
    bsg_out_format(out, " %s=unknown", key);
  else
    bsg_out_format(out, " %s=%llu", key, (unsigned long long)value);
}

/* Without a blank, so that the line splits at blanks. */
static void word(struct bsg_out *out, const char *text) {
  for (; *text; text++)
    bsg_out_bytes(out, *text == ' ' || *text == '=' || *text == '"' ? "_" : text, 1);
}

static void verdict_line(const struct bsg_report *report, struct bsg_out *out) {
  const struct bsg_snapshot *oom = report->oom;
  const struct bsg_trigger *trigger = &oom->oom.trigger;

  bsg_out_format(out, "verdict=%s cause=%s culprit=", oom->met ? bsg_outcome_name(oom->outcome) : "none",
                 bsg_cause_name(report->culprit.cause));
  word(out, report->who[0] ? report->who : "unknown");
  bsg_out_format(out, " answer=%s device=%d phase=%s", bsg_verdict_name(oom->verdict), trigger->device,
                 bsg_phase_name(trigger->where.phase));
  pair(out, "step", (uint64_t)trigger->where.step, 0);
  bsg_out_format(out, " api=%s", trigger->api ? trigger->api : "none");
  pair(out, "request_bytes", trigger->bytes, 0);
  pair(out, "free_bytes", report->free_bytes, BSG_BYTES_UNKNOWN);
  pair(out, "live_bytes", report->live_bytes, BSG_BYTES_UNKNOWN);
  pair(out, "capacity_bytes", report->capacity_bytes, BSG_BYTES_UNKNOWN);
  pair(out, "batch", (uint64_t)oom->split.batch, 0);
  pair(out, "micro_batch", (uint64_t)oom->split.micro_batch, 0);
  if (report->fits >= 0 && report->fits_matters)
    bsg_out_format(out, " fits_micro_batch=%lld", (long long)report->fits);
  bsg_out_format(out, " ooms=%lld rescued_steps=%lld decisions=%lld\n", (long long)report->totals.ooms,
                 (long long)report->totals.rescued_steps, (long long)report->change_total);
}

static void run_section(const struct bsg_report *report, struct bsg_out *out) {
  bsg_out_format(out, "\nRun\n  bsguard " BSG_VERSION " (%s), pid %d", bsg_mode_name(report->mode), report->pid);
  if (report->rank >= 0)
    bsg_out_format(out, ", rank %d", report->rank);
  bsg_out_text(out, "\n  command    ");
  bsg_out_clean(out, report->command[0] ? report->command : "not known", 200);
  bsg_out_text(out, "\n  framework  ");
  bsg_out_clean(out, report->framework[0] ? report->framework : "none attached", 80);
  if (report->device) {
    bsg_out_format(out, "\n  device     gpu:%d ", report->device->device);
    bsg_out_clean(out, report->device->name, 90);
    if (report->device->driver_version)
      bsg_out_format(out, ", driver %d.%d", report->device->driver_version / 1000,
                     report->device->driver_version % 1000 / 10);
  }
  bsg_out_text(out, "\n");
}

static void request_section(const struct bsg_report *report, struct bsg_out *out) {
  const struct bsg_snapshot *oom = report->oom;
  const struct bsg_trigger *trigger = &oom->oom.trigger;

  if (!oom->met) {
    bsg_out_text(out, "\nNo request failed. This is how things were at ");
    bsg_out_time(out, oom->when.unix_ms);
    bsg_out_text(out, "\n");
    return;
  }

  bsg_out_text(out, "\nThe request that failed\n  at         ");
  bsg_out_time(out, oom->when.unix_ms);
  bsg_out_format(out, "\n  where      device %d, phase %s, step ", trigger->device,
                 bsg_phase_name(trigger->where.phase));
  if (trigger->where.step)
    bsg_out_format(out, "%lld", (long long)trigger->where.step);
  else
    bsg_out_text(out, "not known");
  bsg_out_text(out, "\n  asked for  ");
  if (trigger->bytes) {
    bsg_out_size(out, trigger->bytes);
    bsg_out_format(out, " (%llu)", (unsigned long long)trigger->bytes);
  } else {
    bsg_out_text(out, "not known");
  }
  if (trigger->api) {
    bsg_out_format(out, " by %s, refused %lld time%s", trigger->api, (long long)oom->oom.attempts,
                   oom->oom.attempts == 1 ? "" : "s");
    if (trigger->thread)
      bsg_out_format(out, "\n  thread     %llu", (unsigned long long)trigger->thread);
  } else
    bsg_out_text(out, "; no driver call was refused");
  if (oom->oom.boundary[0]) {
    bsg_out_text(out, "\n  boundary   ");
    bsg_out_clean(out, oom->oom.boundary, BSG_BOUNDARY_ROOM);
    if (oom->split.batch)
      bsg_out_format(out, ", batch %lld as %lld x at most %lld", (long long)oom->split.batch,
                     (long long)oom->split.accumulation_steps, (long long)oom->split.micro_batch);
  }
  if (oom->exception[0]) {
    bsg_out_text(out, "\n  exception  ");
    bsg_out_clean(out, oom->exception, BSG_EXCEPTION_ROOM);
  }
  bsg_out_text(out, "\n");
}

static void memory_section(const struct bsg_report *report, struct bsg_out *out) {
  bsg_out_text(out, "\nMemory of the device\n");
  size_line(out, "capacity", report->capacity_bytes);
  size_line(out, "free", report->free_bytes);
  size_line(out, "live, this process", report->live_bytes);
  size_line(out, "peak, this process", report->peak_bytes);
  size_line(out, "not in the ledger", report->elsewhere_bytes);
  bsg_out_text(
      out,
      "  (not in the ledger: used on the device, not allocated by this process; the driver's own, other processes)\n");
}

static void holders_section(const struct bsg_report *report, struct bsg_out *out) {
  const struct bsg_snapshot *oom = report->oom;

  bsg_out_format(out, "\nThe largest live allocations (%d", oom->holder_count);
  if (oom->has_memory)
    bsg_out_format(out, " of %llu", (unsigned long long)oom->memory.live_count);
  bsg_out_text(out, ", together ");
  bsg_out_size(out, report->holders_bytes);
  bsg_out_format(out, ")\n  %14s  %-24s %8s  %-10s %s\n", "bytes", "api", "step", "phase", "site");
  for (int i = 0; i < oom->holder_count; i++) {
    const struct bsg_holder_fact *holder = &oom->holders[i];
    bsg_out_format(out, "  %14llu  %-24s", (unsigned long long)holder->bytes, holder->api ? holder->api : "not known");
    if (holder->where.step)
      bsg_out_format(out, " %8lld", (long long)holder->where.step);
    else
      bsg_out_format(out, " %8s", "-");
    bsg_out_format(out, "  %-10s ", bsg_phase_name(holder->where.phase));
    if (holder->site)
      bsg_out_format(out, "%u\n", holder->site);
    else
      bsg_out_text(out, "-\n");
  }
}

static void others_section(const struct bsg_report *report, struct bsg_out *out) {
  const struct bsg_others_fact *others = &report->oom->others;

  bsg_out_text(out, report->oom->has_others && !others->own_seen ? "\nProcesses on the device"
                                                                 : "\nOther processes on the device");
  if (!report->oom->has_others) {
    bsg_out_text(out, "\n  not asked (no NVML)\n");
    return;
  }
  if (!others->count) {
    bsg_out_text(out, "\n  none\n");
    return;
  }
  bsg_out_format(out, " (%d", others->count);
  if (others->listed < others->count)
    bsg_out_format(out, ", the largest %d", others->listed);
  bsg_out_text(out, ", together ");
  bsg_out_size(out, report->others_bytes);
  bsg_out_format(out, ")\n  %14s  %10s  %s\n", "bytes", "pid", "name");
  for (int i = 0; i < others->listed; i++) {
    const struct bsg_other_fact *other = &others->list[i];
    if (other->bytes == BSG_BYTES_UNKNOWN)
      bsg_out_format(out, "  %14s", "not known");
    else
      bsg_out_format(out, "  %14llu", (unsigned long long)other->bytes);
    bsg_out_format(out, "  %10lld  ", (long long)other->pid);
    bsg_out_clean(out, other->name[0] ? other->name : "not known", sizeof(other->name));
    bsg_out_text(out, "\n");
  }
  if (!others->own_seen)
    bsg_out_text(out, "  (not by the pids of this container, if it is one: one of these may be this process)\n");
}

/* The frames of allocators, which come first and look alike everywhere: up to the last of them, which stays. */
static int past_allocators(const struct bsg_report *report, const struct bsg_site_fact *site) {
  int last = 0;

  for (int n = 0; n < site->frames && n < BSG_MAX_FRAMES / 2; n++) {
    const struct bsg_frame_fact *frame = bsg_report_frame(report, site->pc[n]);
    if (frame && strstr(frame->text, "Alloc"))
      last = n;
  }
  return last;
}

static void one_site(const struct bsg_report *report, struct bsg_out *out, uint32_t number, bool whole) {
  struct bsg_site_fact site;
  int first, end;

  if (!bsg_report_site(report, number, &site)) {
    bsg_out_text(out, "    not known\n");
    return;
  }
  first = whole ? 0 : past_allocators(report, &site);
  end = whole || site.frames < first + FRAMES_OF_OTHERS ? site.frames : first + FRAMES_OF_OTHERS;
  if (first)
    bsg_out_format(out, "    (#0 to #%d: allocators)\n", first - 1);
  for (int n = first; n < end; n++) {
    const struct bsg_frame_fact *frame = bsg_report_frame(report, site.pc[n]);
    bsg_out_format(out, "    #%-2d ", n);
    if (frame)
      bsg_out_clean(out, frame->text, sizeof(frame->text));
    else
      bsg_out_format(out, "0x%llx", (unsigned long long)site.pc[n]);
    bsg_out_text(out, "\n");
  }
  if (site.frames > end)
    bsg_out_format(out, "    (%d more in report.json)\n", site.frames - end);
}

static void python_section(const struct bsg_report *report, struct bsg_out *out) {
  const char *at = report->oom->python_stack;

  if (!*at)
    return;
  bsg_out_text(out, "\nPython stack of the request (innermost first)\n");
  while (*at) {
    at += strspn(at, " \n");
    if (*at) {
      bsg_out_text(out, "    ");
      bsg_out_clean(out, at, 300);
      bsg_out_text(out, "\n");
    }
    at += strcspn(at, "\n");
  }
}

static void sites_section(const struct bsg_report *report, struct bsg_out *out) {
  uint32_t own = report->oom->oom.trigger.site;

  bsg_out_text(out, "\nSites (native stacks, innermost first)\n");
  if (report->site_count == 0)
    bsg_out_text(out, "  none was recorded\n");
  for (int i = 0; i < report->site_count; i++) {
    bsg_out_format(out, "  site %u%s\n", report->sites[i], report->sites[i] == own ? ", the request that failed" : "");
    one_site(report, out, report->sites[i], report->sites[i] == own);
  }
}

static void decisions_section(const struct bsg_report *report, struct bsg_out *out) {
  int64_t first = report->change_total > BSG_CHANGES_KEPT ? report->change_total - BSG_CHANGES_KEPT : 0;

  bsg_out_format(out, "\nDecisions (%lld", (long long)report->change_total);
  if (first)
    bsg_out_format(out, ", the last %d", BSG_CHANGES_KEPT);
  bsg_out_text(out, ")\n");
  for (int64_t n = first; n < report->change_total; n++) {
    const struct bsg_change *change = &report->changes[n % BSG_CHANGES_KEPT];
    bsg_out_format(out, "  %4lld  ", (long long)change->sequence);
    bsg_out_time(out, change->when.unix_ms);
    bsg_out_format(out, "  %-15s ", bsg_reason_name(change->reason));
    if (change->split.batch)
      bsg_out_format(out, "batch %lld as %lld x at most %lld", (long long)change->split.batch,
                     (long long)change->split.accumulation_steps, (long long)change->split.micro_batch);
    else
      bsg_out_format(out, "%lld accumulation steps", (long long)change->split.accumulation_steps);
    if (change->boundary[0]) {
      bsg_out_text(out, "  ");
      bsg_out_clean(out, change->boundary, BSG_BOUNDARY_ROOM);
    }
    bsg_out_text(out, "  (");
    bsg_out_clean(out, change->why, BSG_WHY_ROOM);
    bsg_out_text(out, ")\n");
  }
}

/* Whether a line of a Python stack, which `length` ends, is of a library: not where the user has to change anything. */
static bool of_a_library(const char *line, size_t length) {
  static const char *const marks[] = {"/site-packages/", "/dist-packages/", "/bsguard_paddle/", "/lib/python3",
                                      "<frozen "};

  for (size_t i = 0; i < sizeof(marks) / sizeof(*marks); i++)
    if (memmem(line, length, marks[i], strlen(marks[i])))
      return true;
  return false;
}

/* The innermost line of the user's own code on the way to the request; NULL: none is known. */
static const char *own_line(const char *stack) {
  for (const char *at = stack; *at; at += strcspn(at, "\n")) {
    at += strspn(at, " \n");
    if (*at && !of_a_library(at, strcspn(at, "\n")))
      return at;
  }
  return NULL;
}

/* What was asked for, where in the program, and what there was. */
static void asked(const struct bsg_report *report, struct bsg_out *out) {
  const struct bsg_trigger *trigger = &report->oom->oom.trigger;
  const char *line = own_line(report->oom->python_stack);

  if (trigger->bytes) {
    bsg_out_text(out, "Asked: ");
    bsg_out_size(out, trigger->bytes);
    bsg_out_format(out, " in %s", bsg_phase_name(trigger->where.phase));
    if (trigger->where.step)
      bsg_out_format(out, " of step %lld", (long long)trigger->where.step);
    if (report->free_bytes != BSG_BYTES_UNKNOWN && report->capacity_bytes != BSG_BYTES_UNKNOWN) {
      bsg_out_text(out, ", where ");
      bsg_out_size(out, report->free_bytes);
      bsg_out_text(out, " of ");
      bsg_out_size(out, report->capacity_bytes);
      bsg_out_text(out, " were free");
    }
    bsg_out_text(out, ".\n");
  }
  if (line) {
    bsg_out_text(out, "Your code: ");
    bsg_out_clean(out, line, 300);
    bsg_out_text(out, "\n");
  }
}

/* Fixed or per sample, and what would have fitted. */
static void fits(const struct bsg_report *report, struct bsg_out *out) {
  if (!report->has_fit || report->fits < 0)
    return;
  bsg_out_format(out, "Fits: %lld samples at once", (long long)report->fits);
  if (report->oom->split.batch)
    bsg_out_format(out, ", of a batch of %lld", (long long)report->oom->split.batch);
  bsg_out_text(out, " (");
  bsg_out_size(out, report->fit.fixed_bytes);
  bsg_out_text(out, " are fixed, each sample takes ");
  bsg_out_size(out, report->fit.per_sample_bytes);
  bsg_out_text(out, ").\n");
}

/* For whoever reads no further. */
static void in_short(const struct bsg_report *report, struct bsg_out *out) {
  if (!report->oom->met)
    return;
  bsg_out_text(out, "\nIn short: ");
  bsg_out_text(out, cause_words[report->culprit.cause]);
  if (report->who[0]) {
    bsg_out_text(out, " (");
    bsg_out_text(out, report->who);
    bsg_out_text(out, ")");
  }
  bsg_out_text(out, ".\n");
  asked(report, out);
  if (report->fits_matters)
    fits(report, out);
  if (report->advice_count) {
    bsg_out_text(out, "First: ");
    bsg_out_text(out, report->advice[0].text);
    bsg_out_text(out, "\n");
  }
}

void bsg_report_text(const struct bsg_report *report, struct bsg_out *out) {
  bsg_out_text(out, "===== bsguard report START =====\n");
  verdict_line(report, out);
  in_short(report, out);
  run_section(report, out);
  request_section(report, out);
  python_section(report, out);
  memory_section(report, out);
  bsg_report_text_accounting(report, out);
  others_section(report, out);
  bsg_report_text_fit(report, out);
  bsg_report_text_groups(report, out);
  holders_section(report, out);
  sites_section(report, out);
  bsg_report_text_fragmentation(report, out);
  bsg_report_text_timeline(report, out);
  bsg_report_text_growth(report, out);
  decisions_section(report, out);
  bsg_report_text_advice(report, out);
  bsg_report_text_notes(report, out);
  bsg_out_text(out, "===== bsguard report END =====\n");
}
