/* out.c - see out.h. */
#include "policy/out.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "policy/utf8.h"

void bsg_out_buffer(struct bsg_out *out, char *buffer, size_t room) {
  *out = (struct bsg_out){.buffer = buffer, .room = room};
}

void bsg_out_through(struct bsg_out *out, char *buffer, size_t room,
                     int (*flush)(void *context, const char *bytes, size_t length), void *context) {
  *out = (struct bsg_out){.buffer = buffer, .room = room, .flush = flush, .context = context};
}

static void hand_on(struct bsg_out *out) {
  if (out->used != 0 && out->error == 0)
    out->error = out->flush(out->context, out->buffer, out->used);
  out->used = 0;
}

void bsg_out_bytes(struct bsg_out *out, const char *bytes, size_t length) {
  while (length != 0 && out->error == 0) {
    /* Without a flush function one byte stays free for the end of the string. */
    size_t space = out->room - out->used - (out->flush ? 0 : 1);
    size_t part = length < space ? length : space;

    if (part != 0)
      memcpy(out->buffer + out->used, bytes, part);
    out->used += part;
    bytes += part;
    length -= part;
    if (length == 0)
      return;
    if (out->flush)
      hand_on(out);
    else
      out->error = -EOVERFLOW;
  }
}

void bsg_out_text(struct bsg_out *out, const char *text) {
  bsg_out_bytes(out, text, strlen(text));
}

void bsg_out_format(struct bsg_out *out, const char *format, ...) {
  char text[512];
  va_list arguments;
  int length;

  va_start(arguments, format);
  length = vsnprintf(text, sizeof(text), format, arguments);
  va_end(arguments);
  if (length > 0)
    bsg_out_bytes(out, text, (size_t)length < sizeof(text) ? (size_t)length : sizeof(text) - 1);
}

void bsg_out_clean(struct bsg_out *out, const char *text, size_t most) {
  size_t length;

  if (!text)
    return;
  length = bsg_utf8_cut(text, strcspn(text, "\r\n"), most);
  for (size_t i = 0; i < length;) {
    int sequence = bsg_utf8_sequence(text + i, length - i);
    uint8_t byte = (uint8_t)text[i];

    if (sequence == 0)
      bsg_out_bytes(out, "?", 1);
    else if (byte < 0x20 || byte == 0x7F || (byte == 0xC2 && (uint8_t)text[i + 1] < 0xA0))
      bsg_out_bytes(out, " ", 1); /* C0, DEL and C1: a terminal would act on them */
    else
      bsg_out_bytes(out, text + i, (size_t)sequence);
    i += sequence ? (size_t)sequence : 1;
  }
}

void bsg_out_size(struct bsg_out *out, uint64_t bytes) {
  static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  int unit = 0;

  while (unit < 6 && (bytes >> (10 * (unit + 1))) != 0)
    unit++;
  if (unit == 0) {
    bsg_out_format(out, "%llu B", (unsigned long long)bytes);
    return;
  }
  uint64_t whole = bytes >> (10 * unit);
  uint64_t rest = (bytes >> (10 * (unit - 1))) & 1023;
  bsg_out_format(out, "%llu.%llu %s", (unsigned long long)whole, (unsigned long long)(rest * 10 / 1024), units[unit]);
}

struct bsg_calendar bsg_calendar_of(int64_t unix_ms) {
  /* Days to civil date in the proleptic Gregorian calendar, years counted from March so that leap days come last. */
  const int64_t day_ms = 86400000;
  int64_t days = unix_ms / day_ms, ms = unix_ms % day_ms;
  struct bsg_calendar c;

  if (ms < 0) {
    ms += day_ms;
    days--;
  }
  int64_t z = days + 719468; /* days from 0000-03-01 to 1970-01-01 */
  int64_t era = (z >= 0 ? z : z - 146096) / 146097;
  int64_t day_of_era = z - era * 146097;
  int64_t year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36524 - day_of_era / 146096) / 365;
  int64_t day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
  int64_t month = (5 * day_of_year + 2) / 153;

  c.day = (int)(day_of_year - (153 * month + 2) / 5 + 1);
  c.month = (int)(month < 10 ? month + 3 : month - 9);
  c.year = (int)(year_of_era + era * 400 + (c.month <= 2));
  c.hour = (int)(ms / 3600000);
  c.minute = (int)(ms / 60000 % 60);
  c.second = (int)(ms / 1000 % 60);
  c.millisecond = (int)(ms % 1000);
  return c;
}

void bsg_out_time(struct bsg_out *out, int64_t unix_ms) {
  struct bsg_calendar c = bsg_calendar_of(unix_ms);

  bsg_out_format(out, "%04d-%02d-%02dT%02d:%02d:%02d.%03dZ", c.year, c.month, c.day, c.hour, c.minute, c.second,
                 c.millisecond);
}

const char *bsg_out_string(struct bsg_out *out) {
  out->buffer[out->used] = '\0';
  return out->buffer;
}

int bsg_out_finish(struct bsg_out *out) {
  if (out->flush)
    hand_on(out);
  return out->error;
}

void bsg_copy_text(char *field, size_t room, const char *text) {
  size_t length = text ? bsg_utf8_cut(text, strlen(text), room - 1) : 0;

  if (text)
    memcpy(field, text, length);
  field[length] = '\0';
}

const char *bsg_errno_text(int error) {
  switch (error < 0 ? -error : error) {
  case ENOSPC:
    return "no space left on the device";
  case EDQUOT:
    return "the disk quota is used up";
  case EFBIG:
    return "the limit on file sizes is reached";
  case EROFS:
    return "the file system is read-only";
  case EACCES:
    return "permission denied";
  case EPERM:
    return "it belongs to somebody else, or others may change it";
  case ENOENT:
    return "no such file or folder";
  case ENOTDIR:
    return "a part of the path is not a folder";
  case ELOOP:
    return "it is a symbolic link";
  case EEXIST:
    return "it exists already";
  case ENAMETOOLONG:
    return "the path is too long";
  case EMFILE:
  case ENFILE:
    return "too many open files";
  case EIO:
    return "input/output error";
  case EOVERFLOW:
    return "the text is too long";
  default:
    return "the system refused it";
  }
}
