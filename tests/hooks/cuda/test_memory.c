/*
 * What our own books cost in memory: at most 200 bytes a live allocation, whatever their number, and nothing that stays
 * after many pairs of allocation and free. The argument is how many pairs, in millions (default 1).
 */
#include <string.h>
#include <unistd.h>

#include "fake.h"
#include "hooks/cuda/ledger.h"
#include "hooks/cuda/sites.h"
#include "shim/bsguard.h"
#include "tests/shim/check.h"

#define MOST 300000
#define ALLOWED 200

/* A driver that keeps nothing. */
static CUdeviceptr next_address = (CUdeviceptr)1 << 40;

static CUresult alloc(CUdeviceptr *address, size_t bytes) {
  *address = next_address += (bytes + 511) / 512 * 512;
  return CUDA_SUCCESS;
}

static CUresult release(CUdeviceptr address) {
  return address ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static void *entry(const char *symbol) {
  if (strcmp(symbol, "cuMemAlloc_v2") == 0)
    return (void *)alloc;
  return strcmp(symbol, "cuMemFree_v2") == 0 ? (void *)release : fake_entry(symbol);
}

static int64_t resident(void) {
  long size, pages = 0;
  FILE *file = fopen("/proc/self/statm", "r");
  CHECK(file && fscanf(file, "%ld %ld", &size, &pages) == 2);
  fclose(file);
  return (int64_t)pages * sysconf(_SC_PAGESIZE);
}

int main(int argc, char **argv) {
  static CUdeviceptr live[MOST];
  int64_t before, pairs = (argc > 1 ? atoll(argv[1]) : 1) * 1000000;
  uint64_t random = 88172645463325252u;
  struct bsg_totals totals;

  fake.entry = entry;
  memset(live, 1, sizeof live);
  bsg_sites_prepare();
  CHECK_EQUAL(cuMemAlloc_v2(&live[0], 512), CUDA_SUCCESS);
  before = resident();
  for (int i = 1; i < MOST; i++) {
    int64_t each;
    CHECK_EQUAL(cuMemAlloc_v2(&live[i], 512), CUDA_SUCCESS);
    if ((i + 1) % 10000 != 0)
      continue;
    each = (resident() - before) / (i + 1);
    if (i + 1 == 10000 || i + 1 == MOST)
      printf("%d live: %" PRId64 " bytes each\n", i + 1, each);
    CHECK(each <= ALLOWED);
  }
  before = resident();
  for (int64_t i = 0; i < pairs; i++) {
    random ^= random << 13, random ^= random >> 7, random ^= random << 17;
    CUdeviceptr *one = &live[random % MOST];
    CHECK_EQUAL(cuMemFree_v2(*one), CUDA_SUCCESS);
    CHECK_EQUAL(cuMemAlloc_v2(one, 512), CUDA_SUCCESS);
  }
  printf("%" PRId64 " pairs: %" PRId64 " bytes more\n", pairs, resident() - before);
  CHECK(resident() - before <= 65536); /* a page that is touched late is none that is lost */
  bsg_ledger_totals(0, &totals);
  CHECK_EQUAL(totals.live_count, MOST);
  return 0;
}
