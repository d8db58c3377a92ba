/* culprit.c - see culprit.h. */
#include "policy/culprit.h"

/* What a driver keeps for itself where nobody says whose it is: at most a twentieth of the device, and a GiB. */
#define DRIVER_SHARE 20
#define DRIVER_MOST ((uint64_t)1 << 30)
#define LEAST_SHARE 10   /* of the capacity: below a tenth nothing is a cause */
#define REQUEST_SHARE 3  /* a single request of more than a third of the device is huge */
#define PIECES_SHARE 6   /* idle memory in pieces counts from a sixth of the device */
#define FIXED_PERCENT 60 /* weights, gradients and optimizer state of the capacity */

static bool known(uint64_t bytes) {
  return bytes != BSG_BYTES_UNKNOWN;
}

static uint64_t or_nothing(uint64_t bytes) {
  return known(bytes) ? bytes : 0;
}

/* What would have had to be there besides. */
static uint64_t shortfall(const struct bsg_culprit_input *in) {
  uint64_t free_bytes = or_nothing(in->free_bytes);
  return in->request_bytes > free_bytes ? in->request_bytes - free_bytes : 0;
}

static void consider(struct bsg_culprit *best, enum bsg_cause cause, uint64_t bytes, bool holds) {
  if (holds && (best->cause == BSG_CAUSE_NONE || bytes > best->bytes))
    *best = (struct bsg_culprit){cause, bytes};
}

static uint64_t foreign(const struct bsg_culprit_input *in) {
  uint64_t own = in->capacity_bytes / DRIVER_SHARE;

  if (known(in->others_bytes))
    return in->others_bytes;
  own = own < DRIVER_MOST ? own : DRIVER_MOST;
  return or_nothing(in->elsewhere_bytes) > own ? in->elsewhere_bytes - own : 0;
}

static bool keeps_data(const struct bsg_culprit_input *in) {
  return in->kept_data > in->kept_graphs;
}

static void out_of_the_ordinary(const struct bsg_culprit_input *in, struct bsg_culprit *best) {
  uint64_t least = in->capacity_bytes / LEAST_SHARE, missing = shortfall(in);
  uint64_t grown = in->growth->last_bytes - in->growth->first_bytes;
  uint64_t others = foreign(in), idle = or_nothing(in->idle_bytes), free_bytes = or_nothing(in->free_bytes);

  consider(best, BSG_CAUSE_OTHER_PROCESS, others, others >= least && others >= missing);
  consider(best, keeps_data(in) ? BSG_CAUSE_GROWING_CACHE : BSG_CAUSE_LEAK, grown,
           in->growth->trend == BSG_TREND_LEAK && grown >= least && grown >= missing);
  consider(best, BSG_CAUSE_FRAGMENTATION, grown,
           in->growth->trend == BSG_TREND_CACHE && grown >= least && grown >= missing);
  consider(best, BSG_CAUSE_FRAGMENTATION, idle,
           in->request_bytes && idle >= in->request_bytes && idle >= in->capacity_bytes / PIECES_SHARE);
  consider(best, BSG_CAUSE_FRAGMENTATION, free_bytes,
           in->driver_refused && in->request_bytes && free_bytes >= in->request_bytes);
  /* What an evaluation or an optimizer asks for has a better name. */
  consider(best, BSG_CAUSE_ONE_REQUEST, in->request_bytes,
           in->request_bytes > in->capacity_bytes / REQUEST_SHARE && in->phase != BSG_PHASE_EVALUATION &&
               in->phase != BSG_PHASE_OPTIMIZER);
}

static void the_step_itself(const struct bsg_culprit_input *in, struct bsg_culprit *out) {
  uint64_t optimizer = or_nothing(in->optimizer_bytes);
  uint64_t fixed = or_nothing(in->parameter_bytes) + or_nothing(in->gradient_bytes) + optimizer;

  if (in->phase == BSG_PHASE_OPTIMIZER || (fixed > in->capacity_bytes / 100 * FIXED_PERCENT && optimizer * 3 > fixed)) {
    *out = (struct bsg_culprit){BSG_CAUSE_OPTIMIZER_STATE, known(in->optimizer_bytes) ? optimizer : in->request_bytes};
  } else if (in->phase == BSG_PHASE_EVALUATION) {
    *out = (struct bsg_culprit){BSG_CAUSE_EVALUATION, in->request_bytes};
  } else if (fixed > in->capacity_bytes / 100 * FIXED_PERCENT) {
    *out = (struct bsg_culprit){BSG_CAUSE_FIXED_PART, fixed};
  } else if (in->fit && in->at_the_floor && in->fit->fixed_bytes > in->capacity_bytes / 100 * FIXED_PERCENT) {
    *out = (struct bsg_culprit){BSG_CAUSE_FIXED_PART, in->fit->fixed_bytes};
  } else if (in->phase == BSG_PHASE_FORWARD || in->phase == BSG_PHASE_LOSS || in->phase == BSG_PHASE_BACKWARD) {
    uint64_t bytes =
        known(in->allocated_bytes) && in->allocated_bytes > fixed ? in->allocated_bytes - fixed : BSG_BYTES_UNKNOWN;
    *out = (struct bsg_culprit){BSG_CAUSE_ACTIVATIONS, bytes};
  } else {
    *out = (struct bsg_culprit){BSG_CAUSE_UNKNOWN, BSG_BYTES_UNKNOWN};
  }
}

void bsg_culprit_find(const struct bsg_culprit_input *input, struct bsg_culprit *out) {
  *out = (struct bsg_culprit){BSG_CAUSE_NONE, 0};
  if (known(input->capacity_bytes))
    out_of_the_ordinary(input, out);
  if (out->cause != BSG_CAUSE_NONE)
    return;
  if (!input->driver_refused)
    *out = (struct bsg_culprit){BSG_CAUSE_FRAMEWORK_LIMIT, BSG_BYTES_UNKNOWN};
  else if (known(input->capacity_bytes))
    the_step_itself(input, out);
  else
    *out = (struct bsg_culprit){BSG_CAUSE_UNKNOWN, BSG_BYTES_UNKNOWN};
}

const char *bsg_cause_name(enum bsg_cause cause) {
  static const char *const names[BSG_CAUSE_COUNT] = {
      "none",          "framework_limit", "other_process", "fragmentation", "one_request", "leak",
      "growing_cache", "optimizer_state", "fixed_part",    "evaluation",    "activations", "unknown"};
  return names[cause];
}
