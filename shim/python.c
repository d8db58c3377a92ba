/*
 * python.c - see python.h. Of CPython's interface two functions: the state of this thread (none where it runs no
 * Python), and the one behind the faulthandler module, which is made for signal handlers. A thread's frames belong to
 * itself, and it is here: nobody else changes them, whether it holds the interpreter's lock or not.
 */
#include "shim/python.h"

#include <dlfcn.h>
#include <errno.h>
#include <linux/memfd.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef void *(*state_fn)(void);
typedef void (*dump_fn)(int fd, void *state);

static struct {
  _Atomic(state_fn) thread_state;
  _Atomic(dump_fn) dump;
} state;

void bsg_python_prepare(void) {
  atomic_store(&state.dump, (dump_fn)dlsym(RTLD_DEFAULT, "_Py_DumpTraceback"));
  atomic_store(&state.thread_state, (state_fn)dlsym(RTLD_DEFAULT, "PyGILState_GetThisThreadState"));
  dlerror(); /* what we tried is no news to the program */
}

/* Without its first line, which says only that the innermost comes first. */
static int without_heading(char *text, size_t length) {
  char *end = memchr(text, '\n', length);
  size_t heading = end ? (size_t)(end + 1 - text) : 0;

  if (strncmp(text, "Stack (", 7) != 0)
    heading = 0;
  memmove(text, text + heading, length - heading);
  text[length - heading] = '\0';
  return (int)(length - heading);
}

int bsg_python_stack(char *out, size_t room) {
  state_fn thread_state = atomic_load(&state.thread_state);
  dump_fn dump = atomic_load(&state.dump);
  int saved = errno, result = 0;
  void *thread;
  ssize_t length;
  int fd;

  out[0] = '\0';
  if (!dump || !thread_state || !(thread = thread_state()))
    return 0;
  /* by its number: the C library has had the function since 2.27 only */
  fd = (int)syscall(SYS_memfd_create, "bsguard", MFD_CLOEXEC);
  if (fd >= 0) {
    dump(fd, thread);
    length = pread(fd, out, room - 1, 0);
    if (length > 0) {
      out[length] = '\0';
      result = without_heading(out, (size_t)length);
    }
    close(fd);
  }
  errno = saved;
  return result;
}
