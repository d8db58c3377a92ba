/* When a rise of live bytes is a high-water mark. */
#include "hooks/cuda/marks.h"
#include "tests/shim/check.h"

#define MIB ((uint64_t)1 << 20)

int main(void) {
  int marks = 0;

  /* 1 % of 10 GiB is 102.4 MiB. */
  bsg_marks_capacity(0, 10240 * MIB);
  CHECK(!bsg_marks_due(0, 0));
  CHECK(bsg_marks_due(0, 1));
  CHECK(!bsg_marks_due(0, 1));
  CHECK(!bsg_marks_due(0, 102 * MIB));
  CHECK(bsg_marks_due(0, 103 * MIB));
  /* Down and up again is no news. */
  CHECK(!bsg_marks_due(0, 5 * MIB));
  CHECK(!bsg_marks_due(0, 205 * MIB));
  CHECK(bsg_marks_due(0, 206 * MIB));

  /* A small device: 2 MiB at least. */
  bsg_marks_capacity(1, 16 * MIB);
  CHECK(bsg_marks_due(1, MIB));
  CHECK(!bsg_marks_due(1, 2 * MIB));
  CHECK(bsg_marks_due(1, 3 * MIB));

  /* Filled in small pieces, a device has about a hundred marks. */
  bsg_marks_capacity(2, 10240 * MIB);
  for (uint64_t live = MIB; live <= 10240 * MIB; live += MIB)
    marks += bsg_marks_due(2, live);
  CHECK(marks >= 95 && marks <= 101);

  /* The child of a fork begins anew. */
  bsg_marks_forget();
  CHECK(bsg_marks_due(0, 1));
  return 0;
}
