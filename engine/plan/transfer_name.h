// SPDX-License-Identifier: Apache-2.0
#pragma once
// Names of the two ends of a transfer, by which proofs and verdicts recognize the message that travels.

#include <string>
#include <string_view>

namespace slipstream {

/// "send.LABEL" or "recv.LABEL". Both ends of one transfer have the same label, different transfers different ones.
/// Pure.
inline std::string transfer_name(bool send, const std::string& label) { return (send ? "send." : "recv.") + label; }

/// False if both are names of ends of transfers, and of different ones. Pure.
inline bool same_transfer(std::string_view a, std::string_view b) {
  const auto is_end = [](std::string_view name) { return name.starts_with("send.") || name.starts_with("recv."); };
  constexpr size_t kVerb = 5;
  return !is_end(a) || !is_end(b) || a.substr(kVerb) == b.substr(kVerb);
}

}  // namespace slipstream
