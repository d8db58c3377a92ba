/*
 * physical.c - see physical.h. Depends on uthash (compiled in), pages.h and ledger.h, whose lock is taken under ours.
 * Never calls the driver, the host or malloc().
 */
#include "hooks/cuda/physical.h"

#include <pthread.h>
#include <string.h>

#include "hooks/cuda/pages.h"

#define HASH_NONFATAL_OOM 1
#define uthash_malloc(size) bsg_pages_map(size)
#define uthash_free(pages, size) bsg_pages_unmap(pages, size)
#include <uthash.h>

/* A range that is unmapped may hold several mappings: one begins where the one before ended, or later by so much. */
#define STEP ((uint64_t)64 << 10)

struct piece {
  uint64_t key;
  uint64_t references; /* handles and mappings */
  uint64_t endings;    /* calls under way that are to end one */
  bool out;            /* `entry` was taken out of the ledger */
  struct bsg_allocation entry;
};

struct handle {
  CUmemGenericAllocationHandle value;
  uint64_t count;
  struct piece *piece;
  UT_hash_handle hh;
};

/* A mapping, or (bytes 0) a handle that is being released, its value in `address`. Free ones and endings are chained.
 */
struct bsg_ending {
  uint64_t address, bytes;
  struct piece *piece;
  struct bsg_ending *next;
  UT_hash_handle hh;
};

static struct {
  pthread_mutex_t lock;
  struct handle *handles;
  struct bsg_ending *mappings; /* by address */
  struct bsg_slab pieces, handle_slab, mapping_slab;
  uint64_t last_key;
} state = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* All of these expect the lock to be held. */
static struct handle *find_handle(CUmemGenericAllocationHandle value) {
  struct handle *handle;
  HASH_FIND(hh, state.handles, &value, sizeof value, handle);
  return handle;
}

static struct bsg_ending *find_mapping(uint64_t address) {
  struct bsg_ending *mapping;
  HASH_FIND(hh, state.mappings, &address, sizeof address, mapping);
  return mapping;
}

/* One more handle of this value. False: there is no memory to note it. */
static bool add_handle(CUmemGenericAllocationHandle value, struct piece *piece) {
  struct handle *handle = find_handle(value);
  if (handle && handle->piece != piece) { /* its release was not seen: that piece is never gone, as far as we know */
    HASH_DEL(state.handles, handle);
    bsg_slab_give(&state.handle_slab, handle);
    handle = NULL;
  }
  if (!handle) {
    if (!(handle = bsg_slab_take(&state.handle_slab, sizeof *handle)))
      return false;
    memset(handle, 0, sizeof *handle);
    handle->value = value;
    handle->piece = piece;
    HASH_ADD(hh, state.handles, value, sizeof handle->value, handle);
    if (!handle->hh.tbl) {
      bsg_slab_give(&state.handle_slab, handle);
      return false;
    }
  }
  handle->count++;
  piece->references++;
  return true;
}

/* False: as above. */
static bool add_mapping(struct bsg_ending *mapping) {
  memset(&mapping->hh, 0, sizeof mapping->hh);
  mapping->next = NULL;
  HASH_ADD(hh, state.mappings, address, sizeof mapping->address, mapping);
  if (!mapping->hh.tbl) {
    bsg_slab_give(&state.mapping_slab, mapping);
    return false;
  }
  mapping->piece->references++;
  return true;
}

static void take_reference(struct piece *piece) {
  piece->endings++;
  if (--piece->references == 0)
    piece->out = bsg_ledger_take(piece->key, &piece->entry) == 0;
}

/* After references were added again: the ending was refused, or another reference was there after all. */
static void come_back(struct piece *piece) {
  if (piece->out && bsg_ledger_put_back(&piece->entry) == 0)
    piece->out = false;
}

uint64_t bsg_physical_create(CUmemGenericAllocationHandle value) {
  struct piece *piece;
  uint64_t key = 0;
  pthread_mutex_lock(&state.lock);
  piece = bsg_slab_take(&state.pieces, sizeof *piece);
  if (piece) {
    memset(piece, 0, sizeof *piece);
    piece->key = BSG_KEY(BSG_KIND_VIRTUAL, ++state.last_key);
    if (add_handle(value, piece))
      key = piece->key;
    else
      bsg_slab_give(&state.pieces, piece);
  }
  pthread_mutex_unlock(&state.lock);
  return key;
}

bool bsg_physical_retain(CUmemGenericAllocationHandle value) {
  struct handle *handle;
  pthread_mutex_lock(&state.lock);
  handle = find_handle(value);
  if (handle) {
    handle->count++;
    handle->piece->references++;
  }
  pthread_mutex_unlock(&state.lock);
  return handle != NULL;
}

void bsg_physical_retain_mapped(CUmemGenericAllocationHandle value, uint64_t address) {
  struct bsg_ending *mapping;
  pthread_mutex_lock(&state.lock);
  mapping = find_mapping(address);
  for (struct bsg_ending *m = state.mappings; m && !mapping; m = m->hh.next) /* not its first byte: a rare call */
    if (address - m->address < m->bytes)
      mapping = m;
  if (mapping)
    add_handle(value, mapping->piece);
  pthread_mutex_unlock(&state.lock);
}

void bsg_physical_map(uint64_t address, uint64_t bytes, CUmemGenericAllocationHandle value) {
  struct handle *handle;
  struct bsg_ending *mapping;
  pthread_mutex_lock(&state.lock);
  handle = find_handle(value);
  mapping = handle ? find_mapping(address) : NULL;
  if (mapping) { /* its unmapping was not seen */
    HASH_DEL(state.mappings, mapping);
    bsg_slab_give(&state.mapping_slab, mapping);
  }
  if (handle && (mapping = bsg_slab_take(&state.mapping_slab, sizeof *mapping))) {
    *mapping = (struct bsg_ending){.address = address, .bytes = bytes, .piece = handle->piece};
    add_mapping(mapping);
  }
  pthread_mutex_unlock(&state.lock);
}

struct bsg_ending *bsg_physical_release(CUmemGenericAllocationHandle value) {
  struct handle *handle;
  struct bsg_ending *ending = NULL;
  pthread_mutex_lock(&state.lock);
  handle = find_handle(value);
  if (handle && (ending = bsg_slab_take(&state.mapping_slab, sizeof *ending))) {
    *ending = (struct bsg_ending){.address = value, .piece = handle->piece};
    if (--handle->count == 0) {
      HASH_DEL(state.handles, handle);
      bsg_slab_give(&state.handle_slab, handle);
    }
    take_reference(ending->piece);
  }
  pthread_mutex_unlock(&state.lock);
  return ending;
}

struct bsg_ending *bsg_physical_unmap(uint64_t address, uint64_t bytes) {
  struct bsg_ending *first = NULL, *mapping;
  uint64_t at = address, end = address + bytes;
  pthread_mutex_lock(&state.lock);
  while (state.mappings && at >= address && at < end) {
    mapping = find_mapping(at);
    if (!mapping) {
      at += STEP;
      continue;
    }
    at += mapping->bytes;
    HASH_DEL(state.mappings, mapping);
    mapping->next = first;
    first = mapping;
    take_reference(mapping->piece);
  }
  pthread_mutex_unlock(&state.lock);
  return first;
}

static void end_one(struct bsg_ending *ending, bsg_physical_gone gone) {
  struct piece *piece = ending->piece;
  bsg_slab_give(&state.mapping_slab, ending);
  if (--piece->endings > 0 || piece->references > 0)
    return;
  if (piece->out)
    gone(&piece->entry);
  bsg_slab_give(&state.pieces, piece);
}

static void undo_one(struct bsg_ending *ending) {
  struct piece *piece = ending->piece;
  piece->endings--;
  if (ending->bytes)
    add_mapping(ending);
  else {
    add_handle(ending->address, piece);
    bsg_slab_give(&state.mapping_slab, ending);
  }
  come_back(piece);
}

void bsg_physical_settle(struct bsg_ending *ending, bool done, bsg_physical_gone gone) {
  struct bsg_ending *next;
  if (!ending)
    return;
  pthread_mutex_lock(&state.lock);
  for (; ending; ending = next) {
    next = ending->next;
    if (done)
      end_one(ending, gone);
    else
      undo_one(ending);
  }
  pthread_mutex_unlock(&state.lock);
}

void bsg_physical_forget(void) {
  memset(&state, 0, sizeof state);
  pthread_mutex_init(&state.lock, NULL);
}
