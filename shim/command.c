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
