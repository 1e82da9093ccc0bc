// SPDX-License-Identifier: Apache-2.0
// A breadth-first walk from an item back over everything for which it waits.

#include "comm/rehearse/waits.h"

#include <algorithm>
#include <deque>
#include <optional>

#include "engine/base/check.h"
#include "engine/plan/transfer_name.h"

namespace slipstream::comm {
namespace {

constexpr uint32_t kNone = ~uint32_t{0};

class Walk {
 public:
  Walk(const Mesh& mesh, const std::vector<Channel>& channels, std::span<const RankRuns> ranks)
      : mesh_(mesh), channels_(channels), ranks_(ranks), first_node_(ranks.size()), before_on_channel_(ranks.size()) {
    for (size_t r = 0; r < ranks.size(); ++r) {
      std::vector<uint32_t> tails(channels.size(), kNone);
      for (const Plan* plan : ranks[r].runs) {
        first_node_[r].push_back(nodes_);
        nodes_ += static_cast<uint32_t>(plan->size());
        std::vector<uint32_t>& before = before_on_channel_[r];
        const auto begin = static_cast<uint32_t>(before.size());
        before.resize(begin + plan->size(), kNone);
        for (const ItemId item : plan->order) {
          uint32_t& tail = tails[(*plan)[item].channel];
          before[begin + item] = tail;
          tail = begin + item;
        }
      }
    }
  }

  std::vector<WaitStep> chain(const Place& later, const Place& earlier) const {
    struct Reached {
      uint32_t from = kNone;  // the index in `queue` of the place that waits
      WaitStep step;
    };
    std::vector<bool> seen(nodes_, false);
    std::vector<Reached> queue{{.step = {.place = later}}};
    seen[node(later)] = true;
    for (size_t head = 0; head < queue.size(); ++head) {
      const Place place = queue[head].step.place;
      if (head > 0 && place == earlier) return chain_to(queue, head);
      const auto visit = [&](const Place& next, Because because) {
        if (seen[node(next)]) return;
        seen[node(next)] = true;
        queue.push_back({.from = static_cast<uint32_t>(head), .step = {next, because}});
      };
      visit_waits(place, visit);
      visit_partners(place, visit);
    }
    return {};
  }

 private:
  template <typename Queue>
  static std::vector<WaitStep> chain_to(const Queue& queue, size_t end) {
    std::vector<WaitStep> steps;
    for (size_t at = end; at != 0; at = queue[at].from) steps.push_back(queue[at].step);
    std::reverse(steps.begin(), steps.end());
    return steps;
  }

  uint32_t node(const Place& place) const { return first_node_[place.rank_index][place.run] + place.item; }

  const Item& item(const Place& place) const { return (*ranks_[place.rank_index].runs[place.run])[place.item]; }

  /// The place with this index among all items of a rank.
  Place place_at(uint32_t rank_index, uint32_t index) const {
    const std::vector<uint32_t>& firsts = first_node_[rank_index];
    const uint32_t wanted = firsts[0] + index;
    const auto run = static_cast<uint32_t>(std::upper_bound(firsts.begin(), firsts.end(), wanted) - firsts.begin() - 1);
    return {rank_index, run, wanted - firsts[run]};
  }

  template <typename Visit>
  void visit_waits(const Place& place, const Visit& visit) const {
    const RankRuns& rank = ranks_[place.rank_index];
    for (const Point& point : item(place).after) visit({place.rank_index, place.run, point.item}, Because::wait);
    if (place.run < rank.seams.size())
      for (const SeamWait& seam : rank.seams[place.run])
        if (seam.to == place.item) visit({place.rank_index, seam.run, seam.from}, Because::wait);
    const uint32_t index = node(place) - first_node_[place.rank_index][0];
    if (const uint32_t before = before_on_channel_[place.rank_index][index]; before != kNone)
      visit(place_at(place.rank_index, before), Because::channel);
  }

  /// The same message or collective on the other ranks that are given.
  template <typename Visit>
  void visit_partners(const Place& place, const Visit& visit) const {
    const Plan& plan = *ranks_[place.rank_index].runs[place.run];
    if (plan.is_spine(place.item) || !is_communication(item(place).op)) return;
    const Task& task = plan.task(place.item);
    const Axis axis = channels_[task.channel].axis;
    const std::vector<int> group = mesh_.group(axis, ranks_[place.rank_index].rank);
    const int own = mesh_.index_in_group(axis, ranks_[place.rank_index].rank), size = static_cast<int>(group.size());
    const bool is_pair = task.op == Op::send || task.op == Op::recv;
    for (int member = 0; member < size; ++member) {
      if (is_pair && member != ((own + task.peer) % size + size) % size) continue;
      const std::optional<uint32_t> other = representative_of(group[static_cast<size_t>(member)]);
      if (!other || *other == place.rank_index) continue;
      const Plan& others = *ranks_[*other].runs[place.run];
      for (ItemId i = static_cast<ItemId>(others.spine.size()); i < others.size(); ++i)
        if (is_partner(task, others.task(i))) visit({*other, place.run, i}, Because::meeting);
    }
  }

  bool is_partner(const Task& a, const Task& b) const {
    if (wire_of(channels_[a.channel].role) != wire_of(channels_[b.channel].role)) return false;
    const bool is_pair = a.op == Op::send || a.op == Op::recv;
    return is_pair ? b.op == (a.op == Op::send ? Op::recv : Op::send) && same_transfer(a.name, b.name)
                   : a.op == b.op && a.name == b.name;
  }

  /// The rank that was given for the same stage.
  std::optional<uint32_t> representative_of(int rank) const {
    const int stage = mesh_.coordinates(rank).pipeline;
    for (uint32_t r = 0; r < ranks_.size(); ++r)
      if (mesh_.coordinates(ranks_[r].rank).pipeline == stage) return r;
    return {};
  }

  const Mesh& mesh_;
  const std::vector<Channel>& channels_;
  std::span<const RankRuns> ranks_;
  uint32_t nodes_ = 0;
  std::vector<std::vector<uint32_t>> first_node_;  // [rank][run]
  std::vector<std::vector<uint32_t>>
      before_on_channel_;  // by [rank][item of all runs]: the index of the item before it
};

}  // namespace

std::vector<WaitStep> why_waits(const Mesh& mesh, const std::vector<Channel>& channels, std::span<const RankRuns> ranks,
                                const Place& later, const Place& earlier) {
  for (const RankRuns& rank : ranks)
    for (const Plan* plan : rank.runs) SLIP_ASSERT(plan->order.size() == plan->size());
  return Walk(mesh, channels, ranks).chain(later, earlier);
}

}  // namespace slipstream::comm
