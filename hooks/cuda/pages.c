/*
 * pages.c - see pages.h. Depends on mmap() alone. Never calls malloc().
 */
#include "hooks/cuda/pages.h"

#include <sys/mman.h>

#define SLAB_BYTES ((size_t)64 << 10)

void *bsg_pages_map(size_t size) {
  void *pages = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return pages == MAP_FAILED ? NULL : pages;
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
    char *pages = bsg_pages_map(SLAB_BYTES);
    if (!pages)
      return NULL;
    slab->fresh = pages;
    slab->limit = pages + SLAB_BYTES;
  }
  object = slab->fresh;
  slab->fresh += object_bytes;
  return object;
}

void bsg_slab_give(struct bsg_slab *slab, void *object) {
  *(void **)object = slab->free_list;
  slab->free_list = object;
}
