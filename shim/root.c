/*
 * root.c - see root.h. Lock order: ours before those of hooks/cuda/, which hold none when they call here. The policy
 * may do file I/O under our lock; it never runs Python and takes no lock of a framework.
 */
#include "shim/root.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "hooks/cuda/host.h"
#include "hooks/cuda/others.h"
#include "hooks/cuda/record.h"
#include "hooks/cuda/sites.h"
#include "hooks/cuda/symbols.h"
#include "shim/clock.h"
#include "shim/command.h"
#include "shim/current.h"
#include "shim/environment.h"
#include "shim/launch.h"
#include "shim/log.h"
#include "shim/lookup.h"
#include "shim/options.h"
#include "shim/python.h"
#include "shim/unseen.h"

enum running { NOT_STARTED, ACTIVE, OFF };

static struct {
  pthread_once_t once;
  _Atomic enum running running;
  atomic_bool prepared; /* the unwinder, and NVML */
  uint64_t memory_limit;
  char directory[PATH_MAX];
  char command[256];
  char store[PATH_MAX]; /* "": none */
  uint64_t arguments;

  pthread_mutex_t lock; /* of the policy, and of what follows */
  _Atomic(struct bsg_policy *) policy;
  bool stopped;

  atomic_bool used;     /* a device allocation was asked for */
  atomic_bool attached; /* an adapter */
  atomic_bool missed;   /* said that there is none */
} state = {.once = PTHREAD_ONCE_INIT, .lock = PTHREAD_MUTEX_INITIALIZER};

/* ---- start ---- */

/*
 * What pthread_atfork() calls, which itself is a piece of code that the C library puts into each library that uses it:
 * not marked as protected everywhere, so that ours would not be either. We are never unloaded, so the handler is
 * nobody's.
 */
extern int __register_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void), void *library);

/* The child of a fork() has one thread, and perhaps locks that were held by others: everything starts clean. */
static void forget(void) {
  struct bsg_policy *policy = atomic_load(&state.policy);
  pthread_mutex_init(&state.lock, NULL);
  if (policy)
    bsg_policy_forget(policy);
  atomic_store(&state.policy, NULL);
  state.stopped = false;
  atomic_store(&state.used, false);
  atomic_store(&state.missed, false);
  bsg_current_forget();
  bsg_unseen_forget();
  bsg_record_forget();
}

/* Against the folder that the job started in, whatever it changes to later. */
static void absolute_directory(const char *directory) {
  char here[PATH_MAX];
  if (directory[0] == '/' || !getcwd(here, sizeof here))
    snprintf(state.directory, sizeof state.directory, "%s", directory);
  else {
    if (strncmp(directory, "./", 2) == 0)
      directory += 2;
    if ((size_t)snprintf(state.directory, sizeof state.directory, "%s/%s", here, directory) >= sizeof state.directory)
      snprintf(state.directory, sizeof state.directory, "%s", directory);
  }
}

/* As the XDG base directories have it: a variable that is no absolute path counts as unset. */
static void find_store(void) {
  const char *base = bsg_environment_get("XDG_STATE_HOME"), *home = bsg_environment_get("HOME");
  int length = 0;

  if (bsg_options_number(BSG_OPTION_STORE) == 0)
    return;
  if (base && base[0] == '/')
    length = snprintf(state.store, sizeof state.store, "%s/bsguard", base);
  else if (home && home[0] == '/')
    length = snprintf(state.store, sizeof state.store, "%s/.local/state/bsguard", home);
  if (length < 0 || (size_t)length >= sizeof state.store)
    state.store[0] = '\0';
}

static void start(void) {
  bsg_options_load();
  if (bsg_options_number(BSG_OPTION_MODE) == BSG_MODE_OFF) {
    atomic_store(&state.running, OFF);
    return;
  }
  state.memory_limit = (uint64_t)bsg_options_number(BSG_OPTION_MEMORY_LIMIT);
  absolute_directory(bsg_options_text(BSG_OPTION_DIR));
  find_store();
  state.arguments = bsg_command_hash(); /* before the job goes to another folder */
  __register_atfork(NULL, NULL, forget, NULL);
  atomic_store(&state.running, ACTIVE);
}

void bsg_root_start(void) {
  pthread_once(&state.once, start);
  /* Outside of it: the loader's lock may be held by a thread whose constructor waits here. */
  if (atomic_load(&state.running) == ACTIVE && !atomic_exchange(&state.prepared, true)) {
    bsg_sites_prepare();
    bsg_others_prepare();
    bsg_python_prepare();
    bsg_log(BSG_LOG_DEBUG, "started, stacks by %s", bsg_sites_unwinder());
  }
}

bool bsg_root_active(void) {
  enum running running = atomic_load_explicit(&state.running, memory_order_acquire);
  if (__builtin_expect(running == NOT_STARTED, 0)) {
    bsg_root_start();
    running = atomic_load(&state.running);
  }
  return running == ACTIVE;
}

enum bsg_mode bsg_root_mode(void) {
  return (enum bsg_mode)bsg_options_number(BSG_OPTION_MODE);
}

/* ---- policy ---- */

static int evidence_memory(void *context, int device, struct bsg_memory_fact *out) {
  (void)context;
  return bsg_record_memory(device, true, out);
}

static int evidence_holders(void *context, int device, struct bsg_holder_fact *out, int room) {
  (void)context;
  return bsg_record_holders(device, out, room);
}

static int evidence_site(void *context, uint32_t site, struct bsg_site_fact *out) {
  (void)context;
  return bsg_sites_get(site, out);
}

static int evidence_frames(void *context, struct bsg_frame_fact *frames, int count, struct bsg_module_fact *modules,
                           int room) {
  (void)context;
  return bsg_symbols_resolve(frames, count, modules, room);
}

static int evidence_others(void *context, int device, struct bsg_others_fact *out) {
  (void)context;
  return bsg_others_list(device, out);
}

static int evidence_census(void *context, int device, int64_t since, struct bsg_census_fact *out) {
  (void)context;
  return bsg_record_census(device, since, out);
}

static int evidence_python(void *context, char *out, size_t room) {
  (void)context;
  return bsg_python_stack(out, room);
}

static const char *evidence_unwinder(void *context) {
  (void)context;
  return bsg_sites_unwinder();
}

static void say(int level, const char *line) {
  bsg_log(level == 0 ? BSG_LOG_NORMAL : BSG_LOG_DEBUG, "%s", line);
}

/* Caller holds the lock. */
static struct bsg_policy *create(void) {
  struct bsg_policy_config config = {
      .mode = bsg_root_mode(),
      .directory = state.directory,
      .pid = getpid(),
      .rank = -1, /* until a device is used */
      .command = state.command,
      .store = state.store,
      .arguments = state.arguments,
      .wait_ms = bsg_options_number(BSG_OPTION_WAIT) * 1000,
      .evidence = {.memory = evidence_memory,
                   .holders = evidence_holders,
                   .site = evidence_site,
                   .frames = evidence_frames,
                   .census = evidence_census,
                   .python = evidence_python,
                   .unwinder = evidence_unwinder,
                   .others = evidence_others},
      .say = say,
  };
  bsg_command_name(state.command, sizeof state.command);
  return bsg_policy_create(&config);
}

struct bsg_policy *bsg_root_lock(void) {
  struct bsg_policy *policy = NULL;

  if (!bsg_root_active())
    return NULL;
  pthread_mutex_lock(&state.lock);
  if (!state.stopped && !(policy = atomic_load(&state.policy)) && (policy = create()))
    atomic_store(&state.policy, policy);
  if (!policy)
    pthread_mutex_unlock(&state.lock);
  return policy;
}

void bsg_root_unlock(void) {
  pthread_mutex_unlock(&state.lock);
}

void bsg_root_attached(void) {
  atomic_store(&state.attached, true);
}

/* The lock is held. */
static void unseen_at_the_end(const char *what) {
  if (!state.stopped)
    bsg_policy_unhooked(atomic_load(&state.policy), bsg_clock_now(), what, 0);
}

void bsg_root_stop(void) {
  struct bsg_policy *policy = atomic_load(&state.policy);
  struct timespec until;

  /*
   * exit() may have been called by a signal handler over a driver call of this very thread, which holds locks of the
   * driver, or ours: nothing can be asked then. Or over one that holds the policy's: do not wait for ever.
   */
  if (!policy || !atomic_load(&state.used) || bsg_hooks_depth > 0)
    return;
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_sec += 1;
  if (pthread_mutex_timedlock(&state.lock, &until) != 0)
    return;
  bsg_unseen_look(unseen_at_the_end);
  if (!state.stopped)
    bsg_policy_stop(policy, bsg_clock_now(), bsg_current_where());
  state.stopped = true;
  pthread_mutex_unlock(&state.lock);
}

/* ---- facts from hooks/cuda/ ---- */

static uint64_t memory_limit(void) {
  return state.memory_limit;
}

static bool waiting(void) {
  const struct bsg_policy *policy = atomic_load_explicit(&state.policy, memory_order_acquire);
  return policy && bsg_policy_waiting(policy);
}

static void on_unhooked(const char *name, int version) {
  struct bsg_policy *policy = bsg_root_lock();
  if (policy) {
    bsg_policy_unhooked(policy, bsg_clock_now(), name, version);
    bsg_root_unlock();
  }
}

static void on_unseen(const char *what) {
  on_unhooked(what, 0);
}

static void on_device(const struct bsg_device_fact *fact) {
  struct bsg_policy *policy = bsg_root_lock();
  atomic_store(&state.used, true);
  if (policy) {
    /* No sooner: a process that was spawned is told its rank by Python, once Paddle and the driver are there. */
    struct bsg_launch launch;
    bsg_launch_find(&launch);
    bsg_policy_launched(policy, launch.rank, launch.ranks, launch.pid, launch.start_ms);
    bsg_others_meet(fact->device);
    bsg_policy_device(policy, bsg_clock_now(), fact);
    bsg_root_unlock();
  }
  bsg_unseen_look(on_unseen);
}

/* A process of Paddle whose framework half should be there by the time that memory runs out, and is not. */
static void say_if_alone(void) {
  static const char *const paddle[] = {"libpaddle", "core_avx", "core_noavx", NULL};
  if (atomic_load(&state.attached) || atomic_load(&state.missed) || !bsg_symbols_loaded(paddle) ||
      atomic_exchange(&state.missed, true))
    return;
  bsg_log(BSG_LOG_NORMAL,
          "framework half not loaded; recording only (python -I, -E or -S and env -i keep it out of a job)");
}

static void on_refused(const struct bsg_alloc_fact *fact) {
  struct bsg_policy *policy = bsg_root_lock();
  if (policy) {
    bsg_policy_refused_call(policy, bsg_clock_now(), fact);
    bsg_root_unlock();
  }
  say_if_alone();
  bsg_unseen_look(on_unseen);
}

static void on_granted(const struct bsg_alloc_fact *fact) {
  struct bsg_policy *policy = bsg_root_lock();
  if (policy) {
    bsg_policy_granted_call(policy, bsg_clock_now(), fact);
    bsg_root_unlock();
  }
}

static void on_mark(const struct bsg_mark_fact *fact) {
  struct bsg_policy *policy = bsg_root_lock();
  if (policy) {
    bsg_policy_mark(policy, bsg_clock_now(), fact);
    bsg_root_unlock();
  }
}

const struct bsg_cuda_host bsg_cuda_host = {
    .active = bsg_root_active,
    .driver_entry = bsg_lookup_driver,
    .next_entry = bsg_lookup_next,
    .memory_limit = memory_limit,
    .where = bsg_current_where,
    .waiting = waiting,
    .device = on_device,
    .refused = on_refused,
    .granted = on_granted,
    .mark = on_mark,
    .unhooked = on_unhooked,
};
