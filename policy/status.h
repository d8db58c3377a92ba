/*
 * status.h - what a file is. The C library's own stat() and fstat() were, before glibc 2.33, not in libc.so but in a
 * static part that every library had to link in, and that part is not marked for control-flow protection: with it in,
 * the loader would switch that protection off for the whole process. So we ask the kernel. 64-bit Linux only, where the
 * kernel's structure is the C library's.
 */
#ifndef POLICY_STATUS_H
#define POLICY_STATUS_H

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* As fstat(): 0, or -1 with errno. */
static inline int bsg_status_of(int fd, struct stat *status) {
  return (int)syscall(SYS_fstat, fd, status);
}

/* As stat(): 0, or -1 with errno; follows links. */
static inline int bsg_status_at(const char *path, struct stat *status) {
  return (int)syscall(SYS_newfstatat, AT_FDCWD, path, status, 0);
}

#endif
