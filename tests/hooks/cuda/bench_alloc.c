/*
 * bench_alloc.c - what bsguard adds to a pair of cuMemAlloc and cuMemFree, in nanoseconds.
 *
 *   bench_alloc LIBBSGUARD DRIVER_FOLDER [ROUNDS]
 *
 * For each number of live allocations and of threads, runs itself ROUNDS times (default 7) without and with the
 * library, in turn, and prints one line of JSON: {"bench": "alloc", "live": ..., "threads": ..., "added_ns": ...,
 * "plain_ns": ..., "guarded_ns": ...}. added_ns is the median of the differences of neighbouring runs. A pair frees one
 * of the live allocations at random and makes a new one; with none live, it makes one and frees it. Times are of
 * the processor, summed over the threads, per pair: others on the machine disturb them little; what threads sleep for
 * one another is not in them. Budget: 75
 * ns up to 10 000 live allocations, 200 ns at 100 000, with one thread.
 */
#define __CUDA_API_VERSION_INTERNAL 1
#include <cuda.h>

#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MAX_THREADS 64
#define MAX_ROUNDS 101
#define PAIRS 400000

static struct {
  CUresult (*alloc)(CUdeviceptr *address, size_t bytes);
  CUresult (*free)(CUdeviceptr address);
  int live; /* of one thread */
  int pairs;
  pthread_barrier_t filled;
} run;

struct worker {
  pthread_t thread;
  uint64_t seed;
  double spent_ns;
};

static void die(const char *what) {
  fprintf(stderr, "bench_alloc: %s\n", what);
  exit(1);
}

/* Of the calling thread. */
static double processor_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return now.tv_sec * 1e9 + now.tv_nsec;
}

static void *work(void *argument) {
  struct worker *self = argument;
  uint64_t random = self->seed * 0x9E3779B97F4A7C15u;
  CUdeviceptr *live = calloc((size_t)run.live + 1, sizeof *live);
  int fail = 0;

  for (int i = 0; i < run.live; i++)
    fail |= run.alloc(&live[i], 512) != CUDA_SUCCESS;
  pthread_barrier_wait(&run.filled);
  self->spent_ns = -processor_ns();
  for (int i = 0; i < run.pairs; i++) {
    int at;
    random ^= random << 13, random ^= random >> 7, random ^= random << 17;
    at = run.live ? (int)(random % (uint64_t)run.live) : 0;
    if (run.live)
      fail |= run.free(live[at]) != CUDA_SUCCESS;
    fail |= run.alloc(&live[at], 512) != CUDA_SUCCESS;
    if (!run.live)
      fail |= run.free(live[at]) != CUDA_SUCCESS;
  }
  self->spent_ns += processor_ns();
  free(live);
  if (fail)
    die("a driver call failed");
  return NULL;
}

/* Prints nanoseconds per pair. guarded: that the library must be in the process, or must not. */
static void measure(int live, int threads, bool guarded) {
  struct worker workers[MAX_THREADS];
  void *driver = dlopen("libcuda.so.1", RTLD_NOW);
  double spent_ns = 0;

  if (!driver)
    die("no libcuda.so.1");
  if (guarded != (dlsym(RTLD_DEFAULT, "bsg_api_version") != NULL))
    die(guarded ? "the library is not in the process" : "the library is in the process");
  run.alloc = (CUresult(*)(CUdeviceptr *, size_t))dlsym(driver, "cuMemAlloc_v2");
  run.free = (CUresult(*)(CUdeviceptr))dlsym(driver, "cuMemFree_v2");
  if (!run.alloc || !run.free)
    die("the driver lacks an entry");
  run.live = live / threads;
  run.pairs = PAIRS;
  pthread_barrier_init(&run.filled, NULL, (unsigned)threads);
  for (int i = 0; i < threads; i++) {
    workers[i].seed = (uint64_t)i + 1;
    if (pthread_create(&workers[i].thread, NULL, work, &workers[i]) != 0)
      die("no thread");
  }
  for (int i = 0; i < threads; i++) {
    pthread_join(workers[i].thread, NULL);
    spent_ns += workers[i].spent_ns;
  }
  printf("%.2f\n", spent_ns / ((double)run.pairs * threads));
}

/* Runs this program for one measurement, under `preload` ("": without). */
static double run_child(const char *preload, const char *driver_folder, int live, int threads) {
  char live_text[16], threads_text[16], answer[64] = "";
  int fds[2], status;
  pid_t child;

  snprintf(live_text, sizeof live_text, "%d", live);
  snprintf(threads_text, sizeof threads_text, "%d", threads);
  child = pipe(fds) == 0 ? fork() : -1;
  if (child < 0)
    die("no process");
  if (child == 0) {
    dup2(fds[1], STDOUT_FILENO);
    close(fds[0]);
    setenv("LD_LIBRARY_PATH", driver_folder, 1);
    if (*preload)
      setenv("LD_PRELOAD", preload, 1);
    else
      unsetenv("LD_PRELOAD");
    execl("/proc/self/exe", "bench_alloc", "--measure", live_text, threads_text, *preload ? "1" : "0", (char *)NULL);
    _exit(127);
  }
  close(fds[1]);
  if (read(fds[0], answer, sizeof answer - 1) <= 0 || waitpid(child, &status, 0) != child || status != 0)
    die("a measurement failed");
  close(fds[0]);
  return atof(answer);
}

static int ascending(const void *a, const void *b) {
  double difference = *(const double *)a - *(const double *)b;
  return (difference > 0) - (difference < 0);
}

static double median(double *values, int count) {
  qsort(values, (size_t)count, sizeof *values, ascending);
  return values[count / 2];
}

int main(int argc, char **argv) {
  static const int lives[] = {0, 100, 1000, 10000, 100000}, threads[] = {1, 8};
  double plain[MAX_ROUNDS], guarded[MAX_ROUNDS], added[MAX_ROUNDS];
  char library[PATH_MAX];
  int rounds = argc > 3 ? atoi(argv[3]) : 7;

  if (argc == 5 && strcmp(argv[1], "--measure") == 0) {
    measure(atoi(argv[2]), atoi(argv[3]), atoi(argv[4]));
    return 0;
  }
  if (argc < 3 || rounds < 1 || rounds > MAX_ROUNDS)
    die("usage: bench_alloc LIBBSGUARD DRIVER_FOLDER [ROUNDS]");
  if (!realpath(argv[1], library))
    die("the library was not found");
  for (size_t l = 0; l < sizeof lives / sizeof lives[0]; l++)
    for (size_t t = 0; t < sizeof threads / sizeof threads[0]; t++) {
      for (int r = 0; r < rounds; r++) {
        plain[r] = run_child("", argv[2], lives[l], threads[t]);
        guarded[r] = run_child(library, argv[2], lives[l], threads[t]);
        added[r] = guarded[r] - plain[r];
      }
      printf("{\"bench\": \"alloc\", \"live\": %d, \"threads\": %d, \"added_ns\": %.1f, \"plain_ns\": %.1f, "
             "\"guarded_ns\": %.1f}\n",
             lives[l], threads[t], median(added, rounds), median(plain, rounds), median(guarded, rounds));
      fflush(stdout);
    }
  return 0;
}
