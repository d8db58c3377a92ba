/*
 * symbols.c - see symbols.h. Depends on libc's dl_iterate_phdr(), whose lock is held by the loader only while it
 * changes its list of libraries, never while foreign code runs; dladdr() and dlsym() wait for the other one. Under that
 * lock no library goes away, so its tables may be read in place. Never allocates.
 */
#include "hooks/cuda/symbols.h"

#include <elf.h>
#include <errno.h>
#include <link.h>
#include <stdio.h>
#include <string.h>

struct tables {
  const ElfW(Sym) * symbols;
  const char *strings;
  const uint32_t *gnu_hash, *hash;
};

struct search {
  uint64_t pc;
  char *out;
  size_t room;
  int length;
};

/* The loader has added the base to most addresses of a dynamic section, but not in the kernel's own library. */
static const void *at(const struct dl_phdr_info *object, ElfW(Addr) address) {
  return (const void *)(address < object->dlpi_addr ? object->dlpi_addr + address : address);
}

static bool find_tables(const struct dl_phdr_info *object, struct tables *out) {
  const ElfW(Dyn) *dynamic = NULL;
  memset(out, 0, sizeof *out);
  for (int i = 0; i < object->dlpi_phnum; i++)
    if (object->dlpi_phdr[i].p_type == PT_DYNAMIC)
      dynamic = (const ElfW(Dyn) *)(object->dlpi_addr + object->dlpi_phdr[i].p_vaddr);
  for (; dynamic && dynamic->d_tag != DT_NULL; dynamic++)
    switch (dynamic->d_tag) {
    case DT_SYMTAB:
      out->symbols = at(object, dynamic->d_un.d_ptr);
      break;
    case DT_STRTAB:
      out->strings = at(object, dynamic->d_un.d_ptr);
      break;
    case DT_GNU_HASH:
      out->gnu_hash = at(object, dynamic->d_un.d_ptr);
      break;
    case DT_HASH:
      out->hash = at(object, dynamic->d_un.d_ptr);
      break;
    }
  return out->symbols && out->strings && (out->gnu_hash || out->hash);
}

/* How many symbols there are: no table says so but the hash tables. */
static uint32_t count_symbols(const struct tables *tables) {
  const uint32_t *table = tables->gnu_hash, *buckets, *chains;
  uint32_t last = 0;

  if (!table)
    return tables->hash[1];
  buckets = table + 4 + table[2] * (sizeof(ElfW(Addr)) / sizeof *table);
  chains = buckets + table[0];
  for (uint32_t i = 0; i < table[0]; i++)
    if (buckets[i] > last)
      last = buckets[i];
  if (last < table[1])
    return table[1];
  while (!(chains[last - table[1]] & 1))
    last++;
  return last + 1;
}

/* The nearest symbol that begins at or before an address and, if it states a size, reaches to it. */
static const ElfW(Sym) * nearest(const struct tables *tables, ElfW(Addr) address) {
  const ElfW(Sym) *best = NULL;
  uint32_t count = count_symbols(tables);
  for (uint32_t i = 1; i < count; i++) {
    const ElfW(Sym) *symbol = &tables->symbols[i];
    if (symbol->st_shndx == SHN_UNDEF || symbol->st_value == 0 || symbol->st_value > address ||
        ELF64_ST_TYPE(symbol->st_info) == STT_TLS)
      continue;
    if (symbol->st_size != 0 && address - symbol->st_value >= symbol->st_size)
      continue;
    if (!best || symbol->st_value > best->st_value)
      best = symbol;
  }
  return best;
}

static const char *file_name(const struct dl_phdr_info *object) {
  const char *slash = object->dlpi_name ? strrchr(object->dlpi_name, '/') : NULL;
  if (slash)
    return slash + 1;
  return object->dlpi_name && object->dlpi_name[0] ? object->dlpi_name : program_invocation_short_name;
}

static bool contains(const struct dl_phdr_info *object, uint64_t address) {
  for (int i = 0; i < object->dlpi_phnum; i++) {
    const ElfW(Phdr) *segment = &object->dlpi_phdr[i];
    if (segment->p_type == PT_LOAD && address - (object->dlpi_addr + segment->p_vaddr) < segment->p_memsz)
      return true;
  }
  return false;
}

static int name_in(struct dl_phdr_info *object, size_t size, void *argument) {
  struct search *search = argument;
  const ElfW(Sym) *symbol = NULL;
  struct tables tables;
  uint64_t address = search->pc - 1; /* a return address may be the first byte of the next function */

  (void)size;
  if (!contains(object, address))
    return 0;
  if (find_tables(object, &tables))
    symbol = nearest(&tables, address - object->dlpi_addr);
  if (symbol)
    search->length =
        snprintf(search->out, search->room, "%s+0x%llx (%s)", tables.strings + symbol->st_name,
                 (unsigned long long)(search->pc - object->dlpi_addr - symbol->st_value), file_name(object));
  else
    search->length = snprintf(search->out, search->room, "0x%llx (%s)",
                              (unsigned long long)(search->pc - object->dlpi_addr), file_name(object));
  return 1;
}

int bsg_symbols_name(uint64_t pc, char *out, size_t room) {
  struct search search = {.pc = pc, .out = out, .room = room};
  if (!dl_iterate_phdr(name_in, &search))
    search.length = snprintf(out, room, "0x%llx", (unsigned long long)pc);
  if (search.length < 0)
    return 0;
  return (size_t)search.length < room ? search.length : (int)room - 1;
}

/* The note that the linker leaves: bytes, of which the first twenty are kept. */
static void read_build_id(const struct dl_phdr_info *object, char out[41]) {
  for (int i = 0; i < object->dlpi_phnum; i++) {
    const ElfW(Phdr) *segment = &object->dlpi_phdr[i];
    const char *at = (const char *)(object->dlpi_addr + segment->p_vaddr), *end = at + segment->p_memsz;
    if (segment->p_type != PT_NOTE)
      continue;
    while ((size_t)(end - at) >= sizeof(ElfW(Nhdr))) {
      const ElfW(Nhdr) *note = (const void *)at;
      const unsigned char *bytes = (const unsigned char *)(note + 1) + ((note->n_namesz + 3) & ~3u);
      if (note->n_type == NT_GNU_BUILD_ID && note->n_namesz == 4 && memcmp(note + 1, "GNU", 4) == 0) {
        for (uint32_t n = 0; n < note->n_descsz && n < 20; n++)
          snprintf(out + 2 * n, 3, "%02x", bytes[n]);
        return;
      }
      at = (const char *)bytes + ((note->n_descsz + 3) & ~3u);
      if (at > end)
        return;
    }
  }
}

struct resolution {
  struct bsg_frame_fact *frames;
  int count;
  struct bsg_module_fact *modules;
  int room, used;
};

/* The best symbol so far of each frame of the library that is being read. */
static const ElfW(Sym) * best_of[BSG_MOST_FRAMES];

/* A return address may be the first byte of the next function. */
static uint64_t code_of(const struct bsg_frame_fact *frame) {
  return frame->pc - 1;
}

static int first_at_or_after(const struct bsg_frame_fact *frames, int count, uint64_t address) {
  int low = 0, high = count;
  while (low < high) {
    int middle = (low + high) / 2;
    if (code_of(&frames[middle]) < address)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

static void offer(const struct resolution *all, ElfW(Addr) base, const ElfW(Sym) * symbol) {
  uint64_t from = base + symbol->st_value;

  if (symbol->st_shndx == SHN_UNDEF || symbol->st_value == 0 || ELF64_ST_TYPE(symbol->st_info) == STT_TLS)
    return;
  for (int i = first_at_or_after(all->frames, all->count, from); i < all->count; i++) {
    if (symbol->st_size != 0 && code_of(&all->frames[i]) - from >= symbol->st_size)
      return;
    if (!best_of[i] || symbol->st_value > best_of[i]->st_value)
      best_of[i] = symbol;
  }
}

static int enter_module(struct resolution *all, const struct dl_phdr_info *object) {
  struct bsg_module_fact *module;

  if (all->used == all->room)
    return -1;
  module = &all->modules[all->used];
  memset(module, 0, sizeof *module);
  snprintf(module->path, sizeof module->path, "%s",
           object->dlpi_name && object->dlpi_name[0] ? object->dlpi_name : program_invocation_name);
  read_build_id(object, module->build_id);
  return all->used++;
}

static void spell(struct bsg_frame_fact *frame, const struct dl_phdr_info *object, const struct tables *tables,
                  const ElfW(Sym) * symbol) {
  frame->offset = frame->pc - object->dlpi_addr;
  if (symbol)
    snprintf(frame->text, sizeof frame->text, "%.180s+0x%llx (%.30s)", tables->strings + symbol->st_name,
             (unsigned long long)(frame->offset - symbol->st_value), file_name(object));
  else
    snprintf(frame->text, sizeof frame->text, "0x%llx (%.180s)", (unsigned long long)frame->offset, file_name(object));
}

static int resolve_in(struct dl_phdr_info *object, size_t size, void *argument) {
  struct resolution *all = argument;
  struct tables tables;
  int here = 0, module;
  bool readable;

  (void)size;
  for (int i = 0; i < all->count; i++)
    here += contains(object, code_of(&all->frames[i]));
  if (here == 0)
    return 0;
  memset(best_of, 0, sizeof best_of);
  readable = find_tables(object, &tables);
  for (uint32_t i = 1, count = readable ? count_symbols(&tables) : 0; i < count; i++)
    offer(all, object->dlpi_addr, &tables.symbols[i]);
  module = enter_module(all, object);
  for (int i = 0; i < all->count; i++)
    if (contains(object, code_of(&all->frames[i]))) {
      all->frames[i].module = module;
      spell(&all->frames[i], object, &tables, best_of[i]);
    }
  return 0;
}

int bsg_symbols_resolve(struct bsg_frame_fact *frames, int count, struct bsg_module_fact *modules, int room) {
  struct resolution all = {
      .frames = frames, .count = count < BSG_MOST_FRAMES ? count : BSG_MOST_FRAMES, .modules = modules, .room = room};
  dl_iterate_phdr(resolve_in, &all);
  return all.used;
}

/* By the GNU hash table, as the loader does it; libraries without one are not searched. */
static const ElfW(Sym) * look_up(const struct tables *tables, const char *name) {
  const uint32_t *table = tables->gnu_hash, *buckets, *chains;
  uint32_t hash = 5381;

  if (!table || table[0] == 0)
    return NULL;
  for (const char *c = name; *c; c++)
    hash = hash * 33 + (unsigned char)*c;
  buckets = table + 4 + table[2] * (sizeof(ElfW(Addr)) / sizeof *table);
  chains = buckets + table[0];
  for (uint32_t i = buckets[hash % table[0]]; i >= table[1] && i != 0; i++) {
    const ElfW(Sym) *symbol = &tables->symbols[i];
    if ((chains[i - table[1]] | 1) == (hash | 1) && symbol->st_shndx != SHN_UNDEF && symbol->st_value != 0 &&
        strcmp(tables->strings + symbol->st_name, name) == 0)
      return symbol;
    if (chains[i - table[1]] & 1)
      break;
  }
  return NULL;
}

struct next_search {
  uint64_t caller;
  const char *name;
  bool past; /* the caller's own library */
  void *found;
};

static int next_in(struct dl_phdr_info *object, size_t size, void *argument) {
  struct next_search *search = argument;
  struct tables tables;
  const ElfW(Sym) * symbol;

  (void)size;
  if (!search->past) {
    search->past = contains(object, search->caller);
    return 0;
  }
  if (!find_tables(object, &tables) || !(symbol = look_up(&tables, search->name)))
    return 0;
  search->found = (void *)(object->dlpi_addr + symbol->st_value);
  return 1;
}

void *bsg_symbols_next(const void *caller, const char *name) {
  struct next_search search = {.caller = (uint64_t)(uintptr_t)caller, .name = name};
  dl_iterate_phdr(next_in, &search);
  return search.found;
}

static int is_one_of(struct dl_phdr_info *object, size_t size, void *argument) {
  const char *name = file_name(object);
  (void)size;
  for (const char *const *wanted = argument; *wanted; wanted++)
    if (strncmp(name, *wanted, strlen(*wanted)) == 0)
      return 1;
  return 0;
}

bool bsg_symbols_loaded(const char *const names[]) {
  return dl_iterate_phdr(is_one_of, (void *)names) != 0;
}
