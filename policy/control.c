/* control.c - see control.h. */
#include "policy/control.h"

#include "policy/json_write.h"

static void split_members(struct bsg_json *json, const struct bsg_split *split, bool batch) {
  if (batch)
    bsg_json_member_known(json, "batch", split->batch, 0);
  bsg_json_member_known(json, "micro_batch", split->micro_batch, 0);
  bsg_json_member_int(json, "accumulation_steps", split->accumulation_steps);
}

static void trigger_members(struct bsg_json *json, const struct bsg_trigger *trigger) {
  bsg_json_member_string(json, "api", trigger->api);
  bsg_json_member_bytes(json, "bytes", trigger->bytes, 0);
  bsg_json_member_int(json, "device", trigger->device);
  bsg_json_member_string(json, "phase", bsg_phase_name(trigger->where.phase));
  bsg_json_member_known(json, "step", trigger->where.step, 0);
  bsg_json_member_known(json, "site", trigger->site, BSG_NO_SITE);
}

static void entry_members(struct bsg_json *json, const struct bsg_entry *entry) {
  struct bsg_split split = bsg_entry_shown(entry);

  bsg_json_member_int(json, "device", entry->device);
  bsg_json_member_string(json, "boundary", entry->boundary[0] ? entry->boundary : NULL);
  bsg_json_member_string(json, "signature", entry->signature[0] ? entry->signature : NULL);
  split_members(json, &split, true);
}

static void write_members(struct bsg_json *json, int pid, int rank, const struct bsg_change *change,
                          const struct bsg_entries *entries) {
  bsg_json_member_string(json, "schema", "bsguard.control/1");
  bsg_json_member_int(json, "sequence", change->sequence);
  bsg_json_member_int(json, "pid", pid);
  bsg_json_member_known(json, "rank", rank, -1);
  bsg_json_member_time(json, "time", change->when.unix_ms);
  bsg_json_member_string(json, "reason", bsg_reason_name(change->reason));
  bsg_json_member_bool(json, "inferred", change->reason == BSG_REASON_INFERRED);
  split_members(json, &change->split, true);

  bsg_json_key(json, "previous");
  if (change->has_previous) {
    bsg_json_object(json, BSG_JSON_INLINE);
    bsg_json_member_int(json, "sequence", change->previous_sequence);
    split_members(json, &change->previous, false);
    bsg_json_end(json);
  } else {
    bsg_json_null(json);
  }
  bsg_json_key(json, "trigger");
  if (change->has_trigger) {
    bsg_json_object(json, BSG_JSON_INLINE);
    trigger_members(json, &change->trigger);
    bsg_json_end(json);
  } else {
    bsg_json_null(json);
  }
  bsg_json_member_string(json, "exactness", bsg_exactness_name(change->exactness));

  bsg_json_key(json, "entries");
  bsg_json_array(json, BSG_JSON_LINES);
  for (int i = 0; i < entries->high; i++) {
    if (!entries->slots[i].used)
      continue;
    bsg_json_object(json, BSG_JSON_INLINE);
    entry_members(json, &entries->slots[i]);
    bsg_json_end(json);
  }
  bsg_json_end(json);
}

int bsg_control_write(struct bsg_runfolder *folder, int pid, int rank, const struct bsg_change *change,
                      const struct bsg_entries *entries) {
  struct bsg_replacement file;
  struct bsg_out out;
  struct bsg_json json;
  char buffer[4096];
  int error = bsg_replacement_open(&file, folder, "control.json");

  if (error)
    return error;
  bsg_out_through(&out, buffer, sizeof(buffer), bsg_replacement_write, &file);
  bsg_json_init(&json, &out);
  bsg_json_object(&json, BSG_JSON_LINES);
  write_members(&json, pid, rank, change, entries);
  bsg_json_end(&json);
  bsg_out_text(&out, "\n");
  return bsg_replacement_close(&file, bsg_out_finish(&out));
}
