/*
 * launch.c - see launch.h. The launcher is the nearest process above this one whose environment has no rank: there may
 * be a shell between the two. Depends on /proc. Never allocates.
 */
#include "shim/launch.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shim/environment.h"

#define MOST_ABOVE 16

static const struct {
  const char *rank, *size;
} launchers[] = {{"PADDLE_TRAINER_ID", "PADDLE_TRAINERS_NUM"}, {"RANK", "WORLD_SIZE"}};

/* The whole of a small file as text; false where there is none. */
static bool read_text(const char *path, char *out, size_t room) {
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  ssize_t length;

  if (fd < 0)
    return false;
  length = read(fd, out, room - 1);
  close(fd);
  if (length <= 0)
    return false;
  out[length] = '\0';
  return true;
}

/* Parent, and start in clock ticks since the machine's. */
static bool look_at(int pid, int *parent, unsigned long long *ticks) {
  char path[64], text[1024], *at;

  snprintf(path, sizeof path, "/proc/%d/stat", pid);
  if (!read_text(path, text, sizeof text))
    return false;
  at = strrchr(text, ')'); /* the name in front of it may hold anything */
  if (!at || sscanf(at, ") %*c %d", parent) != 1)
    return false;
  for (int field = 2; field < 22 && at; field++)
    at = strchr(at + 1, ' ');
  if (!at)
    return false;
  *ticks = strtoull(at, NULL, 10);
  return true;
}

/* Does a process's environment, as it was at its start, name one of the variables that say a rank? */
static bool has_rank(int pid) {
  char path[64], bytes[4096];
  size_t matched[sizeof launchers / sizeof launchers[0]] = {0};
  bool possible[sizeof launchers / sizeof launchers[0]], found = false;
  ssize_t length = 0;
  int fd;

  snprintf(path, sizeof path, "/proc/%d/environ", pid);
  fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0)
    return false;
  memset(possible, true, sizeof possible);
  while (!found && (length = read(fd, bytes, sizeof bytes)) > 0) {
    for (ssize_t i = 0; i < length && !found; i++) {
      for (size_t n = 0; n < sizeof launchers / sizeof launchers[0]; n++) {
        const char *name = launchers[n].rank;
        if (bytes[i] == '\0') {
          possible[n] = true;
          matched[n] = 0;
        } else if (possible[n] && name[matched[n]] == '\0') {
          found = found || bytes[i] == '=';
          possible[n] = false;
        } else if (possible[n]) {
          possible[n] = bytes[i] == name[matched[n]];
          matched[n]++;
        }
      }
    }
  }
  close(fd);
  return found;
}

/* Unix time, in seconds, of the start of the machine; 0: nobody can say. */
static int64_t machine_start(void) {
  char bytes[4096];
  size_t used = 0;
  ssize_t length;
  int fd = open("/proc/stat", O_RDONLY | O_CLOEXEC);
  int64_t seconds = 0;

  if (fd < 0)
    return 0;
  /* The line stands behind one a processor: keep the end of what was read, in case it is cut. */
  while (!seconds && (length = read(fd, bytes + used, sizeof bytes - 1 - used)) > 0) {
    used += (size_t)length;
    bytes[used] = '\0';
    const char *at = strstr(bytes, "\nbtime ");
    if (at && strchr(at + 1, '\n'))
      seconds = strtoll(at + 7, NULL, 10);
    else if (used > 64) {
      memmove(bytes, bytes + used - 64, 64);
      used = 64;
    }
  }
  close(fd);
  return seconds;
}

static int rank(int *ranks) {
  for (size_t i = 0; i < sizeof launchers / sizeof launchers[0]; i++) {
    const char *mine = bsg_environment_get(launchers[i].rank), *all = bsg_environment_get(launchers[i].size);
    if (mine && all && atoi(all) > 1) {
      *ranks = atoi(all);
      return atoi(mine);
    }
  }
  return -1;
}

void bsg_launch_find(struct bsg_launch *out) {
  unsigned long long ticks;
  int64_t start;
  int pid = getppid(), parent;
  long second = sysconf(_SC_CLK_TCK);

  *out = (struct bsg_launch){.ranks = 1};
  out->rank = rank(&out->ranks);
  if (out->rank < 0 || second <= 0)
    return;
  for (int above = 0; above < MOST_ABOVE && pid > 1 && has_rank(pid); above++) {
    if (!look_at(pid, &parent, &ticks) || parent < 1)
      break;
    pid = parent;
  }
  start = machine_start();
  if (pid < 1 || !start || !look_at(pid, &parent, &ticks))
    return;
  out->pid = pid;
  out->start_ms = (start + (int64_t)(ticks / (unsigned long long)second)) * 1000;
}
