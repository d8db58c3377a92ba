/* sizing.c - see sizing.h. */
#include "policy/sizing.h"

#include <stdlib.h>

#define SIXTEENTHS 16
#define MOST_X (INT64_C(1) << 52) /* exact as a double */
/* Room that a peak leaves of what is available: an allocator that caches cannot use every byte. */
#define USABLE_PERCENT 90
/* A measured line is believed up to so many times the largest size that was measured. */
#define REACH 4
#define MOST_TRIED 1024
/* Clean steps after which a refusal is no longer believed: what took the memory may be gone. Doubles with each. */
#define PATIENCE 32
#define MOST_PATIENCE 8192

/* ---- sizes ---- */

static int64_t times(int64_t a, int64_t b) {
  int64_t product;
  return __builtin_mul_overflow(a, b, &product) || product > MOST_X ? MOST_X : product;
}

int64_t bsg_sizing_elements(const char *signature) {
  int64_t sum = 0;

  for (const char *c = signature ? signature : ""; *c;) {
    if (*c++ != '[')
      continue;
    int64_t product = 1;
    bool cut = *c != '='; /* "=8" is a dimension of an input that goes to every piece whole */
    while (*c && *c != ']') {
      if (*c >= '0' && *c <= '9') {
        int64_t n = 0;
        for (; *c >= '0' && *c <= '9'; c++)
          n = n < MOST_X / 10 ? n * 10 + (*c - '0') : MOST_X;
        product = times(product, n ? n : 1);
      } else
        c++;
    }
    if (cut && sum < MOST_X - product)
      sum += product;
  }
  return sum > 0 ? sum : 1;
}

int64_t bsg_sizing_x(struct bsg_sizing *sizing, int64_t samples, int64_t elements) {
  if (sizing->unit <= 0)
    sizing->unit = elements > 0 ? elements : 1;
  double x = (double)samples * (double)elements * SIXTEENTHS / (double)sizing->unit + 0.5;
  return x < 1 ? 1 : x > (double)MOST_X ? MOST_X : (int64_t)x;
}

/* ---- what is learnt ---- */

void bsg_sizing_measured(struct bsg_sizing *s, int64_t x, uint64_t bytes) {
  int at = -1;

  if (x <= 0 || bytes == 0)
    return;
  /* Sizes within three percent are one: variable lengths would fill the table with neighbours. */
  for (int i = 0; i < s->count && at < 0; i++)
    if (llabs(s->points[i].micro_batch - x) * 32 <= x)
      at = i;
  if (at < 0 && s->count < BSG_FIT_POINTS - 1)
    at = s->count++;
  if (at < 0) {
    at = s->next;
    s->next = (s->next + 1) % (BSG_FIT_POINTS - 1);
  }
  s->points[at] = (struct bsg_fit_point){.micro_batch = x, .peak_bytes = bytes, .steps = 1};
  if (s->refused_x && x >= s->refused_x)
    s->refused_x = 0; /* what ran out once fits now */
}

void bsg_sizing_refused(struct bsg_sizing *s, int64_t x, uint64_t available, uint64_t base) {
  s->base_bytes = base;
  if (x <= 0 || available == 0)
    return;
  /* Of two refusals the smaller size says more; a later one of the same size is of the present. */
  if (s->refused_x == 0 || x <= s->refused_x) {
    s->refused_x = x;
    s->refused_bytes = available;
    s->refused_base = base < available ? base : 0;
  }
  s->age = 0;
  s->patience = s->patience == 0 ? PATIENCE : s->patience < MOST_PATIENCE ? s->patience * 2 : MOST_PATIENCE;
}

int64_t bsg_sizing_refused_samples(const struct bsg_sizing *s, int64_t elements) {
  if (s->refused_x == 0 || s->unit <= 0 || elements <= 0)
    return 0;
  double samples = (double)s->refused_x * (double)s->unit / ((double)elements * SIXTEENTHS);
  return samples >= (double)MOST_X ? MOST_X : (int64_t)samples + (samples > (double)(int64_t)samples);
}

void bsg_sizing_refused_before(struct bsg_sizing *s, int64_t x, uint64_t available, uint64_t base) {
  if (x <= 0 || available == 0 || s->refused_x)
    return;
  for (int i = 0; i < s->count; i++)
    if (s->points[i].micro_batch >= x)
      return;
  s->refused_x = x;
  s->refused_bytes = available;
  s->refused_base = base < available ? base : 0;
  s->age = 0;
  s->patience = MOST_PATIENCE;
}

void bsg_sizing_held(struct bsg_sizing *s, uint64_t bytes) {
  if (bytes == 0)
    return;
  if (bytes < s->base_bytes)
    s->base_bytes = bytes;
  if (s->refused_x && bytes < s->refused_base) {
    s->refused_bytes -= s->refused_base - bytes;
    s->refused_base = bytes;
  }
}

void bsg_sizing_clean(struct bsg_sizing *s) {
  if ((s->refused_x || s->ceiling_bytes) && ++s->age >= s->patience)
    s->refused_x = 0, s->ceiling_bytes = 0;
}

/* ---- what is foreseen ---- */

/* bytes(x) of the line from (0, base) through (of, bytes). */
static uint64_t in_proportion(uint64_t base, int64_t of, uint64_t bytes, int64_t x) {
  double rise = bytes > base ? (double)(bytes - base) : 0;
  double peak = (double)base + rise * ((double)x / (double)of);
  return peak >= 1.8e19 ? BSG_SIZING_NOT_KNOWN - 1 : (uint64_t)peak;
}

/* The largest size below `x`, by a quarter at least: nearer ones say more of noise than of the slope. */
static const struct bsg_fit_point *next_below(const struct bsg_sizing *s, int64_t x) {
  const struct bsg_fit_point *found = NULL;

  for (int i = 0; i < s->count; i++) {
    const struct bsg_fit_point *p = &s->points[i];
    if (p->micro_batch <= x - x / 5 && (!found || p->micro_batch > found->micro_batch))
      found = p;
  }
  return found;
}

static double slope(const struct bsg_fit_point *low, const struct bsg_fit_point *high) {
  return ((double)high->peak_bytes - (double)low->peak_bytes) / (double)(high->micro_batch - low->micro_batch);
}

/* By more than noise. */
static bool rises(const struct bsg_fit_point *low, const struct bsg_fit_point *high) {
  return high->peak_bytes > low->peak_bytes && high->peak_bytes - low->peak_bytes >= high->peak_bytes / 50;
}

/*
 * Above the largest size that was measured. Peaks may stay level for a while, at that of something else (a loss, an
 * optimizer), and rise once the pieces take more than that: two sizes do not show on which side of the bend they are,
 * three that lie on one rising line do. Until then only the line from the base is safe.
 */
static uint64_t beyond(const struct bsg_sizing *s, const struct bsg_fit_point *high, int64_t x) {
  uint64_t peak =
      in_proportion(s->base_bytes < high->peak_bytes ? s->base_bytes : 0, high->micro_batch, high->peak_bytes, x);
  const struct bsg_fit_point *low = next_below(s, high->micro_batch);
  const struct bsg_fit_point *lower = low ? next_below(s, low->micro_batch) : NULL;

  if (lower && x <= times(high->micro_batch, REACH)) {
    double near = slope(low, high), far = slope(lower, low), steeper = near > far ? near : far;
    double line = (double)high->peak_bytes + steeper * (double)(x - high->micro_batch);
    if (rises(lower, low) && rises(low, high) && near < far * 1.2 && far < near * 1.2 && line < (double)peak)
      peak = (uint64_t)line;
  }
  return peak;
}

static uint64_t measured_peak(const struct bsg_sizing *s, int64_t x) {
  const struct bsg_fit_point *high = NULL;
  uint64_t peak, above = BSG_SIZING_NOT_KNOWN;
  struct bsg_fit fit;

  for (int i = 0; i < s->count; i++) {
    const struct bsg_fit_point *p = &s->points[i];
    if (llabs(p->micro_batch - x) * 32 <= x)
      return p->peak_bytes;
    if (!high || p->micro_batch > high->micro_batch)
      high = p;
    if (p->micro_batch > x && p->peak_bytes < above)
      above = p->peak_bytes;
  }
  if (!high)
    return BSG_SIZING_NOT_KNOWN;
  if (x > high->micro_batch)
    return beyond(s, high, x);
  /* Between what was measured: on or below the line that all of it is on or below. No more than a larger piece took. */
  if (bsg_fit_solve(s->points, s->count, &fit) == 0) {
    peak = bsg_fit_peak(&fit, x);
    peak = peak < BSG_SIZING_NOT_KNOWN - fit.margin_bytes ? peak + fit.margin_bytes : BSG_SIZING_NOT_KNOWN - 1;
    return peak < above ? peak : above;
  }
  peak = in_proportion(s->base_bytes < high->peak_bytes ? s->base_bytes : 0, high->micro_batch, high->peak_bytes, x);
  return s->count == 1 && s->base_bytes ? peak : above;
}

uint64_t bsg_sizing_peak(const struct bsg_sizing *s, int64_t x) {
  uint64_t peak = measured_peak(s, x);

  if (s->refused_x && x >= s->refused_x) {
    uint64_t least = in_proportion(s->refused_base, s->refused_x, s->refused_bytes, x);
    if (peak == BSG_SIZING_NOT_KNOWN || peak < least)
      peak = least;
  }
  return peak;
}

/* ---- what fits ---- */

static uint64_t usable(const struct bsg_sizing *s, uint64_t available) {
  if (s->ceiling_bytes && s->ceiling_bytes < available)
    available = s->ceiling_bytes;
  return available / 100 * USABLE_PERCENT;
}

bool bsg_sizing_fits(const struct bsg_sizing *s, int64_t x, uint64_t available) {
  uint64_t peak = bsg_sizing_peak(s, x);

  return peak != BSG_SIZING_NOT_KNOWN && peak <= usable(s, available);
}

int64_t bsg_sizing_chunks(struct bsg_sizing *s, int64_t batch, int64_t elements, int64_t least, int64_t smallest,
                          uint64_t available) {
  uint64_t room = usable(s, available);

  if (batch <= 0 || s->count == 0)
    return 0;
  for (int64_t chunks = least < 1 ? 1 : least; chunks <= batch;) {
    struct bsg_split split = bsg_split_of(batch, chunks);
    if (batch / split.accumulation_steps < smallest)
      return 0;
    uint64_t peak = bsg_sizing_peak(s, bsg_sizing_x(s, split.micro_batch, elements));
    if (peak != BSG_SIZING_NOT_KNOWN && peak <= room)
      return split.accumulation_steps >= least ? split.accumulation_steps : split.chunks;
    /* The next count that makes the pieces smaller. */
    if (split.micro_batch <= 1)
      return 0;
    int64_t next = (batch - 1) / (split.micro_batch - 1) + 1;
    chunks = next > chunks ? next : chunks + 1;
  }
  return 0;
}

int64_t bsg_sizing_least(struct bsg_sizing *s, int64_t batch, int64_t elements, uint64_t available) {
  uint64_t room = usable(s, available);
  int64_t chunks = 1;

  if (s->refused_x == 0 || s->refused_base >= room)
    return 1;
  while (chunks < batch && chunks < MOST_TRIED) {
    int64_t x = bsg_sizing_x(s, bsg_split_of(batch, chunks).micro_batch, elements);
    if (in_proportion(s->refused_base, s->refused_x, s->refused_bytes, x) <= room)
      break;
    chunks++;
  }
  return chunks;
}
