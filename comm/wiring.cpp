// SPDX-License-Identifier: Apache-2.0
// Assigns connections to the pairs of neighbours of every wire, as colours.

#include "comm/wiring.h"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <set>
#include <span>
#include <string>

#include <fmt/core.h>

#include "comm/rehearse/rehearse.h"
#include "comm/rehearse/seams.h"

namespace slipstream::comm {
namespace {

/// The offset to the peer of this rank's tasks on a channel, or 0 if it has none.
int peer_of(const Job& job, ChannelId channel) {
  for (const PlanRow& row : job.plans)
    for (const Task& task : row.plan.tasks)
      if (task.channel == channel && (task.op == Op::send || task.op == Op::recv)) return task.peer;
  return 0;
}

/// Adds the channels, rendezvous and own waits of a plan, whose items begin at `first`.
void add_plan(const Job& job, const Plan& plan, uint32_t first, PlanGraph& graph) {
  const size_t size = std::max(graph.channels.size(), first + plan.size());
  graph.channels.resize(size);
  graph.rendezvous_ids.resize(size, PlanGraph::kLocal);
  graph.awaited.resize(size);
  graph.awaited_before.resize(size);
  std::map<std::string, uint64_t> counts;
  for (ItemId id : plan.order) {
    graph.channels[first + id] = plan[id].channel;
    for (const Point& point : plan[id].after) graph.awaited[first + id].push_back(first + point.item);
    if (plan.is_spine(id) || !is_communication(plan[id].op)) continue;
    const Task& task = plan.task(id);
    const Channel& channel = job.channels[task.channel];
    const std::vector<int> group = job.mesh.group(channel.axis, job.options.rank);
    // The line has the plan, the group or pair, and then a sequence number within it.
    std::string line =
        fmt::format("{} {} {} {}", plan.kind, name_of(wire_of(channel.role)), name_of(channel.axis), group[0]);
    if (task.op == Op::send || task.op == Op::recv) {
      const auto n = static_cast<int>(group.size());
      const int own = job.mesh.index_in_group(channel.axis, job.options.rank), other = ((own + task.peer) % n + n) % n;
      line += task.op == Op::send ? fmt::format(" {} {}", own, other) : fmt::format(" {} {}", other, own);
    }
    graph.rendezvous_ids[first + id] = std::hash<std::string>{}(fmt::format("{} {}", line, counts[line]++));
  }
}

}  // namespace

Wiring wire_up(const Job& job) {
  Wiring wiring{.connections = {}, .connection_of = std::vector<int>(job.channels.size(), -1)};
  std::map<std::pair<Role, Axis>, int> first_of_wire;
  for (ChannelId c = 0; c < job.channels.size(); ++c) {
    const Channel& channel = job.channels[c];
    if (channel.axis == Axis::self) continue;
    const int size = job.mesh.group_size(channel.axis);
    const bool one_way = is_one_way(channel.role);
    const auto [found, is_new] =
        first_of_wire.try_emplace({wire_of(channel.role), channel.axis}, static_cast<int>(wiring.connections.size()));
    if (is_new) wiring.connections.insert(wiring.connections.end(), !one_way ? 1 : size % 2 == 1 ? 3 : 2, channel.axis);
    if (!one_way) {
      wiring.connection_of[c] = found->second;
      continue;
    }
    const int peer = peer_of(job, c);
    if (peer == 0) continue;
    const int index = job.mesh.index_in_group(channel.axis, job.options.rank);
    const int hop = peer > 0 ? index : (index + size - 1) % size;  // the pair (hop, hop + 1)
    wiring.connection_of[c] = found->second + (size % 2 == 1 && hop + 1 == size ? 2 : hop % 2);
  }
  return wiring;
}

std::string name_of_connection(const Job& job, const Wiring& wiring, size_t connection) {
  const auto user = std::find(wiring.connection_of.begin(), wiring.connection_of.end(), static_cast<int>(connection));
  return user == wiring.connection_of.end()
             ? "unused"
             : job.channels[static_cast<size_t>(user - wiring.connection_of.begin())].name;
}

std::string group_of(const Job& job, ChannelId channel) {
  const Role wire = wire_of(job.channels[channel].role);
  const std::vector<int> group = job.mesh.group(job.channels[channel].axis, job.options.rank);
  const int peer = is_one_way(job.channels[channel].role) ? peer_of(job, channel) : 0;
  if (peer == 0) return fmt::format("{} {}", name_of(wire), group[0]);
  const auto n = static_cast<int>(group.size());
  const int own = job.mesh.index_in_group(job.channels[channel].axis, job.options.rank),
            other = ((own + peer) % n + n) % n;
  const bool leaves = job.channels[channel].role == wire;
  return fmt::format("{} {} to {}", name_of(wire), group[static_cast<size_t>(leaves ? own : other)],
                     group[static_cast<size_t>(leaves ? other : own)]);
}

PlanGraph graph_of(const Job& job) {
  PlanGraph graph;
  const Calendar calendar = job.calendar();
  int64_t period = 1;
  for (const PlanRow& row : job.plans) period = std::lcm(period, row.cadence.every);
  std::set<std::vector<PlanKind>> seen;  // plans of one kind have the same waits
  for (int64_t n = 1; n <= period; ++n) {
    std::vector<const Plan*> runs;
    std::vector<PlanKind> kinds;
    size_t before = 0;
    for (int64_t step : {n - 1, n}) {
      before = runs.size();
      for (size_t row : calendar.step(step, [](size_t) { return false; })) {
        runs.push_back(&job.plans[row].plan);
        kinds.push_back(job.plans[row].kind);
      }
    }
    if (!seen.insert(kinds).second) continue;
    for (size_t run = before; run < runs.size(); ++run) {
      const uint32_t first = job.first_item(kinds[run]);
      add_plan(job, *runs[run], first, graph);
      for (const SeamWait& wait : link(std::span(runs).first(run), *runs[run], job.channels))
        (wait.run < before ? graph.awaited_before : graph.awaited)[first + wait.to].push_back(
            job.first_item(kinds[wait.run]) + wait.from);
    }
  }
  for (auto* lists : {&graph.awaited, &graph.awaited_before})
    for (std::vector<uint32_t>& list : *lists) {
      std::sort(list.begin(), list.end());
      list.erase(std::unique(list.begin(), list.end()), list.end());
    }
  return graph;
}

}  // namespace slipstream::comm
