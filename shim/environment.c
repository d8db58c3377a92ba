/*
 * environment.c - see environment.h. Depends on `environ` and mmap(). Never calls malloc().
 */
#include "shim/environment.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MOST_LOOKED_AT 32

/* The entry of environ for a name of `length` bytes. */
static char **find(const char *name, size_t length) {
  for (char **entry = environ; entry && *entry; entry++)
    if (strncmp(*entry, name, length) == 0 && (*entry)[length] == '=')
      return entry;
  return NULL;
}

const char *bsg_environment_get(const char *name) {
  size_t length = strlen(name);
  char **entry = find(name, length);
  return entry ? *entry + length + 1 : NULL;
}

void bsg_environment_each(const char *prefix, void (*look)(const char *definition)) {
  int left = MOST_LOOKED_AT;

  for (char **entry = environ; entry && *entry && left > 0; entry++)
    if (strncmp(*entry, prefix, strlen(prefix)) == 0) {
      look(*entry);
      left--;
    }
}

int bsg_environment_set(char *definition) {
  char **entry = find(definition, strcspn(definition, "="));
  char **larger;
  size_t count = 0;

  if (entry) {
    *entry = definition;
    return 0;
  }
  while (environ && environ[count])
    count++;
  larger = mmap(NULL, (count + 2) * sizeof *larger, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (larger == MAP_FAILED)
    return -ENOMEM;
  if (count > 0)
    memcpy(larger, environ, count * sizeof *larger);
  larger[count] = definition;
  environ = larger;
  return 0;
}
