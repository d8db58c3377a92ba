/*
 * bsguard.h - the public interface of libbsguard.so: what a framework adapter, or a training loop written by hand,
 * tells bsguard and asks of it.
 *
 * Units: sizes in bytes, batches and micro-batches in samples, times by bsguard's own clock. Devices are CUDA ordinals
 * as the process sees them. Strings are UTF-8, NUL-terminated, copied before the call returns; NULL stands for "not
 * known".
 *
 * Every function may be called from any thread, at any time after the library is loaded, also when BSGUARD=0 (it then
 * does nothing and says so by its result). None of them exits, throws or prints more than one line. Results are 0 or a
 * negative errno, unless said otherwise. Never call them from inside a driver allocation.
 *
 * Structures grow at their end only; `size` is sizeof the structure that the caller was compiled with.
 */
#ifndef BSGUARD_H
#define BSGUARD_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define BSG_VERSION "0.1.0"
#define BSG_API_VERSION 1u

#if defined(__GNUC__)
#define BSG_EXPORT __attribute__((visibility("default")))
#else
#define BSG_EXPORT
#endif

/* BSGUARD=0, BSGUARD=observe, BSGUARD=1 */
enum bsg_mode { BSG_MODE_OFF = 0, BSG_MODE_OBSERVE = 1, BSG_MODE_GUARD = 2 };

/* What the job is doing; names in files: init, forward, loss, backward, optimizer, evaluation, data, save, other. */
enum bsg_phase {
  BSG_PHASE_INIT = 0,
  BSG_PHASE_FORWARD,
  BSG_PHASE_LOSS,
  BSG_PHASE_BACKWARD,
  BSG_PHASE_OPTIMIZER,
  BSG_PHASE_EVALUATION,
  BSG_PHASE_DATA,
  BSG_PHASE_SAVE,
  BSG_PHASE_OTHER,
  BSG_PHASE_COUNT
};

/*
 * How a step run in chunks relates to the same step run whole.
 * exact: equal but for rounding. equivalent: equal in distribution (other dropout masks). approximate: neither; the
 * reasons are said. refused: it cannot be run in chunks.
 */
enum bsg_exactness { BSG_EXACT = 0, BSG_EQUIVALENT, BSG_APPROXIMATE, BSG_REFUSED };

/* What came of an out-of-memory report. */
enum bsg_verdict {
  BSG_KEEP = 0,   /* nothing changes: observe mode, or bsguard is off */
  BSG_SHRINK = 1, /* run in `chunks` pieces from now on */
  BSG_FLOOR = 2,  /* micro-batch is 1 already (or the batch is): cannot be saved by halving */
  BSG_CANNOT = 3, /* the caller said BSG_REFUSED, or gave no batch */
  BSG_AGAIN = 4   /* try it as it was, once more: only for callers whose bsg_decision has `wait_ms`, see there */
};

/* A decision of the policy for one (device, boundary, signature). */
struct bsg_decision {
  uint32_t size;
  int32_t verdict;            /* enum bsg_verdict */
  int64_t sequence;           /* of control.json after this call; 0 while none was written */
  int64_t batch;              /* samples that the caller named */
  int64_t micro_batch;        /* samples a chunk, at most: ceil(batch / chunks) */
  int64_t accumulation_steps; /* chunks to run: ceil(batch / micro_batch) */
  int64_t chunks;             /* k, the primary figure: an OOM doubles it, or raises it to what fits as far as known */
  int64_t wait_ms;            /* BSG_AGAIN: first wait at most so long, until bsg_memory() has `wait_free_bytes` free */
  uint64_t wait_free_bytes;   /* 0: there is nothing to wait for (memory lay in pieces, and was given back) */
};

/* An out-of-memory error that the framework gave up on (an exception, a status): a terminal OOM. */
struct bsg_oom {
  uint32_t size;
  int32_t device;
  const char *boundary;   /* name of the part that can be split, e.g. the class of the outermost layer; NULL: none */
  const char *signature;  /* shape and type of its inputs without the batch, e.g. "float32[3,224,224]" */
  int64_t batch;          /* samples of this step; 0: not known */
  int32_t phase;          /* enum bsg_phase */
  int32_t exactness;      /* enum bsg_exactness that a split would have; BSG_REFUSED: it cannot be split */
  const char *because;    /* comma-separated reasons for `exactness`, e.g. "dropout,batch_norm"; or why it is refused */
  uint64_t request_bytes; /* what was asked for; 0: take it from the last refused driver call, where there was one */
  const char *exception;  /* first line of the framework's own message */
  int64_t smallest;       /* samples in the smallest piece that the caller can run; 0: one */
  uint64_t held_bytes;    /* held on the device once the attempt was given up and the caches emptied; 0: not known */
};

/*
 * What a framework knows of its memory on a device, all in bytes, UINT64_MAX where it does not. Told at the end of each
 * step, and when an out-of-memory exception was caught, before anything is freed: with the Python stack that it came
 * from, innermost first, a line a frame; NULL at a step's end.
 */
struct bsg_framework {
  uint32_t size;
  int32_t device;
  uint64_t allocated_bytes;                           /* in use by tensors */
  uint64_t reserved_bytes;                            /* taken from the driver */
  uint64_t allocated_peak_bytes, reserved_peak_bytes; /* over the whole run */
  uint64_t parameter_bytes, gradient_bytes, optimizer_bytes;
  const char *python_stack;
};

/* Device memory as seen at the driver. */
struct bsg_memory {
  uint32_t size;
  int32_t device;
  uint64_t total_bytes;     /* capacity; BSGUARD_MEMORY_LIMIT where that is smaller */
  uint64_t free_bytes;      /* free on the device now, neighbours counted */
  uint64_t live_bytes;      /* allocated by this process and not freed */
  uint64_t peak_bytes;      /* high-water mark of live_bytes since the start */
  uint64_t step_peak_bytes; /* high-water mark of live_bytes since the last bsg_step() */
  uint64_t others_bytes;    /* taken on the device, not by this process, since it was first used here; 0: not known */
};

/* BSG_API_VERSION of the library: the caller must refuse a library with another one. */
BSG_EXPORT uint32_t bsg_api_version(void);

/* enum bsg_mode; BSG_MODE_OFF also where this process was found unfit for guarding. */
BSG_EXPORT int bsg_mode(void);

/*
 * Value of an option from the table of options ("BSGUARD_ARM"), parsed and defaulted, as text; NULL for an unknown
 * name. The pointer stays valid for the life of the process.
 */
BSG_EXPORT const char *bsg_option(const char *name);

/*
 * An adapter takes charge: from now on only bsg_terminal() says which OOM was terminal, and nothing is inferred.
 * framework: name and version, e.g. "paddle 3.3.1". command: the script, e.g. "train.py"; NULL: from the process.
 */
BSG_EXPORT int bsg_attach(const char *framework, const char *command);

/* Sets what the job is doing, for all marks and events from now on. Returns the phase before, or a negative errno. */
BSG_EXPORT int bsg_set_phase(int phase);

/*
 * A boundary is about to run `batch` samples: in how many chunks? phase: BSG_PHASE_FORWARD, or BSG_PHASE_EVALUATION for
 * calls that no training step depends on (they have sizes of their own and never change control.json). The first call
 * with BSG_PHASE_FORWARD writes control.json (sequence 1, reason start).
 */
BSG_EXPORT int bsg_boundary(int device, const char *boundary, const char *signature, int64_t batch, int phase,
                            struct bsg_decision *out);

/*
 * A terminal OOM was caught, and will be reported by bsg_terminal() with a boundary and the same `request_bytes` once
 * it is known whether it can be split. To find that out may be refused memory too: what was refused so far is kept for
 * the report.
 */
BSG_EXPORT int bsg_caught(int device, uint64_t request_bytes);

/*
 * A terminal OOM: logs it and decides. Each must be reported exactly once. BSG_AGAIN comes to callers that can answer
 * it alone (see bsg_decision): before a boundary is split, and, while other processes are in the way, where the
 * alternative would be BSG_FLOOR, or BSG_CANNOT for want of a boundary.
 */
BSG_EXPORT int bsg_terminal(const struct bsg_oom *oom, struct bsg_decision *out);

/* The decision `sequence` was taken up (0: one of an evaluation). Logs it, and says it in one line on stderr. */
BSG_EXPORT int bsg_applied(int64_t sequence, int device, const char *boundary, int phase, int64_t batch,
                           int64_t micro_batch, int exactness, const char *because);

/* The OOM reported last could not be saved: report.txt and report.json are written now. Says so in one line on stderr.
 */
BSG_EXPORT int bsg_unrescued(int device, int phase, const char *exception);

/*
 * The OOM reported last was met without splitting anything: caches were given back, `what` (a part of a sentence, such
 * as "the copy to the device") was tried again and went through. One event each, and one line on stderr for each
 * `what`.
 */
BSG_EXPORT int bsg_retried(int device, const char *what);

/*
 * After BSG_AGAIN with a `wait_ms`: the wait is over, after `waited_ms`. Logs what became of it, and says it in one
 * line, at most once in ten steps.
 */
BSG_EXPORT int bsg_waited(int device, int64_t waited_ms);

/* bsguard will not split this boundary, and why: one event, and one line on stderr for each (boundary, why). */
BSG_EXPORT int bsg_refused(const char *boundary, const char *why);

/* A boundary runs untouched from now on: because it fits (for_good 0, event only), or for good (1: also one line). */
BSG_EXPORT int bsg_disarmed(const char *boundary, const char *signature, const char *why, int for_good);

/*
 * A training step ended (the optimizer has stepped): logs it, answers a waiting request.json, starts the next step.
 * allocated_peak: the framework's own allocated peak in this step alone, in bytes; 0: not known. From it, or from the
 * driver's marks, bsguard learns what a size takes, and may raise the micro-batch again.
 * Returns the number of steps ended, or a negative errno.
 */
BSG_EXPORT int64_t bsg_step(int device, uint64_t allocated_peak);

/* Fills `out` (its `size` set by the caller). -ENODEV: no such device, or none was used yet. */
BSG_EXPORT int bsg_memory(int device, struct bsg_memory *out);

/* What the framework says of its memory: for reports and fits only. */
BSG_EXPORT int bsg_framework(const struct bsg_framework *framework);

/*
 * A container of the program that holds tensors of a device from step to step: `what` says which, in a few words.
 * with_graph: how many of its tensors keep a graph alive. bytes: of the tensors themselves. A NULL forgets all that
 * were told before. The first eight are kept, so tell the largest first.
 */
BSG_EXPORT int bsg_held(int device, const char *what, uint64_t tensors, uint64_t with_graph, uint64_t bytes);

/* A word for reports: a version ("python", "3.11.7"), flags, modules. The same name again replaces it. Never secrets.
 */
BSG_EXPORT int bsg_note(const char *name, const char *value);

/* Writes report.txt and report.json of how things are now; also asked for by a request.json with "report": true. */
BSG_EXPORT int bsg_report(void);

#ifdef __cplusplus
}
#endif
#endif
