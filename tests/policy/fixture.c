/* fixture.c - see fixture.h. */
#include "fixture.h"

#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct fixture fixture;

static void die(const char *what) {
  perror(what);
  exit(1);
}

static int remove_one(const char *path, const struct stat *status, int type, struct FTW *walk) {
  (void)status, (void)type, (void)walk;
  return remove(path);
}

static pid_t owner;

static void clean_up(void) {
  if (fixture.root[0] && getpid() == owner)
    nftw(fixture.root, remove_one, 16, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
}

/* ---- evidence ---- */

static int memory(void *context, int device, struct bsg_memory_fact *out) {
  (void)context;
  *out = fixture.memory;
  out->device = device;
  return 0;
}

static int holders(void *context, int device, struct bsg_holder_fact *out, int room) {
  int count = fixture.holder_count < room ? fixture.holder_count : room;
  (void)context, (void)device;
  fixture.holders_asked = room;
  memcpy(out, fixture.holders, (size_t)count * sizeof(*out));
  return count;
}

static int others(void *context, int device, struct bsg_others_fact *out) {
  (void)context, (void)device;
  fixture.others_asked++;
  if (fixture.no_others)
    return -1;
  *out = fixture.others;
  return 0;
}

static int site(void *context, uint32_t number, struct bsg_site_fact *out) {
  (void)context;
  if (number >= 1000)
    return -1;
  *out = (struct bsg_site_fact){.site = number, .frames = 2, .pc = {0x1000 + number, 0x2000}};
  return 0;
}

static int frames(void *context, struct bsg_frame_fact *list, int count, struct bsg_module_fact *modules, int room) {
  (void)context;
  for (int i = 0; i < count; i++) {
    list[i].module = 0;
    list[i].offset = list[i].pc - 0x100;
    snprintf(list[i].text, sizeof(list[i].text), "function_%llx+0x1 (libtest.so)", (unsigned long long)list[i].pc);
  }
  if (!count || !room)
    return 0;
  modules[0] = (struct bsg_module_fact){.path = "/usr/lib/libtest.so", .build_id = "00ff"};
  return 1;
}

static int census(void *context, int device, int64_t since, struct bsg_census_fact *out) {
  (void)context, (void)device;
  fixture.census_since = since;
  *out = fixture.census;
  return fixture.no_census ? -1 : 0;
}

static int python(void *context, char *out, size_t room) {
  (void)context;
  return snprintf(out, room, "%s", fixture.python);
}

static void say(int level, const char *line) {
  if (level != 0)
    return;
  snprintf(fixture.lines[fixture.line_count++ % MOST_LINES], sizeof(fixture.lines[0]), "%s", line);
}

/* ---- life ---- */

static void create(void) {
  fixture.policy = bsg_policy_create(&fixture.config);
  if (!fixture.policy)
    die("bsg_policy_create");
}

void fixture_open(enum bsg_mode mode) {
  const char *temporary = getenv("TMPDIR");

  clean_up();
  memset(&fixture, 0, sizeof(fixture));
  snprintf(fixture.root, sizeof(fixture.root), "%s/bsguard-policy-XXXXXX", temporary ? temporary : "/tmp");
  if (!mkdtemp(fixture.root))
    die("mkdtemp");
  if (!owner)
    atexit(clean_up);
  owner = getpid();
  snprintf(fixture.parent, sizeof(fixture.parent), "%s/runs", fixture.root);
  fixture.now_ms = INT64_C(1796063412000); /* 2026-11-30T18:30:12Z */
  fixture.step = 1;
  fixture.memory = (struct bsg_memory_fact){.total_bytes = 22 * GIB + GIB / 2,
                                            .free_bytes = 32 * MIB,
                                            .live_bytes = 22 * GIB,
                                            .peak_bytes = 22 * GIB,
                                            .step_peak_bytes = 22 * GIB,
                                            .live_count = 100};
  fixture.others.own_seen = true;
  fixture.python = "";
  fixture.config = (struct bsg_policy_config){
      .mode = mode,
      .directory = fixture.parent,
      .pid = 4711,
      .rank = -1,
      .command = "train.py",
      .evidence = {.memory = memory,
                   .holders = holders,
                   .site = site,
                   .frames = frames,
                   .others = others,
                   .census = census,
                   .python = python},
      .say = say,
  };
  create();
}

void fixture_start(enum bsg_mode mode) {
  fixture_open(mode);
  bsg_policy_attach(fixture.policy, now(), "paddle 3.3.1", NULL);
  use_device(0);
}

void fixture_reopen(void) {
  bsg_policy_forget(fixture.policy);
  create();
}

/* ---- things that happen ---- */

struct bsg_when now(void) {
  fixture.now_ms++;
  return (struct bsg_when){.mono_ns = (fixture.now_ms - INT64_C(1796063412000)) * 1000000, .unix_ms = fixture.now_ms};
}

void use_device(int device) {
  struct bsg_device_fact fact = {
      .device = device, .name = "NVIDIA A10", .total_bytes = fixture.memory.total_bytes, .driver_version = 13000};
  bsg_policy_device(fixture.policy, now(), &fact);
}

struct bsg_decision boundary(int device, const char *name, const char *signature, int64_t batch, int phase) {
  struct bsg_decision decision = {.size = sizeof(decision)};
  bsg_policy_boundary(fixture.policy, now(), device, name, signature, batch, phase, &decision);
  return decision;
}

static struct bsg_alloc_fact alloc(int device, uint64_t bytes, uint64_t thread, int result) {
  return (struct bsg_alloc_fact){.api = "cuMemAlloc_v2",
                                 .device = device,
                                 .result = result,
                                 .request_bytes = bytes,
                                 .live_bytes = fixture.memory.live_bytes,
                                 .peak_bytes = fixture.memory.peak_bytes,
                                 .free_bytes = fixture.memory.free_bytes,
                                 .freed_bytes = fixture.freed_bytes,
                                 .thread = thread,
                                 .site = 42,
                                 .where = {fixture.step, BSG_PHASE_FORWARD}};
}

void refuse_on(int device, uint64_t bytes, uint64_t thread) {
  struct bsg_alloc_fact fact = alloc(device, bytes, thread, 2);
  bsg_policy_refused_call(fixture.policy, now(), &fact);
}

void grant_on(int device, uint64_t bytes, uint64_t thread) {
  struct bsg_alloc_fact fact = alloc(device, bytes, thread, 0);
  if (bsg_policy_waiting(fixture.policy)) /* as the contract says */
    bsg_policy_granted_call(fixture.policy, now(), &fact);
}

void refuse(uint64_t bytes, uint64_t thread) {
  refuse_on(0, bytes, thread);
}
void grant(uint64_t bytes, uint64_t thread) {
  grant_on(0, bytes, thread);
}

struct bsg_decision terminal_of(int device, const char *name, int64_t batch, int phase, int exactness,
                                const char *because) {
  struct bsg_decision decision = {.size = sizeof(decision)};
  struct bsg_oom oom = {.size = sizeof(oom),
                        .device = device,
                        .boundary = name,
                        .signature = "float32[8]",
                        .batch = batch,
                        .phase = phase,
                        .exactness = exactness,
                        .because = because,
                        .exception = "ResourceExhaustedError: out of memory on GPU 0\nmore"};
  bsg_policy_terminal(fixture.policy, now(), &oom, (struct bsg_where){fixture.step, phase}, &decision);
  return decision;
}

struct bsg_decision terminal(int64_t batch, int phase, int exactness) {
  return terminal_of(0, "Net", batch, phase, exactness, exactness == BSG_EXACT ? NULL : "dropout");
}

void applied(const struct bsg_decision *decision) {
  bsg_policy_applied(fixture.policy, now(), decision->sequence, 0, "Net", decision->batch, decision->micro_batch,
                     BSG_EXACT, NULL, (struct bsg_where){fixture.step, BSG_PHASE_BACKWARD});
}

void end_step(void) {
  bsg_policy_step(fixture.policy, now(), &fixture.memory, 0, (struct bsg_where){fixture.step, BSG_PHASE_OPTIMIZER});
  fixture.step++;
}

void stop(void) {
  bsg_policy_stop(fixture.policy, now(), (struct bsg_where){fixture.step, BSG_PHASE_OTHER});
}

/* ---- what came of it ---- */

int run_folders(void) {
  DIR *folder = opendir(fixture.parent);
  struct dirent *entry;
  int count = 0;

  while (folder && (entry = readdir(folder)))
    count += entry->d_name[0] != '.';
  if (folder)
    closedir(folder);
  return count;
}

const char *run_folder(void) {
  static char path[600];
  DIR *folder = opendir(fixture.parent);
  struct dirent *entry;
  int count = 0;

  path[0] = '\0';
  while (folder && (entry = readdir(folder)))
    if (entry->d_name[0] != '.' && count++ == 0)
      snprintf(path, sizeof(path), "%s/%s", fixture.parent, entry->d_name);
  if (folder)
    closedir(folder);
  if (count > 1) {
    fprintf(stderr, "%d run folders\n", count);
    exit(1);
  }
  return path;
}

const char *read_file(const char *name) {
  static char *texts[4];
  static int next;
  char path[1024];
  size_t used = 0, room = 65536;
  ssize_t n;

  snprintf(path, sizeof(path), "%s/%s", run_folder(), name);
  int fd = open(path, O_RDONLY);
  if (fd < 0)
    return NULL;
  char **text = &texts[next++ % 4];
  *text = realloc(*text, room);
  while ((n = read(fd, *text + used, room - used - 1)) > 0) {
    used += (size_t)n;
    if (room - used < 4096)
      *text = realloc(*text, room *= 2);
  }
  (*text)[used] = '\0';
  close(fd);
  return *text;
}

bool file_exists(const char *name) {
  char path[1024];
  struct stat status;

  snprintf(path, sizeof(path), "%s/%s", run_folder(), name);
  return lstat(path, &status) == 0;
}

void write_file(const char *name, const char *text) {
  char path[1024];

  snprintf(path, sizeof(path), "%s/%s", run_folder(), name);
  FILE *file = fopen(path, "w");
  if (!file || fputs(text, file) < 0 || fclose(file) != 0)
    die(path);
}

static bool is_type(const char *line, const char *type) {
  char text[64];

  snprintf(text, sizeof(text), "\"type\":\"%s\"", type);
  const char *end = strchr(line, '\n'), *found = strstr(line, text);
  return found && (!end || found < end);
}

int events_of(const char *type) {
  const char *line = read_file("events.jsonl");
  int count = 0;

  for (; line && *line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL)
    count += !type || is_type(line, type);
  return count;
}

const char *event_of(const char *type, int n) {
  static char texts[4][70000];
  static int next;
  const char *line = read_file("events.jsonl");
  const char *found = NULL;

  for (int seen = 0; line && *line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL) {
    if (type && !is_type(line, type))
      continue;
    if (n < 0 || seen == n)
      found = line;
    seen++;
  }
  if (!found)
    return NULL;
  char *text = texts[next++ % 4];
  snprintf(text, sizeof(texts[0]), "%.*s", (int)strcspn(found, "\n"), found);
  return text;
}

const char *order_of_events(void) {
  static char text[4096];
  size_t used = 0;
  int count = events_of(NULL);

  text[0] = '\0';
  for (int i = 0; i < count; i++) {
    const char *type = strstr(event_of(NULL, i), "\"type\":\"") + strlen("\"type\":\"");
    size_t length = strcspn(type, "\"");
    if (strncmp(type, "mark", 4) == 0 || used + length + 2 > sizeof(text))
      continue;
    used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%.*s", used ? " " : "", (int)length, type);
  }
  return text;
}

int64_t number_in(const char *json, const char *key) {
  char text[64];

  snprintf(text, sizeof(text), "\"%s\":", key);
  const char *found = json ? strstr(json, text) : NULL;
  if (!found)
    return INT64_MIN;
  return strtoll(found + strlen(text), NULL, 10);
}

const char *last_line(void) {
  return fixture.line_count ? fixture.lines[(fixture.line_count - 1) % MOST_LINES] : "";
}
