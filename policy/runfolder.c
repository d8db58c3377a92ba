/* runfolder.c - see runfolder.h. */
#include "policy/runfolder.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "policy/out.h"
#include "policy/status.h"

#define EVENTS "events.jsonl"
#define MOST_COLLISIONS 64

static const struct bsg_handle closed = {.fd = -1};

void bsg_runfolder_init(struct bsg_runfolder *folder) {
  folder->made = false;
  folder->folder = closed;
  folder->events = closed;
  folder->path[0] = '\0';
}

/* ---- descriptors ---- */

static bool still_ours(const struct bsg_handle *handle, struct stat *status) {
  return handle->fd >= 0 && bsg_status_of(handle->fd, status) == 0 && status->st_dev == handle->device &&
         status->st_ino == handle->inode;
}

static void close_ours(struct bsg_handle *handle) {
  struct stat status;

  if (still_ours(handle, &status))
    close(handle->fd);
  *handle = closed;
}

/* Owned by us and closed to everybody else. */
static int check_private(int fd, struct bsg_handle *handle) {
  struct stat status = {0};

  if (bsg_status_of(fd, &status) != 0)
    return -errno;
  if (status.st_uid != geteuid() || (status.st_mode & 077) != 0)
    return -EPERM;
  *handle = (struct bsg_handle){.fd = fd, .device = status.st_dev, .inode = status.st_ino};
  return 0;
}

static int open_folder(int at, const char *path, struct bsg_handle *handle) {
  int fd = openat(at, path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  int error;

  if (fd < 0)
    return -errno;
  error = check_private(fd, handle);
  if (error)
    close(fd);
  return error;
}

/* The folder's descriptor, opened again if the job closed it under us. */
static int folder_fd(struct bsg_runfolder *folder) {
  struct bsg_handle again = closed;
  struct stat status;
  int error;

  if (!folder->made)
    return -ENOENT;
  if (still_ours(&folder->folder, &status))
    return folder->folder.fd;
  error = open_folder(AT_FDCWD, folder->path, &again);
  if (error)
    return error;
  if (again.device != folder->folder.device || again.inode != folder->folder.inode) {
    close(again.fd); /* another folder has taken its place */
    return -ENOENT;
  }
  folder->folder = again;
  return again.fd;
}

/* ---- writing ---- */

/*
 * write(), but a limit on file sizes is EFBIG and not SIGXFSZ, which would end the job. The kernel sends that signal to
 * the writing thread, so blocking it here and taking it back reaches nobody else.
 */
static int write_guarded(int fd, const char *bytes, size_t length, size_t *written) {
  const struct timespec at_once = {0};
  sigset_t size_signal, before, pending;
  int error = 0;

  *written = 0;
  sigemptyset(&size_signal);
  sigaddset(&size_signal, SIGXFSZ);
  pthread_sigmask(SIG_BLOCK, &size_signal, &before);
  sigpending(&pending);
  while (*written < length) {
    ssize_t n = write(fd, bytes + *written, length - *written);
    if (n > 0)
      *written += (size_t)n;
    else if (n == 0 || errno != EINTR) {
      error = n == 0 ? -ENOSPC : -errno;
      break;
    }
  }
  if (error == -EFBIG && !sigismember(&pending, SIGXFSZ))
    sigtimedwait(&size_signal, NULL, &at_once);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  return error;
}

int bsg_runfolder_append(struct bsg_runfolder *folder, const char *line, size_t length) {
  struct stat status;
  size_t written;
  int error;

  if (!still_ours(&folder->events, &status)) {
    bool first = folder->events.inode == 0;
    struct bsg_handle handle = closed;
    int at = folder_fd(folder);
    if (at < 0)
      return at;
    int fd = openat(at, EVENTS,
                    O_WRONLY | O_APPEND | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | (first ? O_CREAT | O_EXCL : 0), 0600);
    if (fd < 0)
      return -errno;
    error = check_private(fd, &handle);
    if (!error && !first && (handle.device != folder->events.device || handle.inode != folder->events.inode))
      error = -ENOENT; /* not the file that we began */
    if (!error && bsg_status_of(fd, &status) != 0)
      error = -errno;
    if (error) {
      close(fd);
      return error;
    }
    folder->events = handle;
  }
  error = write_guarded(folder->events.fd, line, length, &written);
  /* Half a line would spoil the next one as well. */
  if (error && written != 0 && ftruncate(folder->events.fd, status.st_size) != 0)
    return error;
  return error;
}

int bsg_replacement_open(struct bsg_replacement *replacement, struct bsg_runfolder *folder, const char *name) {
  int at = folder_fd(folder);

  *replacement = (struct bsg_replacement){.folder = folder, .fd = -1, .name = name};
  if (at < 0)
    return at;
  snprintf(replacement->temporary, sizeof(replacement->temporary), ".%s.new", name);
  for (int attempt = 0; attempt < 2 && replacement->fd < 0; attempt++) {
    replacement->fd = openat(at, replacement->temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (replacement->fd < 0 && errno != EEXIST)
      return -errno;
    if (replacement->fd < 0)
      unlinkat(at, replacement->temporary, 0); /* left by a kill in the middle of a replacement */
  }
  return replacement->fd < 0 ? -EEXIST : 0;
}

int bsg_replacement_write(void *context, const char *bytes, size_t length) {
  struct bsg_replacement *replacement = context;
  size_t written;

  return write_guarded(replacement->fd, bytes, length, &written);
}

int bsg_replacement_close(struct bsg_replacement *replacement, int error) {
  int at;

  if (replacement->fd < 0)
    return error ? error : -EBADF;
  if (close(replacement->fd) != 0 && errno != EINTR && !error)
    error = -errno; /* network file systems say only here that the disk is full */
  replacement->fd = -1;
  at = folder_fd(replacement->folder);
  if (at < 0)
    return error ? error : at;
  if (!error && renameat(at, replacement->temporary, at, replacement->name) != 0)
    error = -errno;
  if (error)
    unlinkat(at, replacement->temporary, 0);
  return error;
}

/* ---- making ---- */

static int absolute(const char *path, char *out, size_t room) {
  size_t used = 0;

  if (!path || !*path)
    return -ENOENT;
  if (path[0] != '/') {
    if (!getcwd(out, room))
      return errno == ERANGE ? -ENAMETOOLONG : -errno;
    used = strlen(out);
    while (path[0] == '.' && path[1] == '/')
      path += 2;
    if (used + 1 >= room)
      return -ENAMETOOLONG;
    if (used > 1)
      out[used++] = '/';
  }
  size_t length = strlen(path);
  if (used + length >= room)
    return -ENAMETOOLONG;
  memcpy(out + used, path, length + 1);
  used += length;
  while (used > 1 && out[used - 1] == '/')
    out[--used] = '\0';
  return 0;
}

/* The folder and the missing ones above it. */
static int make_parents(char *path) {
  struct stat status;

  if (bsg_status_at(path, &status) == 0)
    return S_ISDIR(status.st_mode) ? 0 : -ENOTDIR;
  for (char *slash = path + 1;; slash++) {
    char saved = *slash;
    if (saved != '/' && saved != '\0')
      continue;
    *slash = '\0';
    int failed = mkdir(path, 0700) != 0 && errno != EEXIST ? errno : 0;
    if (failed && bsg_status_at(path, &status) == 0) /* there, and on a disk where even that is no EEXIST */
      failed = 0;
    *slash = saved;
    if (failed)
      return -failed;
    if (saved == '\0')
      return 0;
  }
}

static void make_gitignore(int at) {
  int fd = openat(at, ".gitignore", O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  size_t written;

  if (fd < 0)
    return; /* there already, by another rank; or not to be had, which the first event will say */
  write_guarded(fd, "*\n", 2, &written);
  close(fd);
}

/* One try at a name. -EEXIST: taken, or not to be trusted; go on to the next. */
static int try_make(struct bsg_runfolder *folder, int rank) {
  struct bsg_handle run = closed, own = closed;
  char name[32];
  bool shared = false;
  int error;

  if (mkdir(folder->path, 0700) != 0) {
    if (errno != EEXIST)
      return -errno;
    if (rank < 0)
      return -EEXIST;
    shared = true; /* another rank of this launch was first, or somebody laid a trap: check */
  }
  error = open_folder(AT_FDCWD, folder->path, &run);
  if (error)
    return shared ? -EEXIST : error;
  make_gitignore(run.fd);
  if (rank < 0) {
    folder->folder = run;
    return 0;
  }
  snprintf(name, sizeof(name), "rank%d", rank);
  size_t used = strlen(folder->path);
  if (used + 1 + strlen(name) >= sizeof(folder->path))
    error = -ENAMETOOLONG;
  else if (mkdirat(run.fd, name, 0700) != 0)
    error = -errno;
  else
    error = open_folder(run.fd, name, &own);
  close(run.fd);
  if (error)
    return error;
  folder->path[used] = '/';
  memcpy(folder->path + used + 1, name, strlen(name) + 1);
  folder->folder = own;
  return 0;
}

int bsg_runfolder_make(struct bsg_runfolder *folder, const char *parent, int pid, int rank, int64_t unix_ms) {
  struct bsg_calendar c = bsg_calendar_of(unix_ms);
  char name[96];
  size_t used;
  int error;

  bsg_runfolder_init(folder);
  error = absolute(parent, folder->path, sizeof(folder->path) - sizeof(name) - 1);
  if (!error)
    error = make_parents(folder->path);
  if (error)
    return error;
  used = strlen(folder->path);
  for (int n = 1; n <= MOST_COLLISIONS; n++) {
    int length = snprintf(name, sizeof(name), "%s%04d%02d%02dT%02d%02d%02dZ-%d", used > 1 ? "/" : "", c.year, c.month,
                          c.day, c.hour, c.minute, c.second, pid);
    if (n > 1)
      snprintf(name + length, sizeof(name) - (size_t)length, "-%d", n);
    memcpy(folder->path + used, name, strlen(name) + 1);
    error = try_make(folder, rank);
    if (!error) {
      folder->made = true;
      return 0;
    }
    if (error != -EEXIST)
      break;
  }
  return error;
}

int bsg_runfolder_enter(struct bsg_runfolder *folder, const char *path, bool make) {
  int error;

  bsg_runfolder_init(folder);
  if (path[0] != '/' || strlen(path) >= sizeof(folder->path))
    return -EINVAL;
  memcpy(folder->path, path, strlen(path) + 1);
  error = make ? make_parents(folder->path) : 0;
  if (!error)
    error = open_folder(AT_FDCWD, folder->path, &folder->folder);
  folder->made = !error;
  return error;
}

void bsg_runfolder_close(struct bsg_runfolder *folder) {
  close_ours(&folder->events);
  close_ours(&folder->folder);
  folder->made = false;
}

/* ---- an operator's file ---- */

ssize_t bsg_runfolder_take(struct bsg_runfolder *folder, const char *name, bool spare_empty, char *text, size_t room,
                           unsigned *owner, bool *removed) {
  struct stat status;
  ssize_t result;
  int at = folder_fd(folder);
  int fd;

  *removed = true;
  *owner = 0;
  if (at < 0)
    return at;
  /* Not blocking: a FIFO of that name must not hang the step. */
  fd = openat(at, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
  if (fd < 0) {
    if (errno == ENOENT)
      return -ENOENT;
    result = -errno;
    goto remove;
  }
  if (bsg_status_of(fd, &status) != 0) {
    result = -errno;
  } else if (!S_ISREG(status.st_mode)) {
    result = S_ISDIR(status.st_mode) ? -EISDIR : -EINVAL;
  } else if (status.st_uid != geteuid()) {
    *owner = status.st_uid;
    result = -EPERM;
  } else if (status.st_size == 0 && spare_empty) {
    close(fd);
    return -EAGAIN;
  } else if (status.st_size > (off_t)room) {
    result = -EFBIG;
  } else {
    size_t used = 0;
    ssize_t n = 0;
    while (used < room && (n = read(fd, text + used, room - used)) != 0) {
      if (n < 0 && errno == EINTR)
        continue;
      if (n < 0)
        break;
      used += (size_t)n;
    }
    result = n < 0 ? -errno : (ssize_t)used;
  }
  close(fd);
remove:
  *removed = unlinkat(at, name, 0) == 0;
  return result;
}
