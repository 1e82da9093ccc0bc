// SPDX-License-Identifier: Apache-2.0
// Replays a step without the time that its communication took.

#include "engine/report/critical_path.h"

#include <algorithm>
#include <optional>
#include <unordered_map>

namespace slipstream {
namespace {

bool is_communication(const Exposure& wait) { return wait.kind != ChannelKind::input; }

/// An item of a rank, as measured and on an infinitely fast network.
struct Node {
  int64_t begin_ns = 0, end_ns = 0;
  int64_t instant_begin_ns = 0, instant_end_ns = 0;
  bool is_task = false;
  bool is_of_step = true;  // false: communication of the step before or after
  uint64_t rendezvous = 0;
  std::vector<size_t> awaited;

  int64_t earlier_ns() const { return begin_ns - instant_begin_ns; }
};

class Replay {
 public:
  explicit Replay(const std::vector<RankStep>& ranks) : ranks_(ranks) {
    for (const RankStep& rank : ranks) add(rank);
    run();
  }

  void split() {
    // The period of all ranks is that of the rank that an infinitely fast network helps least. A stage whose next step
    // waits for another stage follows that one.
    int64_t step_ns = INT64_MAX;
    for (size_t r = 0; r < ranks_.size(); ++r)
      if (const auto earlier_ns = next_earlier_ns(r)) step_ns = std::min(step_ns, *earlier_ns - begins_earlier_ns(r));
    if (step_ns == INT64_MAX) step_ns = 0;
    for (size_t r = 0; r < ranks_.size(); ++r) charge(r, begins_earlier_ns(r) + std::max<int64_t>(step_ns, 0));
  }

 private:
  /// The task that a wait was for; SIZE_MAX if its times are unknown.
  size_t task_of(size_t r, const Exposure& wait) const {
    for (const auto& [item, i] : tasks_[r])
      if (item == static_cast<uint32_t>(wait.awaited) && nodes_[i].begin_ns < wait.end_ns &&
          nodes_[i].end_ns > wait.begin_ns)
        return i;
    return SIZE_MAX;
  }

  /// `salt` differs between the step before, the step and the step after.
  void add_task(const TaskTime& task, uint64_t rendezvous, uint64_t salt) {
    tasks_.back().emplace_back(task.item, nodes_.size());
    nodes_.push_back({.begin_ns = task.begin_ns,
                      .end_ns = task.end_ns,
                      .is_task = true,
                      .is_of_step = salt == 0,
                      .rendezvous = rendezvous ^ salt * 0x9e3779b97f4a7c15u});
    int64_t& last_entry = last_entries_.try_emplace(nodes_.back().rendezvous, task.begin_ns).first->second;
    last_entry = std::max(last_entry, task.begin_ns);
  }

  void add(const RankStep& rank) {
    auto& items = items_.emplace_back();
    auto& compute = compute_.emplace_back();
    const size_t r = items_.size() - 1, first = nodes_.size();
    uint32_t channel = UINT32_MAX;
    for (const WorkTime& work : rank.times->works) {
      const auto [found, is_new] = items.try_emplace(work.item, nodes_.size());
      if (!is_new) {
        nodes_[found->second].end_ns = work.end_ns;
        continue;
      }
      nodes_.push_back({.begin_ns = work.begin_ns, .end_ns = work.end_ns});
      if (work.channel == channel) nodes_.back().awaited.push_back(nodes_.size() - 2);
      if (work.kind == ChannelKind::compute) compute.push_back(nodes_.size() - 1);
      channel = work.channel;
    }
    channel = UINT32_MAX;
    tasks_.emplace_back();
    for (const TaskTime& task : rank.times->tasks) {
      items[task.item] = nodes_.size();
      add_task(task, (*rank.rendezvous_ids)[task.item], 0);
      if (task.channel == channel) nodes_.back().awaited.push_back(nodes_.size() - 2);
      channel = task.channel;
    }
    const size_t end = nodes_.size();
    for (uint64_t salt : {1u, 2u})
      for (const TaskTime& task : salt == 1 ? rank.times->before : rank.times->after) {
        add_task(task, (*rank.rendezvous_ids)[task.item], salt);
        // What it awaited is not known: it keeps its distance to what ended last before it.
        size_t last = SIZE_MAX;
        for (size_t i = first; i < end; ++i)
          if (nodes_[i].end_ns <= task.begin_ns && (last == SIZE_MAX || nodes_[i].end_ns > nodes_[last].end_ns))
            last = i;
        if (last != SIZE_MAX) nodes_.back().awaited.push_back(last);
      }
    for (const auto& [item, node] : items)
      for (uint32_t awaited : (*rank.awaited)[item])
        if (const auto found = items.find(awaited); found != items.end()) nodes_[node].awaited.push_back(found->second);
    for (const Exposure& wait : rank.times->exposures)
      if (const auto found = items.find(wait.item); is_communication(wait) && found != items.end())
        if (const size_t task = task_of(r, wait); task != SIZE_MAX && wait.end_ns <= nodes_[found->second].begin_ns)
          nodes_[found->second].awaited.push_back(task);
  }

  /// When a node begins on an infinitely fast network, if it began at `begin_ns` after `awaited`.
  int64_t instant_ns(int64_t begin_ns, const std::vector<size_t>& awaited) const {
    if (awaited.empty()) return begin_ns;
    int64_t ready_ns = INT64_MIN, instant_ns = INT64_MIN;
    for (size_t node : awaited) {
      ready_ns = std::max(ready_ns, nodes_[node].end_ns);
      instant_ns = std::max(instant_ns, nodes_[node].instant_end_ns);
    }
    return std::min(begin_ns, instant_ns + std::max<int64_t>(begin_ns - ready_ns, 0));
  }

  void run() {
    struct Event {
      int64_t time_ns;
      bool begins;
      size_t node;
      auto operator<=>(const Event&) const = default;  // what ends at a time ends before others begin
    };
    std::vector<Event> events;
    for (size_t i = 0; i < nodes_.size(); ++i) {
      Node& node = nodes_[i];
      node.instant_begin_ns = node.begin_ns;
      node.instant_end_ns = node.end_ns;
      events.push_back({node.begin_ns, true, i});
      events.push_back({std::max(node.end_ns, node.begin_ns + 1), false, i});
    }
    std::sort(events.begin(), events.end());
    std::unordered_map<uint64_t, int64_t> instant_entries;  // of the last member
    for (const Event& event : events) {
      Node& node = nodes_[event.node];
      if (event.begins) {
        node.instant_begin_ns = instant_ns(node.begin_ns, node.awaited);
        if (!node.is_task) continue;
        int64_t& entry = instant_entries.try_emplace(node.rendezvous, node.instant_begin_ns).first->second;
        entry = std::max(entry, node.instant_begin_ns);
      } else {
        node.instant_end_ns =
            node.is_task ? instant_entries[node.rendezvous] : node.instant_begin_ns + node.end_ns - node.begin_ns;
      }
    }
  }

  int64_t begins_earlier_ns(size_t r) const { return nodes_[compute_[r].front()].earlier_ns(); }

  /// How much earlier the next step begins, or this one ends; none if it waits for another stage's next step.
  std::optional<int64_t> next_earlier_ns(size_t r) const {
    const StepTimes& times = *ranks_[r].times;
    const Node& last = nodes_[compute_[r].back()];
    if (!times.next_begins) return last.earlier_ns();
    std::vector<size_t> awaited{compute_[r].back()};
    for (const Exposure& wait : times.exposures) {
      if (wait.begin_ns < last.end_ns || !is_communication(wait)) continue;
      const size_t task = task_of(r, wait);
      if (wait.kind == ChannelKind::stages && (task == SIZE_MAX || !nodes_[task].is_of_step)) return std::nullopt;
      if (task != SIZE_MAX) awaited.push_back(task);
    }
    const int64_t next_ns = times.begin_ns + times.step_ns;
    return next_ns - instant_ns(next_ns, awaited);
  }

  /// What the gap before every work and the next step lost becomes exposed, the latest wait in it first.
  void charge(size_t r, int64_t next_earlier_ns) {
    StepTimes& times = *ranks_[r].times;
    std::vector<int64_t> last_entries;
    for (const TaskTime& task : times.tasks)
      last_entries.push_back(last_entries_[(*ranks_[r].rendezvous_ids)[task.item]]);
    apply_last_entries(times, last_entries);
    std::vector<int64_t> removed(times.exposures.size(), 0);
    size_t next = removed.size();
    int64_t later_ns = next_earlier_ns;
    for (size_t i = compute_[r].size(); i-- > 0;) {
      const Node& work = nodes_[compute_[r][i]];
      int64_t lost_ns = later_ns - work.earlier_ns();
      later_ns = work.earlier_ns();
      while (next > 0 && times.exposures[next - 1].begin_ns >= work.end_ns) {
        const Exposure& wait = times.exposures[--next];
        if (!is_communication(wait)) continue;
        removed[next] = std::clamp<int64_t>(lost_ns, 0, wait.end_ns - wait.begin_ns);
        lost_ns -= removed[next];
      }
    }
    int64_t all_ns = 0;
    for (int64_t ns : removed) all_ns += ns;
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
  std::vector<std::unordered_map<uint32_t, size_t>> items_;      // node by item, of each rank
  std::vector<std::vector<std::pair<uint32_t, size_t>>> tasks_;  // item and node, of each rank
  std::vector<std::vector<size_t>> compute_;                     // nodes of compute in time order, of each rank
  std::unordered_map<uint64_t, int64_t> last_entries_;           // by rendezvous
};

}  // namespace

void split_waits(const std::vector<RankStep>& ranks) { Replay(ranks).split(); }

}  // namespace slipstream
