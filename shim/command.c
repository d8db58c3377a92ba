/* command.c - see command.h. Depends on /proc; "unknown" where there is none. Never allocates. */
#include "shim/command.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const char *base_name(const char *path) {
  const char *slash = strrchr(path, '/');
  return slash && slash[1] ? slash + 1 : path;
}

/* The script among Python's own arguments; NULL: none, as with -c. */
static const char *script(const char *argument, const char *end) {
  for (; argument < end; argument += strlen(argument) + 1) {
    if (argument[0] != '-')
      return base_name(argument);
    if (strcmp(argument, "-c") == 0 || argument[1] == '\0')
      return NULL;
    if (strcmp(argument, "-m") == 0 || strcmp(argument, "-W") == 0 || strcmp(argument, "-X") == 0) {
      const char *next = argument + strlen(argument) + 1;
      if (argument[1] == 'm')
        return next < end ? next : NULL;
      argument = next; /* the value of -W and -X is the next argument */
      if (argument >= end)
        return NULL;
    }
  }
  return NULL;
}

static uint64_t hash_bytes(uint64_t hash, const char *bytes, size_t length) {
  for (size_t i = 0; i < length; i++)
    hash = (hash ^ (uint8_t)bytes[i]) * UINT64_C(1099511628211);
  return hash;
}

uint64_t bsg_command_hash(void) {
  uint64_t hash = UINT64_C(14695981039346656037);
  char part[4096];
  ssize_t length;
  int fd = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);

  /* A script named against the working folder is another one in another folder. */
  if (getcwd(part, sizeof part))
    hash = hash_bytes(hash, part, strlen(part) + 1);
  if (fd < 0)
    return hash;
  while ((length = read(fd, part, sizeof part)) > 0)
    hash = hash_bytes(hash, part, (size_t)length);
  close(fd);
  return hash;
}

void bsg_command_name(char *out, size_t room) {
  char line[4096];
  const char *name, *found;
  ssize_t length = -1;
  int fd = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);

  if (fd >= 0) {
    length = read(fd, line, sizeof line - 1);
    close(fd);
  }
  if (length <= 0) {
    snprintf(out, room, "unknown");
    return;
  }
  line[length] = '\0';
  name = base_name(line);
  if (strncmp(name, "python", 6) == 0 && (found = script(line + strlen(line) + 1, line + length)))
    name = found;
  snprintf(out, room, "%s", name);
}
