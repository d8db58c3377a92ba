/*
 * report_text.c - report.txt, for a person: first a line for grep, then what was asked for, who holds the memory, where
 * from, what was tried, and what would help. Sizes in both MiB/GiB and bytes.
 */
#include "policy/report.h"

#include "shim/bsguard.h"

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

static void verdict_line(const struct bsg_report *report, struct bsg_out *out) {
  const struct bsg_snapshot *oom = report->oom;
  const struct bsg_trigger *trigger = &oom->oom.trigger;

  bsg_out_format(out, "verdict=%s answer=%s device=%d phase=%s", bsg_outcome_name(oom->outcome),
                 bsg_verdict_name(oom->verdict), trigger->device, bsg_phase_name(trigger->where.phase));
  pair(out, "step", (uint64_t)trigger->where.step, 0);
  bsg_out_format(out, " api=%s", trigger->api ? trigger->api : "none");
  pair(out, "request_bytes", trigger->bytes, 0);
  pair(out, "free_bytes", report->free_bytes, BSG_BYTES_UNKNOWN);
  pair(out, "live_bytes", report->live_bytes, BSG_BYTES_UNKNOWN);
  pair(out, "capacity_bytes", report->capacity_bytes, BSG_BYTES_UNKNOWN);
  pair(out, "batch", (uint64_t)oom->split.batch, 0);
  pair(out, "micro_batch", (uint64_t)oom->split.micro_batch, 0);
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
  if (trigger->api)
    bsg_out_format(out, " by %s, refused %lld time%s", trigger->api, (long long)oom->oom.attempts,
                   oom->oom.attempts == 1 ? "" : "s");
  else
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

static void sites_section(const struct bsg_report *report, struct bsg_out *out) {
  struct bsg_site_fact site;
  char frame[512];

  bsg_out_text(out, "\nSites (native stacks, innermost first)\n");
  if (report->site_count == 0)
    bsg_out_text(out, "  none was recorded\n");
  for (int i = 0; i < report->site_count; i++) {
    bsg_out_format(out, "  site %u%s\n", report->sites[i],
                   report->sites[i] == report->oom->oom.trigger.site ? ", the request that failed" : "");
    if (!bsg_report_site(report, report->sites[i], &site)) {
      bsg_out_text(out, "    not known\n");
      continue;
    }
    for (int n = 0; bsg_report_frame(report, &site, n, frame, sizeof(frame)); n++) {
      bsg_out_format(out, "    #%-2d ", n);
      bsg_out_clean(out, frame, sizeof(frame));
      bsg_out_text(out, "\n");
    }
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

void bsg_report_text(const struct bsg_report *report, struct bsg_out *out) {
  bsg_out_text(out, "===== bsguard report START =====\n");
  verdict_line(report, out);
  run_section(report, out);
  request_section(report, out);
  memory_section(report, out);
  others_section(report, out);
  holders_section(report, out);
  sites_section(report, out);
  decisions_section(report, out);
  if (report->advice_count) {
    bsg_out_text(out, "\nWhat would help\n");
    for (int i = 0; i < report->advice_count; i++) {
      bsg_out_text(out, "  - ");
      bsg_out_text(out, report->advice[i]);
      bsg_out_text(out, "\n");
    }
  }
  bsg_out_text(out, "===== bsguard report END =====\n");
}
