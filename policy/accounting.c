/* accounting.c - see accounting.h. */
#include "policy/accounting.h"

static uint64_t smaller(uint64_t left, uint64_t right) {
  return left < right ? left : right;
}

/* What the processes that NVML names hold; false: it does not say of all, or one of them may be this one. */
static bool told(const struct bsg_others_fact *others, uint64_t *bytes) {
  *bytes = 0;
  if (!others || (others->count && !others->own_seen) || others->count > others->listed)
    return false;
  for (int i = 0; i < others->listed; i++) {
    if (others->list[i].bytes == BSG_BYTES_UNKNOWN)
      return false;
    *bytes += others->list[i].bytes;
  }
  return true;
}

void bsg_account(const struct bsg_accounting_input *input, struct bsg_accounting *out) {
  uint64_t left, others;

  *out = (struct bsg_accounting){.capacity_bytes = input->capacity_bytes};
  out->framework_told = input->allocated_bytes != BSG_BYTES_UNKNOWN;
  if (input->capacity_bytes == BSG_BYTES_UNKNOWN || input->free_bytes == BSG_BYTES_UNKNOWN ||
      input->live_bytes == BSG_BYTES_UNKNOWN)
    return;
  out->known = true;
  out->bytes[BSG_PART_FREE] = smaller(input->free_bytes, input->capacity_bytes);
  left = input->capacity_bytes - out->bytes[BSG_PART_FREE];

  uint64_t live = smaller(input->live_bytes, left);
  left -= live;
  if (out->framework_told) {
    out->bytes[BSG_PART_FRAMEWORK_LIVE] = smaller(input->allocated_bytes, live);
    live -= out->bytes[BSG_PART_FRAMEWORK_LIVE];
    if (input->reserved_bytes != BSG_BYTES_UNKNOWN && input->reserved_bytes > input->allocated_bytes)
      out->bytes[BSG_PART_FRAMEWORK_CACHED] = smaller(input->reserved_bytes - input->allocated_bytes, live);
    live -= out->bytes[BSG_PART_FRAMEWORK_CACHED];
  }
  out->bytes[BSG_PART_PROCESS_OTHER] = live;

  if (told(input->others, &others)) {
    out->bytes[BSG_PART_OTHER_PROCESSES] = smaller(others, left);
    out->bytes[BSG_PART_DRIVER] = left - out->bytes[BSG_PART_OTHER_PROCESSES];
  } else {
    out->bytes[BSG_PART_NOT_TOLD_APART] = left;
  }
}

const char *bsg_part_name(enum bsg_part part) {
  static const char *const names[] = {"framework_live",  "framework_cached", "process_other", "driver_own",
                                      "other_processes", "not_told_apart",   "free"};
  return names[part];
}

const char *bsg_part_label(enum bsg_part part) {
  static const char *const labels[] = {"framework, in use",
                                       "framework, idle in its cache",
                                       "this process, other CUDA",
                                       "the driver's own",
                                       "other processes",
                                       "driver's own or others'",
                                       "free"};
  return labels[part];
}
