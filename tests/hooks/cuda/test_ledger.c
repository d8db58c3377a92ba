/* The ledger's sums, by hand. */
#include <errno.h>
#include <sys/resource.h>

#include "hooks/cuda/ledger.h"
#include "tests/shim/check.h"

static struct bsg_allocation of_kind(enum bsg_kind kind, uint64_t key, uint64_t bytes, int device) {
  return (struct bsg_allocation){.key = key,
                                 .bytes = bytes,
                                 .step = 3,
                                 .api = 7,
                                 .device = (uint8_t)device,
                                 .kind = (uint8_t)kind & 15,
                                 .phase = 2};
}

static struct bsg_totals enter(struct bsg_allocation allocation) {
  struct bsg_totals totals;
  CHECK_EQUAL(bsg_ledger_add(&allocation, &totals), 0);
  return totals;
}

static struct bsg_totals add(uint64_t address, uint64_t bytes, int device) {
  return enter(of_kind(BSG_KIND_PLAIN, address, bytes, device));
}

static uint64_t kind_bytes(int device, enum bsg_kind kind) {
  uint64_t bytes[BSG_KIND_COUNT];
  bsg_ledger_kinds(device, bytes);
  return bytes[kind];
}

static void test_sums(void) {
  struct bsg_totals totals;
  struct bsg_allocation taken;

  totals = add(0x1000, 100, 0);
  CHECK_EQUAL(totals.live_bytes, 100);
  totals = add(0x2000, 50, 0);
  CHECK_EQUAL(totals.live_bytes, 150);
  CHECK_EQUAL(totals.peak_bytes, 150);
  add(0x3000, 7, 5);

  CHECK_EQUAL(bsg_ledger_take(0x1000, &taken), 0);
  CHECK_EQUAL(taken.bytes, 100);
  CHECK_EQUAL(taken.step, 3);
  CHECK_EQUAL(taken.phase, 2);
  CHECK_EQUAL(taken.api, 7);
  CHECK_EQUAL(bsg_ledger_take(0x1000, &taken), -ENOENT);
  CHECK_EQUAL(bsg_ledger_take(0, &taken), -ENOENT);
  bsg_ledger_totals(0, &totals);
  CHECK_EQUAL(totals.live_bytes, 50);
  CHECK_EQUAL(totals.peak_bytes, 150);
  CHECK_EQUAL(totals.freed_bytes, 100);
  CHECK_EQUAL(totals.live_count, 1);
  bsg_ledger_totals(5, &totals);
  CHECK_EQUAL(totals.live_bytes, 7);

  /* The free failed: as if it had not been tried, and no new peak. */
  CHECK_EQUAL(bsg_ledger_take(0x2000, &taken), 0);
  CHECK_EQUAL(bsg_ledger_put_back(&taken), 0);
  bsg_ledger_totals(0, &totals);
  CHECK_EQUAL(totals.live_bytes, 50);
  CHECK_EQUAL(totals.freed_bytes, 100);

  /* A step's peak begins at what is live. */
  bsg_ledger_step(0);
  totals = add(0x4000, 10, 0);
  CHECK_EQUAL(totals.step_peak_bytes, 60);
  CHECK_EQUAL(totals.peak_bytes, 150);
}

/* An address that comes again without having been freed: its free was not seen. */
static void test_address_again(void) {
  struct bsg_totals totals = add(0x9000, 1000, 2);
  totals = add(0x9000, 300, 2);
  CHECK_EQUAL(totals.live_bytes, 300);
  CHECK_EQUAL(totals.live_count, 1);
  CHECK_EQUAL(totals.peak_bytes, 1000);
  /* Also where it comes again on another device. */
  totals = add(0x9000, 200, 3);
  CHECK_EQUAL(totals.live_bytes, 200);
  bsg_ledger_totals(2, &totals);
  CHECK_EQUAL(totals.live_bytes, 0);
}

static void test_largest(void) {
  struct bsg_allocation holders[4];
  for (uint64_t i = 1; i <= 100; i++)
    add(0x100000 + i * 512, (i * 37) % 101, 7);
  CHECK_EQUAL(bsg_ledger_largest(7, holders, 4), 4);
  for (int i = 0; i < 4; i++)
    CHECK_EQUAL(holders[i].bytes, 100 - i);
  CHECK_EQUAL(bsg_ledger_largest(7, holders, 0), 0);
  CHECK_EQUAL(bsg_ledger_largest(6, holders, 4), 0);
  bsg_ledger_set_site(holders[0].key, 42);
  CHECK_EQUAL(bsg_ledger_largest(7, holders, 1), 1);
  CHECK_EQUAL(holders[0].site, 42);
}

/* Kinds: what counts as the device's loss, and what is kept apart. */
static void test_kinds(void) {
  struct bsg_totals totals;
  struct bsg_allocation taken, holders[8];

  enter(of_kind(BSG_KIND_PLAIN, 0x1000, 10, 11));
  enter(of_kind(BSG_KIND_MANAGED, 0x2000, 20, 11));
  enter(of_kind(BSG_KIND_ARRAY, BSG_KEY(BSG_KIND_ARRAY, 0x1000), 40, 11)); /* a handle like an address */
  enter(of_kind(BSG_KIND_VIRTUAL, BSG_KEY(BSG_KIND_VIRTUAL, 1), 80, 11));
  enter(of_kind(BSG_KIND_PINNED, BSG_KEY(BSG_KIND_PINNED, 0x1000), 160, 11));
  totals = enter(of_kind(BSG_KIND_MAPPED, 0x3000, 320, 11));
  CHECK_EQUAL(totals.live_bytes, 150);
  CHECK_EQUAL(totals.peak_bytes, 150);
  CHECK_EQUAL(totals.live_count, 4);
  for (int kind = 0, bytes = 10; kind < BSG_KIND_POOL; kind++, bytes *= 2)
    CHECK_EQUAL(kind_bytes(11, kind), bytes);
  CHECK_EQUAL(kind_bytes(11, BSG_KIND_PINNED), 160);
  CHECK_EQUAL(kind_bytes(11, BSG_KIND_MAPPED), 320);
  CHECK_EQUAL(bsg_ledger_largest(11, holders, 8), 4); /* neither host memory nor others' */
  CHECK_EQUAL(bsg_ledger_take(BSG_KEY(BSG_KIND_PINNED, 0x1000), &taken), 0);
  CHECK_EQUAL(taken.bytes, 160);
  CHECK_EQUAL(bsg_ledger_take(BSG_KEY(BSG_KIND_ARRAY, 0x1000), &taken), 0);
  bsg_ledger_totals(11, &totals);
  CHECK_EQUAL(totals.live_bytes, 110);
  CHECK_EQUAL(totals.freed_bytes, 40);
}

/* A pool is what it has reserved; what it hands out is a part of that. */
static void test_reserves(void) {
  struct bsg_totals totals;
  struct bsg_allocation pooled = of_kind(BSG_KIND_POOLED, 0x50000, 100, 12), taken;

  pooled.pool = 3;
  enter(pooled);
  CHECK_EQUAL(bsg_ledger_pooled(3), 100);
  CHECK_EQUAL(bsg_ledger_reserve(12, BSG_KIND_POOL, 2048, &totals), 0);
  CHECK_EQUAL(totals.live_bytes, 2048);
  CHECK_EQUAL(totals.peak_bytes, 2048);
  CHECK_EQUAL(bsg_ledger_reserve(12, BSG_KIND_GRAPH, 52, &totals), 0);
  CHECK_EQUAL(totals.live_bytes, 2100);
  CHECK_EQUAL(bsg_ledger_take(0x50000, &taken), 0);
  CHECK_EQUAL(taken.pool, 3);
  CHECK_EQUAL(bsg_ledger_pooled(3), 0);
  bsg_ledger_totals(12, &totals);
  CHECK_EQUAL(totals.freed_bytes, 0); /* the pool keeps it */
  CHECK_EQUAL(bsg_ledger_reserve(12, BSG_KIND_POOL, 0, &totals), 2048);
  CHECK_EQUAL(totals.live_bytes, 52);
  CHECK_EQUAL(totals.freed_bytes, 2048);
  CHECK_EQUAL(totals.peak_bytes, 2100);

  for (uint64_t i = 1; i <= 1000; i++) {
    pooled.key = i << 20;
    pooled.pool = (uint8_t)(i % 2 + 3);
    enter(pooled);
  }
  bsg_ledger_drop_pool(3);
  CHECK_EQUAL(bsg_ledger_pooled(3), 0);
  CHECK_EQUAL(bsg_ledger_pooled(4), 50000);
  CHECK_EQUAL(kind_bytes(12, BSG_KIND_POOLED), 50000);
}

/* All entries of a context go, and no others: also where they lie close together in the table. */
static void test_context(void) {
  uint64_t freed[BSG_MAX_DEVICES];
  struct bsg_totals totals;
  struct bsg_allocation taken;
  for (uint64_t i = 1; i <= 5000; i++) {
    struct bsg_allocation allocation = of_kind(BSG_KIND_PLAIN, i * 512 + (1 << 30), 1, 13 + (int)(i % 2));
    allocation.context = (uint16_t)(1 + i % 5);
    enter(allocation);
  }
  bsg_ledger_drop_context(2, freed); /* 1, 6, 11 ... */
  CHECK_EQUAL(freed[13], 500);
  CHECK_EQUAL(freed[14], 500);
  CHECK_EQUAL(freed[12], 0);
  bsg_ledger_totals(13, &totals);
  CHECK_EQUAL(totals.live_bytes, 2000);
  CHECK_EQUAL(totals.freed_bytes, 500);
  for (uint64_t i = 1; i <= 5000; i++)
    CHECK_EQUAL(bsg_ledger_take(i * 512 + (1 << 30), &taken), i % 5 == 1 ? -ENOENT : 0);
}

static uint64_t next(uint64_t *random) {
  *random ^= *random << 13, *random ^= *random >> 7, *random ^= *random << 17;
  return *random;
}

/* Against a table that cannot go wrong: keys that collide, wrap around, come and go. */
static void test_against_an_array(void) {
  enum { KEYS = 3000 };
  static uint64_t bytes[KEYS];
  uint64_t random = 88172645463325252u, sum = 0;
  struct bsg_allocation taken;
  struct bsg_totals totals;
  for (int i = 0; i < 400000; i++) {
    uint64_t n = next(&random) % KEYS, key = (n + 1) << 21;
    if (next(&random) % 2) {
      totals = add(key, i + 1, 20);
      sum += (uint64_t)(i + 1) - bytes[n];
      bytes[n] = (uint64_t)(i + 1);
      CHECK_EQUAL(totals.live_bytes, sum);
    } else {
      CHECK_EQUAL(bsg_ledger_take(key, &taken), bytes[n] ? 0 : -ENOENT);
      if (bytes[n])
        CHECK_EQUAL(taken.bytes, bytes[n]);
      sum -= bytes[n];
      bytes[n] = 0;
    }
  }
  bsg_ledger_totals(20, &totals);
  CHECK_EQUAL(totals.live_bytes, sum);
}

static void test_many(void) {
  struct bsg_totals totals = {0};
  struct bsg_allocation taken;
  for (uint64_t i = 1; i <= 200000; i++)
    totals = add(i << 21, i, 9);
  CHECK_EQUAL(totals.live_count, 200000);
  CHECK_EQUAL(totals.live_bytes, (uint64_t)200000 * 200001 / 2);
  for (uint64_t i = 200000; i >= 1; i--) {
    CHECK_EQUAL(bsg_ledger_take(i << 21, &taken), 0);
    CHECK_EQUAL(taken.bytes, i);
  }
  bsg_ledger_totals(9, &totals);
  CHECK_EQUAL(totals.live_bytes, 0);
  CHECK_EQUAL(totals.live_count, 0);
}

/* No more memory for our own tables: allocations are left out, counted, and the sums stay true. */
static void test_no_memory(void) {
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* their shadow needs the address space */
  struct rlimit before, none = {0, 0};
  struct bsg_totals totals;
  uint64_t entered = 0;

  CHECK_EQUAL(getrlimit(RLIMIT_AS, &before), 0);
  none.rlim_max = before.rlim_max;
  bsg_ledger_forget();
  CHECK_EQUAL(setrlimit(RLIMIT_AS, &none), 0);
  for (uint64_t i = 1; i <= 1000; i++) {
    struct bsg_allocation fact = of_kind(BSG_KIND_PLAIN, i << 21, 10, 1);
    entered += bsg_ledger_add(&fact, &totals) == 0;
  }
  setrlimit(RLIMIT_AS, &before);
  CHECK_EQUAL(entered, 0);
  CHECK_EQUAL(bsg_ledger_missed(), 1000);
  bsg_ledger_totals(1, &totals);
  CHECK_EQUAL(totals.live_bytes, 0);
  totals = add(0x1000, 10, 1);
  CHECK_EQUAL(totals.live_bytes, 10);

  /* And where the table is there and cannot grow. */
  bsg_ledger_forget();
  add(0x1000, 10, 1);
  CHECK_EQUAL(setrlimit(RLIMIT_AS, &none), 0);
  entered = 0;
  for (uint64_t i = 1; i <= 100000; i++) {
    struct bsg_allocation fact = of_kind(BSG_KIND_PLAIN, i << 21, 10, 1);
    entered += bsg_ledger_add(&fact, &totals) == 0;
  }
  setrlimit(RLIMIT_AS, &before);
  CHECK(entered > 0 && entered < 100000);
  CHECK_EQUAL(bsg_ledger_missed(), 100000 - entered);
  bsg_ledger_totals(1, &totals);
  CHECK_EQUAL(totals.live_bytes, 10 * (entered + 1));
  CHECK_EQUAL(totals.live_count, entered + 1);
#endif
}

int main(void) {
  test_sums();
  test_address_again();
  test_largest();
  test_kinds();
  test_reserves();
  test_context();
  test_against_an_array();
  test_many();
  test_no_memory();
  return 0;
}
