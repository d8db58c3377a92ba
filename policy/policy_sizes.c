/*
 * policy_sizes.c - between the rules of regrow.h and the state: which boundary's measures count, what is available now,
 * and what is told. It only ever touches training; an evaluation has sizes of its own, which double.
 */
#include <string.h>

#include "policy/policy_state.h"

static struct bsg_sizing_slot *slot_of(struct bsg_policy *p, int device, const char *boundary) {
  struct bsg_sizing_slot *oldest = &p->sizings[0];

  for (int i = 0; i < BSG_SIZINGS; i++) {
    struct bsg_sizing_slot *slot = &p->sizings[i];
    if (slot->used && slot->device == device && strcmp(slot->boundary, boundary) == 0) {
      slot->touched = ++p->sizing_clock;
      return slot;
    }
    if (oldest->used && (!slot->used || slot->touched < oldest->touched))
      oldest = slot;
  }
  *oldest = (struct bsg_sizing_slot){.used = true, .device = device, .touched = ++p->sizing_clock};
  bsg_copy_text(oldest->boundary, sizeof(oldest->boundary), boundary);
  return oldest;
}

/* Bytes that this process has on the device or may still get; 0: nobody can say. */
static uint64_t available(const struct bsg_policy *p, int device, struct bsg_memory_fact *memory) {
  if (!p->config.evidence.memory || p->config.evidence.memory(p->config.evidence.context, device, memory) != 0)
    return 0;
  if (memory->free_bytes == BSG_BYTES_UNKNOWN || memory->free_bytes > UINT64_MAX - memory->live_bytes)
    return memory->total_bytes;
  return memory->live_bytes + memory->free_bytes;
}

/* True at its first time. */
static bool begin_entry(struct bsg_entry *entry) {
  bool first = entry->elements == 0;

  if (first)
    entry->elements = bsg_sizing_elements(entry->signature);
  return first;
}

static void note_running(struct bsg_device_state *device, struct bsg_entry *entry, const struct bsg_split *split) {
  bool known = false;

  if (split->micro_batch > entry->in_step)
    entry->in_step = split->micro_batch;
  for (int i = 0; i < device->running_count; i++)
    known = known || device->running[i] == entry;
  if (known)
    return;
  if (device->running_count < BSG_RUNNING)
    device->running[device->running_count++] = entry;
  else
    device->disturbed = true; /* a step of so many parts that none of them is its measure */
}

/* What an earlier run of this job has settled at, or less where there is less memory now than that took. */
static void restore(struct bsg_policy *p, struct bsg_when now, struct bsg_entry *entry, int64_t batch) {
  struct bsg_sizing_slot *slot = slot_of(p, entry->device, entry->boundary);
  struct bsg_change change = {.reason = BSG_REASON_RESTORED, .exactness = BSG_EXACTNESS_UNKNOWN};
  struct bsg_store_record record;
  struct bsg_split split, foreseen;
  struct bsg_memory_fact memory;
  struct bsg_out why;

  if (!bsg_state_store_find(p, entry, false, &record))
    return;
  slot->met = true;
  if (slot->sizing.base_bytes == 0)
    slot->sizing.base_bytes = record.base_bytes;
  bsg_sizing_measured(&slot->sizing, bsg_sizing_x(&slot->sizing, record.micro_batch, entry->elements),
                      record.peak_bytes);
  if (record.refused_batch)
    bsg_sizing_refused_before(&slot->sizing, bsg_sizing_x(&slot->sizing, record.refused_batch, entry->elements),
                              record.refused_bytes, record.refused_base_bytes);
  split = bsg_split_under(batch, record.micro_batch);
  struct bsg_outlook o = {
      .sizing = &slot->sizing, .elements = entry->elements, .available = available(p, entry->device, &memory)};
  bool less = bsg_regrow_foreseen(&split, &o, &foreseen);
  if (less)
    split = foreseen;
  if (split.accumulation_steps <= 1)
    return;
  bsg_entry_accept(entry, &split);
  entry->most = less ? split.micro_batch : record.micro_batch; /* this batch may be a smaller one */
  change.split = split;
  bsg_copy_text(change.boundary, sizeof(change.boundary), entry->boundary);
  bsg_out_buffer(&why, change.why, sizeof(change.why));
  if (less) {
    bsg_out_format(&why, "an earlier run of this job fitted in %lld, which took ", (long long)record.micro_batch);
    bsg_out_size(&why, record.peak_bytes);
    bsg_out_text(&why, ", and there are ");
    bsg_out_size(&why, o.available);
  } else {
    bsg_out_text(&why, "an earlier run of this job fitted in it");
  }
  bsg_out_string(&why);
  bsg_state_change(p, now, &change);
}

void bsg_state_sizes_known(struct bsg_policy *p, const struct bsg_entry *entry, struct bsg_store_record *record) {
  struct bsg_sizing *sizing = &slot_of(p, entry->device, entry->boundary)->sizing;
  uint64_t peak = bsg_sizing_peak(sizing, bsg_sizing_x(sizing, record->micro_batch, entry->elements));

  record->peak_bytes = peak == BSG_SIZING_NOT_KNOWN ? 0 : peak;
  record->base_bytes = sizing->base_bytes;
  int64_t refused = bsg_sizing_refused_samples(sizing, entry->elements);
  if (refused > record->micro_batch) {
    record->refused_batch = refused;
    record->refused_bytes = sizing->refused_bytes;
    record->refused_base_bytes = sizing->refused_base;
  }
}

struct bsg_split bsg_state_sizes_begin(struct bsg_policy *p, struct bsg_when now, struct bsg_entry *entry,
                                       int64_t batch) {
  struct bsg_split split, foreseen;
  struct bsg_memory_fact memory;

  if (begin_entry(entry))
    restore(p, now, entry, batch);
  split = bsg_entry_split(entry, batch);
  if (entry->most == 0 && p->config.mode == BSG_MODE_GUARD && p->adapter) {
    struct bsg_sizing_slot *slot = slot_of(p, entry->device, entry->boundary);
    /* A shape that did not run out itself is split beforehand only where its boundary did. */
    if (slot->met) {
      struct bsg_outlook o = {
          .sizing = &slot->sizing, .elements = entry->elements, .available = available(p, entry->device, &memory)};
      if (bsg_regrow_foreseen(&split, &o, &foreseen)) {
        split = foreseen;
        bsg_entry_accept(entry, &split);
      }
    }
  }
  note_running(&p->devices[entry->device], entry, &split);
  return split;
}

struct bsg_split bsg_state_sizes_evaluate(struct bsg_policy *p, struct bsg_entry *entry, int64_t batch) {
  struct bsg_store_record record;

  if (begin_entry(entry) && bsg_state_store_find(p, entry, true, &record)) {
    struct bsg_split split = bsg_split_under(batch, record.micro_batch);
    if (split.accumulation_steps > 1)
      bsg_entry_accept(entry, &split);
    entry->most = record.micro_batch; /* this batch may be a smaller one */
  }
  return bsg_entry_split(entry, batch);
}

enum bsg_verdict bsg_state_sizes_shrink(struct bsg_policy *p, struct bsg_entry *entry, const struct bsg_split *now,
                                        const struct bsg_oom *oom, const struct bsg_oom_record *record,
                                        struct bsg_split *out) {
  struct bsg_sizing_slot *slot = slot_of(p, entry->device, entry->boundary);
  struct bsg_sizing *sizing = &slot->sizing;
  struct bsg_memory_fact memory = {0};
  uint64_t room = available(p, entry->device, &memory);
  enum bsg_verdict verdict;

  begin_entry(entry);
  slot->met = true;
  struct bsg_outlook o = {.sizing = sizing,
                          .elements = entry->elements,
                          .smallest = oom->smallest,
                          .after_forward = oom->phase == BSG_PHASE_BACKWARD || oom->phase == BSG_PHASE_LOSS,
                          .available = room};
  int64_t x = bsg_sizing_x(sizing, now->micro_batch, entry->elements);
  /* Where the caches could not be emptied, the marks of the driver go on to be those of what was refused. */
  bool emptied = record->live_bytes != BSG_BYTES_UNKNOWN && memory.live_bytes < record->live_bytes / 8 * 7;
  slot->since_x = emptied ? 0 : x > slot->since_x ? x : slot->since_x;
  if (room) {
    if (!record->trigger.api) /* it ran out below what the device has: where, shows in what it had held */
      sizing->ceiling_bytes = memory.step_peak_bytes;
    if (sizing->ceiling_bytes && sizing->ceiling_bytes < room)
      room = sizing->ceiling_bytes;
    bsg_sizing_refused(sizing, x, room, emptied || slot->allocated ? oom->held_bytes : 0);
  }
  verdict = bsg_regrow_shrink(&entry->growth, now, true, &o, out);
  entry->ran_out = true;
  p->store_behind = true;
  entry->grown = false;
  entry->in_step = 0; /* what ran out is no measure */
  note_running(&p->devices[entry->device], entry, out);
  return verdict;
}

/* ---- the end of a step ---- */

static void measure(struct bsg_sizing_slot *slot, int64_t x, bool clean, const struct bsg_memory_fact *memory,
                    uint64_t allocated_peak, struct bsg_where where) {
  bool largest = x >= slot->since_x;

  if (largest)
    slot->since_x = x;
  /* The first step makes the gradients and the optimizer's state: its peak is too low for those after it. */
  if (!clean || where.step <= 1)
    return;
  if (allocated_peak)
    slot->allocated = true;
  if (slot->allocated) {
    bsg_sizing_measured(&slot->sizing, x, allocated_peak);
  } else if (largest) {
    /* The driver sees the framework's cache, which a larger piece may have left. */
    bsg_sizing_measured(&slot->sizing, x, memory->step_peak_bytes);
  }
  bsg_sizing_clean(&slot->sizing);
}

static void say_grown(struct bsg_policy *p, const struct bsg_entry *entry, const struct bsg_split *split) {
  char text[BSG_LINE_ROOM];
  struct bsg_out line;

  bsg_out_buffer(&line, text, sizeof(text));
  bsg_out_text(&line, "grown back to what fits: ");
  bsg_out_clean(&line, entry->boundary[0] ? entry->boundary : "the model", 80);
  if (split->accumulation_steps == 1)
    bsg_out_format(&line, " runs %lld whole again", (long long)split->batch);
  else
    bsg_out_format(&line, " runs %lld as %lld x %s%lld", (long long)split->batch, (long long)split->accumulation_steps,
                   split->accumulation_steps * split->micro_batch == split->batch ? "" : "at most ",
                   (long long)split->micro_batch);
  bsg_state_say(p, 0, &line);
}

/* A clean step ended: up to what fits, or back from where the last try left no reserve. True: the size has changed. */
static bool move(struct bsg_policy *p, struct bsg_when now, struct bsg_entry *entry, struct bsg_sizing_slot *slot,
                 const struct bsg_split *split) {
  struct bsg_change change = {.reason = BSG_REASON_REGROW, .exactness = entry->exactness};
  int64_t clean = entry->growth.clean;
  struct bsg_memory_fact memory;
  struct bsg_split to;
  struct bsg_out why;

  /* What the driver sees of a try is the framework's cache too, which may only look like no reserve. */
  bool on_trial = slot->allocated && bsg_regrow_on_trial(&entry->growth, split);
  if (!on_trial && !bsg_regrow_due(&entry->growth, split))
    return false;
  uint64_t room = available(p, entry->device, &memory);
  struct bsg_outlook o = {.sizing = &slot->sizing, .elements = entry->elements, .available = room};
  bool back = on_trial && bsg_regrow_back(&entry->growth, split, &o, &to);
  if (!back && !bsg_regrow_up(&entry->growth, split, &o, &to))
    return false;
  bsg_entry_accept(entry, &to);
  entry->grown = true;
  p->store_behind = true;
  change.split = to;
  bsg_copy_text(change.boundary, sizeof(change.boundary), entry->boundary);
  bsg_out_buffer(&why, change.why, sizeof(change.why));
  bsg_out_format(&why, "%lld clean step%s, ", (long long)clean, clean == 1 ? "" : "s");
  int64_t x = bsg_sizing_x(&slot->sizing, back ? split->micro_batch : to.micro_batch, entry->elements);
  uint64_t peak = bsg_sizing_peak(&slot->sizing, x);
  if (peak == BSG_SIZING_NOT_KNOWN) {
    bsg_out_text(&why, "nothing measured yet, there are ");
  } else {
    bsg_out_text(&why, back ? "no reserve left: took " : "predicted ");
    bsg_out_size(&why, peak);
    bsg_out_text(&why, " of ");
  }
  bsg_out_size(&why, room);
  bsg_out_string(&why);
  bsg_state_change(p, now, &change);
  return true;
}

static void grow(struct bsg_policy *p, struct bsg_when now, struct bsg_entry *entry, struct bsg_sizing_slot *slot) {
  struct bsg_split split = bsg_entry_split(entry, 0);

  if (move(p, now, entry, slot, &split))
    return;
  /* It has run at its new size, and goes no further for now. */
  if (entry->grown) {
    entry->grown = false;
    say_grown(p, entry, &split);
  }
}

void bsg_state_sizes_step(struct bsg_policy *p, struct bsg_when now, const struct bsg_memory_fact *memory,
                          uint64_t allocated_peak, struct bsg_where where) {
  struct bsg_device_state *device = &p->devices[memory->device];
  bool clean = !device->disturbed;

  for (int i = 0; i < device->running_count; i++) {
    struct bsg_entry *entry = device->running[i];
    if (entry->device != memory->device)
      continue; /* the table was full, and another took its place */
    struct bsg_sizing_slot *slot = slot_of(p, memory->device, entry->boundary);
    if (entry->in_step)
      measure(slot, bsg_sizing_x(&slot->sizing, entry->in_step, entry->elements), clean, memory, allocated_peak, where);
    if (device->framework.told && device->framework.allocated_bytes != BSG_BYTES_UNKNOWN)
      bsg_sizing_held(&slot->sizing, device->framework.allocated_bytes);
    if (clean && !entry->ran_out) {
      bsg_regrow_clean(&entry->growth);
      if (p->config.mode == BSG_MODE_GUARD && p->adapter && where.step > 1)
        grow(p, now, entry, slot);
    }
    entry->in_step = 0;
    entry->ran_out = false;
  }
  device->running_count = 0;
  device->disturbed = false;
  if (clean)
    bsg_state_store_write(p, false);
}
