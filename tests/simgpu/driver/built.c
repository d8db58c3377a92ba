/*
 * built.c - the CUDA version that this build of the driver stands for. The same objects make several libraries, one for
 * each version; each exports what a driver of that version exports.
 */
#include "internal.h"

const int sim_built_version = SIM_BUILT_VERSION;
