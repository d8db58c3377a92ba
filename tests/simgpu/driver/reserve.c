/*
 * reserve.c - memory that is taken from a device in chunks of SIMGPU_POOL_CHUNK and handed out in pieces: what memory
 * pools and graphs are made of. Figures only: no addresses, so no fragmentation either; NVIDIA's driver remaps pages
 * against it.
 */
#include "internal.h"

#define PIECE 512

static uint64_t chunk(void) {
  const struct sim_config *c = sim_config();
  return c->pool_chunk > c->granularity ? c->pool_chunk : c->granularity;
}

uint64_t sim_reserve_piece(uint64_t bytes) {
  return sim_round_up(bytes, PIECE);
}

bool sim_reserve_grow(struct sim_reserve *r, uint64_t bytes) {
  uint64_t spare = r->reserved - r->used, growth;
  if (bytes <= spare)
    return true;
  if (bytes > sim_capacity_total(r->device)) /* also keeps the rounding below from overflowing */
    return false;
  growth = sim_round_up(bytes - spare, chunk());
  if (!sim_capacity_take(r->device, r->kind, growth))
    return false;
  r->reserved += growth;
  if (r->reserved > r->reserved_high)
    r->reserved_high = r->reserved;
  return true;
}

bool sim_reserve_use(struct sim_reserve *r, uint64_t bytes) {
  if (bytes > sim_capacity_total(r->device) || !sim_reserve_grow(r, sim_reserve_piece(bytes)))
    return false;
  r->used += sim_reserve_piece(bytes);
  if (r->used > r->used_high)
    r->used_high = r->used;
  sim_capacity_hand_out(r->device, r->kind, bytes);
  return true;
}

void sim_reserve_put_back(struct sim_reserve *r, uint64_t bytes) {
  r->used -= sim_reserve_piece(bytes);
  sim_capacity_hand_in(r->device, r->kind, bytes);
}

void sim_reserve_trim(struct sim_reserve *r, uint64_t keep) {
  uint64_t wanted = keep > r->used ? keep : r->used;
  if (wanted >= r->reserved)
    return;
  wanted = sim_round_up(wanted, chunk());
  if (wanted >= r->reserved)
    return;
  sim_capacity_return(r->device, r->kind, r->reserved - wanted);
  r->reserved = wanted;
}
