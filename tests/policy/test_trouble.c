/* test_trouble.c - disks that are full or read-only, kills in the middle of a write, readers all the time. */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "fixture.h"
#include "policy/json_read.h"

/* A job that decides all the time, until it is killed. */
static void decide_for_ever(void) {
  for (int64_t i = 0;; i++) {
    char name[32];
    snprintf(name, sizeof(name), "Net%d", (int)(i % 8));
    boundary(0, name, "float32[8]", 1 << 20, BSG_PHASE_FORWARD);
    terminal_of(0, name, 1 << 20, BSG_PHASE_FORWARD, BSG_EXACT, NULL);
  }
}

/* control.json as a reader sees it: whole, always. Returns its sequence; 0: not there yet. */
static int64_t read_control(void) {
  static struct bsg_json_document document;
  const char *text = read_file("control.json");

  if (!text)
    return 0;
  CHECK_INT(bsg_json_parse(&document, text, strlen(text)), 0);
  CHECK_INT(text[strlen(text) - 1], '\n');
  return bsg_json_find(&document, "sequence")->integer;
}

static void nap(long microseconds) {
  nanosleep(&(struct timespec){0, microseconds * 1000}, NULL);
}

TEST(control_is_never_torn_by_readers_or_kills) {
  int64_t total = 0;

  for (int round = 0; round < 40; round++) {
    int64_t last = 0;
    int status;

    fixture_start(BSG_MODE_GUARD);
    pid_t child = fork();
    if (child == 0)
      decide_for_ever();
    for (int reads = 0; reads < 20 + round; reads++) {
      int64_t sequence = read_control();
      CHECK(sequence >= last);
      last = sequence;
      nap(50);
    }
    kill(child, SIGKILL);
    CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status));
    CHECK(read_control() >= last);
    total += read_control();
    /* Lines are written whole: every one but perhaps the last can be parsed, and numbers rise by one. */
    int count = events_of(NULL);
    CHECK_INT(number_in(event_of(NULL, 0), "seq"), 1);
    CHECK_INT(number_in(event_of(NULL, count - 2 < 0 ? 0 : count - 2), "seq"), count - 2 < 0 ? 1 : count - 1);
  }
  CHECK(total > 40); /* the child did decide */
}

TEST(a_replacement_left_by_a_kill_is_in_nobodys_way) {
  fixture_start(BSG_MODE_GUARD);
  write_file(".control.json.new", "{\"torn");
  boundary(0, "Net", "s", 32, BSG_PHASE_FORWARD);
  CHECK_INT(read_control(), 1);
  CHECK(!file_exists(".control.json.new"));
}

TEST(sequence_and_seq_rise_by_one_over_many_decisions) {
  fixture_start(BSG_MODE_GUARD);
  for (int i = 0; i < 200; i++) {
    char name[32];
    snprintf(name, sizeof(name), "Net%d", i % 20);
    boundary(0, name, "float32[8]", 65536, BSG_PHASE_FORWARD);
    struct bsg_decision decision = terminal_of(0, name, 65536, BSG_PHASE_FORWARD, BSG_EXACT, NULL);
    applied(&decision);
    end_step();
    CHECK_INT(decision.sequence, i + 2);
    CHECK_INT(number_in(read_file("control.json"), "sequence"), i + 2);
  }
  const char *line = read_file("events.jsonl");
  int64_t seq = 0, sequence = 0;
  for (; *line; line = strchr(line, '\n') + 1) {
    CHECK_INT(number_in(line, "seq"), ++seq);
    if (strncmp(strstr(line, "\"type\":") + 8, "decision", 8) == 0)
      CHECK_INT(number_in(line, "sequence"), ++sequence);
  }
  CHECK_INT(sequence, 201);
}

/* What must hold where no file can be written: one line in all, and the same decisions. */
static void decisions_without_files(void) {
  int lines = fixture.line_count;

  CHECK_INT(boundary(0, "Net", "float32[8]", 32, BSG_PHASE_FORWARD).chunks, 1);
  static const int64_t micro_batches[] = {16, 2, 1};
  for (int i = 0; i < 3; i++) {
    refuse(64 * MIB, 7);
    CHECK_INT(terminal(32, BSG_PHASE_FORWARD, BSG_EXACT).micro_batch, micro_batches[i]);
    end_step();
  }
  CHECK_INT(boundary(0, "Net", "float32[8]", 32, BSG_PHASE_FORWARD).chunks, 32);
  CHECK_INT(terminal(32, BSG_PHASE_FORWARD, BSG_EXACT).verdict, BSG_FLOOR);
  CHECK(fixture.line_count - lines <= 1);
}

TEST(a_parent_that_cannot_be_made) {
  fixture_open(BSG_MODE_GUARD);
  fclose(fopen(fixture.parent, "w"));
  fixture_reopen();
  bsg_policy_attach(fixture.policy, now(), "paddle 3.3.1", NULL);
  use_device(0);
  CHECK_INT(fixture.line_count, 1);
  CHECK_HAS(last_line(), "cannot write ");
  CHECK_HAS(last_line(), "a part of the path is not a folder (errno 20)");
  CHECK_HAS(last_line(), "BSGUARD_DIR");
  decisions_without_files();
  CHECK_INT(fixture.line_count, 1);
  bsg_policy_unrescued(fixture.policy, now(), 0, "x", (struct bsg_where){1, BSG_PHASE_FORWARD});
  CHECK_HAS(last_line(), "could not be saved");
  CHECK_HAS(last_line(), "no report could be written");
  stop();
  CHECK_HAS(last_line(), "4 OOMs met");
  CHECK_INT(fixture.line_count, 3);
}

static void in_child(void (*body)(void)) {
  int status;
  pid_t child = fork();

  if (child == 0) {
    body();
    _exit(0);
  }
  CHECK(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  if (WEXITSTATUS(status) == 77)
    exit(77);
  CHECK_INT(WEXITSTATUS(status), 0);
}

/* No more than `bytes` in any file, as on a disk that is full. */
static void limit_files(rlim_t bytes) {
  struct rlimit limit = {bytes, bytes};
  CHECK_INT(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

static void files_full_at_once(void) {
  limit_files(0);
  use_device(0);
  decisions_without_files();
  stop();
  CHECK_INT(events_of(NULL), 0);
  CHECK_INT(fixture.line_count, 2); /* that it cannot write, and the summary */
  CHECK_HAS(fixture.lines[0], "the limit on file sizes is reached");
}

TEST(files_that_cannot_grow_at_all) {
  fixture_open(BSG_MODE_GUARD);
  in_child(files_full_at_once);
}

static void files_full_later(void) {
  limit_files(2000);
  decisions_without_files();
  CHECK_INT(fixture.line_count, 1);
  const char *events = read_file("events.jsonl");
  CHECK(strlen(events) > 500 && strlen(events) <= 2000);
  CHECK_INT(events[strlen(events) - 1], '\n'); /* no half line */
  CHECK_INT(read_control(), 4);                /* small enough to be written still */
}

TEST(files_that_fill_up_in_the_middle) {
  fixture_start(BSG_MODE_GUARD);
  in_child(files_full_later);
}

TEST(control_catches_up_when_there_is_room_again) {
  struct rlimit none = {RLIM_INFINITY, RLIM_INFINITY}, before, small = {100, RLIM_INFINITY};

  fixture_start(BSG_MODE_GUARD);
  boundary(0, "Net", "float32[8]", 32, BSG_PHASE_FORWARD);
  CHECK_INT(getrlimit(RLIMIT_FSIZE, &before), 0);
  if (before.rlim_max != RLIM_INFINITY)
    skip("the limit on file sizes cannot be raised again here");
  CHECK_INT(setrlimit(RLIMIT_FSIZE, &small), 0);
  terminal(32, BSG_PHASE_FORWARD, BSG_EXACT);
  CHECK_INT(read_control(), 1);
  end_step();
  CHECK_INT(read_control(), 1);
  CHECK_INT(setrlimit(RLIMIT_FSIZE, &none), 0);
  end_step();
  CHECK_INT(read_control(), 2);
  /* The lines in between are missing, and the numbers show it. */
  CHECK(number_in(event_of(NULL, -1), "seq") > events_of(NULL));
  CHECK_INT(fixture.line_count, 1);
}

static void as_somebody_without_rights(void) {
  if (geteuid() == 0 && (setgid(65534) != 0 || setuid(65534) != 0))
    _exit(77);
  use_device(0);
  CHECK_INT(run_folders(), 0);
  CHECK_INT(fixture.line_count, 1);
  CHECK_HAS(last_line(), "permission denied");
  decisions_without_files();
  CHECK_INT(fixture.line_count, 1);
}

TEST(a_parent_that_may_not_be_written) {
  fixture_open(BSG_MODE_GUARD);
  CHECK_INT(chmod(fixture.root, 0755) | mkdir(fixture.parent, 0555) | chmod(fixture.parent, 0555), 0);
  in_child(as_somebody_without_rights);
}

static void on_a_full_disk(void) {
  if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
      mount("none", fixture.parent, "tmpfs", 0, "size=16k") != 0)
    _exit(77); /* needs rights that tests rarely have */
  use_device(0);
  for (int i = 0; i < 200; i++)
    end_step();
  decisions_without_files();
  const char *events = read_file("events.jsonl");
  bool whole = events && (*events == '\0' || events[strlen(events) - 1] == '\n');
  bool said = fixture.line_count == 1 && strstr(last_line(), "no space left on the device");
  CHECK(whole);
  CHECK(said);
}

TEST(a_full_disk) {
  fixture_open(BSG_MODE_GUARD);
  CHECK_INT(mkdir(fixture.parent, 0700), 0);
  in_child(on_a_full_disk);
}
