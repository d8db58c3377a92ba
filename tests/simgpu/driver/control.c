/*
 * control.c - the functions of simgpu.h: thin locked doors to what the other files know.
 */
#include "internal.h"

int simgpu_set_capacity(int device, uint64_t bytes) {
  if (!sim_known_device(device))
    return -1;
  sim_lock();
  sim_capacity_set(device, bytes);
  sim_unlock();
  return 0;
}

static uint64_t ask(int device, uint64_t (*what)(int)) {
  uint64_t value;
  if (!sim_known_device(device))
    return 0;
  sim_lock();
  value = what(device);
  sim_unlock();
  return value;
}

uint64_t simgpu_used(int device) {
  return ask(device, sim_capacity_used);
}

uint64_t simgpu_live(int device) {
  return ask(device, sim_capacity_live);
}

static uint64_t ask_kind(int device, int kind, uint64_t (*what)(int, enum simgpu_kind)) {
  uint64_t value;
  if (!sim_known_device(device) || kind < 0 || kind >= SIMGPU_KINDS)
    return 0;
  sim_lock();
  value = what(device, (enum simgpu_kind)kind);
  sim_unlock();
  return value;
}

uint64_t simgpu_used_by(int device, int kind) {
  return ask_kind(device, kind, sim_capacity_used_by);
}

uint64_t simgpu_requested_by(int device, int kind) {
  return ask_kind(device, kind, sim_capacity_requested_by);
}

uint64_t simgpu_live_by(int device, int kind) {
  return ask_kind(device, kind, sim_capacity_live_by);
}

uint64_t simgpu_used_by_others(int device) {
  return ask(device, sim_shared_others);
}

uint64_t simgpu_reserved(int device) {
  return ask_kind(device, SIMGPU_POOL, sim_capacity_used_by);
}

uint64_t simgpu_peak(int device, int reset) {
  uint64_t value;
  if (!sim_known_device(device))
    return 0;
  sim_lock();
  value = sim_capacity_peak(device, reset != 0);
  sim_unlock();
  return value;
}

uint64_t simgpu_calls(void) {
  sim_lock();
  uint64_t value = sim_fault_calls();
  sim_unlock();
  return value;
}

uint64_t simgpu_failures(void) {
  sim_lock();
  uint64_t value = sim_fault_refusals();
  sim_unlock();
  return value;
}

void simgpu_fail_at(uint64_t n_from_now, uint64_t count) {
  sim_lock();
  sim_fault_at(n_from_now, count);
  sim_unlock();
}

void simgpu_fail_every(uint64_t n) {
  sim_lock();
  sim_fault_every(n);
  sim_unlock();
}

void simgpu_fail_size(uint64_t bytes) {
  sim_lock();
  sim_fault_size(bytes);
  sim_unlock();
}

void simgpu_fail_calls(int all) {
  sim_lock();
  sim_fault_all(all != 0);
  sim_unlock();
}
