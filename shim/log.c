/*
 * log.c - see log.h. Depends on libc alone. Never allocates from the heap, never exits.
 */
#include "shim/log.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MAX_LINE 1000

static struct {
  atomic_int level;
  atomic_bool closed;
} state = {.level = 1};

void bsg_log_open(void) {
  int saved = errno;
  if (fcntl(STDERR_FILENO, F_GETFL) < 0)
    atomic_store(&state.closed, true);
  errno = saved;
}

void bsg_log_set_level(int level) {
  atomic_store(&state.level, level);
}

/* A pipe whose reader is gone would kill the job with SIGPIPE: hold the signal off and take back the one that we
 * caused. */
static void write_line(const char *line, size_t length) {
  const struct timespec at_once = {0, 0};
  sigset_t pipe_signal, before, pending;
  bool was_pending;

  sigemptyset(&pipe_signal);
  sigaddset(&pipe_signal, SIGPIPE);
  sigpending(&pending);
  was_pending = sigismember(&pending, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &pipe_signal, &before);
  while (write(STDERR_FILENO, line, length) < 0 && errno == EINTR)
    ;
  if (!was_pending)
    while (sigtimedwait(&pipe_signal, NULL, &at_once) < 0 && errno == EINTR)
      ;
  pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void bsg_log(int level, const char *format, ...) {
  static const char prefix[] = "bsguard: ";
  char line[MAX_LINE + 1];
  size_t length = sizeof prefix - 1;
  int saved = errno, written;
  va_list arguments;

  if (level > atomic_load(&state.level) || atomic_load(&state.closed))
    return;
  memcpy(line, prefix, length);
  va_start(arguments, format);
  written = vsnprintf(line + length, MAX_LINE - length, format, arguments);
  va_end(arguments);
  if (written < 0)
    goto out;
  length += (size_t)written < MAX_LINE - length ? (size_t)written : MAX_LINE - length - 1;
  for (size_t i = 0; i < length; i++) /* one line, whatever a framework's message holds */
    if (line[i] == '\n' || line[i] == '\r')
      line[i] = ' ';
  line[length++] = '\n';
  write_line(line, length);
out:
  errno = saved;
}
