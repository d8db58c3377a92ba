/*
 * job.c - a hand-written job. Reads words from the command line and does them in turn:
 *   alloc=BYTES   allocates and keeps; a refusal is printed, not fatal
 *   free          frees the newest
 *   info          prints free and total bytes
 *   option=NAME   prints what bsg_option() says
 *   step          ends a training step
 *   attach        takes charge, as an adapter does
 *   unrescued     gives up, as an adapter does whose OOM could not be saved
 *   close2        closes descriptor 2
 *   load=FILE     loads a library
 *   exit=N        ends with N
 */
#include <string.h>
#include <unistd.h>

#include "driver.h"

int main(int argc, char **argv) {
  void *driver = driver_open();
  PFN_cuMemAlloc_v3020 alloc = (PFN_cuMemAlloc_v3020)dlsym(driver, "cuMemAlloc_v2");
  PFN_cuMemFree_v3020 release = (PFN_cuMemFree_v3020)dlsym(driver, "cuMemFree_v2");
  PFN_cuMemGetInfo_v3020 info = (PFN_cuMemGetInfo_v3020)dlsym(driver, "cuMemGetInfo_v2");
  CUdeviceptr held[64];
  int count = 0;

  for (int i = 1; i < argc; i++) {
    const char *word = argv[i], *value = strchr(word, '=');
    value = value ? value + 1 : "";
    if (strncmp(word, "alloc=", 6) == 0) {
      CUresult result = alloc(&held[count], strtoull(value, NULL, 10));
      if (result == CUDA_SUCCESS)
        CHECK(++count < 64);
      printf("alloc %d\n", result);
    } else if (strcmp(word, "free") == 0) {
      CHECK(count > 0);
      printf("free %d\n", release(held[--count]));
    } else if (strcmp(word, "info") == 0) {
      size_t bytes_free, bytes_total;
      CHECK_EQUAL(info(&bytes_free, &bytes_total), CUDA_SUCCESS);
      printf("info %zu %zu\n", bytes_free, bytes_total);
    } else if (strncmp(word, "option=", 7) == 0) {
      const char *(*option)(const char *) = (const char *(*)(const char *))optional("bsg_option");
      const char *text = option(value);
      printf("option %s\n", text ? text : "(null)");
    } else if (strcmp(word, "step") == 0)
      printf("step %lld\n", (long long)((int64_t(*)(int, uint64_t))optional("bsg_step"))(0, 0));
    else if (strcmp(word, "attach") == 0)
      printf("attach %d\n", ((int (*)(const char *, const char *))optional("bsg_attach"))("loop 1", NULL));
    else if (strcmp(word, "unrescued") == 0)
      printf("unrescued %d\n",
             ((int (*)(int, int, const char *))optional("bsg_unrescued"))(0, BSG_PHASE_FORWARD, NULL));
    else if (strcmp(word, "close2") == 0)
      close(STDERR_FILENO);
    else if (strncmp(word, "load=", 5) == 0)
      CHECK(dlopen(value, RTLD_NOW | RTLD_LOCAL));
    else if (strncmp(word, "exit=", 5) == 0)
      return atoi(value);
    else
      CHECK(!"known word");
    fflush(stdout);
  }
  return 0;
}
