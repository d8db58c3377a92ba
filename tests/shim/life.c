/*
 * life.c - the ways in which a process begins, multiplies and ends, each around driver calls. What it prints and how it
 * ends must be the same with and without a preload.
 *
 *   life vfork        children by vfork() and exec, between allocations
 *   life spawn        posix_spawn(), and a shell by system()
 *   life threads      many threads allocate; the main thread ends first, by pthread_exit()
 *   life exit         exit() while other threads allocate
 *   life atexit       driver calls in atexit handlers and destructors, after ours has run
 *   life quick        _exit() with memory held
 *   life abort        abort() with memory held
 *   life signal       a signal handler that ends the process by exit(), over an allocation
 *   life close        libcuda is opened and closed again and again
 *   life marks        allocates ever more for ever: to be killed
 */
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "driver.h"

extern char **environ;

static PFN_cuMemAlloc_v3020 alloc;
static PFN_cuMemFree_v3020 release;
static PFN_cuCtxSetCurrent_v4000 set_current;
static CUcontext context;
static CUdeviceptr held;

static void find(void *driver) {
  alloc = (PFN_cuMemAlloc_v3020)dlsym(driver, "cuMemAlloc_v2");
  release = (PFN_cuMemFree_v3020)dlsym(driver, "cuMemFree_v2");
  set_current = (PFN_cuCtxSetCurrent_v4000)dlsym(driver, "cuCtxSetCurrent");
  CHECK_EQUAL(((PFN_cuCtxGetCurrent_v4000)dlsym(driver, "cuCtxGetCurrent"))(&context), CUDA_SUCCESS);
}

static void once(void) {
  CUdeviceptr address;
  CHECK_EQUAL(alloc(&address, 1 << 20), CUDA_SUCCESS);
  CHECK_EQUAL(release(address), CUDA_SUCCESS);
}

static void ended(const char *what, pid_t child) {
  int status;
  CHECK(child > 0);
  CHECK_EQUAL(waitpid(child, &status, 0), child);
  printf("%s %#x\n", what, (unsigned)status);
}

/* A function of its own: nothing of its caller may live in a register while the child has the stack. */
static __attribute__((noinline)) pid_t run_child(const char *command) {
  pid_t child = vfork();
  if (child == 0) {
    execl("/bin/sh", "sh", "-c", command, (char *)NULL);
    _exit(127);
  }
  return child;
}

static void in_vfork(void) {
  for (int i = 0; i < 20; i++) {
    pid_t child = run_child(i % 2 ? "exit 3" : "true");
    once();
    ended("vfork", child);
  }
}

static void in_spawn(void) {
  char *words[] = {"sh", "-c", "exit 5", NULL};
  pid_t child;
  CHECK_EQUAL(posix_spawn(&child, "/bin/sh", NULL, NULL, words, environ), 0);
  once();
  ended("spawn", child);
  printf("system %#x\n", (unsigned)system("exit 6"));
}

static void *work(void *endless) {
  CHECK_EQUAL(set_current(context), CUDA_SUCCESS);
  for (int i = 0; i < 20000 || endless; i++) {
    CUdeviceptr address;
    if (alloc(&address, ((size_t)i % 64 + 1) << 16) == CUDA_SUCCESS)
      CHECK_EQUAL(release(address), CUDA_SUCCESS);
  }
  return NULL;
}

static void start(int count, bool endless) {
  for (int i = 0; i < count; i++) {
    pthread_t thread;
    CHECK_EQUAL(pthread_create(&thread, NULL, work, endless ? &context : NULL), 0);
    CHECK_EQUAL(pthread_detach(thread), 0);
  }
}

static void late(void) {
  CUdeviceptr address = 0;
  int result = alloc(&address, 2 << 20);
  printf("late %d %d\n", result, release(address));
  fflush(stdout);
}

static bool in_destructor;
__attribute__((destructor)) static void at_the_very_end(void) {
  if (in_destructor)
    late();
}

static void on_alarm(int number) {
  (void)number;
  exit(7);
}

static void closing(void) {
  for (int i = 0; i < 50; i++) {
    void *driver = driver_open();
    find(driver);
    once();
    CHECK_EQUAL(dlclose(driver), 0);
  }
  printf("closed\n");
}

static void marks(void) {
  printf("ready\n");
  fflush(stdout);
  for (;;)
    for (size_t bytes = 1 << 20; bytes < (size_t)1 << 30; bytes += 1 << 20) {
      CUdeviceptr address; /* a rise, and so an event, at every other one; then refused ones */
      if (alloc(&address, bytes) == CUDA_SUCCESS)
        release(address);
    }
}

int main(int argc, char **argv) {
  const char *way = argc > 1 ? argv[1] : "";
  void *driver = driver_open();
  setvbuf(stdout, NULL, _IOLBF, 0);
  find(driver);
  CHECK_EQUAL(alloc(&held, 3 << 20), CUDA_SUCCESS);
  printf("held\n");
  if (strcmp(way, "vfork") == 0)
    in_vfork();
  else if (strcmp(way, "spawn") == 0)
    in_spawn();
  else if (strcmp(way, "threads") == 0) {
    start(8, false);
    pthread_exit(NULL);
  } else if (strcmp(way, "exit") == 0) {
    start(4, true);
    usleep(50000);
    exit(9);
  } else if (strcmp(way, "atexit") == 0) {
    atexit(late);
    in_destructor = true;
  } else if (strcmp(way, "quick") == 0)
    _exit(11);
  else if (strcmp(way, "abort") == 0)
    abort();
  else if (strcmp(way, "signal") == 0) {
    signal(SIGALRM, on_alarm);
    ualarm(20000, 0);
    work(&context);
  } else if (strcmp(way, "close") == 0) {
    CHECK_EQUAL(dlclose(driver), 0);
    closing();
  } else if (strcmp(way, "marks") == 0)
    marks();
  else
    CHECK(!"known way");
  return 13;
}
