/*
 * unseen.c - see unseen.h. Depends on dl_iterate_phdr(), which says what is loaded in our namespace and how much was
 * loaded in all of them, and on /proc/self/maps for the other ones. Never allocates from the heap.
 */
#include "shim/unseen.h"

#include <fcntl.h>
#include <link.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "hooks/cuda/hooks.h"

#define DRIVER "libcuda.so"

#if defined(__x86_64__)
#define IS_BOUND(type) ((type) == R_X86_64_JUMP_SLOT || (type) == R_X86_64_GLOB_DAT)
#elif defined(__aarch64__)
#define IS_BOUND(type) ((type) == R_AARCH64_JUMP_SLOT || (type) == R_AARCH64_GLOB_DAT)
#endif

static struct {
  _Atomic unsigned long long loaded; /* libraries so far, when we last looked */
  atomic_bool copy, bound;           /* told */
} state;

static const char *base_name(const char *path) {
  const char *slash = strrchr(path, '/');
  return slash ? slash + 1 : path;
}

/* ---- libraries that were bound past us ---- */

struct object {
  ElfW(Addr) base;
  const ElfW(Sym) * symbols;
  const char *strings;
  bool needs_driver;
};

static const void *at(ElfW(Addr) base, ElfW(Addr) address) {
  return (const void *)(address < base ? base + address : address);
}

/* Does any of these slots hold the driver's own entry of a function that is hooked? Returns its name. */
static const char *bound_in(const struct object *object, const ElfW(Rela) * relocations, size_t bytes) {
  for (size_t i = 0; relocations && i < bytes / sizeof *relocations; i++) {
    const ElfW(Sym) *symbol = &object->symbols[ELF64_R_SYM(relocations[i].r_info)];
    const char *name = object->strings + symbol->st_name;
    void *const *slot = (void *const *)(object->base + relocations[i].r_offset);
    if (IS_BOUND(ELF64_R_TYPE(relocations[i].r_info)) && name[0] == 'c' && name[1] == 'u' && *slot &&
        *slot == bsg_hook_known(name))
      return name;
  }
  return NULL;
}

struct search {
  unsigned long long loaded;
  bool look;
  char *out;
  size_t room;
};

static int look_into(struct dl_phdr_info *info, size_t size, void *argument) {
  struct search *search = argument;
  struct object object = {.base = info->dlpi_addr};
  const ElfW(Dyn) *dynamic = NULL, *entry;
  const ElfW(Rela) *plain = NULL, *calls = NULL;
  size_t plain_bytes = 0, calls_bytes = 0;
  const char *name = info->dlpi_name && info->dlpi_name[0] ? base_name(info->dlpi_name) : "the program";

  if (size >= offsetof(struct dl_phdr_info, dlpi_adds) + sizeof info->dlpi_adds)
    search->loaded = info->dlpi_adds;
  if (!search->look)
    return 1;
  for (int i = 0; i < info->dlpi_phnum; i++)
    if (info->dlpi_phdr[i].p_type == PT_DYNAMIC)
      dynamic = (const ElfW(Dyn) *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
  for (entry = dynamic; entry && entry->d_tag != DT_NULL; entry++)
    switch (entry->d_tag) {
    case DT_SYMTAB:
      object.symbols = at(object.base, entry->d_un.d_ptr);
      break;
    case DT_STRTAB:
      object.strings = at(object.base, entry->d_un.d_ptr);
      break;
    case DT_RELA:
      plain = at(object.base, entry->d_un.d_ptr);
      break;
    case DT_RELASZ:
      plain_bytes = entry->d_un.d_val;
      break;
    case DT_JMPREL:
      calls = at(object.base, entry->d_un.d_ptr);
      break;
    case DT_PLTRELSZ:
      calls_bytes = entry->d_un.d_val;
      break;
    }
  if (!object.symbols || !object.strings)
    return 0;
  for (entry = dynamic; entry->d_tag != DT_NULL; entry++)
    if (entry->d_tag == DT_NEEDED && strncmp(object.strings + entry->d_un.d_val, DRIVER, sizeof DRIVER - 1) == 0)
      object.needs_driver = true;
  if (!object.needs_driver)
    return 0;
  if (!bound_in(&object, calls, calls_bytes) && !bound_in(&object, plain, plain_bytes))
    return 0;
  snprintf(search->out, search->room, "%s is bound to the driver past us (RTLD_DEEPBIND?)", name);
  return 1;
}

/* ---- copies of the driver ---- */

struct maps {
  int fd;
  size_t filled;
  char text[4096];
};

/* The next line, cut where it is too long; NULL at the end. */
static char *next_line(struct maps *maps, size_t *used) {
  char *end;
  memmove(maps->text, maps->text + *used, maps->filled - *used);
  maps->filled -= *used;
  *used = 0;
  while (!(end = memchr(maps->text, '\n', maps->filled))) {
    ssize_t more = maps->filled < sizeof maps->text
                       ? read(maps->fd, maps->text + maps->filled, sizeof maps->text - maps->filled)
                       : 0;
    if (more <= 0)
      return NULL;
    maps->filled += (size_t)more;
  }
  *end = '\0';
  *used = (size_t)(end + 1 - maps->text);
  return maps->text;
}

/* Each copy has its first page mapped once. */
static int count_drivers(void) {
  struct maps maps = {.fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC)};
  size_t used = 0;
  char *line;
  int count = 0;

  if (maps.fd < 0)
    return 0;
  while ((line = next_line(&maps, &used))) {
    const char *path = strchr(line, '/');
    unsigned long long offset = 1;
    if (path && strncmp(base_name(path), DRIVER, sizeof DRIVER - 1) == 0 &&
        sscanf(line, "%*x-%*x %*s %llx", &offset) == 1 && offset == 0)
      count++;
  }
  close(maps.fd);
  return count;
}

void bsg_unseen_look(void (*found)(const char *what)) {
  char what[160] = "";
  struct search search = {.look = false, .out = what, .room = sizeof what};

  if (atomic_load(&state.copy) && atomic_load(&state.bound))
    return;
  dl_iterate_phdr(look_into, &search);
  if (atomic_exchange(&state.loaded, search.loaded) == search.loaded)
    return;
  search.look = true;
  if (!atomic_load(&state.bound) && dl_iterate_phdr(look_into, &search) && what[0] &&
      !atomic_exchange(&state.bound, true))
    found(what);
  if (!atomic_load(&state.copy) && count_drivers() > 1 && !atomic_exchange(&state.copy, true))
    found("a second copy of libcuda.so is loaded (dlmopen?)");
}

void bsg_unseen_forget(void) {
  atomic_store(&state.loaded, 0);
  atomic_store(&state.copy, false);
  atomic_store(&state.bound, false);
}
