/* test_runfolder.c - the folder of a run: private, never through a link, safe in a process that closes our descriptors.
 */
#include <errno.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "fixture.h"
#include "policy/runfolder.h"

#define AT INT64_C(1796063412001) /* 2026-11-30T18:30:12.001Z */

static struct bsg_runfolder folder;

static const char *path_of(const char *name) {
  static char paths[2][BSG_PATH_ROOM + 64];
  static int next;
  char *path = paths[next++ % 2];
  snprintf(path, sizeof(paths[0]), "%s/%s", folder.path, name);
  return path;
}

static int mode_of(const char *path) {
  struct stat status;
  return lstat(path, &status) == 0 ? (int)(status.st_mode & 07777) : -1;
}

static int make(const char *parent, int rank) {
  return bsg_runfolder_make(&folder, parent, 4711, rank, AT);
}

static void replace(const char *name, const char *text) {
  struct bsg_replacement file;
  CHECK_INT(bsg_replacement_open(&file, &folder, name), 0);
  int error = bsg_replacement_write(&file, text, strlen(text));
  CHECK_INT(bsg_replacement_close(&file, error), 0);
}

TEST(is_named_and_private) {
  char expected[400], parent[400];

  fixture_open(BSG_MODE_GUARD);
  umask(0);
  snprintf(parent, sizeof(parent), "%s/a/b//c/", fixture.root);
  CHECK_INT(make(parent, -1), 0);
  snprintf(expected, sizeof(expected), "%s/a/b//c/20261130T183012Z-4711", fixture.root);
  CHECK_TEXT(folder.path, expected);
  CHECK_INT(mode_of(folder.path), 0700);
  CHECK_INT(mode_of(path_of(".gitignore")), 0600);
  CHECK_INT(bsg_runfolder_append(&folder, "{}\n", 3), 0);
  CHECK_INT(mode_of(path_of("events.jsonl")), 0600);
  replace("control.json", "{}\n");
  CHECK_INT(mode_of(path_of("control.json")), 0600);
}

TEST(an_existing_parent_is_left_as_it_is) {
  fixture_open(BSG_MODE_GUARD);
  CHECK_INT(mkdir(fixture.parent, 0755), 0);
  CHECK_INT(chmod(fixture.parent, 01777), 0);
  CHECK_INT(make(fixture.parent, -1), 0);
  CHECK_INT(mode_of(fixture.parent), 01777);
}

TEST(a_relative_parent_is_made_absolute) {
  fixture_open(BSG_MODE_GUARD);
  CHECK_INT(chdir(fixture.root), 0);
  CHECK_INT(make("./runs", -1), 0);
  CHECK(folder.path[0] == '/');
  CHECK_INT(chdir("/"), 0);
  CHECK_INT(bsg_runfolder_append(&folder, "{}\n", 3), 0);
  CHECK_TEXT(read_file("events.jsonl"), "{}\n");
}

TEST(two_runs_in_one_second_do_not_meet) {
  char first[BSG_PATH_ROOM];

  fixture_open(BSG_MODE_GUARD);
  CHECK_INT(make(fixture.parent, -1), 0);
  strcpy(first, folder.path);
  CHECK_INT(make(fixture.parent, -1), 0);
  CHECK(strcmp(first, folder.path) != 0);
  CHECK_HAS(folder.path, "20261130T183012Z-4711-2");
}

TEST(ranks_share_a_run) {
  fixture_open(BSG_MODE_GUARD);
  CHECK_INT(make(fixture.parent, 1), 0);
  CHECK_HAS(folder.path, "20261130T183012Z-4711/rank1");
  CHECK_INT(make(fixture.parent, 0), 0);
  CHECK_HAS(folder.path, "20261130T183012Z-4711/rank0");
  CHECK_INT(mode_of(folder.path), 0700);
  CHECK_INT(make(fixture.parent, 0), 0); /* the same rank again is another launch */
  CHECK_HAS(folder.path, "20261130T183012Z-4711-2/rank0");
}

TEST(a_link_in_its_place_is_not_followed) {
  char trap[400], target[400];

  for (int rank = -1; rank <= 0; rank++) {
    fixture_open(BSG_MODE_GUARD);
    snprintf(target, sizeof(target), "%s/target", fixture.root);
    snprintf(trap, sizeof(trap), "%s/20261130T183012Z-4711", fixture.parent);
    CHECK_INT(mkdir(fixture.parent, 0700) | mkdir(target, 0700), 0);
    CHECK_INT(symlink(target, trap), 0);
    CHECK_INT(make(fixture.parent, rank), 0);
    CHECK_HAS(folder.path, "4711-2");
    CHECK_INT(bsg_runfolder_append(&folder, "{}\n", 3), 0);
    CHECK_INT(rmdir(target), 0); /* still empty */
  }
}

TEST(a_folder_that_others_may_write_is_not_joined) {
  char trap[400];

  fixture_open(BSG_MODE_GUARD);
  snprintf(trap, sizeof(trap), "%s/20261130T183012Z-4711", fixture.parent);
  CHECK_INT(mkdir(fixture.parent, 0700) | mkdir(trap, 0700) | chmod(trap, 0777), 0);
  CHECK_INT(make(fixture.parent, 0), 0);
  CHECK_HAS(folder.path, "4711-2/rank0");
}

TEST(a_folder_of_somebody_else_is_not_joined) {
  char trap[400];

  if (geteuid() != 0)
    skip("only root can give a folder away");
  fixture_open(BSG_MODE_GUARD);
  snprintf(trap, sizeof(trap), "%s/20261130T183012Z-4711", fixture.parent);
  CHECK_INT(mkdir(fixture.parent, 0700) | mkdir(trap, 0700) | chown(trap, 12345, 12345), 0);
  CHECK_INT(make(fixture.parent, 0), 0);
  CHECK_HAS(folder.path, "4711-2/rank0");
}

TEST(what_stands_in_the_way_is_an_error) {
  char path[400], text[5000];

  fixture_open(BSG_MODE_GUARD);
  snprintf(path, sizeof(path), "%s/file", fixture.root);
  fclose(fopen(path, "w"));
  CHECK_INT(make(path, -1), -ENOTDIR);
  strcat(path, "/below");
  CHECK_INT(make(path, -1), -ENOTDIR);
  memset(text, 'x', sizeof(text) - 1);
  text[0] = '/';
  text[sizeof(text) - 1] = '\0';
  CHECK_INT(make(text, -1), -ENAMETOOLONG);
  CHECK(make("/proc/bsguard", -1) < 0);
  CHECK_INT(make("", -1), -ENOENT);
  CHECK(!folder.made);
  CHECK(bsg_runfolder_append(&folder, "x\n", 2) < 0);
}

TEST(why_a_parent_cannot_be_made_is_said) {
  char path[400];
  int error;

  fixture_open(BSG_MODE_GUARD);
  CHECK_INT(chmod(fixture.root, 0555), 0);
  snprintf(path, sizeof(path), "%s/a/b", fixture.root);
  if (geteuid() == 0)
    CHECK_INT(seteuid(65534), 0);
  error = make(path, -1);
  if (getuid() == 0)
    CHECK_INT(seteuid(0), 0);
  CHECK_INT(chmod(fixture.root, 0700), 0);
  CHECK_INT(error, -EACCES); /* what mkdir() said, not that there is no such folder */
}

TEST(a_link_in_place_of_a_file_is_not_followed) {
  char target[400];

  fixture_open(BSG_MODE_GUARD);
  CHECK_INT(make(fixture.parent, -1), 0);
  snprintf(target, sizeof(target), "%s/target", fixture.root);
  fclose(fopen(target, "w"));
  CHECK_INT(symlink(target, path_of("events.jsonl")), 0);
  CHECK(bsg_runfolder_append(&folder, "x\n", 2) < 0);
  CHECK_INT(symlink(target, path_of(".control.json.new")), 0);
  CHECK_INT(symlink(target, path_of("control.json")), 0);
  replace("control.json", "{}\n"); /* the links are replaced, what they point to is not touched */
  CHECK_TEXT(read_file("control.json"), "{}\n");
  struct stat status;
  CHECK(stat(target, &status) == 0 && status.st_size == 0);
}

TEST(a_descriptor_that_the_job_closed_is_never_used) {
  char other[400];

  fixture_open(BSG_MODE_GUARD);
  CHECK_INT(make(fixture.parent, -1), 0);
  CHECK_INT(bsg_runfolder_append(&folder, "1\n", 2), 0);
  /* As a daemon does: closes all, and opens files of its own under the same numbers. */
  int events = folder.events.fd, own = folder.folder.fd;
  close(events);
  close(own);
  snprintf(other, sizeof(other), "%s/other", fixture.root);
  int fd = open(other, O_RDWR | O_CREAT, 0600);
  CHECK_INT(dup2(fd, events), events);
  CHECK_INT(dup2(fd, own), own);
  CHECK_INT(bsg_runfolder_append(&folder, "2\n", 2), 0);
  replace("control.json", "{}\n");
  CHECK_TEXT(read_file("events.jsonl"), "1\n2\n");
  struct stat status;
  CHECK(stat(other, &status) == 0 && status.st_size == 0);
  bsg_runfolder_close(&folder);
  CHECK(fcntl(events, F_GETFD) >= 0 && fcntl(own, F_GETFD) >= 0); /* not ours, so not closed */
}

TEST(another_file_in_its_place_is_not_written) {
  fixture_open(BSG_MODE_GUARD);
  CHECK_INT(make(fixture.parent, -1), 0);
  CHECK_INT(bsg_runfolder_append(&folder, "1\n", 2), 0);
  CHECK_INT(rename(path_of("events.jsonl"), path_of("old.jsonl")), 0);
  close(folder.events.fd);
  write_file("events.jsonl", "mine\n");
  CHECK(bsg_runfolder_append(&folder, "2\n", 2) < 0);
  CHECK_TEXT(read_file("events.jsonl"), "mine\n");
}

TEST(a_link_to_our_own_file_is_not_followed_either) {
  fixture_open(BSG_MODE_GUARD);
  CHECK_INT(make(fixture.parent, -1), 0);
  CHECK_INT(bsg_runfolder_append(&folder, "1\n", 2), 0);
  CHECK_INT(rename(path_of("events.jsonl"), path_of("old.jsonl")), 0);
  CHECK_INT(symlink("old.jsonl", path_of("events.jsonl")), 0);
  close(folder.events.fd);
  CHECK_INT(bsg_runfolder_append(&folder, "2\n", 2), -ELOOP);
}

TEST(descriptors_do_not_reach_programs_that_the_job_starts) {
  fixture_open(BSG_MODE_GUARD);
  CHECK_INT(make(fixture.parent, -1), 0);
  CHECK_INT(bsg_runfolder_append(&folder, "1\n", 2), 0);
  CHECK(fcntl(folder.events.fd, F_GETFD) & FD_CLOEXEC);
  CHECK(fcntl(folder.folder.fd, F_GETFD) & FD_CLOEXEC);
}

/* In a child of its own: the limit cannot be raised again by everybody. */
static void with_file_limit(void) {
  struct rlimit limit = {10, 10};
  struct bsg_replacement file;

  CHECK_INT(bsg_runfolder_append(&folder, "12345678\n", 9), 0);
  CHECK_INT(setrlimit(RLIMIT_FSIZE, &limit), 0);
  CHECK_INT(bsg_runfolder_append(&folder, "not whole\n", 10), -EFBIG); /* and no signal */
  CHECK_TEXT(read_file("events.jsonl"), "12345678\n");
  CHECK_INT(bsg_replacement_open(&file, &folder, "control.json"), 0);
  int error = bsg_replacement_write(&file, "more than ten bytes", 19);
  CHECK_INT(bsg_replacement_close(&file, error), -EFBIG);
  sigset_t pending;
  sigpending(&pending);
  CHECK_INT(sigismember(&pending, SIGXFSZ), 0);
  _exit(0);
}

TEST(a_limit_on_file_sizes_is_an_error_and_no_signal) {
  int status;

  fixture_open(BSG_MODE_GUARD);
  CHECK_INT(make(fixture.parent, -1), 0);
  replace("control.json", "old\n");
  pid_t child = fork();
  if (child == 0)
    with_file_limit();
  CHECK(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK_INT(WEXITSTATUS(status), 0);
  CHECK_TEXT(read_file("control.json"), "old\n");
  CHECK(!file_exists(".control.json.new"));
}

TEST(an_operators_file_is_taken_once) {
  char text[16];
  unsigned owner;
  bool removed;

  fixture_open(BSG_MODE_GUARD);
  CHECK_INT(make(fixture.parent, -1), 0);
  CHECK_INT(bsg_runfolder_take(&folder, "r", true, text, sizeof(text), &owner, &removed), -ENOENT);
  write_file("r", "hello");
  CHECK_INT(bsg_runfolder_take(&folder, "r", true, text, sizeof(text), &owner, &removed), 5);
  CHECK(removed && !file_exists("r"));
  write_file("r", "exactly 16 bytes");
  CHECK_INT(bsg_runfolder_take(&folder, "r", true, text, sizeof(text), &owner, &removed), 16);
  write_file("r", "one byte too many");
  CHECK_INT(bsg_runfolder_take(&folder, "r", true, text, sizeof(text), &owner, &removed), -EFBIG);
  CHECK(!file_exists("r"));
  write_file("r", "");
  CHECK_INT(bsg_runfolder_take(&folder, "r", true, text, sizeof(text), &owner, &removed), -EAGAIN);
  CHECK(file_exists("r"));
  CHECK_INT(bsg_runfolder_take(&folder, "r", false, text, sizeof(text), &owner, &removed), 0);
  CHECK(!file_exists("r"));
}
