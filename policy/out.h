/*
 * out.h - bounded text output: into a fixed buffer, or through one to a file. Never allocates, never writes past its
 * buffer, and needs no locale (a user's LC_NUMERIC must not change what a report says).
 *
 * Without a flush function what does not fit is cut off and `error` becomes -EOVERFLOW: lines may ignore that, file
 * formats must not. The first error sticks; later writes do nothing.
 */
#ifndef BSG_POLICY_OUT_H
#define BSG_POLICY_OUT_H

#include <stddef.h>
#include <stdint.h>

struct bsg_out {
  char *buffer;
  size_t room, used;
  int error;
  int (*flush)(void *context, const char *bytes, size_t length); /* NULL: the buffer is all there is */
  void *context;
};

void bsg_out_buffer(struct bsg_out *out, char *buffer, size_t room);
void bsg_out_through(struct bsg_out *out, char *buffer, size_t room,
                     int (*flush)(void *context, const char *bytes, size_t length), void *context);

void bsg_out_bytes(struct bsg_out *out, const char *bytes, size_t length);
void bsg_out_text(struct bsg_out *out, const char *text);

/* At most 511 bytes each call; no floating point, whose output depends on the locale. */
__attribute__((format(printf, 2, 3))) void bsg_out_format(struct bsg_out *out, const char *format, ...);

/*
 * Text from outside, fit for a terminal and for one line: up to the first line end, at most `most` bytes; control
 * characters become spaces, bytes that are not UTF-8 question marks.
 */
void bsg_out_clean(struct bsg_out *out, const char *text, size_t most);

/* A size for people: "0 B", "512 B", "64.0 KiB", "22.5 GiB"; one decimal, rounded down so that nothing looks free that
 * is not. */
void bsg_out_size(struct bsg_out *out, uint64_t bytes);

/* A moment as RFC 3339 in UTC with milliseconds. */
void bsg_out_time(struct bsg_out *out, int64_t unix_ms);

/* The buffer as a string; only without a flush function. */
const char *bsg_out_string(struct bsg_out *out);

/* Hands on what is still in the buffer; returns 0 or the first error. */
int bsg_out_finish(struct bsg_out *out);

/* Calendar of a moment in UTC. gmtime_r may read the zone file and allocate; this does neither. */
struct bsg_calendar {
  int year, month, day, hour, minute, second, millisecond;
};
struct bsg_calendar bsg_calendar_of(int64_t unix_ms);

/* Copies text from outside into a fixed field, cut at a whole character; NULL becomes "". */
void bsg_copy_text(char *field, size_t room, const char *text);

/* What an errno means, for the few that files meet; never allocates, unlike strerror. */
const char *bsg_errno_text(int error);

#endif
