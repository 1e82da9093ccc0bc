// SPDX-License-Identifier: Apache-2.0
#pragma once
// The names of the two ends of a transfer. Proofs and verdicts use them to recognize the message that travels.

#include <string>
#include <string_view>

namespace slipstream {

/// Returns "send.LABEL" or "recv.LABEL". Both ends of one transfer have the same label, and different transfers have
/// different ones. Pure.
inline std::string transfer_name(bool send, const std::string& label) { return (send ? "send." : "recv.") + label; }

/// Returns false if the names belong to the ends of two different transfers. Pure.
inline bool same_transfer(std::string_view a, std::string_view b) {
  const auto is_end = [](std::string_view name) { return name.starts_with("send.") || name.starts_with("recv."); };
  constexpr size_t kVerb = 5;
  return !is_end(a) || !is_end(b) || a.substr(kVerb) == b.substr(kVerb);
}

}  // namespace slipstream
