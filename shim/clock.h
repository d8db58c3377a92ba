/* clock.h - what time it is, for the policy, which has no clock of its own. */
#ifndef BSG_SHIM_CLOCK_H
#define BSG_SHIM_CLOCK_H

#include "shim/facts.h"

struct bsg_when bsg_clock_now(void);

#endif
