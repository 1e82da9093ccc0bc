// SPDX-License-Identifier: Apache-2.0
// Names a table by its content, and lists its choices per connection.

#include "trainer/planner/forecast/nccl_report.h"

#include <fmt/ranges.h>

#include "comm/wiring.h"
#include "engine/base/hash.h"
#include "engine/base/units.h"

namespace slipstream::planner {
namespace {

std::string table_hash(const std::string& text) { return data::xxh3_128_hex(text.data(), std::ssize(text)); }

std::string choice_text(const comm::NcclChoice& choice) {
  return fmt::format("{}{} {} {}", name_of(choice.op),
                     choice.up_to_bytes < INT64_MAX ? " up to " + format_bytes(choice.up_to_bytes) : "",
                     comm::name_of(choice.algorithm), comm::name_of(choice.protocol));
}

}  // namespace

std::string nccl_table_name(const std::string& path) {
  return path.empty() ? "" : fmt::format("{} (xxh3 {})", path, table_hash(comm::NcclTable::read_text(path)));
}

std::vector<std::string> nccl_choices(const Job& job, const comm::NcclTable& table) {
  std::vector<std::string> lines;
  const comm::Wiring wiring = comm::wire_up(job);
  for (size_t i = 0; i < wiring.connections.size(); ++i) {
    if (wiring.connections[i] == Axis::hosts || job.mesh.group_size(wiring.connections[i]) == 1) continue;
    const std::string name = comm::name_of_connection(job, wiring, i);
    const comm::NcclChannel& channel = table.of(name);
    std::vector<std::string> settings;
    if (channel.min_ctas > 0) settings.push_back(fmt::format("at least {} blocks", channel.min_ctas));
    if (channel.max_ctas > 0) settings.push_back(fmt::format("at most {} blocks", channel.max_ctas));
    if (channel.cluster_size >= 0) settings.push_back(fmt::format("clusters of {}", channel.cluster_size));
    if (channel.traffic_class >= 0) settings.push_back(fmt::format("traffic class {}", channel.traffic_class));
    if (channel.policy != comm::NcclPolicy::unset) settings.push_back("policy " + name_of(channel.policy));
    for (const comm::NcclChoice& choice : channel.choices) settings.push_back(choice_text(choice));
    if (!settings.empty()) lines.push_back(fmt::format("{}: {}", name, fmt::join(settings, ", ")));
  }
  return lines;
}

}  // namespace slipstream::planner
