// collectives.h - the collective functions of Paddle's custom-device interface. See collectives.cc.
#pragma once
#include <cstdint> // which the header of Paddle 2.6 needs and does not ask for

#include "paddle/phi/backends/device_ext.h"

namespace simgpu {

// Fills in the xccl_* functions.
void OfferCollectives(C_DeviceInterface *interface);

} // namespace simgpu
