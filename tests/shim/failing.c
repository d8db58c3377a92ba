/*
 * failing.c - a second preload, under which files fail: opening, making folders or writing, with the error number in
 * FAIL_OPEN, FAIL_MKDIR or FAIL_WRITE. FAIL_WRITE lets through FAIL_AFTER bytes first. Only where bsguard's files are:
 * a path, or a descriptor opened by one, with "bsguard" in it.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "shim/bsguard.h"

static long written;

static int setting(const char *name) {
  const char *text = getenv(name);
  return text ? atoi(text) : 0;
}

static int refuse(const char *path, const char *name) {
  int error = path && strstr(path, "bsguard") ? setting(name) : 0;
  if (error)
    errno = error;
  return error;
}

static int refuse_write(int fd, size_t bytes) {
  char link[64], path[512];
  ssize_t length;
  int error = setting("FAIL_WRITE");
  if (!error)
    return 0;
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  length = readlink(link, path, sizeof path - 1);
  if (length < 0)
    return 0;
  path[length] = '\0';
  if (!strstr(path, "bsguard") || (written += (long)bytes) <= setting("FAIL_AFTER"))
    return 0;
  errno = error;
  return error;
}

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

/* The mode is passed on whether it was given or not, as the system call takes it. */
#define MODE(flags)                                                                                                    \
  va_list arguments;                                                                                                   \
  mode_t mode;                                                                                                         \
  va_start(arguments, flags);                                                                                          \
  mode = va_arg(arguments, mode_t);                                                                                    \
  va_end(arguments)

BSG_EXPORT int open(const char *path, int flags, ...) {
  MODE(flags);
  return refuse(path, "FAIL_OPEN") ? -1 : NEXT(open)(path, flags, mode);
}

BSG_EXPORT int open64(const char *path, int flags, ...) {
  MODE(flags);
  return refuse(path, "FAIL_OPEN") ? -1 : NEXT(open64)(path, flags, mode);
}

BSG_EXPORT int openat(int folder, const char *path, int flags, ...) {
  MODE(flags);
  if (setting("FAIL_OPEN") && folder != AT_FDCWD) /* a path from a descriptor: whose is not known */
    return errno = setting("FAIL_OPEN"), -1;
  return refuse(path, "FAIL_OPEN") ? -1 : NEXT(openat)(folder, path, flags, mode);
}

BSG_EXPORT int openat64(int folder, const char *path, int flags, ...) {
  MODE(flags);
  if (setting("FAIL_OPEN") && folder != AT_FDCWD)
    return errno = setting("FAIL_OPEN"), -1;
  return refuse(path, "FAIL_OPEN") ? -1 : NEXT(openat64)(folder, path, flags, mode);
}

BSG_EXPORT int mkdir(const char *path, mode_t mode) {
  return refuse(path, "FAIL_MKDIR") ? -1 : NEXT(mkdir)(path, mode);
}

BSG_EXPORT int mkdirat(int folder, const char *path, mode_t mode) {
  return refuse(path, "FAIL_MKDIR") ? -1 : NEXT(mkdirat)(folder, path, mode);
}

BSG_EXPORT ssize_t write(int fd, const void *data, size_t bytes) {
  return refuse_write(fd, bytes) ? -1 : NEXT(write)(fd, data, bytes);
}

BSG_EXPORT ssize_t writev(int fd, const struct iovec *parts, int count) {
  return refuse_write(fd, parts[0].iov_len) ? -1 : NEXT(writev)(fd, parts, count);
}
