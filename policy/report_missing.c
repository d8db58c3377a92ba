/* report_missing.c - what could not be recorded, so that nobody takes a gap for a zero. */
#include "policy/report.h"

static struct bsg_out miss(struct bsg_report *report) {
  struct bsg_out out;
  int at = report->missing_count < BSG_MISSING_MOST ? report->missing_count++ : BSG_MISSING_MOST - 1;

  bsg_out_buffer(&out, report->missing[at], BSG_MISSING_ROOM);
  return out;
}

static void line(struct bsg_report *report, const char *text) {
  struct bsg_out out = miss(report);
  bsg_out_text(&out, text);
  bsg_out_string(&out);
}

void bsg_report_miss(struct bsg_report *report) {
  const struct bsg_snapshot *oom = report->oom;
  const struct bsg_evidence *evidence = report->evidence;
  const char *unwinder = evidence->unwinder ? evidence->unwinder(evidence->context) : NULL;
  struct bsg_out out;

  report->missing_count = 0;
  if (!oom->framework.told)
    line(report, "what the framework has in use: it keeps no count, or no adapter is loaded");
  if (!oom->has_others)
    line(report, "other processes: NVML is not there, or does not say");
  else if (report->accounting.known && report->accounting.bytes[BSG_PART_NOT_TOLD_APART])
    line(report, "which memory is other processes' and which the driver's own: NVML does not say it of all");
  if (!oom->has_memory)
    line(report, "the memory of the device: the driver was not asked");
  if (oom->has_memory && oom->memory.missed_count) {
    out = miss(report);
    bsg_out_format(&out, "%llu allocations: there was no room for them in the ledger",
                   (unsigned long long)oom->memory.missed_count);
    bsg_out_string(&out);
  }
  if (oom->met && oom->python_stack[0] == '\0')
    line(report, "the Python stack of the request: its thread runs no Python, and no adapter told of one");
  if (unwinder && unwinder[0] != 'l')
    line(report, "native stacks by libunwind: libunwind.so.8 is not there; the C library's unwinder was used");
  if (oom->has_census && oom->census.with_site_bytes < oom->census.total_bytes) {
    out = miss(report);
    bsg_out_text(&out, "the sites of ");
    bsg_out_size(&out, oom->census.total_bytes - oom->census.with_site_bytes);
    bsg_out_text(&out, ": stacks are taken at new high-water marks and at refused calls only");
    bsg_out_string(&out);
  }
  if (!report->has_fit)
    line(report, "a fit of memory to micro-batch: fewer than two sizes were measured in steps that did not run out");
  if (report->files_lost) {
    out = miss(report);
    bsg_out_format(&out, "some lines or files of this folder: %s", bsg_errno_text(report->files_lost));
    bsg_out_string(&out);
  }
}
