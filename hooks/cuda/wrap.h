/*
 * wrap.h - the bodies that wrappers of one kind share. Each calls the driver and then records; an out-parameter is read
 * only if the call succeeded. Include this in files of wrappers only.
 */
#ifndef BSG_CUDA_WRAP_H
#define BSG_CUDA_WRAP_H

#include "hooks/cuda/record.h"
#include "shim/bsguard.h"

/* The first lines of each: `real`, and the calls that are only passed on. CALL: the arguments, in parentheses. */
#define BSG_ENTER(symbol, CALL)                                                                                        \
  bsg_fn_##symbol real = BSG_REAL(symbol);                                                                             \
  CUresult result;                                                                                                     \
  if (!real)                                                                                                           \
    return CUDA_ERROR_NOT_INITIALIZED;                                                                                 \
  if (!bsg_record_enter())                                                                                             \
  return real CALL

#define BSG_LEAVE()                                                                                                    \
  bsg_record_leave();                                                                                                  \
  return result

/* Between the two, what the call comes to. */
#define BSG_OUTCOME(call, kind, KEY, GIVEN)                                                                            \
  if (result == CUDA_SUCCESS)                                                                                          \
    bsg_record_outcome(&(call), result, (kind), (KEY), (GIVEN));                                                       \
  else                                                                                                                 \
    bsg_record_outcome(&(call), result, (kind), 0, 0)

/* Memory of the current device. BYTES: what is asked for; KEY and GIVEN: what came of it, evaluated after success. */
#define BSG_ALLOCATE(symbol, CALL, kind, BYTES, KEY, GIVEN)                                                            \
  struct bsg_call call;                                                                                                \
  BSG_ENTER(symbol, CALL);                                                                                             \
  result = bsg_record_request(&call, BSG_HOOK_##symbol, BSG_CALLER, (BYTES));                                          \
  if (result == CUDA_SUCCESS)                                                                                          \
    result = real CALL;                                                                                                \
  BSG_OUTCOME(call, kind, KEY, GIVEN);                                                                                 \
  BSG_LEAVE()

/* Memory that is no loss of the device: kept apart. */
#define BSG_SET_APART(symbol, CALL, kind, KEY, GIVEN)                                                                  \
  BSG_ENTER(symbol, CALL);                                                                                             \
  result = real CALL;                                                                                                  \
  if (result == CUDA_SUCCESS)                                                                                          \
    bsg_record_apart(BSG_HOOK_##symbol, (kind), (KEY), (GIVEN), -1);                                                   \
  else if (__builtin_expect(result == CUDA_ERROR_OUT_OF_MEMORY, 0))                                                    \
    bsg_record_unsaid(BSG_HOOK_##symbol, BSG_CALLER, -1);                                                              \
  BSG_LEAVE()

/* Frees what has the key. STRANGER: what a success means where no hook saw it allocated. */
#define BSG_FREE_OR(symbol, CALL, KEY, STRANGER)                                                                       \
  struct bsg_allocation taken;                                                                                         \
  bool ours;                                                                                                           \
  bsg_ledger_expect(KEY);                                                                                              \
  BSG_ENTER(symbol, CALL);                                                                                             \
  ours = bsg_record_take((KEY), &taken);                                                                               \
  result = real CALL;                                                                                                  \
  if (__builtin_expect(ours, 1))                                                                                       \
    bsg_record_freed(&taken, result);                                                                                  \
  else {                                                                                                               \
    STRANGER;                                                                                                          \
  }                                                                                                                    \
  BSG_LEAVE()

#define BSG_FREE(symbol, CALL, KEY) BSG_FREE_OR(symbol, CALL, KEY, (void)0)

/* A call that takes memory from the device without saying so: what it says is when there was none. */
#define BSG_UNSAID_ON(symbol, CALL, device)                                                                            \
  BSG_ENTER(symbol, CALL);                                                                                             \
  result = real CALL;                                                                                                  \
  if (__builtin_expect(result == CUDA_ERROR_OUT_OF_MEMORY, 0))                                                         \
    bsg_record_unsaid(BSG_HOOK_##symbol, BSG_CALLER, (device));                                                        \
  BSG_LEAVE()

#define BSG_UNSAID(symbol, CALL) BSG_UNSAID_ON(symbol, CALL, -1)

#endif
