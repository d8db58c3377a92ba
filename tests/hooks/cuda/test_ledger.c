/* The ledger's sums, by hand. */
#include <errno.h>
#include <string.h>
#include <sys/resource.h>

#include "hooks/cuda/ledger.h"
#include "tests/shim/check.h"

static struct bsg_holder_fact of(uint64_t address, uint64_t bytes, int device) {
  return (struct bsg_holder_fact){
      .api = "cuMemAlloc_v2", .device = device, .address = address, .bytes = bytes, .where = {.step = 3, .phase = 2}};
}

static struct bsg_totals add(uint64_t address, uint64_t bytes, int device) {
  struct bsg_holder_fact fact = of(address, bytes, device);
  struct bsg_totals totals;
  CHECK_EQUAL(bsg_ledger_add(&fact, &totals), 0);
  return totals;
}

static void test_sums(void) {
  struct bsg_totals totals;
  struct bsg_holder_fact taken;

  totals = add(0x1000, 100, 0);
  CHECK_EQUAL(totals.live_bytes, 100);
  totals = add(0x2000, 50, 0);
  CHECK_EQUAL(totals.live_bytes, 150);
  CHECK_EQUAL(totals.peak_bytes, 150);
  add(0x3000, 7, 5);

  CHECK_EQUAL(bsg_ledger_take(0x1000, &taken), 0);
  CHECK_EQUAL(taken.bytes, 100);
  CHECK_EQUAL(taken.where.step, 3);
  CHECK_EQUAL(taken.where.phase, 2);
  CHECK(strcmp(taken.api, "cuMemAlloc_v2") == 0);
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
  struct bsg_holder_fact holders[4];
  for (uint64_t i = 1; i <= 100; i++)
    add(0x100000 + i * 512, (i * 37) % 101, 7);
  CHECK_EQUAL(bsg_ledger_largest(7, holders, 4), 4);
  for (int i = 0; i < 4; i++)
    CHECK_EQUAL(holders[i].bytes, 100 - i);
  CHECK_EQUAL(bsg_ledger_largest(7, holders, 0), 0);
  CHECK_EQUAL(bsg_ledger_largest(6, holders, 4), 0);
  bsg_ledger_set_site(holders[0].address, 42);
  CHECK_EQUAL(bsg_ledger_largest(7, holders, 1), 1);
  CHECK_EQUAL(holders[0].site, 42);
}

static void test_many(void) {
  struct bsg_totals totals = {0};
  struct bsg_holder_fact taken;
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
    struct bsg_holder_fact fact = of(i << 21, 10, 1);
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
    struct bsg_holder_fact fact = of(i << 21, 10, 1);
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
  test_many();
  test_no_memory();
  return 0;
}
