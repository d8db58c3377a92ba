/* test_entries.c - the table of sizes: other batches of one signature, long names, and what happens when it is full. */
#include "check.h"
#include "policy/entries.h"

static struct bsg_entry slots[8];
static struct bsg_entries table;

static struct bsg_entry *obtain(int device, const char *boundary, const char *signature, int64_t batch) {
  return bsg_entries_obtain(&table, device, boundary, signature, batch);
}

static void oom(struct bsg_entry *entry, int64_t batch) {
  struct bsg_split now = bsg_entry_split(entry, batch), next;
  CHECK_INT(bsg_decide_oom(&now, true, &next), BSG_SHRINK);
  bsg_entry_accept(entry, &next);
}

TEST(keys_are_kept_apart) {
  bsg_entries_init(&table, slots, 8);
  struct bsg_entry *first = obtain(0, "Net", "float32[8]", 32);
  CHECK(obtain(0, "Net", "float32[8]", 16) == first);
  CHECK(obtain(1, "Net", "float32[8]", 32) != first);
  CHECK(obtain(0, "Head", "float32[8]", 32) != first);
  CHECK(obtain(0, "Net", "float32[9]", 32) != first);
  CHECK(obtain(0, "Netf", "loat32[8]", 32) != first);
  CHECK_INT(table.high, 5);
}

TEST(names_longer_than_their_field_are_kept_apart) {
  char a[1000], b[1000];

  bsg_entries_init(&table, slots, 8);
  memset(a, 'x', sizeof(a) - 1);
  a[sizeof(a) - 1] = '\0';
  strcpy(b, a);
  b[900] = 'y';
  struct bsg_entry *first = obtain(0, a, a, 32);
  CHECK(obtain(0, a, b, 32) != first);
  CHECK(obtain(0, b, a, 32) != first);
  CHECK(obtain(0, a, a, 32) == first);
  CHECK_INT(strlen(first->boundary), BSG_BOUNDARY_ROOM - 1);
}

TEST(a_batch_without_an_oom_always_runs_whole) {
  bsg_entries_init(&table, slots, 8);
  struct bsg_entry *entry = obtain(0, "Net", "s", 16);
  for (int64_t batch = 1; batch <= 64; batch++)
    CHECK_INT(bsg_entry_split(entry, batch).chunks, 1);
  obtain(0, "Net", "s", 5);
  CHECK_INT(entry->batch, 16); /* the short last batch does not replace the batch */
  obtain(0, "Net", "s", 48);
  CHECK_INT(entry->batch, 48);
}

TEST(the_short_last_batch_is_not_split_needlessly) {
  bsg_entries_init(&table, slots, 8);
  struct bsg_entry *entry = obtain(0, "Net", "s", 32);
  oom(entry, 32);
  oom(entry, 32); /* 4 x 8 */
  CHECK_INT(bsg_entry_split(entry, 32).chunks, 4);
  CHECK_INT(bsg_entry_split(entry, 5).chunks, 1);
  CHECK_INT(bsg_entry_split(entry, 8).chunks, 1);
  CHECK_INT(bsg_entry_split(entry, 9).chunks, 2);
  CHECK_INT(bsg_entry_split(entry, 64).chunks, 8);
  CHECK_INT(entry->batch, 32);
}

TEST(an_oom_at_another_batch_lowers_the_micro_batch_of_all) {
  bsg_entries_init(&table, slots, 8);
  struct bsg_entry *entry = obtain(0, "Net", "s", 32);
  oom(entry, 32); /* 2 x 16 */
  CHECK_INT(bsg_entry_split(entry, 20).chunks, 2);
  oom(entry, 20); /* 4 x 5 */
  CHECK_INT(bsg_entry_split(entry, 20).micro_batch, 5);
  CHECK_INT(bsg_entry_split(entry, 32).micro_batch, 5);
  CHECK_INT(bsg_entry_split(entry, 32).chunks, 7);
  CHECK_INT(bsg_entry_shown(entry).batch, 32); /* control.json goes on to name the whole batch */
  CHECK_INT(bsg_entry_shown(entry).micro_batch, 5);
}

TEST(no_batch_ever_gets_more_than_was_decided) {
  for (int64_t batch = 1; batch <= 64; batch++) {
    bsg_entries_init(&table, slots, 8);
    struct bsg_entry *entry = obtain(0, "Net", "s", batch);
    struct bsg_split now = bsg_entry_split(entry, batch), next;
    while (bsg_decide_oom(&now, true, &next) == BSG_SHRINK) {
      bsg_entry_accept(entry, &next);
      CHECK_INT(bsg_entry_split(entry, batch).chunks, next.chunks);
      for (int64_t other = 1; other <= 96; other++)
        CHECK(bsg_entry_split(entry, other).micro_batch <= next.micro_batch);
      now = next;
    }
  }
}

TEST(an_operators_limit_holds_both_ways) {
  bsg_entries_init(&table, slots, 8);
  struct bsg_entry *entry = obtain(0, "Net", "s", 32);
  oom(entry, 32);
  oom(entry, 32);
  bsg_entry_limit(entry, 4);
  CHECK_INT(bsg_entry_split(entry, 32).chunks, 8);
  CHECK_INT(bsg_entry_split(entry, 5).chunks, 2);
  bsg_entry_limit(entry, 32);
  CHECK_INT(bsg_entry_split(entry, 32).chunks, 1);
  bsg_entry_limit(entry, 1000);
  CHECK_INT(bsg_entry_split(entry, 32).chunks, 1);
  CHECK_INT(bsg_entry_split(entry, 2000).chunks, 2);
}

TEST(a_full_table_forgets_what_is_cheapest_to_forget) {
  char name[16];

  bsg_entries_init(&table, slots, 8);
  struct bsg_entry *limited = obtain(0, "limited", "s", 32);
  oom(limited, 32);
  for (int i = 0; i < 7; i++) {
    snprintf(name, sizeof(name), "n%d", i);
    obtain(0, name, "s", 32);
  }
  obtain(0, "n0", "s", 32); /* asked for again: n1 is now the one longest unused */
  obtain(0, "new", "s", 32);
  CHECK_INT(table.high, 8);
  CHECK(bsg_entries_latest(&table, 0, "n1") == NULL);
  CHECK(bsg_entries_latest(&table, 0, "n0") != NULL);
  CHECK_INT(bsg_entry_split(obtain(0, "limited", "s", 32), 32).chunks, 2);
  for (int i = 0; i < 100; i++) {
    snprintf(name, sizeof(name), "m%d", i);
    oom(obtain(0, name, "s", 32), 32); /* now all have a limit, and the oldest of them goes */
  }
  CHECK(bsg_entries_latest(&table, 0, "limited") == NULL);
  CHECK(bsg_entries_latest(&table, 0, "m99") != NULL);
}

TEST(the_latest_is_found_under_a_filter) {
  bsg_entries_init(&table, slots, 8);
  struct bsg_entry *a = obtain(0, "A", "s", 32), *b = obtain(1, "A", "s", 32), *c = obtain(0, "B", "s", 32);
  CHECK(bsg_entries_latest(&table, -1, NULL) == c);
  CHECK(bsg_entries_latest(&table, 0, "A") == a);
  CHECK(bsg_entries_latest(&table, -1, "A") == b);
  CHECK(bsg_entries_latest(&table, 2, NULL) == NULL);
}
