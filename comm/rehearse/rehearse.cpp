// SPDX-License-Identifier: Apache-2.0
// Solves the graph with the given links and with infinitely fast ones, then derives spans, busy time and idle time.

#include "comm/rehearse/rehearse.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "comm/rehearse/graph.h"
#include "engine/base/check.h"
#include "engine/base/parallel.h"
#include "engine/report/overlap.h"

namespace slipstream::comm {

const char* name_of(Gate gate) {
  switch (gate) {
    case Gate::none:
      return "independent";
    case Gate::launch_order:
      return "launch order";
    case Gate::serial:
      return "serial";
  }
  return "?";
}
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

using Runs = std::vector<std::vector<Span>>;  // [run][item]

/// Idle time before a compute item, by the task that it waited for.
struct Gap {
  uint32_t run = 0;
  ItemId item = 0;
  int64_t idle_ns = 0;
  std::vector<std::pair<ItemId, int64_t>> local, wire;  // in the order from the item back
  ItemId nearest_wire = 0;  // the nearest one on the way back from the item, however early it ended
  bool has_wire = false;
};

/// Derives the gaps of one rank's compute stream from its spans.
class Gaps {
 public:
  Gaps(const RankRuns& given, size_t channel_count, bool replayed) : given_(given) {
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

  /// Returns one gap for every compute item, in order. Pure.
  std::vector<Gap> of(const Runs& spans) const {
    std::vector<Gap> gaps;
    int64_t compute_end_ns = 0;
    for (uint32_t run = 0; run < given_.runs.size(); ++run)
      for (ItemId id : given_.runs[run]->order) {
        if ((*given_.runs[run])[id].channel != kComputeChannel) continue;
        gaps.push_back(before(spans, {run, id, true}, compute_end_ns));
        compute_end_ns = spans[run][id].end_ns;
      }
    return gaps;
  }

 private:
  struct Place {
    uint32_t run = 0;
    ItemId item = 0;
    bool is_set = false;
  };

  static const Span& span(const Runs& spans, Place at) { return spans[at.run][at.item]; }

  Place longest_wait(const Runs& spans, Place at) const {
    Place longest;
    for (Place wait : waits_[at.run][at.item])
      if (!longest.is_set || span(spans, wait).end_ns > span(spans, longest).end_ns) longest = wait;
    return longest;
  }

  bool is_wire(Place at) const { return is_communication((*given_.runs[at.run])[at.item].op); }

  Gap before(const Runs& spans, Place waiting, int64_t idle_from_ns) const {
    int64_t idle_to_ns = span(spans, waiting).start_ns;
    Gap gap{.run = waiting.run, .item = waiting.item, .idle_ns = idle_to_ns - idle_from_ns};
    if (gap.idle_ns == 0) return gap;
    Place awaited = longest_wait(spans, waiting);
    while (idle_to_ns > idle_from_ns && awaited.is_set && span(spans, awaited).end_ns > idle_from_ns) {
      const Place earlier = longest_wait(spans, awaited);
      int64_t from_ns = std::max(idle_from_ns, span(spans, awaited).start_ns);
      // The item was ready before it started, so its peer was late for reasons that lie on other ranks.
      if (is_wire(awaited) && (!earlier.is_set || span(spans, earlier).end_ns < span(spans, awaited).start_ns))
        from_ns = idle_from_ns;
      (is_wire(awaited) ? gap.wire : gap.local).push_back({awaited.item, idle_to_ns - from_ns});
      idle_to_ns = from_ns;
      if (is_wire(awaited) && !gap.has_wire) gap.nearest_wire = awaited.item, gap.has_wire = true;
      awaited = earlier;
    }
    for (; !gap.has_wire && awaited.is_set; awaited = longest_wait(spans, awaited))
      if (is_wire(awaited)) gap.nearest_wire = awaited.item, gap.has_wire = true;
    return gap;
  }

  const RankRuns& given_;
  std::vector<std::vector<std::vector<Place>>> waits_;  // [run][item]
};

/// Divides the idle time of a rank: the part that the same plan does not have on an infinitely fast network is exposed.
void split_idle(const std::vector<Gap>& gaps, const std::vector<Gap>& instant, RankTimes& times) {
  std::vector<int64_t> removed;
  int64_t removed_ns = 0;
  for (size_t i = 0; i < gaps.size(); ++i) {
    removed.push_back(gaps[i].idle_ns - instant[i].idle_ns);
    removed_ns += removed.back();
    times.bubble_ns += instant[i].idle_ns;
  }
  times.exposed_ns = std::max<int64_t>(removed_ns, 0);
  removed = shrunk_to(std::move(removed), times.exposed_ns);
  for (size_t i = 0; i < gaps.size(); ++i) {
    const auto charge = [&](ItemId awaited, int64_t ns) {
      if (ns > 0) times.exposed.push_back({gaps[i].run, gaps[i].item, awaited, ns});
    };
    for (const auto& [awaited, ns] : instant[i].local) {
      charge(awaited, ns);
      times.bubble_ns -= ns;
    }
    for (const auto& [awaited, ns] : gaps[i].wire) {
      charge(awaited, std::min(ns, removed[i]));
      removed[i] -= std::min(ns, removed[i]);
    }
    if (gaps[i].has_wire) charge(gaps[i].nearest_wire, removed[i]);
  }
}

/// The start and end of every item of a rank.
Runs spans_of(const Graph& graph, const RankRuns& given, size_t rank_index) {
  Runs runs;
  for (size_t run = 0; run < given.runs.size(); ++run) {
    std::vector<Span>& spans = runs.emplace_back(given.runs[run]->size());
    for (ItemId id = 0; id < spans.size(); ++id) {
      const uint32_t node = graph.node(rank_index, run, id);
      spans[id] = {graph.time().start_ns(node), graph.time().end_ns(node)};
    }
  }
  return runs;
}

/// All times of a rank, except those of split_idle().
RankTimes times_of(const Graph& graph, const RankRuns& given, size_t rank_index, size_t channel_count) {
  RankTimes times;
  times.rank = given.rank;
  times.runs = spans_of(graph, given, rank_index);
  std::vector<std::vector<Span>> by_channel(channel_count);
  std::vector<Span> communication;
  for (size_t run = 0; run < given.runs.size(); ++run) {
    const Plan& plan = *given.runs[run];
    for (ItemId id = 0; id < plan.size(); ++id) {
      by_channel[plan[id].channel].push_back(times.runs[run][id]);
      if (is_communication(plan[id].op)) communication.push_back(times.runs[run][id]);
    }
  }
  for (std::vector<Span>& spans : by_channel) times.busy_ns.push_back(union_ns(std::move(spans)));
  times.communication_ns = union_ns(std::move(communication));
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
  rehearsal.ranks.resize(ranks.size());
  const int threads = threads_for(ranks.size());
  for_each_index(ranks.size(), threads,
                 [&](size_t r) { rehearsal.ranks[r] = times_of(graph, ranks[r], r, channels.size()); });
  if (!options.splits_idle) return rehearsal;
  Graph instant(mesh, channels, ranks, price, {.rehearse = options, .instant = true});
  SLIP_ASSERT(instant.solve());
  for_each_index(ranks.size(), threads, [&](size_t r) {
    RankTimes& times = rehearsal.ranks[r];
    const Gaps gaps(ranks[r], channels.size(), options.replayed);
    split_idle(gaps.of(times.runs), gaps.of(spans_of(instant, ranks[r], r)), times);
  });
  return rehearsal;
}

int64_t rehearsed_period_ns(const Mesh& mesh, const std::vector<Channel>& channels, std::span<const RankRuns> ranks,
                            const Price& price, const RehearseOptions& options, size_t run) {
  Graph graph(mesh, channels, ranks, price, {.rehearse = options});
  const uint32_t end = graph.node(0, run + 1, 0);
  if (!graph.solve_until_start_of(end)) return -1;
  return graph.time().start_ns(end) - graph.time().start_ns(graph.node(0, run, 0));
}

}  // namespace slipstream::comm
