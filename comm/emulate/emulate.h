// SPDX-License-Identifier: Apache-2.0
#pragma once
// A link that is slower than the machine's memory and costs no core, so that overlap can be measured on one machine.

#include <cstdint>
#include <functional>
#include <memory>

#include "comm/communicator.h"
#include "comm/emulate/link_port.h"

namespace slipstream::comm {

/// What a busy link does to the device besides making its stream wait. Their differences separate what overlap costs:
/// gate is a matter of order alone, copies add memory traffic, blocks add multiprocessors.
enum class LinkForm : uint8_t { gate, copies, blocks };

/// The forms other than gate exist on cuda; whoever wires gives them their works. There nothing sleeps on the host,
/// where functions of different streams may run one after the other: the port writes how far it is into a word, and the
/// device waits for it.
struct LinkTraffic {
  LinkForm form = LinkForm::gate;
  /// A word that the host writes and kernels read, 0 at first; lives as long as the works. Empty on cpu: a stream's
  /// thread sleeps.
  std::function<uint32_t*()> make_flag;
  /// gate, copies. Enqueues: waits until *flag is at least `value`.
  std::function<void(LaunchContext&, const uint32_t* flag, uint32_t value)> await;
  /// copies. Enqueues: moves `size_bytes` of `device` out of the device and back in, past the multiprocessors; changes
  /// nothing.
  std::function<void(LaunchContext&, const std::byte* device, int64_t size_bytes)> copy;
  /// blocks. Enqueues: holds multiprocessors, which read `device` meanwhile, about `wire_ns` long and until *release is
  /// not 0.
  std::function<void(LaunchContext&, const std::byte* device, int64_t size_bytes, int64_t wire_ns,
                     const uint32_t* release)>
      hold;
};

/// A communicator whose transfers also pass `port`, which all channels of the rank share. A work ends no earlier than
/// wire_cost (comm/link.h) after its last member entered, longer while other transfers share the port, and no earlier
/// than the transfer of `inner`. `traffic` is made meanwhile. Members tell each other when they entered; communicators
/// that cannot (no Rendezvous), and clocks of several machines, fall back to this rank's entry. A port that other ranks
/// keep busy is seen only by them.
std::unique_ptr<Communicator> emulate(std::unique_ptr<Communicator> inner, std::shared_ptr<LinkPort> port,
                                      const LinkTraffic& traffic = {});

}  // namespace slipstream::comm
