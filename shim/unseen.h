/*
 * unseen.h - what a preload cannot see: a second copy of the driver in a namespace of its own (dlmopen), and libraries
 * that were bound to the driver past us (RTLD_DEEPBIND). Such calls cannot be recorded; that there are some can be
 * noticed.
 */
#ifndef BSG_SHIM_UNSEEN_H
#define BSG_SHIM_UNSEEN_H

/*
 * Looks for both, and tells `found` once for each: what it is, and of which file. Cheap where nothing was loaded since
 * the last time. Waits for no lock of the loader that is held while foreign code runs.
 */
void bsg_unseen_look(void (*found)(const char *what));

/* After fork(). */
void bsg_unseen_forget(void);

#endif
