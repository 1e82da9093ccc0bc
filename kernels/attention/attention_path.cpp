// SPDX-License-Identifier: Apache-2.0
// Chooses the kernels of attention by the GPU and by the environment.

#include "kernels/attention/attention_path.h"

#include <cstdlib>
#include <optional>

#include "engine/base/check.h"

namespace slipstream::kernels {
namespace {

std::string version_of(int capability) { return fmt::format("{}.{}", capability / 10, capability % 10); }

std::optional<AttentionPath> asked_path() {
  const char* asked = std::getenv("SLIPSTREAM_ATTENTION");
  if (!asked) return std::nullopt;
  for (AttentionPath path : {AttentionPath::hopper, AttentionPath::mma, AttentionPath::plain})
    if (name_of(path) == asked) return path;
  throw ConfigError("[attention] SLIPSTREAM_ATTENTION={} is unknown, need hopper, mma or plain.", asked);
}

}  // namespace

std::string_view name_of(AttentionPath path) {
  switch (path) {
    case AttentionPath::hopper:
      return "hopper";
    case AttentionPath::mma:
      return "mma";
    case AttentionPath::plain:
      return "plain";
  }
  return "?";
}

AttentionPath attention_path(int capability) {
  const AttentionPath best = capability / 10 == 9 ? AttentionPath::hopper : AttentionPath::mma;
  const AttentionPath path = asked_path().value_or(best);
  if (path < best)
    throw ConfigError(
        "[attention] SLIPSTREAM_ATTENTION={} cannot run here: it needs compute capability 9.0, and this GPU has {}. "
        "Unset it.",
        name_of(path), version_of(capability));
  return path;
}

int attention_backward_queries() {
  const char* asked = std::getenv("SLIPSTREAM_ATTENTION_QUERIES");
  if (!asked || asked == std::string_view("64")) return 64;
  if (asked == std::string_view("128")) return 128;
  throw ConfigError("[attention] SLIPSTREAM_ATTENTION_QUERIES={} is unknown, need 64 or 128.", asked);
}

void require_attention_path() {
  asked_path();
  attention_backward_queries();
}

std::string attention_remark(int capability) {
  if (capability < 100) return "";
  return fmt::format(
      "this GPU has compute capability {}: attention uses mma.sync, because there are no kernels for its own tensor "
      "core instructions",
      version_of(capability));
}

}  // namespace slipstream::kernels
