// SPDX-License-Identifier: Apache-2.0
// Solves the graph, then reads spans, busy time and exposed time off it.

#include "comm/rehearse/rehearse.h"

#include <algorithm>
#include <string_view>

#include "comm/rehearse/graph.h"

namespace slipstream::comm {
namespace {

int64_t union_ns(std::vector<Span> spans) {
  std::sort(spans.begin(), spans.end(), [](const Span& a, const Span& b) { return a.start_ns < b.start_ns; });
  int64_t total = 0;
  int64_t covered_to = 0;
  for (const Span& span : spans) {
    total += std::max<int64_t>(0, span.end_ns - std::max(span.start_ns, covered_to));
    covered_to = std::max(covered_to, span.end_ns);
  }
  return total;
}

/// What `item` of `run` waited for longest: run and item of the latest end among its waits, if it has any.
struct Awaited {
  uint32_t run = 0;
  ItemId item = 0;
  int64_t end_ns = -1;
};

Awaited longest_wait(const RankRuns& given, const RankTimes& times, uint32_t run, ItemId id,
                     const std::vector<std::vector<SeamWait>>& seams_to) {
  Awaited longest;
  auto consider = [&](uint32_t from_run, ItemId from) {
    const int64_t end_ns = times.runs[from_run][from].end_ns;
    if (end_ns > longest.end_ns) longest = {from_run, from, end_ns};
  };
  for (const Point& point : (*given.runs[run])[id].after) consider(run, point.item);
  for (const SeamWait& wait : seams_to[id]) consider(wait.run, wait.from);
  return longest;
}

void add_exposed(const RankRuns& given, RankTimes& times) {
  int64_t compute_end_ns = 0;
  for (uint32_t run = 0; run < given.runs.size(); ++run) {
    const Plan& plan = *given.runs[run];
    std::vector<std::vector<SeamWait>> seams_to(plan.size());
    if (run < given.seams.size())
      for (const SeamWait& wait : given.seams[run]) seams_to[wait.to].push_back(wait);
    for (ItemId id : plan.order) {
      if (plan[id].channel != kComputeChannel) continue;
      const Span& span = times.runs[run][id];
      if (const int64_t idle_ns = span.start_ns - compute_end_ns; idle_ns > 0) {
        const Awaited awaited = longest_wait(given, times, run, id, seams_to);
        if (awaited.end_ns > compute_end_ns) {
          times.exposed.push_back({run, id, awaited.run, awaited.item, idle_ns});
          times.exposed_ns += idle_ns;
        }
      }
      compute_end_ns = span.end_ns;
    }
  }
}

RankTimes times_of(const Graph& graph, const RankRuns& given, size_t rank_index, size_t channel_count) {
  RankTimes times;
  times.rank = given.rank;
  std::vector<std::vector<Span>> by_channel(channel_count);
  std::vector<Span> communication;
  for (size_t run = 0; run < given.runs.size(); ++run) {
    const Plan& plan = *given.runs[run];
    std::vector<Span>& spans = times.runs.emplace_back(plan.size());
    for (ItemId id = 0; id < plan.size(); ++id) {
      const uint32_t node = graph.node(rank_index, run, id);
      spans[id] = {graph.time().start_ns(node), graph.time().end_ns(node)};
      by_channel[plan[id].channel].push_back(spans[id]);
      if (is_communication(plan[id].op)) communication.push_back(spans[id]);
    }
  }
  for (std::vector<Span>& spans : by_channel) times.busy_ns.push_back(union_ns(std::move(spans)));
  times.communication_ns = union_ns(std::move(communication));
  add_exposed(given, times);
  return times;
}

}  // namespace

const char* name_of(Gate gate) {
  switch (gate) {
    case Gate::none: return "independent";
    case Gate::launch_order: return "launch order";
    case Gate::serial: return "serial";
  }
  return "?";
}

std::string wire_name(const Channel& channel) {
  std::string_view name = channel.name;
  for (std::string_view suffix : {"_in", "_out"})
    if (name.ends_with(suffix)) return std::string(name.substr(0, name.size() - suffix.size()));
  return channel.name;
}

double RankTimes::hidden() const {
  return communication_ns == 0 ? 1.0
                               : 1.0 - static_cast<double>(exposed_ns) / static_cast<double>(communication_ns);
}

Rehearsal rehearse(const Mesh& mesh, const std::vector<Channel>& channels, std::span<const RankRuns> ranks,
                   const Price& price, const RehearseOptions& options) {
  Graph graph(mesh, channels, ranks, price, {.rehearse = options});
  Rehearsal rehearsal;
  rehearsal.finished = graph.solve();
  if (!rehearsal.finished) {
    rehearsal.deadlock = graph.why_stuck();
    return rehearsal;
  }
  rehearsal.makespan_ns = graph.time().makespan_ns();
  for (size_t r = 0; r < ranks.size(); ++r) rehearsal.ranks.push_back(times_of(graph, ranks[r], r, channels.size()));
  return rehearsal;
}

}  // namespace slipstream::comm
