// SPDX-License-Identifier: Apache-2.0
#pragma once
// A builder of small plans for tests: items, buffers and waits by name, durations in nanoseconds.

#include <algorithm>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include <fmt/core.h>

#include "comm/rehearse/finish.h"
#include "comm/rehearse/hazards.h"
#include "comm/rehearse/rehearse.h"
#include "comm/rehearse/seams.h"
#include "tests/test.hpp"

namespace slipstream::comm {

using Names = std::vector<std::string>;

/// Charges each item the test's duration. Communication is all latency unless `bandwidth_bound`, when it shares ports.
class ToyPrice : public Price {
 public:
  std::map<const Plan*, std::vector<int64_t>> item_ns;
  bool bandwidth_bound = false;
  int64_t card_multiprocessors = 0;
  double jitter = 0;  // durations are scaled by 1 - jitter .. 1 + jitter, a function of (seed, plan, item)
  uint64_t seed = 0;

  int64_t local_ns(const Plan& plan, ItemId item) const override { return jittered(plan, item); }
  Link link(Axis) const override { return {}; }
  int64_t multiprocessors() const override { return card_multiprocessors; }
  WireCost wire(const Plan& plan, ItemId item, Axis, int) const override {
    const int64_t time_ns = jittered(plan, item);
    return bandwidth_bound ? WireCost{0, time_ns, time_ns} : WireCost{time_ns, 0, 0};
  }

 private:
  int64_t jittered(const Plan& plan, ItemId item) const {
    const int64_t time_ns = item_ns.at(&plan)[item];
    if (jitter == 0) return time_ns;
    uint64_t x = std::hash<std::string>{}(plan[item].name) ^ (seed * 0x9e3779b97f4a7c15ull + item);
    x = (x ^ (x >> 31)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 29)) * 0x94d049bb133111ebull;
    const double unit = static_cast<double>((x ^ (x >> 32)) >> 11) / 9007199254740992.0;
    return static_cast<int64_t>(static_cast<double>(time_ns) * (1 + jitter * (2 * unit - 1)));
  }
};

/// The same prices, with every communication `factor` times as long. Borrows.
class SlowerPrice : public Price {
 public:
  SlowerPrice(const Price& price, double factor) : price_(price), factor_(factor) {}
  int64_t local_ns(const Plan& plan, ItemId item) const override { return price_.local_ns(plan, item); }
  Link link(Axis axis) const override { return price_.link(axis); }
  WireCost wire(const Plan& plan, ItemId item, Axis axis, int ranks) const override {
    WireCost cost = price_.wire(plan, item, axis, ranks);
    cost.latency_ns = static_cast<int64_t>(factor_ * static_cast<double>(cost.latency_ns));
    cost.wire_ns = static_cast<int64_t>(factor_ * static_cast<double>(cost.wire_ns));
    return cost;
  }

 private:
  const Price& price_;
  double factor_;
};

/// Channels, buffers, plans and prices of one test. Plans do not move.
struct ToyJob {
  std::vector<Channel> channels{{Role::compute, Axis::self}};
  Buffers buffers;
  std::deque<Plan> plans;
  ToyPrice price;

  ChannelId channel(const std::string& name, Axis axis) {
    for (ChannelId c = 0; c < channels.size(); ++c)
      if (channels[c].name == name) return c;
    Role role = Role::reduce;  // if the name is no role's: any role that is not one way
    for (Role wire : {Role::pipe_fwd_in, Role::pipe_fwd_out, Role::pipe_bwd_in, Role::pipe_bwd_out})
      if (name == name_of(wire)) role = wire;
    channels.push_back({role, axis, name});
    return static_cast<ChannelId>(channels.size() - 1);
  }

  /// "name" stands for all 64 bytes of a separate buffer; "name:16:8" for its bytes 16 to 24.
  Slice slice(const std::string& text) {
    const size_t colon = text.find(':');
    const std::string name = text.substr(0, colon);
    BufferId id = 0;
    while (id < buffers.size() && buffers[id].name != name) ++id;
    if (id == buffers.size()) buffers.add({.name = name, .size_bytes = 64});
    if (colon == std::string::npos) return buffers.whole(id);
    const size_t second = text.find(':', colon + 1);
    return {id, std::stoll(text.substr(colon + 1)), std::stoll(text.substr(second + 1))};
  }
};

/// Equal for the two channels of a one-way wire, as rendezvous_of() has it.
inline std::string wire_name(const Channel& channel) {
  return is_one_way(channel.role) ? name_of(wire_of(channel.role)) : channel.name;
}

struct ToyTask {
  std::string name;
  std::string channel;
  Axis axis = Axis::self;
  Op op = Op::update;
  int64_t time_ns = 1;
  Names after;
  std::string before;
  Names reads, writes;
  int peer = 0;
};

class ToyPlan {
 public:
  explicit ToyPlan(ToyJob& job, std::string kind = "train") : job_(job) { plan_.kind = std::move(kind); }

  ToyPlan& compute(const std::string& name, int64_t time_ns, const Names& reads = {}, const Names& writes = {},
                   const Names& after = {}) {
    SpineItem item;
    fill(item, name, reads, writes);
    plan_.spine.push_back(std::move(item));
    spine_ns_.push_back(time_ns);
    spine_after_.push_back(after);
    return *this;
  }

  ToyPlan& task(const ToyTask& given) {
    Task task;
    fill(task, given.name, given.reads, given.writes);
    task.channel = job_.channel(given.channel, given.axis);
    task.op = given.op;
    task.peer = static_cast<int16_t>(given.peer);
    plan_.tasks.push_back(std::move(task));
    given_.push_back(given);
    return *this;
  }

  /// Resolves names; afterwards the plan is in the job.
  Plan& build() {
    std::map<std::string, ItemId> id;
    for (ItemId i = 0; i < plan_.size(); ++i) {
      INFO(plan_[i].name);
      REQUIRE(id.emplace(plan_[i].name, i).second);
    }
    auto point = [&](const std::string& name) {
      INFO("no item is named " << name);
      REQUIRE(id.count(name) == 1);
      return Point{id.at(name)};
    };
    for (size_t i = 0; i < spine_after_.size(); ++i)
      for (const std::string& name : spine_after_[i]) plan_.spine[i].after.push_back(point(name));
    for (size_t i = 0; i < given_.size(); ++i) {
      for (const std::string& name : given_[i].after) plan_.tasks[i].after.push_back(point(name));
      if (!given_[i].before.empty()) plan_.tasks[i].before = point(given_[i].before);
      spine_ns_.push_back(given_[i].time_ns);
    }
    Plan& built = job_.plans.emplace_back(std::move(plan_));
    job_.price.item_ns[&built] = spine_ns_;
    return built;
  }

 private:
  void fill(Item& item, const std::string& name, const Names& reads, const Names& writes) {
    item.name = name;
    for (const std::string& text : reads) item.reads.push_back(job_.slice(text));
    for (const std::string& text : writes) item.writes.push_back(job_.slice(text));
  }

  ToyJob& job_;
  Plan plan_;
  std::vector<int64_t> spine_ns_;
  std::vector<Names> spine_after_;
  std::vector<ToyTask> given_;
};

inline ItemId item_named(const Plan& plan, const std::string& name) {
  for (ItemId i = 0; i < plan.size(); ++i)
    if (plan[i].name == name) return i;
  FAIL("no item is named " << name);
  return 0;
}

inline std::vector<Stage> stages_of(ToyJob& job, const std::vector<Plan*>& plans) {
  std::vector<Stage> stages;
  for (Plan* plan : plans) stages.push_back({plan, &job.buffers});
  return stages;
}

inline Proof finish(ToyJob& job, const std::vector<Plan*>& plans, const Mesh& mesh) {
  return finish(stages_of(job, plans), mesh, job.channels, job.price);
}

inline Proof finish(ToyJob& job, Plan& plan, int data = 2) {
  return finish(job, {&plan}, Mesh(MeshSizes{.data = data}));
}

/// Runs `plan` of their stage `runs` times on the given ranks, linked; on all ranks of the mesh unless collapsed.
inline std::vector<RankRuns> in_a_row(const ToyJob& job, const std::vector<Plan*>& plans, const Mesh& mesh, size_t runs,
                                      bool collapse = true) {
  std::vector<RankRuns> ranks;
  for (int rank = 0; rank < mesh.world(); ++rank) {
    const Coordinates at = mesh.coordinates(rank);
    if (collapse && (at.data || at.context || at.tensor)) continue;
    const std::vector<const Plan*> sequence(runs, plans[static_cast<size_t>(at.pipeline)]);
    ranks.push_back({rank, sequence, link_all(sequence, job.channels)});
  }
  return ranks;
}

inline Rehearsal rehearse_in_a_row(const ToyJob& job, const std::vector<Plan*>& plans, const Mesh& mesh, size_t runs,
                                   const RehearseOptions& options = {}) {
  const auto ranks = in_a_row(job, plans, mesh, runs, options.collapse);
  return rehearse(mesh, job.channels, ranks, job.price, options);
}

/// The host order "as points are reached": each spine item is followed by the head of every channel whose waits have
/// been issued.
inline void order_as_reached(Plan& plan, size_t channel_count) {
  for (ItemId id = static_cast<ItemId>(plan.spine.size()); id < plan.size(); ++id)
    if (plan.task(id).before) plan[plan.task(id).before->item].after.push_back({id});
  std::vector<std::vector<ItemId>> queues(channel_count);
  for (ItemId id = static_cast<ItemId>(plan.spine.size()); id < plan.size(); ++id)
    queues[plan[id].channel].push_back(id);
  std::vector<size_t> heads(channel_count, 0);
  std::vector<bool> issued(plan.size(), false);
  plan.order.clear();
  auto issue = [&](ItemId id) {
    issued[id] = true;
    plan.order.push_back(id);
  };
  auto is_ready = [&](ItemId id) {
    return std::all_of(plan[id].after.begin(), plan[id].after.end(), [&](Point p) { return issued[p.item]; });
  };
  auto pump = [&] {
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t c = 0; c < channel_count; ++c)
        for (; heads[c] < queues[c].size() && is_ready(queues[c][heads[c]]); moved = true) issue(queues[c][heads[c]++]);
    }
  };
  pump();
  for (ItemId id = 0; id < plan.spine.size(); ++id) {
    issue(id);
    pump();
  }
  REQUIRE(plan.order.size() == plan.size());
}

}  // namespace slipstream::comm
