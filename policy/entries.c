/* entries.c - see entries.h. */
#include "policy/entries.h"

#include <string.h>

#include "policy/out.h"

/* FNV-1a, 64 bits, end of string included. A few thousand keys at most: a collision is not to be expected. */
static uint64_t hash_text(uint64_t hash, const char *text) {
  for (const uint8_t *b = (const uint8_t *)text;; b++) {
    hash = (hash ^ *b) * UINT64_C(1099511628211);
    if (*b == 0)
      return hash;
  }
}

void bsg_entries_init(struct bsg_entries *table, struct bsg_entry *slots, int room) {
  *table = (struct bsg_entries){.slots = slots, .room = room};
}

static bool is_entry(const struct bsg_entry *entry, uint64_t hash, int device, const char *boundary) {
  /* The whole texts are in the hash: two signatures that differ only beyond the room of the field stay apart. */
  return entry->used && entry->hash == hash && entry->device == device &&
         strncmp(entry->boundary, boundary, strlen(entry->boundary)) == 0;
}

static struct bsg_entry *slot_for_new(struct bsg_entries *table) {
  struct bsg_entry *oldest = NULL;

  if (table->high < table->room)
    return &table->slots[table->high++];
  for (int i = 0; i < table->room; i++) {
    struct bsg_entry *entry = &table->slots[i];
    if (!oldest || (entry->most == 0) > (oldest->most == 0) ||
        ((entry->most == 0) == (oldest->most == 0) && entry->touched < oldest->touched))
      oldest = entry;
  }
  return oldest;
}

struct bsg_entry *bsg_entries_obtain(struct bsg_entries *table, int device, const char *boundary, const char *signature,
                                     int64_t batch) {
  boundary = boundary ? boundary : "";
  signature = signature ? signature : "";
  uint64_t hash = hash_text(hash_text(UINT64_C(14695981039346656037) ^ (uint64_t)device, boundary), signature);
  struct bsg_entry *entry = NULL;

  for (int i = 0; i < table->high && !entry; i++)
    if (is_entry(&table->slots[i], hash, device, boundary))
      entry = &table->slots[i];
  if (!entry) {
    entry = slot_for_new(table);
    *entry = (struct bsg_entry){
        .used = true, .device = device, .exactness = BSG_EXACTNESS_UNKNOWN, .hash = hash, .batch = batch, .chunks = 1};
    bsg_copy_text(entry->boundary, sizeof(entry->boundary), boundary);
    bsg_copy_text(entry->signature, sizeof(entry->signature), signature);
  }
  entry->touched = ++table->clock;
  if (batch > entry->largest)
    entry->largest = batch;
  if (entry->most == 0)
    entry->batch = entry->largest;
  return entry;
}

bool bsg_entry_matches(const struct bsg_entry *entry, int device, const char *boundary) {
  return entry->used && (device < 0 || entry->device == device) &&
         (!boundary || strcmp(entry->boundary, boundary) == 0);
}

struct bsg_entry *bsg_entries_latest(const struct bsg_entries *table, int device, const char *boundary) {
  struct bsg_entry *latest = NULL;

  for (int i = 0; i < table->high; i++) {
    struct bsg_entry *entry = &table->slots[i];
    if (bsg_entry_matches(entry, device, boundary) && (!latest || entry->touched > latest->touched))
      latest = entry;
  }
  return latest;
}

struct bsg_split bsg_entry_split(const struct bsg_entry *entry, int64_t batch) {
  if (batch == entry->batch || batch <= 0)
    return bsg_split_of(entry->batch, entry->chunks);
  return bsg_split_under(batch, entry->most);
}

struct bsg_split bsg_entry_shown(const struct bsg_entry *entry) {
  return bsg_entry_split(entry, entry->largest);
}

void bsg_entry_accept(struct bsg_entry *entry, const struct bsg_split *split) {
  entry->batch = split->batch;
  entry->chunks = split->chunks;
  entry->most = split->micro_batch;
}

void bsg_entry_limit(struct bsg_entry *entry, int64_t micro_batch) {
  entry->batch = entry->largest;
  entry->chunks = bsg_split_under(entry->largest, micro_batch).chunks;
  entry->most = micro_batch;
  entry->growth.fixed = true;
}
