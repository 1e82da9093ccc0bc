// SPDX-License-Identifier: Apache-2.0
// Solves the graph, then derives spans, busy time and exposed time.

#include "comm/rehearse/rehearse.h"

#include <algorithm>
#include <string_view>
#include <utility>

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

/// Charges the idle time of one rank's compute stream to the tasks it waited for.
class ExposedTime {
 public:
  ExposedTime(const RankRuns& given, size_t channel_count, bool replayed, RankTimes& times)
      : given_(given), times_(times) {
    std::vector<Place> tails(channel_count), ended;
    for (uint32_t run = 0; run < given.runs.size(); ++run) {
      const Plan& plan = *given.runs[run];
      waits_.emplace_back(plan.size());
      if (replayed) ended = tails;
      std::vector<char> has_begun(channel_count, 0);
      for (ItemId id : plan.order) {
        Place& tail = tails[plan[id].channel];
        if (tail.is_set) waits_[run][id].push_back(tail);
        if (char& begun = has_begun[plan[id].channel]; !std::exchange(begun, 1))
          for (const Place& end : ended)
            if (end.is_set) waits_[run][id].push_back(end);
        for (const Point& point : plan[id].after) waits_[run][id].push_back({run, point.item, true});
        tail = {run, id, true};
      }
      if (run < given.seams.size())
        for (const SeamWait& wait : given.seams[run]) waits_[run][wait.to].push_back({wait.run, wait.from, true});
    }
  }

  void charge_all() {
    int64_t compute_end_ns = 0;
    for (uint32_t run = 0; run < given_.runs.size(); ++run)
      for (ItemId id : given_.runs[run]->order) {
        if ((*given_.runs[run])[id].channel != kComputeChannel) continue;
        charge({run, id, true}, compute_end_ns);
        compute_end_ns = times_.runs[run][id].end_ns;
      }
  }

 private:
  struct Place {
    uint32_t run = 0;
    ItemId item = 0;
    bool is_set = false;
  };

  const Span& span(Place at) const { return times_.runs[at.run][at.item]; }

  Place longest_wait(Place at) const {
    Place longest;
    for (Place wait : waits_[at.run][at.item])
      if (!longest.is_set || span(wait).end_ns > span(longest).end_ns) longest = wait;
    return longest;
  }

  bool is_wire(Place at) const { return is_communication((*given_.runs[at.run])[at.item].op); }

  void charge(Place waiting, int64_t idle_from_ns) {
    int64_t idle_to_ns = span(waiting).start_ns;
    Place awaited = longest_wait(waiting);
    while (idle_to_ns > idle_from_ns && awaited.is_set && span(awaited).end_ns > idle_from_ns) {
      const int64_t from_ns = std::max(idle_from_ns, span(awaited).start_ns);
      times_.exposed.push_back({waiting.run, waiting.item, awaited.item, idle_to_ns - from_ns});
      if (is_wire(awaited)) times_.exposed_ns += idle_to_ns - from_ns;
      idle_to_ns = from_ns;
      const Place before = longest_wait(awaited);
      if (is_wire(awaited) && before.is_set && span(before).end_ns < span(awaited).start_ns)
        break;  // it was ready, its peer was not
      awaited = before;
    }
    times_.bubble_ns += std::max<int64_t>(0, idle_to_ns - idle_from_ns);
  }

  const RankRuns& given_;
  RankTimes& times_;
  std::vector<std::vector<std::vector<Place>>> waits_;  // [run][item]
};

RankTimes times_of(const Graph& graph, const RankRuns& given, size_t rank_index, size_t channel_count, bool replayed) {
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
  ExposedTime(given, channel_count, replayed, times).charge_all();
  return times;
}

}  // namespace

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
  for (size_t r = 0; r < ranks.size(); ++r)
    rehearsal.ranks.push_back(times_of(graph, ranks[r], r, channels.size(), options.replayed));
  return rehearsal;
}

}  // namespace slipstream::comm
