/* fake_nvml.h - what a test tells the NVML of fake_nvml.c, found there as `fake_nvml`, and what it sees. */
#ifndef BSG_TESTS_FAKE_NVML_H
#define BSG_TESTS_FAKE_NVML_H

#include <stdbool.h>

struct fake_nvml {
  /* Settings. */
  bool broken;      /* it cannot be started: no driver of its version */
  bool mig;         /* the device is an instance, known by its UUID alone */
  bool long_answer; /* processes of 32 bytes, as some drivers of 535 write */
  unsigned int count;
  unsigned int pid[256];
  unsigned long long bytes[256];

  /* What was seen. */
  int started; /* less what was ended */
  int starts, questions;
};

#endif
