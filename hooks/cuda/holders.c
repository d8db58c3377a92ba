/*
 * holders.c - who holds the memory, for reports: the largest live allocations of the ledger, and among them what pools
 * have reserved and not handed out. Declared in record.h.
 */
#include <string.h>

#include "hooks/cuda/record.h"
#include "hooks/cuda/reserves.h"

static void to_fact(const struct bsg_allocation *allocation, struct bsg_holder_fact *out) {
  *out = (struct bsg_holder_fact){.api = bsg_hook_symbol((enum bsg_hook_id)allocation->api),
                                  .device = allocation->device,
                                  .address = allocation->key & (((uint64_t)1 << 60) - 1),
                                  .bytes = allocation->bytes,
                                  .site = allocation->site,
                                  .where = {.step = allocation->step, .phase = allocation->phase},
                                  .kind = allocation->kind};
}

/* What lies idle in pools, among the holders, in its place by size. Returns how many there are now. */
static int insert_idle(int device, struct bsg_holder_fact *out, int count, int room) {
  struct bsg_holder_fact idle = {
      .api = "idle in memory pools", .device = device, .bytes = bsg_reserves_idle(device), .kind = BSG_KIND_POOL};
  int at = 0;
  while (at < count && out[at].bytes >= idle.bytes)
    at++;
  if (idle.bytes == 0 || at == room)
    return count;
  if (count < room)
    count++;
  memmove(&out[at + 1], &out[at], (size_t)(count - 1 - at) * sizeof *out);
  out[at] = idle;
  return count;
}

#define MOST_HOLDERS 64

int bsg_record_holders(int device, struct bsg_holder_fact *out, int room) {
  struct bsg_allocation largest[MOST_HOLDERS];
  int count = bsg_ledger_largest(device, largest, room < MOST_HOLDERS ? room : MOST_HOLDERS);
  for (int i = 0; i < count; i++)
    to_fact(&largest[i], &out[i]);
  return device >= 0 && device < BSG_MAX_DEVICES ? insert_idle(device, out, count, room) : count;
}
