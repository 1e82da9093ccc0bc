// SPDX-License-Identifier: Apache-2.0
#pragma once
// The transport of a group of one.

#include "comm/host/transport.h"

namespace slipstream::comm {

std::unique_ptr<HostTransport> make_self_transport();

}  // namespace slipstream::comm
