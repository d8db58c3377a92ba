/*
 * control.h - control.json: the signal to the framework, or to any loop that reads it. One writer, replaced whole.
 */
#ifndef BSG_POLICY_CONTROL_H
#define BSG_POLICY_CONTROL_H

#include "policy/entries.h"
#include "policy/runfolder.h"

int bsg_control_write(struct bsg_runfolder *folder, int pid, int rank, const struct bsg_change *change,
                      const struct bsg_entries *entries);

#endif
