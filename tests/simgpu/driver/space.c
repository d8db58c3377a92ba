/*
 * space.c - addresses of the simulated devices, and the host memory behind them. Knows nothing of capacity or contexts'
 * meaning. Callers hold the lock.
 *
 * Addresses come in slabs of 64 MiB-aligned host mappings. A slab serves blocks of one size class, in slots; a block
 * too large for that has a slab of its own. A table with an entry for each 64 MiB of address space leads from any
 * address to its slab, and from there to its block, so all of it takes constant time however many blocks are live, and
 * freed addresses are given out again soon, as a real driver does.
 *
 * With SIMGPU_PROTECT a slab is mapped twice: at the device addresses without access, and elsewhere for the driver
 * itself.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "internal.h"

#define SLAB_SHIFT 26
#define SLAB_BYTES (1ull << SLAB_SHIFT)
#define ADDRESS_BITS 47               /* of user space, on x86-64 and on aarch64 where nothing asks for more */
#define LARGEST_SLOT (SLAB_BYTES / 4) /* larger blocks have slabs of their own */
#define SMALLEST_SLOT 512             /* alignment that cuMemAlloc gives */
#define LINEAR_TO 4096                /* classes in steps of 512 up to here, then four a doubling */
#define LINEAR_CLASSES (LINEAR_TO / SMALLEST_SLOT)
#define CLASSES (LINEAR_CLASSES + 4 * 12) /* up to 16 MiB */
#define RETURN_FROM (128u << 10)          /* freed blocks of this size give their host memory back */

struct slab {
  uint64_t base, bytes;
  char *host; /* where the driver itself reaches base */
  uint64_t slot_bytes;
  uint32_t slots, opened; /* opened: slots that were ever used, from the first on */
  uint32_t free_head;     /* slot index + 1 of the slot freed last */
  uint32_t live;
  int device, class; /* class -1: a block's own slab */
  enum sim_pool pool;
  bool listed;
  struct slab *next_partial; /* slabs of this class with room */
  struct slab *previous, *next;
  struct sim_block *blocks;
};

static struct {
  struct slab *at[1u << (ADDRESS_BITS - SLAB_SHIFT)];
  struct slab *partial[SIM_MAX_DEVICES][SIM_POOLS][CLASSES];
  struct slab *all[SIM_MAX_DEVICES];
} state;

/* The class whose slots hold `bytes`, and the size of those; -1 when none does. */
static int class_of(uint64_t bytes, uint64_t *slot_bytes) {
  uint64_t rounded, step;
  int log2;
  if (bytes > LARGEST_SLOT)
    return -1;
  rounded = sim_round_up(bytes, SMALLEST_SLOT);
  if (rounded <= LINEAR_TO) {
    *slot_bytes = rounded;
    return (int)(rounded / SMALLEST_SLOT) - 1;
  }
  log2 = 63 - __builtin_clzll(rounded - 1);
  step = 1ull << (log2 - 2);
  *slot_bytes = sim_round_up(rounded, step);
  return LINEAR_CLASSES + 4 * (log2 - 12) + (int)(*slot_bytes / step) - 5;
}

/* Maps `bytes` at an address aligned to SLAB_BYTES; NULL when the host has no such room. */
static char *map_aligned(uint64_t bytes, int protection, int flags, int fd, bool low) {
  uint64_t span = bytes + SLAB_BYTES, start, head;
  char *found, *wanted;
  int extra = 0;
#ifdef MAP_32BIT
  extra = low ? MAP_32BIT : 0;
#endif
  found = mmap(low && !extra ? (void *)(uintptr_t)(1ull << 30) : NULL, span, PROT_NONE,
               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | extra, -1, 0);
  if (found == MAP_FAILED)
    return NULL;
  start = sim_round_up((uintptr_t)found, SLAB_BYTES);
  head = start - (uintptr_t)found;
  wanted = (char *)(uintptr_t)start;
  if (head)
    munmap(found, head);
  if (span - head > bytes)
    munmap(wanted + bytes, span - head - bytes);
  if ((start + bytes) >> ADDRESS_BITS || (low && (start + bytes) >> 32) ||
      mmap(wanted, bytes, protection, flags | MAP_FIXED | MAP_NORESERVE, fd, 0) == MAP_FAILED) {
    munmap(wanted, bytes);
    return NULL;
  }
  return wanted;
}

static int map_slab(struct slab *slab) {
  const int both = PROT_READ | PROT_WRITE;
  bool hidden = sim_config()->protect && slab->pool != SIM_POOL_MANAGED, low = slab->pool == SIM_POOL_LOW;
  char *address;
  int fd = -1;

  if (!hidden) {
    address = map_aligned(slab->bytes, both, MAP_PRIVATE | MAP_ANONYMOUS, -1, low);
    slab->host = address;
  } else {
    fd = memfd_create("simgpu", MFD_CLOEXEC);
    if (fd < 0)
      return -ENOMEM;
    address = NULL;
    slab->host = MAP_FAILED;
    if (ftruncate(fd, (off_t)slab->bytes) == 0)
      slab->host = mmap(NULL, slab->bytes, both, MAP_SHARED | MAP_NORESERVE, fd, 0);
    if (slab->host != MAP_FAILED)
      address = map_aligned(slab->bytes, PROT_NONE, MAP_SHARED, fd, low);
    if (!address && slab->host != MAP_FAILED)
      munmap(slab->host, slab->bytes);
    close(fd);
  }
  slab->base = (uintptr_t)address;
  return address ? 0 : -ENOMEM;
}

static size_t header_bytes(uint32_t slots) {
  return sizeof(struct slab) + slots * sizeof(struct sim_block);
}

static void slab_delete(struct slab *slab) {
  for (uint64_t at = slab->base; at < slab->base + slab->bytes; at += SLAB_BYTES)
    state.at[at >> SLAB_SHIFT] = NULL;
  if (slab->previous)
    slab->previous->next = slab->next;
  else
    state.all[slab->device] = slab->next;
  if (slab->next)
    slab->next->previous = slab->previous;
  munmap((void *)(uintptr_t)slab->base, slab->bytes);
  if ((uintptr_t)slab->host != slab->base)
    munmap(slab->host, slab->bytes);
  munmap(slab, header_bytes(slab->slots));
}

static struct slab *slab_create(int device, enum sim_pool pool, int class, uint64_t slot_bytes) {
  uint64_t bytes = class < 0 ? sim_round_up(slot_bytes, SLAB_BYTES) : SLAB_BYTES;
  uint32_t slots = class < 0 ? 1 : (uint32_t)(SLAB_BYTES / slot_bytes);
  struct slab *slab =
      mmap(NULL, header_bytes(slots), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

  if (slab == MAP_FAILED)
    return NULL;
  slab->bytes = bytes;
  slab->slot_bytes = slot_bytes;
  slab->slots = slots;
  slab->device = device;
  slab->pool = pool;
  slab->class = class;
  slab->blocks = (struct sim_block *)(slab + 1);
  if (map_slab(slab)) {
    munmap(slab, header_bytes(slots));
    return NULL;
  }
  for (uint64_t at = slab->base; at < slab->base + bytes; at += SLAB_BYTES)
    state.at[at >> SLAB_SHIFT] = slab;
  slab->next = state.all[device];
  if (slab->next)
    slab->next->previous = slab;
  state.all[device] = slab;
  return slab;
}

static void list(struct slab *slab) {
  struct slab **head = &state.partial[slab->device][slab->pool][slab->class];
  if (slab->listed)
    return;
  slab->next_partial = *head;
  slab->listed = true;
  *head = slab;
}

int sim_space_take(int device, enum sim_pool pool, uint64_t bytes, struct sim_place *out) {
  uint64_t slot_bytes = bytes;
  int class = class_of(bytes, &slot_bytes);
  struct slab *slab = class < 0 ? NULL : state.partial[device][pool][class];
  uint32_t slot;

  if (!slab) {
    slab = slab_create(device, pool, class, slot_bytes);
    if (!slab)
      return -ENOMEM;
    if (class >= 0)
      list(slab);
  }
  if (slab->free_head) {
    slot = slab->free_head - 1;
    slab->free_head = slab->blocks[slot].next_free;
  } else {
    slot = slab->opened++;
  }
  slab->live++;
  if (slab->listed && !slab->free_head && slab->opened == slab->slots) {
    state.partial[device][pool][class] = slab->next_partial;
    slab->listed = false;
  }
  out->block = &slab->blocks[slot];
  out->base = slab->base + slot * slab->slot_bytes;
  out->host = slab->host + slot * slab->slot_bytes;
  *out->block = (struct sim_block){.bytes = bytes, .device = (uint8_t)device, .pool = (uint8_t)pool};
  return 0;
}

bool sim_space_find(uint64_t address, struct sim_place *out) {
  struct slab *slab;
  uint64_t slot;
  if (address >> ADDRESS_BITS)
    return false;
  slab = state.at[address >> SLAB_SHIFT];
  if (!slab)
    return false;
  slot = (address - slab->base) / slab->slot_bytes;
  if (slot >= slab->opened)
    return false;
  out->block = &slab->blocks[slot];
  out->base = slab->base + slot * slab->slot_bytes;
  out->host = slab->host + (address - slab->base);
  return address - out->base < out->block->bytes;
}

/* Gives whole pages inside a freed slot back to the host. */
static void return_pages(const struct slab *slab, uint64_t offset, uint64_t bytes) {
  uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
  uint64_t from = sim_round_up(offset, page), to = (offset + bytes) / page * page;
  bool shared = (uintptr_t)slab->host != slab->base;
  if (to > from)
    madvise(slab->host + from, to - from, shared ? MADV_REMOVE : MADV_DONTNEED);
}

void sim_space_give(const struct sim_place *place) {
  struct slab *slab = state.at[place->base >> SLAB_SHIFT];
  uint64_t offset = place->base - slab->base;

  slab->live--;
  if (slab->class < 0) {
    slab_delete(slab);
    return;
  }
  if (place->block->bytes >= RETURN_FROM)
    return_pages(slab, offset, slab->slot_bytes);
  place->block->bytes = 0;
  place->block->next_free = slab->free_head;
  slab->free_head = (uint32_t)(offset / slab->slot_bytes) + 1;
  list(slab);
}

void sim_space_each(int device, void (*visit)(const struct sim_place *place, void *arg), void *arg) {
  struct slab *next;
  for (struct slab *slab = state.all[device]; slab; slab = next) {
    uint32_t opened = slab->opened;
    struct sim_block *blocks = slab->blocks;
    uint64_t base = slab->base, step = slab->slot_bytes;
    char *host = slab->host;
    bool single = slab->class < 0;
    next = slab->next;
    for (uint32_t slot = 0; slot < opened; slot++) {
      if (blocks[slot].bytes == 0)
        continue;
      visit(&(struct sim_place){&blocks[slot], base + slot * step, host + slot * step}, arg);
      if (single) /* the slab may be gone */
        break;
    }
  }
}
