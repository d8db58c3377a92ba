/*
 * pages.c - see pages.h. Depends on mmap() alone. Never calls malloc().
 */
#include "hooks/cuda/pages.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/mman.h>

#define HUGE_PAGE ((size_t)2 << 20)
#define FIRST_SLAB ((size_t)64 << 10)

static void *map(size_t size) {
  void *pages = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return pages == MAP_FAILED ? NULL : pages;
}

/* Large tables are read at random: in huge pages, where the system has some, each read misses the cache but not the
 * TLB. */
void *bsg_pages_map(size_t size) {
  char *pages, *aligned;
  size_t before, after;

  if (size < HUGE_PAGE)
    return map(size);
  if (size > SIZE_MAX - HUGE_PAGE || !(pages = map(size + HUGE_PAGE)))
    return NULL;
  before = -(uintptr_t)pages & (HUGE_PAGE - 1);
  aligned = pages + before;
  after = HUGE_PAGE - before;
  if (before > 0)
    munmap(pages, before);
  if (after > 0)
    munmap(aligned + size, after);
  madvise(aligned, size, MADV_HUGEPAGE);
  return aligned;
}

void bsg_pages_unmap(void *pages, size_t size) {
  munmap(pages, size);
}

void *bsg_slab_take(struct bsg_slab *slab, size_t object_bytes) {
  void *object = slab->free_list;
  if (object) {
    slab->free_list = *(void **)object;
    return object;
  }
  if ((size_t)(slab->limit - slab->fresh) < object_bytes) {
    size_t bytes = slab->bytes < HUGE_PAGE ? slab->bytes ? slab->bytes * 2 : FIRST_SLAB : HUGE_PAGE;
    char *pages = bsg_pages_map(bytes);
    if (!pages)
      return NULL;
    slab->bytes = bytes;
    slab->fresh = pages;
    slab->limit = pages + bytes;
  }
  object = slab->fresh;
  slab->fresh += object_bytes;
  return object;
}

void bsg_slab_give(struct bsg_slab *slab, void *object) {
  *(void **)object = slab->free_list;
  slab->free_list = object;
}
