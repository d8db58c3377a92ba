/*
 * utf8.h - one question about text that comes from outside: is this a well-formed UTF-8 sequence? No state, no
 * allocation.
 */
#ifndef BSG_POLICY_UTF8_H
#define BSG_POLICY_UTF8_H

#include <stddef.h>

/* Bytes of the well-formed sequence that starts at `text`, 1 to 4; 0: none does (overlong, surrogate, cut off). */
int bsg_utf8_sequence(const char *text, size_t length);

/* The largest length not above `limit` that does not cut a well-formed sequence of `text` in two. */
size_t bsg_utf8_cut(const char *text, size_t length, size_t limit);

#endif
