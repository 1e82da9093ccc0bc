// SPDX-License-Identifier: Apache-2.0
// Replays two steps in the order of their dependencies, without the time that communication took.

#include "engine/report/critical_path.h"

#include <algorithm>
#include <array>
#include <optional>
#include <unordered_map>
#include <utility>

#include "engine/base/check.h"

namespace slipstream {
namespace {

bool is_communication(const Exposure& wait) { return wait.kind != ChannelKind::input; }

enum Phase : size_t { kPrevious, kStep, kNext, kPhases };

constexpr size_t kNone = SIZE_MAX;

/// An item of a rank, both as measured and on an infinitely fast network.
struct Node {
  int64_t begin_ns = 0, end_ns = 0;
  int64_t instant_begin_ns = 0, instant_end_ns = 0;
  int64_t ready_ns = INT64_MIN, instant_ready_ns = INT64_MIN;  // the latest end of an awaited item
  uint32_t awaited_count = 0;                                  // the awaited items that have not ended
  size_t rendezvous = kNone;                                   // the rendezvous of a task
};

struct Rendezvous {
  int64_t last_entry_ns = INT64_MIN, instant_entry_ns = INT64_MIN;
  uint32_t absent = 0;  // members that have not entered
  std::vector<size_t> members;
};

class Replay {
 public:
  explicit Replay(const std::vector<RankStep>& ranks) : ranks_(ranks), items_(ranks.size()), compute_(ranks.size()) {
    for (size_t r = 0; r < ranks.size(); ++r) add(r);
    run();
  }

  void split() {
    // A stage whose next step waits for another stage follows that stage.
    int64_t shorter_ns = INT64_MAX;
    for (size_t r = 0; r < ranks_.size(); ++r)
      if (const auto earlier_ns = next_earlier_ns(r))
        shorter_ns = std::min(shorter_ns, *earlier_ns - begins_earlier_ns(r));
    if (shorter_ns == INT64_MAX) shorter_ns = 0;
    for (size_t r = 0; r < ranks_.size(); ++r) charge(r, begins_earlier_ns(r) + std::max<int64_t>(shorter_ns, 0));
  }

 private:
  using Items = std::vector<size_t>;  // node or kNone, by item

  void add(size_t r) {
    const StepTimes& times = *ranks_[r].times;
    for (Items& items : items_[r]) items.assign(ranks_[r].plan->awaited.size(), kNone);
    std::unordered_map<uint32_t, size_t> last;  // by channel
    if (times.previous) {
      add_works(r, kPrevious, times.previous->works, last);
      add_tasks(r, kPrevious, times.previous->tasks, last);
    }
    add_works(r, kStep, times.works, last);
    add_tasks(r, kStep, times.tasks, last);
    add_tasks(r, kNext, times.after, last);
    for (size_t phase = kPrevious; phase < kPhases; ++phase)
      for (size_t item = 0; item < items_[r][phase].size(); ++item) {
        const size_t node = items_[r][phase][item];
        if (node == kNone) continue;
        for (uint32_t awaited : ranks_[r].plan->awaited[item]) await(node, items_[r][phase][awaited]);
        if (phase == kPrevious) continue;
        for (uint32_t awaited : ranks_[r].plan->awaited_before[item]) await(node, items_[r][phase - 1][awaited]);
      }
  }

  void add_works(size_t r, Phase phase, const std::vector<WorkTime>& works,
                 std::unordered_map<uint32_t, size_t>& last) {
    for (const WorkTime& work : works) {
      size_t& node = items_[r][phase][work.item];
      if (node == kNone) {
        node = nodes_.size();
        if (work.kind == ChannelKind::compute && phase == kStep) compute_[r].push_back(node);
        add_node(work.channel, work.begin_ns, work.end_ns, last);
      }
      nodes_[node].end_ns = work.end_ns;
      items_[r][phase][work.last_item] = node;
    }
  }

  void add_tasks(size_t r, Phase phase, const std::vector<TaskTime>& tasks,
                 std::unordered_map<uint32_t, size_t>& last) {
    for (const TaskTime& task : tasks) {
      const size_t node = items_[r][phase][task.item] = nodes_.size();
      add_node(task.channel, task.begin_ns, task.end_ns, last);
      const uint64_t id = ranks_[r].plan->rendezvous_ids[task.item];
      if (id == PlanGraph::kLocal) continue;
      const auto [found, is_new] = rendezvous_by_id_[phase].try_emplace(id, rendezvous_.size());
      if (is_new) rendezvous_.emplace_back();
      Rendezvous& rendezvous = rendezvous_[found->second];
      rendezvous.members.push_back(node);
      rendezvous.last_entry_ns = std::max(rendezvous.last_entry_ns, task.begin_ns);
      ++rendezvous.absent;
      nodes_[node].rendezvous = found->second;
    }
  }

  void add_node(uint32_t channel, int64_t begin_ns, int64_t end_ns, std::unordered_map<uint32_t, size_t>& last) {
    const auto [before, is_first] = last.try_emplace(channel, nodes_.size());
    if (!is_first) edges_.emplace_back(std::exchange(before->second, nodes_.size()), nodes_.size());
    nodes_.push_back(
        Node{.begin_ns = begin_ns, .end_ns = end_ns, .instant_begin_ns = begin_ns, .instant_end_ns = end_ns});
  }

  void await(size_t node, size_t awaited) {
    if (awaited != kNone && awaited != node) edges_.emplace_back(awaited, node);
  }

  void run() {
    std::vector<size_t> first(nodes_.size() + 1, 0);  // the first edge of each node, once the edges are sorted
    for (const auto& [from, to] : edges_) ++first[from + 1], ++nodes_[to].awaited_count;
    for (size_t i = 0; i < nodes_.size(); ++i) first[i + 1] += first[i];
    std::vector<size_t> waiting(edges_.size()), filled = first, ready;
    for (const auto& [from, to] : edges_) waiting[filled[from]++] = to;
    for (size_t i = 0; i < nodes_.size(); ++i)
      if (nodes_[i].awaited_count == 0) ready.push_back(i);
    const auto end = [&](size_t i, int64_t instant_end_ns) {
      nodes_[i].instant_end_ns = std::min(nodes_[i].end_ns, instant_end_ns);
      for (size_t e = first[i]; e < first[i + 1]; ++e) {
        Node& next = nodes_[waiting[e]];
        next.ready_ns = std::max(next.ready_ns, nodes_[i].end_ns);
        next.instant_ready_ns = std::max(next.instant_ready_ns, nodes_[i].instant_end_ns);
        if (--next.awaited_count == 0) ready.push_back(waiting[e]);
      }
    };
    while (!ready.empty()) {
      const size_t i = ready.back();
      ready.pop_back();
      Node& node = nodes_[i];
      node.instant_begin_ns = instant_ns(node.begin_ns, node.ready_ns, node.instant_ready_ns);
      if (node.rendezvous == kNone) {
        end(i, node.instant_begin_ns + node.end_ns - node.begin_ns);
        continue;
      }
      Rendezvous& rendezvous = rendezvous_[node.rendezvous];
      rendezvous.instant_entry_ns = std::max(rendezvous.instant_entry_ns, node.instant_begin_ns);
      if (--rendezvous.absent > 0) continue;
      for (size_t member : rendezvous.members) end(member, rendezvous.instant_entry_ns);
    }
  }

  /// Returns when an item begins on an infinitely fast network if it began at `begin_ns` although it was ready at
  /// `ready_ns`.
  static int64_t instant_ns(int64_t begin_ns, int64_t ready_ns, int64_t instant_ready_ns) {
    if (ready_ns == INT64_MIN) return begin_ns;
    return std::min(begin_ns, instant_ready_ns + std::max<int64_t>(begin_ns - ready_ns, 0));
  }

  int64_t earlier_ns(size_t node) const { return nodes_[node].begin_ns - nodes_[node].instant_begin_ns; }
  int64_t begins_earlier_ns(size_t r) const { return earlier_ns(compute_[r].front()); }

  /// Returns how much earlier the next step begins, or this one ends, or none if it waits for another stage's next
  /// step.
  std::optional<int64_t> next_earlier_ns(size_t r) const {
    const StepTimes& times = *ranks_[r].times;
    const size_t last = compute_[r].back();
    if (!times.next_begins) return nodes_[last].end_ns - nodes_[last].instant_end_ns;
    int64_t ready_ns = nodes_[last].end_ns, instant_ready_ns = nodes_[last].instant_end_ns;
    for (const Exposure& wait : times.exposures) {
      if (wait.begin_ns < nodes_[last].end_ns || !is_communication(wait)) continue;
      const auto [task, phase] = task_of(r, wait);
      if (wait.kind == ChannelKind::stages && phase != kStep) return std::nullopt;
      if (task == kNone) continue;
      ready_ns = std::max(ready_ns, nodes_[task].end_ns);
      instant_ready_ns = std::max(instant_ready_ns, nodes_[task].instant_end_ns);
    }
    const int64_t next_ns = times.begin_ns + times.step_ns;
    return next_ns - instant_ns(next_ns, ready_ns, instant_ready_ns);
  }

  /// Returns the task that a wait at the end of the step was for, and the step to which the task belongs.
  std::pair<size_t, Phase> task_of(size_t r, const Exposure& wait) const {
    for (Phase phase : {kStep, kNext})
      if (const size_t task = items_[r][phase][static_cast<uint32_t>(wait.awaited)]; task != kNone)
        if (nodes_[task].begin_ns < wait.end_ns && nodes_[task].end_ns > wait.begin_ns) return {task, phase};
    return {kNone, kNext};
  }

  /// Charges the time by which the gap before a work, or before the next step, became shorter to the waits in that gap,
  /// the latest first.
  void charge(size_t r, int64_t next_earlier_ns) {
    StepTimes& times = *ranks_[r].times;
    std::vector<int64_t> last_entries;
    for (const TaskTime& task : times.tasks) {
      const size_t rendezvous = nodes_[items_[r][kStep][task.item]].rendezvous;
      last_entries.push_back(rendezvous == kNone ? task.begin_ns : rendezvous_[rendezvous].last_entry_ns);
    }
    apply_last_entries(times, last_entries);
    std::vector<int64_t> removed(times.exposures.size(), 0);
    size_t next = removed.size();
    int64_t later_ns = next_earlier_ns, all_ns = 0;
    for (size_t i = compute_[r].size(); i-- > 0;) {
      int64_t lost_ns = later_ns - earlier_ns(compute_[r][i]);
      later_ns = earlier_ns(compute_[r][i]);
      while (next > 0 && times.exposures[next - 1].begin_ns >= nodes_[compute_[r][i]].end_ns) {
        const Exposure& wait = times.exposures[--next];
        if (!is_communication(wait)) continue;
        removed[next] = std::clamp<int64_t>(lost_ns, 0, wait.end_ns - wait.begin_ns);
        lost_ns -= removed[next];
        all_ns += removed[next];
      }
    }
    const int64_t waited_ns = times.exposed_ns + times.bubble_ns;
    times.exposed_ns = std::clamp<int64_t>(next_earlier_ns - begins_earlier_ns(r), 0, std::min(waited_ns, all_ns));
    times.bubble_ns = waited_ns - times.exposed_ns;
    removed = shrunk_to(std::move(removed), times.exposed_ns);
    for (size_t i = 0; i < removed.size(); ++i)
      if (Exposure& wait = times.exposures[i]; is_communication(wait))
        wait.bubble_ns = wait.end_ns - wait.begin_ns - removed[i];
  }

  const std::vector<RankStep>& ranks_;
  std::vector<Node> nodes_;
  std::vector<std::pair<size_t, size_t>> edges_;  // the first node must end before the second one begins
  std::vector<Rendezvous> rendezvous_;
  std::unordered_map<uint64_t, size_t> rendezvous_by_id_[kPhases];
  std::vector<std::array<Items, kPhases>> items_;  // by rank
  std::vector<std::vector<size_t>> compute_;       // by rank, in time order
};

}  // namespace

std::vector<WorkTime> joined_works(const std::vector<WorkTime>& works, const PlanGraph& plan) {
  /// For or by items of other channels.
  std::vector<char> waits(plan.channels.size(), 0), is_awaited(plan.channels.size(), 0);
  for (const auto* lists : {&plan.awaited, &plan.awaited_before})
    for (size_t item = 0; item < lists->size(); ++item)
      for (uint32_t awaited : (*lists)[item])
        if (plan.channels[item] != plan.channels[awaited]) waits[item] = is_awaited[awaited] = 1;
  std::vector<WorkTime> joined;
  for (const WorkTime& work : works)
    if (!joined.empty() && joined.back().channel == work.channel &&
        work.begin_ns - joined.back().end_ns < kAdjacentNs &&
        (joined.back().last_item == work.item || (!is_awaited[joined.back().last_item] && !waits[work.item])))
      joined.back().end_ns = work.end_ns, joined.back().last_item = work.last_item;
    else
      joined.push_back(work);
  return joined;
}

void split_waits(const std::vector<RankStep>& ranks) { Replay(ranks).split(); }

}  // namespace slipstream
