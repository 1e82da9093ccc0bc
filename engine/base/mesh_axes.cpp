// SPDX-License-Identifier: Apache-2.0
// Names of axes, and sizes as text.

#include "engine/base/mesh_axes.h"

#include <fmt/format.h>

namespace slipstream {

const char* name_of(Axis axis) {
  constexpr std::array<const char*, kAxes> kNames{"self",    "data",        "context",     "pipeline", "tensor",
                                                  "replica", "data_inner",  "data_outer",  "world",    "hosts",
                                                  "expert",  "expert_data", "expert_inner"};
  return kNames[static_cast<size_t>(axis)];
}

std::string text_of(const MeshSizes& sizes, const char* separator) {
  std::string text;
  for (const MeshAxis& row : kMeshAxes)
    text += fmt::format("{}{} {}", text.empty() ? "" : separator, name_of(row.axis), sizes.*row.size);
  if (sizes.expert > 1) text += fmt::format(" (experts over {})", sizes.expert);
  return text;
}

}  // namespace slipstream
