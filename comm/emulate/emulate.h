// SPDX-License-Identifier: Apache-2.0
#pragma once
// A link that is slower than the machine's memory and uses no core. It makes overlap measurable on one machine.

#include <cstdint>
#include <functional>
#include <memory>

#include "comm/communicator.h"
#include "comm/emulate/link_port.h"

namespace slipstream::comm {

/// The load that a busy link puts on the device, in addition to the wait of its stream. The differences between the
/// forms separate the costs of overlap: `gate` costs only order, `copies` add memory traffic, `blocks` take
/// multiprocessors.
enum class LinkForm : uint8_t { gate, copies, blocks };

/// The device side of the link forms. It exists on cuda only, and the runtime supplies it. Nothing sleeps on the host
/// there, because host functions of different streams may run one after the other: the port writes its progress into a
/// word, and the device waits for that word.
struct LinkTraffic {
  LinkForm form = LinkForm::gate;
  /// Makes a word that is initially 0, which the host writes and kernels read. The word lives as long as the works. On
  /// a CPU this function is empty, because the thread of the stream sleeps instead.
  std::function<uint32_t*()> make_flag;
  /// gate, copies. Enqueues. Waits until *flag is at least `value`.
  std::function<void(LaunchContext&, const uint32_t* flag, uint32_t value)> await;
  /// copies. Enqueues. Copies `size_bytes` of `device` out of the device and back without multiprocessors; the contents
  /// stay the same.
  std::function<void(LaunchContext&, const std::byte* device, int64_t size_bytes)> copy;
  /// blocks. Enqueues. Occupies multiprocessors, which read `device` meanwhile, for about `wire_ns` and until *release
  /// is not 0.
  std::function<void(LaunchContext&, const std::byte* device, int64_t size_bytes, int64_t wire_ns,
                     const uint32_t* release)>
      hold;
};

/// A communicator whose transfers also pass through `port`, which all channels of the rank share. A work ends
/// when both its emulated time and the transfer of `inner` have ended. The emulated time is wire_cost (comm/link.h)
/// after the last member has entered, and longer while other transfers share the port. Meanwhile `traffic` loads the
/// device. Members exchange their entry times;
/// communicators without a Rendezvous, and those whose members have different clocks, use the entry time of this rank.
/// A port carries only the load of its own rank. An all_to_all_v has the bytes of its counts, separately for each
/// direction, and needs a CPU.
std::unique_ptr<Communicator> emulate(std::unique_ptr<Communicator> inner, std::shared_ptr<LinkPort> port,
                                      const LinkTraffic& traffic = {});

}  // namespace slipstream::comm
