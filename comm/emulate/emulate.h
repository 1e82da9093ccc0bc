// SPDX-License-Identifier: Apache-2.0
#pragma once
// A link that is slower than the machine's memory and costs no core, so that overlap can be measured on one machine.

#include <memory>

#include "comm/communicator.h"
#include "comm/emulate/link_port.h"

namespace slipstream::comm {

/// A communicator whose transfers also pass `port`, which all channels of the rank share. A work ends no earlier than
/// wire_cost (comm/link.h) after its last member entered, longer while other transfers share the port, and no earlier
/// than the transfer of `inner`. Members tell each other when they entered; communicators that cannot (no Meeting), and
/// clocks of several machines, fall back to this rank's entry. A port that other ranks keep busy is seen only by them.
std::unique_ptr<Communicator> emulate(std::unique_ptr<Communicator> inner, std::shared_ptr<LinkPort> port);

}  // namespace slipstream::comm
