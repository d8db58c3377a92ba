/*
 * log.h - one line to the user: "bsguard: ..." on stderr, in one write(). Never blocks on a lock, never raises SIGPIPE,
 * never writes to a descriptor 2 that was closed when the process began (it may be the user's file by now).
 */
#ifndef BSG_SHIM_LOG_H
#define BSG_SHIM_LOG_H

/* Notes whether stderr is open; from the constructor. */
void bsg_log_open(void);

/* BSG_LOG_QUIET, BSG_LOG_NORMAL, BSG_LOG_DEBUG of options.h */
void bsg_log_set_level(int level);

/* Says it if the level is at least `level`. Lines are cut at 1000 bytes; errno is kept. */
void bsg_log(int level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
