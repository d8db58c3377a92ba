/*
 * lookup.c - cuGetProcAddress: a bare name, a CUDA version and flags in, the right version of the function out.
 *
 * entries.def is the only list of what can be looked up. Each line is checked by the compiler against the type that
 * cudaTypedefs.h has for that name and version.
 *
 * As documented for CUDA 12: an unknown name, or a version older than the name, gives no pointer, a status, and
 * success. Where the caller takes no status (always in cuGetProcAddress of CUDA 11) the result is CUDA_ERROR_NOT_FOUND.
 */
#include <string.h>

#include "internal.h"
#include "newer.h"

struct entry {
  const char *name;
  int since;
  bool per_thread;
  void (*function)(void);
};

/* The call is never made: it only has the compiler compare the types. */
#define ENTRY(name, since, function)                                                                                   \
  _Static_assert(__builtin_types_compatible_p(PFN_##name##_v##since, __typeof__(&function)), #function);
#define ENTRY_PTDS(name, since, function)                                                                              \
  _Static_assert(__builtin_types_compatible_p(PFN_##name##_v##since##_ptds, __typeof__(&function)), #function);
#define ENTRY_PTSZ(name, since, function)                                                                              \
  _Static_assert(__builtin_types_compatible_p(PFN_##name##_v##since##_ptsz, __typeof__(&function)), #function);
#include "entries.def"
#undef ENTRY
#undef ENTRY_PTDS
#undef ENTRY_PTSZ

#define ENTRY(name, since, function) {#name, since, false, (void (*)(void))function},
#define ENTRY_PTDS(name, since, function) {#name, since, true, (void (*)(void))function},
#define ENTRY_PTSZ(name, since, function) {#name, since, true, (void (*)(void))function},
static const struct entry entries[] = {
#include "entries.def"
};

/* The newest function of that name that is not newer than `version`; *known tells whether the name exists at all. What
 * is newer than the driver does not exist. */
static const struct entry *find(const char *name, int version, bool per_thread, bool *known) {
  const struct entry *best = NULL;
  *known = false;
  for (size_t i = 0; i < sizeof entries / sizeof *entries; i++) {
    const struct entry *e = &entries[i];
    if (strcmp(e->name, name) != 0 || e->since > sim_config()->driver_version)
      continue;
    *known = true;
    if (e->since > version || (e->per_thread && !per_thread))
      continue;
    if (!best || e->since > best->since || (e->since == best->since && e->per_thread))
      best = e;
  }
  return best;
}

static CUresult look_up(const char *name, void **out, int version, cuuint64_t flags,
                        CUdriverProcAddressQueryResult *status) {
  const cuuint64_t both = CU_GET_PROC_ADDRESS_LEGACY_STREAM | CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
  const struct entry *entry;
  bool known;

  if (!name || !out || (flags & ~both) || flags == both)
    return CUDA_ERROR_INVALID_VALUE;
  entry = find(name, version, flags == CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, &known);
  *out = entry ? (void *)entry->function : NULL;
  if (status)
    *status = entry   ? CU_GET_PROC_ADDRESS_SUCCESS
              : known ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                      : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  return entry || status ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult cuGetProcAddress_v2(const char *name, void **out, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult *status) {
  return look_up(name, out, version, flags, status);
}

CUresult cuGetProcAddress(const char *name, void **out, int version, cuuint64_t flags) {
  return look_up(name, out, version, flags, NULL);
}

/* NVIDIA's private interface between runtime and driver: none of it is here. */
CUresult cuGetExportTable(const void **out, const CUuuid *id) {
  (void)id;
  if (!out)
    return CUDA_ERROR_INVALID_VALUE;
  *out = NULL;
  return CUDA_ERROR_NOT_FOUND;
}
