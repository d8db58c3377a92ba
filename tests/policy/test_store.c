/* test_store.c - the known-good store: what comes back, what is refused, and what another user or job may do to it. */
#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "check.h"
#include "fixture.h"
#include "policy/store.h"

static struct bsg_json_document document;
static struct bsg_store_record records[BSG_STORE_RECORDS];
static const struct bsg_store_job job = {"train.py", 7, "paddle 3.3.1", "NVIDIA A10", 22 * GIB, 1};
static const struct bsg_store_record two[] = {
    {.batch = 32,
     .micro_batch = 11,
     .peak_bytes = GIB,
     .base_bytes = MIB,
     .refused_batch = 16,
     .refused_bytes = 2 * GIB,
     .refused_base_bytes = 2 * MIB,
     .boundary = "Net",
     .signature = "float32[8]"},
    {.evaluation = true, .batch = 64, .micro_batch = 32, .boundary = "Ne\"t", .signature = "int64[1\\7]"}};
static char folder[512], file[1024];
static const char *why;

static void open_store(void) {
  char name[32];

  fixture_open(BSG_MODE_GUARD);
  bsg_store_name(&job, name, sizeof name);
  snprintf(folder, sizeof folder, "%s/state/bsguard", fixture.root);
  snprintf(file, sizeof file, "%s/%s", folder, name);
}

static int read_store(const struct bsg_store_job *of) {
  return bsg_store_read(folder, of, &document, records, BSG_STORE_RECORDS, &why);
}

static void put(const char *text) {
  FILE *out = fopen(file, "w");
  CHECK(out != NULL);
  fputs(text, out);
  fclose(out);
  chmod(file, 0600);
}

static int mode_of(const char *path) {
  struct stat status;
  CHECK_INT(stat(path, &status), 0);
  return (int)(status.st_mode & 0777);
}

TEST(what_was_written_comes_back) {
  open_store();
  CHECK_INT(read_store(&job), -ENOENT);
  CHECK(access(folder, F_OK) != 0); /* reading makes nothing */
  CHECK_INT(bsg_store_write(folder, &job, two, 2), 0);
  CHECK_INT(read_store(&job), 2);
  for (int i = 0; i < 2; i++) {
    CHECK_INT(records[i].evaluation, two[i].evaluation);
    CHECK_INT(records[i].batch, two[i].batch);
    CHECK_INT(records[i].micro_batch, two[i].micro_batch);
    CHECK_INT(records[i].peak_bytes, two[i].peak_bytes);
    CHECK_INT(records[i].base_bytes, two[i].base_bytes);
    CHECK_INT(records[i].refused_batch, two[i].refused_batch);
    CHECK_INT(records[i].refused_bytes, two[i].refused_bytes);
    CHECK_INT(records[i].refused_base_bytes, two[i].refused_base_bytes);
    CHECK(strcmp(records[i].boundary, two[i].boundary) == 0 && strcmp(records[i].signature, two[i].signature) == 0);
  }
  CHECK_INT(mode_of(folder), 0700);
  CHECK_INT(mode_of(file), 0600);
  CHECK_INT(bsg_store_write(folder, &job, two, 1), 0); /* replaced */
  CHECK_INT(read_store(&job), 1);
}

TEST(another_job_is_another_file) {
  struct bsg_store_job others[6];
  char names[7][32];

  open_store();
  for (int i = 0; i < 6; i++)
    others[i] = job;
  others[0].command = "test.py";
  others[1].arguments = 8;
  others[2].framework = "paddle 2.6.2";
  others[3].device = "NVIDIA A100";
  others[4].total_bytes = 21 * GIB;
  others[5].ranks = 2;
  CHECK_INT(bsg_store_write(folder, &job, two, 2), 0);
  bsg_store_name(&job, names[6], sizeof names[6]);
  for (int i = 0; i < 6; i++) {
    CHECK_INT(read_store(&others[i]), -ENOENT);
    bsg_store_name(&others[i], names[i], sizeof names[i]);
    for (int j = i + 1; j < 7; j++)
      CHECK(strcmp(names[i], j == 6 ? names[6] : (bsg_store_name(&others[j], names[j], sizeof names[j]), names[j])) !=
            0);
    /* Under our name, it is refused all the same. */
    char theirs[1024];
    snprintf(theirs, sizeof theirs, "%s/%s", folder, names[i]);
    CHECK_INT(bsg_store_write(folder, &others[i], two, 1), 0);
    CHECK_INT(rename(theirs, file), 0);
    CHECK_INT(read_store(&job), -EBADMSG);
    CHECK_HAS(why, "another job");
  }
}

TEST(what_is_not_such_a_file_is_refused_and_replaced) {
  static const char head[] = "{\"schema\":\"bsguard.store/1\",\"version\":\"9\",\"command\":\"train.py\",\"arguments\":"
                             "\"0000000000000007\",\"framework\":\"paddle 3.3.1\",\"device\":\"NVIDIA A10\","
                             "\"total_bytes\":23622320128,\"ranks\":1}\n";
  static const char *const lines[] = {
      "", "{", "\n", "[]\n", "null\n", "{\"schema\":\"bsguard.store/2\"}\n", "{}\n{}\n", "\xff\xfe\n",
  };
  static const char *const after_head[] = {
      "{}\n",
      "x\n",
      "{\"boundary\":\"Net\"}\n",
      "{\"boundary\":\"Net\",\"signature\":\"s\",\"evaluation\":false,\"batch\":32,\"micro_batch\":0,\"peak_bytes\":0,"
      "\"base_bytes\":0}\n",
      "{\"boundary\":\"Net\",\"signature\":\"s\",\"evaluation\":false,\"batch\":32,\"micro_batch\":33,\"peak_bytes\":0,"
      "\"base_bytes\":0}\n",
      "{\"boundary\":\"Net\",\"signature\":\"s\",\"evaluation\":false,\"batch\":32,\"micro_batch\":8,\"peak_bytes\":-1,"
      "\"base_bytes\":0}\n",
      "{\"boundary\":\"Net\",\"signature\":\"s\",\"evaluation\":false,\"batch\":32,\"micro_batch\":8,\"peak_bytes\":1,"
      "\"base_bytes\":0}", /* cut short */
      "{\"boundary\":\"Net\",\"signature\":\"s\",\"evaluation\":false,\"batch\":32,\"micro_batch\":8,\"peak_bytes\":1,"
      "\"base_bytes\":0,\"refused_batch\":8}\n",
  };
  char text[2000];

  open_store();
  CHECK_INT(bsg_store_write(folder, &job, two, 2), 0);
  for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
    put(lines[i]);
    CHECK_INT(read_store(&job), -EBADMSG);
    CHECK(why != NULL);
  }
  put(head);
  CHECK_INT(read_store(&job), 0);
  for (size_t i = 0; i < sizeof after_head / sizeof after_head[0]; i++) {
    snprintf(text, sizeof text, "%s%s", head, after_head[i]);
    put(text);
    CHECK_INT(read_store(&job), -EBADMSG);
  }
  CHECK_INT(bsg_store_write(folder, &job, two, 2), 0);
  CHECK_INT(read_store(&job), 2);
}

TEST(links_and_what_others_may_write_are_refused) {
  char elsewhere[1024];

  open_store();
  CHECK_INT(bsg_store_write(folder, &job, two, 2), 0);
  chmod(file, 0666);
  CHECK_INT(read_store(&job), -EPERM);
  chmod(file, 0600);
  snprintf(elsewhere, sizeof elsewhere, "%s/elsewhere", fixture.root);
  CHECK_INT(rename(file, elsewhere), 0);
  CHECK_INT(symlink(elsewhere, file), 0);
  CHECK_INT(read_store(&job), -ELOOP);
  CHECK_INT(bsg_store_write(folder, &job, two, 1), 0); /* the link goes, what it points to stays */
  CHECK_INT(read_store(&job), 1);
  CHECK_INT(rename(elsewhere, file), 0);
  CHECK_INT(read_store(&job), 2);
  unlink(file);
  CHECK_INT(mkfifo(file, 0600), 0);
  CHECK_INT(read_store(&job), -EINVAL);
  unlink(file);
  chmod(folder, 0777);
  CHECK_INT(read_store(&job), -EPERM);
  CHECK_INT(bsg_store_write(folder, &job, two, 1), -EPERM);
  chmod(folder, 0700);
}

TEST(of_another_user) {
  if (geteuid() != 0)
    skip("only root can make a file of another user");
  open_store();
  CHECK_INT(bsg_store_write(folder, &job, two, 2), 0);
  CHECK_INT(chown(file, 12345, 12345), 0);
  CHECK_INT(read_store(&job), -EPERM);
  CHECK_INT(bsg_store_write(folder, &job, two, 2), 0); /* in our own folder: replaced */
  CHECK_INT(read_store(&job), 2);
  CHECK_INT(chown(folder, 12345, 12345), 0);
  CHECK_INT(read_store(&job), -EPERM);
  CHECK_INT(bsg_store_write(folder, &job, two, 2), -EPERM);
}

TEST(a_job_that_writes_is_not_waited_for) {
  char lock[1024];

  open_store();
  CHECK_INT(bsg_store_write(folder, &job, two, 1), 0);
  snprintf(lock, sizeof lock, "%s/lock", folder);
  int fd = open(lock, O_RDWR);
  CHECK_INT(flock(fd, LOCK_EX), 0);
  CHECK_INT(bsg_store_write(folder, &job, two, 2), -EAGAIN);
  CHECK_INT(read_store(&job), 1); /* reading needs no lock */
  close(fd);
  CHECK_INT(bsg_store_write(folder, &job, two, 2), 0);
}

TEST(where_there_is_no_room_what_was_there_stays) {
  struct rlimit before, small = {20, RLIM_INFINITY};

  open_store();
  CHECK_INT(bsg_store_write(folder, &job, two, 2), 0);
  CHECK_INT(getrlimit(RLIMIT_FSIZE, &before), 0);
  if (before.rlim_max != RLIM_INFINITY)
    skip("the limit on file sizes cannot be raised again here");
  CHECK_INT(setrlimit(RLIMIT_FSIZE, &small), 0);
  CHECK_INT(bsg_store_write(folder, &job, two, 1), -EFBIG);
  CHECK_INT(setrlimit(RLIMIT_FSIZE, &before), 0);
  CHECK_INT(read_store(&job), 2);
}

TEST(more_shapes_than_there_is_room_for) {
  static struct bsg_store_record many[BSG_STORE_RECORDS];

  open_store();
  for (int i = 0; i < BSG_STORE_RECORDS; i++) {
    many[i] = two[0];
    memset(many[i].signature, '"', sizeof many[i].signature - 1); /* escaped, twice as long */
  }
  int error = bsg_store_write(folder, &job, many, BSG_STORE_RECORDS);
  CHECK_INT(error, 0);
  CHECK_INT(read_store(&job), BSG_STORE_RECORDS);
}
