/*
 * options.h - the BSGUARD_* environment variables, parsed once from the table options.def. A wrong value is one line on
 * stderr, and the preset holds.
 */
#ifndef BSG_SHIM_OPTIONS_H
#define BSG_SHIM_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

enum bsg_option_id {
#define BSG_OPTION(id, variable, type, preset, allowed, meaning) BSG_OPTION_##id,
#include "shim/options.def"
#undef BSG_OPTION
  BSG_OPTION_COUNT
};

enum { BSG_LOG_QUIET, BSG_LOG_NORMAL, BSG_LOG_DEBUG };

/* Reads the environment, once; later calls do nothing. Called by all below. */
void bsg_options_load(void);

/* CHOICE: index of the word; SIZE: bytes; SECONDS: as it says. */
int64_t bsg_options_number(enum bsg_option_id id);

/* As bsg_option() of bsguard.h gives it: the word, the path, or the bytes or seconds in digits. */
const char *bsg_options_text(enum bsg_option_id id);
const char *bsg_options_find(const char *variable);

/* BSGUARD as it stands in the environment, without loading, complaining or remembering. */
int bsg_options_peek_mode(void);

/* Prints the manual of all options, one paragraph each, to a file descriptor. page: as a part of a manual page. */
void bsg_options_manual(int fd, bool page);

#endif
