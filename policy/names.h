/*
 * names.h - the words that stand in files and lines for the numbers of bsguard.h, and the reasons of a decision.
 */
#ifndef BSG_POLICY_NAMES_H
#define BSG_POLICY_NAMES_H

enum bsg_reason {
  BSG_REASON_START = 0,
  BSG_REASON_OOM,
  BSG_REASON_FRAMEWORK_LIMIT, /* a terminal OOM without any failed driver call */
  BSG_REASON_INFERRED,        /* no adapter: concluded from the failures */
  BSG_REASON_MANUAL,          /* an operator's request.json */
  BSG_REASON_FRAGMENTATION,   /* refused though enough was free on the device */
  BSG_REASON_REGROW,          /* fewer chunks fit, by what was measured */
  BSG_REASON_RESTORED         /* what fitted in an earlier run of the same job */
};

const char *bsg_reason_name(int reason);
const char *bsg_phase_name(int phase);         /* never NULL: "other" for what is not a phase */
const char *bsg_exactness_name(int exactness); /* NULL: not known */
const char *bsg_mode_name(int mode);

#endif
