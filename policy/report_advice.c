/*
 * report_advice.c - what would help: only where its condition was measured, and with the figures that make it true.
 * What answers the cause comes first. Figures that are not of this run name their source.
 */
#include <string.h>

#include "policy/report.h"

#define OCR "measured: OCR detector with ResNet-18, input 800 x 800, FP32, batch 4 to 16 on 24 GB"
#define LINEAR "linear scaling of the learning rate with the global batch"

static struct bsg_out advise(struct bsg_report *report, const char *measure, const char *source) {
  struct bsg_advice *advice;
  struct bsg_out out;

  if (report->advice_count < BSG_ADVICE_MOST)
    advice = &report->advice[report->advice_count++];
  else
    advice = &report->advice[BSG_ADVICE_MOST - 1]; /* never more than this file has kinds of */
  advice->measure = measure;
  advice->source = source;
  bsg_out_buffer(&out, advice->text, sizeof(advice->text));
  return out;
}

static bool known(uint64_t bytes) {
  return bytes != BSG_BYTES_UNKNOWN;
}

static uint64_t told(const struct bsg_report *report, uint64_t bytes) {
  return report->oom->framework.told && known(bytes) ? bytes : 0;
}

static void of_capacity(const struct bsg_report *report, struct bsg_out *out) {
  if (known(report->capacity_bytes)) {
    bsg_out_text(out, " of ");
    bsg_out_size(out, report->capacity_bytes);
  }
}

static uint64_t missing_bytes(const struct bsg_report *report) {
  uint64_t asked = report->oom->oom.trigger.bytes;
  return known(report->free_bytes) && asked > report->free_bytes ? asked - report->free_bytes : 0;
}

static const char *note(const struct bsg_report *report, const char *name) {
  for (int i = 0; i < report->note_count; i++)
    if (strcmp(report->notes[i].name, name) == 0)
      return report->notes[i].value;
  return "";
}

/* ---- what does not belong to a step of this size ---- */

static void on_others(struct bsg_report *report) {
  const struct bsg_snapshot *oom = report->oom;
  struct bsg_out out;

  if (report->culprit.cause == BSG_CAUSE_OTHER_PROCESS && oom->has_others && oom->others.listed &&
      oom->others.own_seen) {
    out = advise(report, "stop_process", NULL);
    bsg_out_format(&out, "Process %lld", (long long)oom->others.list[0].pid);
    if (oom->others.list[0].name[0]) {
      bsg_out_text(&out, " (");
      bsg_out_clean(&out, oom->others.list[0].name, 32);
      bsg_out_text(&out, ")");
    }
    bsg_out_text(&out, " holds ");
    bsg_out_size(&out, known(oom->others.list[0].bytes) ? oom->others.list[0].bytes : report->others_bytes);
    of_capacity(report, &out);
    bsg_out_text(&out, ", and ");
    bsg_out_size(&out, missing_bytes(report));
    bsg_out_text(&out, " were missing for this request: stop it, or move one of the two to another device.");
    bsg_out_string(&out);
    return;
  }
  if (!oom->oom.trigger.bytes || !known(report->elsewhere_bytes) || !missing_bytes(report) ||
      report->elsewhere_bytes < missing_bytes(report) || (oom->has_others && oom->others.count == 0))
    return; /* where nobody else is there it is the driver's own, and nobody can free that */
  out = advise(report, "stop_process", NULL);
  bsg_out_size(&out, report->elsewhere_bytes);
  bsg_out_text(&out,
               " of the device are used but were not allocated by this process through the driver: other processes "
               "on the device, or the driver's own. ");
  bsg_out_size(&out, missing_bytes(report));
  bsg_out_text(&out, " more would have been enough for this request");
  if (!oom->has_others)
    bsg_out_text(&out, "; look with nvidia-smi who else is there.");
  else
    bsg_out_text(&out, "; the processes that NVML names are listed above.");
  bsg_out_string(&out);
}

static void on_growth(struct bsg_report *report) {
  const struct bsg_growth *growth = &report->growth;
  bool cache = report->culprit.cause == BSG_CAUSE_GROWING_CACHE;
  struct bsg_out out;

  if (report->culprit.cause != BSG_CAUSE_LEAK && !cache)
    return;
  out = advise(report, cache ? "bound_cache" : "release", NULL);
  bsg_out_text(&out, "What is held between steps grew from ");
  bsg_out_size(&out, growth->first_bytes);
  bsg_out_text(&out, " to ");
  bsg_out_size(&out, growth->last_bytes);
  bsg_out_format(&out, " in %lld steps (", (long long)growth->steps);
  bsg_out_size(&out, growth->bytes_per_step > 0 ? (uint64_t)growth->bytes_per_step : 0);
  bsg_out_text(&out, " a step). ");
  if (report->held_count) {
    const struct bsg_held_kept *held = &report->held[0];
    bsg_out_clean(&out, held->what, sizeof(held->what));
    bsg_out_format(&out, " holds %llu tensors", (unsigned long long)held->tensors);
    if (!cache)
      bsg_out_format(&out, ", %llu with the graph of their step behind them", (unsigned long long)held->with_graph);
    bsg_out_text(&out, ". ");
  }
  bsg_out_text(&out, cache ? "Bound it, or keep it in the host's memory (tensor.cpu())."
                           : "Keep numbers, not tensors: float(loss), or tensor.detach() where it must be a tensor.");
  bsg_out_string(&out);
}

static void on_pieces(struct bsg_report *report) {
  const struct bsg_trigger *trigger = &report->oom->oom.trigger;
  uint64_t idle = report->accounting.bytes[BSG_PART_FRAMEWORK_CACHED];
  struct bsg_out out;

  if (report->culprit.cause == BSG_CAUSE_FRAGMENTATION && report->accounting.known && idle >= trigger->bytes) {
    out = advise(report, "fragmentation_flags", NULL);
    bsg_out_size(&out, idle);
    bsg_out_text(&out, " lie idle in the framework's cache, in pieces smaller than the ");
    bsg_out_size(&out, trigger->bytes);
    bsg_out_text(&out, " asked for. FLAGS_use_virtual_memory_auto_growth=1 lets pieces grow together (expandable "
                       "segments); fewer different input shapes, or paddle.device.cuda.empty_cache() between phases, "
                       "make fewer of them.");
    bsg_out_string(&out);
  }
  if (trigger->api && trigger->bytes && known(report->free_bytes) && report->free_bytes >= trigger->bytes) {
    out = advise(report, "device_limit", NULL);
    bsg_out_text(&out, "The driver refused ");
    bsg_out_size(&out, trigger->bytes);
    bsg_out_text(&out, " with ");
    bsg_out_size(&out, report->free_bytes);
    bsg_out_text(&out, " free: the free memory is in pieces, or a limit is set on this process (MPS, MIG, container).");
    bsg_out_string(&out);
  }
}

static void on_limit(struct bsg_report *report) {
  struct bsg_out out;

  if (report->oom->oom.trigger.api)
    return;
  out = advise(report, "framework_limit", NULL);
  bsg_out_text(&out, "No driver call was refused: the framework stopped at a limit of its own");
  if (known(report->free_bytes)) {
    bsg_out_text(&out, ", with ");
    bsg_out_size(&out, report->free_bytes);
    bsg_out_text(&out, " free on the device");
  }
  bsg_out_text(&out,
               ". Look at FLAGS_gpu_memory_limit_mb, FLAGS_fraction_of_gpu_memory_to_use and pools set up before.");
  bsg_out_string(&out);
}

static void on_one_request(struct bsg_report *report) {
  struct bsg_out out;

  if (report->culprit.cause != BSG_CAUSE_ONE_REQUEST)
    return;
  out = advise(report, "smaller_request", NULL);
  bsg_out_text(&out, "One request alone asks for ");
  bsg_out_size(&out, report->oom->oom.trigger.bytes);
  of_capacity(report, &out);
  bsg_out_text(&out, ": see its stack for the line. Compute it in parts, in lower precision, or in the host's memory.");
  bsg_out_string(&out);
}

/* ---- the step itself ---- */

static void on_optimizer(struct bsg_report *report) {
  const struct bsg_framework_told *framework = &report->oom->framework;
  uint64_t state = told(report, framework->optimizer_bytes), parameters = told(report, framework->parameter_bytes);
  bool cause = report->culprit.cause == BSG_CAUSE_OPTIMIZER_STATE;
  struct bsg_out out;

  /* Where the fixed part is most of what is in use, and the state most of that. */
  if (!cause && !(state && state * 2 > told(report, framework->allocated_bytes)))
    return;
  out = advise(report, "optimizer_sharding", OCR);
  if (report->oom->oom.trigger.where.phase == BSG_PHASE_OPTIMIZER)
    bsg_out_text(&out, "The memory was asked for in phase optimizer, whose need does not depend on the micro-batch. ");
  if (state) {
    bsg_out_size(&out, state);
    bsg_out_text(&out, " are state of the optimizer, for ");
    bsg_out_size(&out, parameters);
    bsg_out_text(&out, " of weights. ");
  }
  bsg_out_text(&out,
               "An optimizer with less state (Momentum keeps one figure a weight, Adam two), or a larger device, is "
               "the way out; state that is sharded over devices or offloaded to the host was about half.");
  bsg_out_string(&out);
}

static void on_evaluation(struct bsg_report *report) {
  const struct bsg_snapshot *oom = report->oom;
  struct bsg_out out;

  if (report->culprit.cause != BSG_CAUSE_EVALUATION)
    return;
  out = advise(report, "smaller_evaluation", OCR);
  bsg_out_text(&out, "The evaluation asked for ");
  bsg_out_size(&out, oom->oom.trigger.bytes);
  if (oom->split.batch)
    bsg_out_format(&out, " with %lld samples at a time", (long long)oom->split.micro_batch);
  if (oom->oom.signature[0]) {
    bsg_out_text(&out, " of ");
    bsg_out_clean(&out, oom->oom.signature, 80);
  }
  bsg_out_text(&out, ": give it smaller inputs, or a smaller batch (BatchSampler of the evaluation); training does not "
                     "need to change. 800 to 640 pixels took a step from 5892 to 3210 MB.");
  bsg_out_string(&out);
}

static void on_floor(struct bsg_report *report) {
  const struct bsg_snapshot *oom = report->oom;
  struct bsg_out out;

  if (oom->verdict != BSG_FLOOR || report->culprit.cause == BSG_CAUSE_EVALUATION)
    return;
  out = advise(report, "larger_device", NULL);
  bsg_out_format(&out, "Batch %lld was run one sample at a time and still did not fit", (long long)oom->split.batch);
  if (known(report->live_bytes)) {
    bsg_out_text(&out, ": ");
    bsg_out_size(&out, report->live_bytes);
    bsg_out_text(&out, " are held by this process");
    of_capacity(report, &out);
  }
  bsg_out_text(&out,
               ". A smaller batch cannot help. What can: smaller inputs or model, lower precision (AMP), recompute, "
               "an optimizer with less state, a larger device.");
  bsg_out_string(&out);
}

static void on_size(struct bsg_report *report) {
  const struct bsg_snapshot *oom = report->oom;
  int64_t batch = oom->split.batch, fits = report->fits;
  struct bsg_out out;

  if (report->culprit.cause != BSG_CAUSE_ACTIVATIONS || fits < 1 || (batch && fits >= batch))
    return;
  out = advise(report, "smaller_batch", LINEAR);
  bsg_out_format(&out, "Micro-batch %lld fits: ", (long long)fits);
  bsg_out_size(&out, bsg_fit_peak(&report->fit, fits));
  bsg_out_text(&out, " predicted, ");
  bsg_out_size(&out, report->available_bytes);
  bsg_out_text(&out, " available. ");
  if (batch) {
    struct bsg_split split = bsg_split_under(batch, fits);
    bsg_out_format(&out, "Batch %lld in %lld accumulation steps keeps the global batch, so the learning rate stays; ",
                   (long long)batch, (long long)split.accumulation_steps);
    bsg_out_format(&out, "where the batch itself becomes %lld, the learning rate becomes %lld/%lld of what it was.",
                   (long long)fits, (long long)fits, (long long)batch);
  }
  bsg_out_string(&out);
}

static void on_activations(struct bsg_report *report) {
  uint64_t bytes = report->culprit.bytes;
  struct bsg_out out;

  if (report->culprit.cause != BSG_CAUSE_ACTIVATIONS || !known(bytes) || !known(report->capacity_bytes) ||
      bytes < report->capacity_bytes / 4)
    return;
  if (strcmp(note(report, "amp"), "off") == 0) {
    out = advise(report, "amp", OCR);
    bsg_out_size(&out, bytes);
    of_capacity(report, &out);
    bsg_out_text(&out,
                 " are activations, and AMP is off: paddle.amp.auto_cast with a GradScaler saved about 40 % of the "
                 "peak, and ran faster.");
    bsg_out_string(&out);
  }
  out = advise(report, "recompute", OCR);
  bsg_out_size(&out, bytes);
  of_capacity(report, &out);
  bsg_out_text(&out,
               " are activations: recompute (paddle.distributed.fleet.utils.recompute) saved 35 % of the peak, for "
               "about 15 % more time.");
  bsg_out_string(&out);
  if (report->oom->verdict == BSG_FLOOR || report->fits == 0) {
    out = advise(report, "smaller_input", OCR);
    bsg_out_text(&out,
                 "One sample alone does not fit: a smaller input is the way to less. 800 to 640 pixels took a step "
                 "from 5892 to 3210 MB.");
    bsg_out_string(&out);
  }
}

/* ---- why it was not split ---- */

static void on_refusal(struct bsg_report *report) {
  const struct bsg_snapshot *oom = report->oom;
  int phase = oom->oom.trigger.where.phase;
  struct bsg_out out;

  if (oom->verdict != BSG_CANNOT)
    return;
  if (!bsg_phase_can_split(phase)) {
    if (report->culprit.cause == BSG_CAUSE_OPTIMIZER_STATE)
      return;
    out = advise(report, "not_split", NULL);
    bsg_out_format(&out, "The memory was asked for in phase %s, whose need does not depend on the micro-batch.",
                   bsg_phase_name(phase));
  } else if (oom->exactness == BSG_REFUSED && oom->because[0]) {
    out = advise(report, "not_split", NULL);
    bsg_out_clean(&out, oom->oom.boundary[0] ? oom->oom.boundary : "It", 80);
    bsg_out_text(&out, " was not split: ");
    bsg_out_clean(&out, oom->because, 200);
    bsg_out_text(&out, oom->split.batch > 1 ? ". A smaller batch, set by hand, is the way out." : ".");
  } else {
    return;
  }
  bsg_out_string(&out);
}

static void on_reasons(struct bsg_report *report) {
  for (int i = 0; i < report->reason_count && report->advice_count < BSG_ADVICE_MOST; i++) {
    if (strcmp(report->reasons[i].boundary, report->oom->oom.boundary) != 0 || report->oom->verdict == BSG_SHRINK ||
        strcmp(report->reasons[i].why, report->oom->because) == 0)
      continue;
    struct bsg_out out = advise(report, "left_alone", NULL);
    bsg_out_clean(&out, report->reasons[i].boundary[0] ? report->reasons[i].boundary : "The model", 80);
    bsg_out_text(&out, " was left alone: ");
    bsg_out_clean(&out, report->reasons[i].why, 240);
    bsg_out_text(&out, ".");
    bsg_out_string(&out);
  }
}

void bsg_report_advise(struct bsg_report *report) {
  report->advice_count = 0;
  if (!report->oom->met)
    return;
  if (report->culprit.cause == BSG_CAUSE_OTHER_PROCESS)
    on_others(report);
  on_growth(report);
  if (report->culprit.cause == BSG_CAUSE_FRAGMENTATION)
    on_pieces(report);
  on_one_request(report);
  on_optimizer(report);
  on_evaluation(report);
  on_floor(report);
  on_refusal(report);
  on_size(report);
  on_activations(report);
  on_limit(report);
  if (report->culprit.cause != BSG_CAUSE_FRAGMENTATION)
    on_pieces(report);
  if (report->culprit.cause != BSG_CAUSE_OTHER_PROCESS)
    on_others(report);
  on_reasons(report);
}
