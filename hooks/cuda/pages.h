/*
 * pages.h - memory for our own tables, straight from mmap(): the user's malloc may be the one that is in trouble, may
 * be interposed, or may be held by the thread that fork() left behind. Not thread-safe: callers hold their own lock.
 */
#ifndef BSG_CUDA_PAGES_H
#define BSG_CUDA_PAGES_H

#include <stddef.h>

/* Zeroed memory, at least `size` bytes, aligned to a page; NULL where there is none. */
void *bsg_pages_map(size_t size);
void bsg_pages_unmap(void *pages, size_t size);

/* Objects of one size, in slabs that are never given back. All zero: empty. */
struct bsg_slab {
  void *free_list;     /* first word of a free object: the next */
  char *fresh, *limit; /* rest of the newest slab */
  size_t bytes;        /* of the newest slab: each is twice the one before, up to a huge page */
};

void *bsg_slab_take(struct bsg_slab *slab, size_t object_bytes);
void bsg_slab_give(struct bsg_slab *slab, void *object);

#endif
