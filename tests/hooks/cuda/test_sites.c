/* Sites: found, kept once, named. */
#include <errno.h>
#include <string.h>

#include "hooks/cuda/sites.h"
#include "hooks/cuda/symbols.h"
#include "shim/bsguard.h"
#include "tests/shim/check.h"

/* Stands for a wrapper: the stack is to begin with who called it. */
static __attribute__((noinline)) uint32_t wrapper(void) {
  uint32_t site = bsg_sites_here(__builtin_extract_return_addr(__builtin_return_address(0)));
  __asm__ volatile(""); /* no tail call */
  return site;
}

uint32_t asks_for_memory(void);
BSG_EXPORT __attribute__((noinline)) uint32_t asks_for_memory(void) {
  uint32_t site = wrapper();
  __asm__ volatile("");
  return site;
}

uint32_t asks_as_well(void);
BSG_EXPORT __attribute__((noinline)) uint32_t asks_as_well(void) {
  uint32_t site = wrapper();
  __asm__ volatile("");
  return site;
}

int main(void) {
  volatile int rounds = 3;
  struct bsg_site_fact fact;
  uint32_t sites[3], other;
  char name[256], cut[8];
  int length, taken = 0;

  CHECK_EQUAL(asks_for_memory(), BSG_NO_SITE); /* before an unwinder was tried: none, and no crash */
  bsg_sites_prepare();
  printf("unwinder: %s\n", bsg_sites_unwinder());
  CHECK(strcmp(bsg_sites_unwinder(), "none") != 0);

  for (int i = 0; i < rounds; i++) /* one call in the code, three times */
    sites[i] = asks_for_memory();
  CHECK(sites[0] != BSG_NO_SITE);
  CHECK_EQUAL(sites[1], sites[0]);
  CHECK_EQUAL(sites[2], sites[0]);
  other = asks_as_well();
  CHECK(other != BSG_NO_SITE && other != sites[0]);

  CHECK_EQUAL(bsg_sites_get(sites[0], &fact), 0);
  CHECK_EQUAL(fact.site, sites[0]);
  CHECK(fact.frames >= 2);
  length = bsg_symbols_name(fact.pc[0], name, sizeof name);
  CHECK_EQUAL(length, strlen(name));
  CHECK(strncmp(name, "asks_for_memory+0x", 18) == 0); /* exported by -rdynamic */
  CHECK(strstr(name, "(test_sites)"));
  CHECK_EQUAL(bsg_symbols_name(fact.pc[0], cut, sizeof cut), sizeof cut - 1);
  CHECK(bsg_symbols_name(1, name, sizeof name) > 0);

  CHECK_EQUAL(bsg_sites_get(BSG_NO_SITE, &fact), -ENOENT);
  CHECK_EQUAL(bsg_sites_get(9999, &fact), -ENOENT);

  /* Rate-limited: of many in a row, about the first 128 are taken. */
  for (int i = 0; i < 100000; i++)
    taken += bsg_sites_sometimes_here(NULL) != BSG_NO_SITE;
  printf("%d of 100000 taken\n", taken);
  CHECK(taken >= 128 && taken < 100000 / 4);
  return 0;
}
