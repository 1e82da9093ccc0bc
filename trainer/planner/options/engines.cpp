// SPDX-License-Identifier: Apache-2.0
// Completes comm.nccl channel by channel, and rehearses the step to find the products beside transfers.

#include "trainer/planner/options/engines.h"

#include <algorithm>
#include <set>

#include <fmt/core.h>

#include "comm/nccl/card_table.h"
#include "comm/nccl/nccl_memory.h"
#include "engine/base/plural.h"

namespace slipstream::planner {
namespace {

comm::CardLink link_of(const Mesh& mesh, Axis axis, int64_t ranks_per_node) {
  if (!mesh.crosses_nodes(axis, ranks_per_node)) return comm::CardLink::node;
  const std::vector<int> group = mesh.group(axis, 0);
  std::set<int64_t> nodes;
  for (int rank : group) nodes.insert(rank / ranks_per_node);
  return nodes.size() == group.size() ? comm::CardLink::network : comm::CardLink::both;
}

/// Returns true for roles that only move whole parts between ranks, as copy engines do. Copy engines add nothing, and
/// NCCL does not use them for sends.
bool only_gathers(Role role) { return role == Role::gather || role == Role::tensor_gather; }

ChannelEngine emulated(const Emulate& link) {
  switch (link.form) {
    case EmulateForm::gate:
      return {.why = "comm.emulate.form = \"gate\""};
    case EmulateForm::copies:
      return {.engine = Engine::copy, .why = "comm.emulate.form = \"copies\""};
    case EmulateForm::blocks:
      return {.engine = Engine::sm, .blocks = static_cast<int>(link.blocks), .why = "comm.emulate.form = \"blocks\""};
  }
  return {};
}

/// Returns the remark on a channel whose group can hang with copy engines; empty without such a risk.
std::string hang_of_copies(int version, const comm::CardGroup& group) {
  if (!group.gathers || !comm::copies_may_hang(version, group.ranks)) return "";
  return fmt::format("copies between two ranks can hang in NCCL {}.{}.{}, fixed in 2.31.2", version / 10000,
                     version / 100 % 100, version % 100);
}

ChannelEngine through_nccl(const comm::NcclChannel& written, const comm::NcclChannel& channel,
                           const comm::CardGroup& group, int version) {
  const comm::CardShare* const share = comm::card_share(group.card, group.link);
  const bool has_row = share != nullptr;
  const std::string row = fmt::format("{}, {}", name_of(group.card), name_of(group.link));
  const std::string hang = hang_of_copies(version, group);
  if (channel.policy == comm::NcclPolicy::zero && group.gathers && group.link == comm::CardLink::node &&
      (version == 0 || version >= comm::kNcclWithPolicies))
    return {.engine = Engine::copy,
            .why = written.policy != channel.policy ? row
                   : hang.empty()                   ? "comm.nccl"
                                                    : "comm.nccl; " + hang};
  const int64_t blocks = comm::nccl_blocks(channel);
  return {.engine = Engine::sm,
          .blocks = static_cast<int>(blocks),
          .cluster_size = channel.cluster_size,
          .why = blocks != channel.max_ctas ? "NCCL_MAX_CTAS or NCCL_MAX_NCHANNELS"
                 : written.max_ctas > 0     ? "comm.nccl"
                 : has_row                  ? row + (share->copies_gathers && !hang.empty() ? "; " + hang : "")
                                            : "NCCL's choice: the table of GPU models has no row for " + row};
}

/// Returns the choice for NCCL's kernels in other software: its own number of blocks, and few for messages between
/// stages.
ChannelEngine of_software(const Software& software, Axis axis) {
  constexpr int kMessageBlocks = 4;
  const int blocks = static_cast<int>(software.comm_multiprocessors);
  return {.engine = blocks > 0 ? Engine::sm : Engine::nic,
          .blocks = axis == Axis::pipeline ? std::min(blocks, kMessageBlocks) : blocks,
          .why = "--as " + software.name};
}

/// Adds the time that the spans, which follow each other, share with each of `transfers`, which also follow each other.
void add_shared(const std::vector<comm::Span>& spans, const std::vector<comm::Span>& transfers,
                std::vector<int64_t>& shared_ns) {
  size_t first = 0;
  for (size_t i = 0; i < spans.size(); ++i) {
    while (first < transfers.size() && transfers[first].end_ns <= spans[i].start_ns) ++first;
    for (size_t t = first; t < transfers.size() && transfers[t].start_ns < spans[i].end_ns; ++t)
      shared_ns[i] +=
          std::min(transfers[t].end_ns, spans[i].end_ns) - std::max(transfers[t].start_ns, spans[i].start_ns);
  }
}

}  // namespace

Engines choose_engines(const JobRequest& request, const Mesh& mesh, const std::vector<Channel>& channels) {
  Engines engines;
  if (!request.config.on_gpus()) return engines;
  const Emulate& emulate = request.config->comm.emulate;
  for (ChannelId c = 0; c < channels.size(); ++c) {
    const Axis axis = channels[c].axis;
    if (axis == Axis::self || axis == Axis::hosts || mesh.group_size(axis) == 1) continue;
    const std::string& name = channels[c].name;
    const comm::CardGroup group{.card = request.machine.card,
                                .link = link_of(mesh, axis, request.machine.ranks_per_node),
                                .ranks = mesh.group_size(axis),
                                .gathers = only_gathers(channels[c].role)};
    const comm::NcclChannel& written = request.nccl.of(name);
    const comm::NcclChannel channel = comm::completed(written, group, request.nccl_version);
    engines.nccl.set(name, channel);
    ChannelEngine chosen = emulate.bandwidth_bytes_per_second > 0
                               ? emulated(emulate)
                               : through_nccl(written, channel, group, request.nccl_version);
    if (request.machine.software.comm_multiprocessors >= 0) chosen = of_software(request.machine.software, axis);
    chosen.channel = c;
    chosen.name = name;
    engines.channels.push_back(std::move(chosen));
  }
  return engines;
}

void set_engines(const Engines& engines, Job& job) {
  for (const ChannelEngine& chosen : engines.channels) {
    job.channels[chosen.channel].engine = chosen.engine;
    job.channels[chosen.channel].blocks = chosen.blocks;
  }
}

bool Engines::occupy_multiprocessors() const {
  return std::any_of(channels.begin(), channels.end(), [](const ChannelEngine& chosen) { return chosen.blocks > 0; });
}

void plan_products(const std::vector<std::shared_ptr<Job>>& stages, const comm::Rehearsal& rehearsal,
                   int64_t multiprocessors, Engines& engines) {
  const std::vector<Channel>& channels = stages[0]->channels;
  for (size_t s = 0; s < stages.size(); ++s) {
    Job& job = *stages[s];
    const Plan& plan = job.train();
    // The middle step also has the transfers that the previous step leaves to it.
    const std::vector<comm::Span>& step = rehearsal.ranks[s].runs[1];
    const std::vector<comm::Span> spine(step.begin(), step.begin() + std::ssize(plan.spine));
    for (ChannelId c = 0; c < channels.size(); ++c) {
      if (channels[c].engine != Engine::sm || channels[c].blocks == 0) continue;
      std::vector<comm::Span> transfers;
      for (const std::vector<comm::Span>& run : rehearsal.ranks[s].runs)
        for (ItemId id : plan.order)
          if (plan[id].channel == c && is_communication(plan[id].op)) transfers.push_back(run[id]);
      std::vector<int64_t> shared_ns(spine.size(), 0);
      add_shared(spine, transfers, shared_ns);
      const int64_t left = std::max<int64_t>(1, multiprocessors - channels[c].blocks);
      for (size_t i = 0; i < spine.size(); ++i) {
        auto& planned = job.train().spine[i].multiprocessors;
        if (4 * shared_ns[i] < spine[i].duration_ns()) continue;
        if (planned == 0 || left < planned) planned = static_cast<int32_t>(left);
      }
    }
    for (size_t i = 0; i < plan.spine.size(); ++i) {
      const int32_t planned = plan.spine[i].multiprocessors;
      for (PlanRow& row : job.plans)
        if (row.kind == PlanKind::train) row.plan.spine[i].multiprocessors = planned;
      if (planned == 0) continue;
      ++engines.products_planned;
      engines.products = engines.products == 0 ? planned : std::min<int64_t>(engines.products, planned);
    }
  }
}

Json engines_json(const Engines& engines) {
  Json json = Json::object();
  for (const ChannelEngine& chosen : engines.channels) {
    Json& row = json[chosen.name];
    row["engine"] = name_of(chosen.engine);
    if (chosen.blocks > 0) row["blocks"] = chosen.blocks;
    if (chosen.cluster_size >= 0) row["cluster_size"] = chosen.cluster_size;
    row["why"] = chosen.why;
  }
  if (engines.products > 0) {
    json["products"]["spine_items"] = engines.products_planned;
    json["products"]["multiprocessors"] = engines.products;
  }
  return json;
}

std::vector<std::string> engine_lines(const Engines& engines, const Machine& machine) {
  std::vector<std::string> lines;
  for (const ChannelEngine& chosen : engines.channels)
    lines.push_back(fmt::format("{}: {}{}{} ({})", chosen.name, name_of(chosen.engine),
                                chosen.blocks > 0 ? fmt::format(", at most {}", counted(chosen.blocks, "block")) : "",
                                chosen.cluster_size > 0 ? fmt::format(" in clusters of {}", chosen.cluster_size) : "",
                                chosen.why));
  if (engines.products > 0)
    lines.push_back(fmt::format("products in {} beside transfers: planned for {} of {} multiprocessors",
                                counted(engines.products_planned, "spine item"), engines.products,
                                machine.multiprocessors));
  return lines;
}

}  // namespace slipstream::planner
