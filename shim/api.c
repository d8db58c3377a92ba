/*
 * api.c - bsguard.h, function by function: checks what came from outside, says where the job is, and passes it to the
 * policy under its lock. Decides nothing.
 */
#include "shim/bsguard.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>

#include "hooks/cuda/ledger.h"
#include "hooks/cuda/record.h"
#include "shim/clock.h"
#include "shim/current.h"
#include "shim/options.h"
#include "shim/root.h"

/* What every call says where bsguard is off. */
#define OFF (-EOPNOTSUPP)

/* Structures of callers compiled with another version: what both know is copied. A size of 0 is the first version's. */
static size_t common(uint32_t theirs, size_t ours) {
  return theirs != 0 && theirs < ours ? theirs : ours;
}

static bool is_phase(int phase) {
  return phase >= 0 && phase < BSG_PHASE_COUNT;
}

static bool is_device(int device) {
  return device >= 0 && device < BSG_MAX_DEVICES;
}

/* The whole batch at once: what holds where nobody decides otherwise. */
static struct bsg_decision undivided(int64_t batch) {
  return (struct bsg_decision){
      .verdict = BSG_KEEP, .batch = batch, .micro_batch = batch, .accumulation_steps = 1, .chunks = 1};
}

static void give(const struct bsg_decision *decision, struct bsg_decision *out) {
  uint32_t size = out->size ? out->size : (uint32_t)sizeof *out;
  memcpy(out, decision, common(size, sizeof *decision));
  out->size = size;
}

BSG_EXPORT uint32_t bsg_api_version(void) {
  return BSG_API_VERSION;
}

BSG_EXPORT int bsg_mode(void) {
  return (int)bsg_root_mode();
}

BSG_EXPORT const char *bsg_option(const char *name) {
  return bsg_options_find(name);
}

BSG_EXPORT int bsg_attach(const char *framework, const char *command) {
  struct bsg_policy *policy = bsg_root_lock();
  int result;
  if (!policy)
    return OFF;
  bsg_root_attached();
  bsg_current_reported();
  result = bsg_policy_attach(policy, bsg_clock_now(), framework, command);
  bsg_root_unlock();
  return result;
}

BSG_EXPORT int bsg_set_phase(int phase) {
  if (!is_phase(phase))
    return -EINVAL;
  if (!bsg_root_active())
    return OFF;
  return bsg_current_set_phase(phase);
}

BSG_EXPORT int bsg_boundary(int device, const char *boundary, const char *signature, int64_t batch, int phase,
                            struct bsg_decision *out) {
  struct bsg_decision decision = undivided(batch);
  struct bsg_policy *policy;
  int result = OFF;

  if (!out || !is_device(device) || !is_phase(phase) || batch < 0)
    return -EINVAL;
  if ((policy = bsg_root_lock())) {
    bsg_current_reported();
    result = bsg_policy_boundary(policy, bsg_clock_now(), device, boundary, signature, batch, phase, &decision);
    bsg_root_unlock();
  }
  give(&decision, out);
  return result;
}

BSG_EXPORT int bsg_caught(int device, uint64_t request_bytes) {
  struct bsg_policy *policy;
  int result;

  if (!is_device(device))
    return -EINVAL;
  if (!(policy = bsg_root_lock()))
    return OFF;
  bsg_current_reported();
  result = bsg_policy_caught(policy, device, request_bytes, bsg_current_where());
  bsg_root_unlock();
  return result;
}

BSG_EXPORT int bsg_terminal(const struct bsg_oom *oom, struct bsg_decision *out) {
  struct bsg_oom mine = {0};
  struct bsg_decision decision;
  struct bsg_policy *policy;
  int result = OFF;

  if (!oom || !out)
    return -EINVAL;
  memcpy(&mine, oom, common(oom->size, sizeof mine));
  mine.size = sizeof mine;
  if (!is_device(mine.device) || !is_phase(mine.phase) || mine.batch < 0)
    return -EINVAL;
  decision = undivided(mine.batch);
  /* The policy answers what the caller can read. */
  decision.size = out->size < sizeof decision ? offsetof(struct bsg_decision, wait_ms) : sizeof decision;
  if ((policy = bsg_root_lock())) {
    bsg_current_reported();
    result = bsg_policy_terminal(policy, bsg_clock_now(), &mine, bsg_current_where(), &decision);
    bsg_root_unlock();
  }
  give(&decision, out);
  return result;
}

BSG_EXPORT int bsg_applied(int64_t sequence, int device, const char *boundary, int phase, int64_t batch,
                           int64_t micro_batch, int exactness, const char *because) {
  struct bsg_where where = bsg_current_where();
  struct bsg_policy *policy;
  int result;

  if (!is_device(device) || !is_phase(phase))
    return -EINVAL;
  if (!(policy = bsg_root_lock()))
    return OFF;
  where.phase = phase;
  result = bsg_policy_applied(policy, bsg_clock_now(), sequence, device, boundary, batch, micro_batch, exactness,
                              because, where);
  bsg_root_unlock();
  return result;
}

BSG_EXPORT int bsg_unrescued(int device, int phase, const char *exception) {
  struct bsg_where where = bsg_current_where();
  struct bsg_policy *policy;
  int result;

  if (!is_device(device) || !is_phase(phase))
    return -EINVAL;
  if (!(policy = bsg_root_lock()))
    return OFF;
  where.phase = phase;
  result = bsg_policy_unrescued(policy, bsg_clock_now(), device, exception, where);
  bsg_root_unlock();
  return result;
}

BSG_EXPORT int bsg_retried(int device, const char *what) {
  struct bsg_policy *policy;
  int result;

  if (!is_device(device))
    return -EINVAL;
  if (!(policy = bsg_root_lock()))
    return OFF;
  result = bsg_policy_retried(policy, bsg_clock_now(), device, what);
  bsg_root_unlock();
  return result;
}

BSG_EXPORT int bsg_waited(int device, int64_t waited_ms) {
  struct bsg_policy *policy;
  int result;

  if (!is_device(device) || waited_ms < 0)
    return -EINVAL;
  if (!(policy = bsg_root_lock()))
    return OFF;
  result = bsg_policy_waited(policy, bsg_clock_now(), device, waited_ms);
  bsg_root_unlock();
  return result;
}

BSG_EXPORT int bsg_refused(const char *boundary, const char *why) {
  struct bsg_policy *policy = bsg_root_lock();
  int result;
  if (!policy)
    return OFF;
  result = bsg_policy_refused(policy, bsg_clock_now(), boundary, why);
  bsg_root_unlock();
  return result;
}

BSG_EXPORT int bsg_disarmed(const char *boundary, const char *signature, const char *why, int for_good) {
  struct bsg_policy *policy = bsg_root_lock();
  int result;
  if (!policy)
    return OFF;
  result = bsg_policy_disarmed(policy, bsg_clock_now(), boundary, signature, why, for_good);
  bsg_root_unlock();
  return result;
}

BSG_EXPORT int64_t bsg_step(int device, uint64_t allocated_peak) {
  struct bsg_where where;
  struct bsg_memory_fact memory;
  struct bsg_policy *policy;

  if (!is_device(device))
    return -EINVAL;
  if (!bsg_root_active())
    return OFF;
  bsg_current_reported();
  where = bsg_current_where();
  /* A step on a device that nothing was allocated on (a job on the CPU) counts, and is no news. */
  if (bsg_record_memory(device, false, &memory) == 0) {
    bsg_ledger_step(device);
    if ((policy = bsg_root_lock())) {
      bsg_policy_step(policy, bsg_clock_now(), &memory, allocated_peak, where);
      bsg_root_unlock();
    }
  }
  return bsg_current_step();
}

BSG_EXPORT int bsg_framework(const struct bsg_framework *framework) {
  struct bsg_framework mine;
  struct bsg_policy *policy;
  int result;

  if (!framework || !is_device(framework->device))
    return -EINVAL;
  memset(&mine, 0xff, sizeof mine); /* what an older caller does not know is not known */
  mine.python_stack = NULL;
  memcpy(&mine, framework, common(framework->size, sizeof mine));
  if (!(policy = bsg_root_lock()))
    return OFF;
  result = bsg_policy_framework(policy, &mine);
  bsg_root_unlock();
  return result;
}

BSG_EXPORT int bsg_held(int device, const char *what, uint64_t tensors, uint64_t with_graph, uint64_t bytes) {
  struct bsg_policy *policy;
  int result;

  if (!is_device(device))
    return -EINVAL;
  if (!(policy = bsg_root_lock()))
    return OFF;
  result = bsg_policy_held(policy, device, what, tensors, with_graph, bytes);
  bsg_root_unlock();
  return result;
}

BSG_EXPORT int bsg_note(const char *name, const char *value) {
  struct bsg_policy *policy;
  int result;

  if (!name || !*name)
    return -EINVAL;
  if (!(policy = bsg_root_lock()))
    return OFF;
  result = bsg_policy_note(policy, name, value);
  bsg_root_unlock();
  return result;
}

BSG_EXPORT int bsg_report(void) {
  struct bsg_policy *policy = bsg_root_lock();
  int result;
  if (!policy)
    return OFF;
  result = bsg_policy_report(policy, bsg_clock_now(), bsg_current_where());
  bsg_root_unlock();
  return result;
}

BSG_EXPORT int bsg_memory(int device, struct bsg_memory *out) {
  struct bsg_memory_fact fact;
  struct bsg_memory memory = {0};
  int result;

  if (!out || !is_device(device))
    return -EINVAL;
  if (!bsg_root_active())
    return OFF;
  result = bsg_record_memory(device, true, &fact);
  if (result != 0)
    return result;
  memory.size = out->size ? out->size : (uint32_t)sizeof memory;
  memory.device = device;
  memory.total_bytes = fact.total_bytes;
  memory.free_bytes = fact.free_bytes;
  /* Where the driver cannot be asked: what nobody else has taken, as far as we know. */
  if (fact.free_bytes == UINT64_MAX)
    memory.free_bytes = fact.total_bytes > fact.live_bytes ? fact.total_bytes - fact.live_bytes : 0;
  memory.live_bytes = fact.live_bytes;
  memory.peak_bytes = fact.peak_bytes;
  memory.step_peak_bytes = fact.step_peak_bytes;
  if (fact.free_bytes != UINT64_MAX && fact.before_bytes != UINT64_MAX) {
    uint64_t ours = fact.live_bytes + fact.free_bytes + fact.before_bytes;
    memory.others_bytes = fact.total_bytes > ours ? fact.total_bytes - ours : 0;
  }
  memcpy(out, &memory, common(memory.size, sizeof memory));
  return 0;
}
