// SPDX-License-Identifier: Apache-2.0
// Builds nodes, edges and rendezvous from plans.

#include "comm/rehearse/graph.h"

#include <algorithm>
#include <numeric>

#include <fmt/ranges.h>

#include "comm/rehearse/clocks.h"
#include "engine/base/check.h"
#include "engine/plan/transfer_name.h"

namespace slipstream::comm {
namespace {

constexpr uint32_t kCollective = 0;
constexpr uint32_t kPair = 1;
constexpr int64_t kUnitsOfACore = 1000;

bool is_pair(Op op) { return op == Op::send || op == Op::recv; }

/// Ranks that meet in one task give its message the same name: collectives their own name, and the two ends of a
/// transfer the name after their verb. Otherwise, ranks that issue two tasks of equal size in different orders would
/// exchange them unnoticed.
bool same_message(const Task& a, const Task& b) {
  return is_pair(a.op) ? same_transfer(a.name, b.name) : a.name == b.name && a.peer == b.peer;
}

std::string text_of(const Task& task) {
  const Route& route = task.route;
  return fmt::format("{} ({} of {} {}{}{})", task.name, name_of(task.op), task.elems, name_of(task.dtype),
                     task.op == Op::exchange ? fmt::format(", peer {}", task.peer) : "",
                     task.op != Op::all_to_all_v
                         ? ""
                         : fmt::format(", {} experts a rank, {} rows of {}, bound {}{}{}", route.experts,
                                       route.source_rows, route.row_elems, route.bound_rows,
                                       route.begin_rows > 0 ? fmt::format(" after {}", route.begin_rows) : "",
                                       route.reverse ? ", reverse" : ""));
}

/// The order in which the nodes of a run are made. Rendezvous are matched by their sequence in it.
std::vector<ItemId> issue_order(const Plan& plan, bool in_order_channels) {
  if (in_order_channels) return plan.order;
  std::vector<ItemId> appended(plan.size());
  std::iota(appended.begin(), appended.end(), ItemId{0});
  return appended;
}

}  // namespace

Graph::Graph(const Mesh& mesh, const std::vector<Channel>& channels, std::span<const RankRuns> ranks,
             const Price& price, const GraphOptions& options)
    : mesh_(mesh),
      channels_(channels),
      ranks_(ranks),
      price_(price),
      options_(options),
      shared_(price.shared_cores()),
      time_({.contention = options.rehearse.contention,
             .instant = options.instant,
             .multiprocessors = options.rehearse.slows_local_work ? units_of_a_card() : 0}) {
  for (ChannelId c = 0; c < channels.size(); ++c) {
    const Role role = channels[c].role;
    ChannelId first = is_one_way(role) ? 0 : c;
    while (wire_of(channels[first].role) != wire_of(role)) ++first;
    wire_of_.push_back(first);
    ports_per_rank_ = std::max(ports_per_rank_, price.port(channels[c].axis) + 1);
  }
  for (size_t r = 0; r < ranks.size(); ++r) {
    if (ranks[r].rank < 0 || ranks[r].rank >= mesh.world())
      throw PlanError("[rehearse] rank {} is not among the {} of the mesh.", ranks[r].rank, mesh.world());
    index_of_rank_[ranks[r].rank] = r;
  }
  if (!options.rehearse.collapse && index_of_rank_.size() != static_cast<size_t>(mesh.world()))
    throw PlanError("[rehearse] {} of {} ranks were given. Give all, or let representatives stand for the others.",
                    index_of_rank_.size(), mesh.world());
  nodes_.resize(ranks.size());
  for (size_t r = 0; r < ranks.size(); ++r) {
    RankState state;
    state.tails.assign(channels.size(), kNoNode);
    state.collectives.assign(channels.size(), 0);
    for (const Channel& channel : channels) {
      std::vector<int> group = mesh.group(channel.axis, ranks[r].rank);
      const uint32_t given = represented(channel.axis, group);
      state.groups.push_back({std::move(group), mesh.index_in_group(channel.axis, ranks[r].rank), given});
    }
    for (uint32_t run = 0; run < ranks[r].runs.size(); ++run) add_run(r, run, state);
  }
}

void Graph::require_valid(const Plan& plan) const {
  for (ItemId id = 0; id < plan.size(); ++id) {
    const Item& item = plan[id];
    if (item.channel >= channels_.size())
      throw PlanError("[plan] {} travels on channel {}, but there are {}.", item.name, item.channel, channels_.size());
    if (plan.is_spine(id) && (item.channel != kComputeChannel || is_communication(item.op)))
      throw PlanError("[plan] {} is on the spine but on channel {} with op {}. Make it a task.", item.name,
                      channels_[item.channel].name, name_of(item.op));
    for (const Point& point : item.after)
      if (point.item >= plan.size())
        throw PlanError("[plan] {} waits for item {}, but the plan has {}.", item.name, point.item, plan.size());
  }
}

void Graph::add_run(size_t rank_index, uint32_t run, RankState& state) {
  const Plan& plan = *ranks_[rank_index].runs[run];
  require_valid(plan);
  if (options_.in_order_channels) require_finished(plan);
  const std::vector<ItemId> order = issue_order(plan, options_.in_order_channels);
  std::vector<uint32_t>& nodes = nodes_[rank_index].emplace_back(plan.size());
  for (ItemId id : order) {
    if (is_communication(plan[id].op)) {
      const uint32_t rendezvous = rendezvous_for(rank_index, plan.task(id), state);
      require_same(rendezvous, plan.task(id), ranks_[rank_index].rank);
      nodes[id] = time_.join(rendezvous, use_of(rank_index, plan, id));
    } else {
      nodes[id] = time_.add_local(price_.local_ns(plan, id), card_of(rank_index, plan[id]),
                                  shared_.cores > 0 ? shared_.threads * kUnitsOfACore : 0);
    }
    origin_.push_back({static_cast<uint32_t>(rank_index), run, id});
  }
  add_edges(rank_index, run, order, state);
}

uint32_t Graph::card_of(size_t rank_index, const Item& item) const {
  const Role role = channels_[item.channel].role;
  return role == Role::h2d || role == Role::save || role == Role::keep ? kNoNode : card_of(rank_index);
}

uint32_t Graph::card_of(size_t rank_index) const {
  return static_cast<uint32_t>(shared_.cores > 0 ? ranks_[rank_index].rank / shared_.ranks
                                                 : static_cast<int>(rank_index));
}

int64_t Graph::units_of_a_card() const {
  if (shared_.cores == 0) return price_.multiprocessors();
  // A representative stands for ranks that compute at the same time, each on its part of the cores.
  std::map<int, int64_t> represented;  // by host
  for (const RankRuns& rank : ranks_) ++represented[rank.rank / shared_.ranks];
  int64_t most = 1;
  for (const auto& [host, count] : represented) most = std::max(most, count);
  return std::max<int64_t>(1, kUnitsOfACore * shared_.cores * most / shared_.ranks);
}

void Graph::add_edges(size_t rank_index, uint32_t run, const std::vector<ItemId>& order, RankState& state) {
  const RankRuns& rank = ranks_[rank_index];
  const Plan& plan = *rank.runs[run];
  const std::vector<uint32_t>& nodes = nodes_[rank_index][run];
  uint32_t loss = state.last_compute;  // of the run before this one
  for (ItemId id : order) {
    const Item& item = plan[id];
    if (item.channel == kComputeChannel) {
      add_host(rank_index, run, id, loss, state);
      loss = kNoNode;
      state.last_compute = nodes[id];
    }
    // Updates on a separate stream begin in append order. If all began at once, the smallest would end first and be
    // gathered first, whatever the next forward pass needs.
    if (options_.in_order_channels || channels_[item.channel].axis == Axis::self) {
      uint32_t& tail = state.tails[item.channel];
      if (tail != kNoNode) time_.edge(tail, nodes[id], After::end);
      tail = nodes[id];
    }
    for (const Point& point : item.after) time_.edge(nodes[point.item], nodes[id], After::end);
    const bool is_gated = is_communication(item.op) && channels_[item.channel].axis != Axis::hosts;
    if (options_.rehearse.gate != Gate::none && is_gated) {
      const After after = options_.rehearse.gate == Gate::serial ? After::end : After::enter;
      if (state.last_communication != kNoNode) time_.edge(state.last_communication, nodes[id], after);
      state.last_communication = nodes[id];
    }
  }
  if (run < rank.seams.size())
    for (const SeamWait& wait : rank.seams[run]) {
      if (wait.run >= run || wait.from >= rank.runs[wait.run]->size() || wait.to >= plan.size())
        throw PlanError("[rehearse] run {} of rank {} has a wait on item {} of run {}, which is not before it.", run,
                        rank.rank, wait.from, wait.run);
      time_.edge(nodes_[rank_index][wait.run][wait.from], nodes[wait.to], After::end);
    }
  if (!options_.rehearse.replayed || plan.spine.empty()) return;
  // The tails of channels end after everything else in the run. In messages, the barrier has the name of the last item.
  const uint32_t barrier = time_.add_local(1);
  origin_.push_back({static_cast<uint32_t>(rank_index), run, order.back()});
  for (uint32_t& tail : state.tails) {
    if (tail != kNoNode) time_.edge(tail, barrier, After::end);
    tail = barrier;
  }
}

void Graph::add_host(size_t rank_index, uint32_t run, ItemId id, uint32_t loss, RankState& state) {
  const Plan& plan = *ranks_[rank_index].runs[run];
  const int64_t host_ns = price_.host_ns(plan, id);
  if (host_ns <= 0) return;
  const std::vector<uint32_t>& nodes = nodes_[rank_index][run];
  const uint32_t launched = time_.add_local(host_ns);
  origin_.push_back({static_cast<uint32_t>(rank_index), run, id});
  for (const uint32_t awaited : {state.host, loss})
    if (awaited != kNoNode) time_.edge(awaited, launched, After::end);
  for (const Point& point : plan[id].after)
    if (plan[point.item].op == Op::recv) time_.edge(nodes[point.item], launched, After::end);
  time_.edge(launched, nodes[id], After::end);
  state.host = launched;
}

uint32_t Graph::represented(Axis axis, const std::vector<int>& group) const {
  if (!options_.rehearse.collapse) return static_cast<uint32_t>(group.size());
  if (!Mesh::contains(axis, Axis::pipeline)) return 1;
  return static_cast<uint32_t>(
      std::count_if(group.begin(), group.end(), [this](int rank) { return index_of_rank_.contains(rank); }));
}

uint32_t Graph::rendezvous_for(size_t rank_index, const Task& task, RankState& state) {
  const auto& [group, own, given] = state.groups[task.channel];
  const auto size = static_cast<int>(group.size());
  std::array<uint32_t, 4> line{task.channel, kCollective, static_cast<uint32_t>(group[0]), 0};
  std::array<uint32_t, 2> ends{task.channel, 0};  // makes the key of a collective unique on a rank
  uint32_t expected = given;
  if (is_pair(task.op)) {
    const int other = ((own + task.peer) % size + size) % size;
    const int sender = task.op == Op::send ? own : other;
    const int receiver = task.op == Op::send ? other : own;
    ends = {static_cast<uint32_t>(sender), static_cast<uint32_t>(receiver)};
    line = {wire_of_[task.channel], kPair, static_cast<uint32_t>(group[static_cast<size_t>(sender)]),
            static_cast<uint32_t>(group[static_cast<size_t>(receiver)])};
    if (expected > 1) expected = sender == receiver ? 1 : 2;
  }
  const uint32_t sequence = is_pair(task.op) ? state.pairs[line]++ : state.collectives[task.channel]++;
  const auto add = [&] {
    keys_.push_back({wire_of_[task.channel], sequence, line[1], ends[0], ends[1]});
    first_member_.emplace_back(&task, ranks_[rank_index].rank);
    return time_.add_rendezvous(expected);
  };
  // A pair whose other end is not represented forms a rendezvous of one. Its send and its recv then share a wire but no
  // rendezvous.
  if (expected == 1) return add();
  const auto [found, is_new] = rendezvous_.try_emplace({line[0], line[1], line[2], line[3], sequence}, 0u);
  if (is_new) found->second = add();
  return found->second;
}

PortUse Graph::use_of(size_t rank_index, const Plan& plan, ItemId id) const {
  const Task& task = plan.task(id);
  const Channel& channel = channels_[task.channel];
  const Axis axis = channel.axis;
  const int size = mesh_.group_size(axis);
  const WireCost cost = price_.wire(plan, id, axis, size);
  int64_t blocks = channel.engine == Engine::sm ? channel.blocks : 0;
  // The thread of a transfer computes during a part of the transfer.
  if (shared_.cores > 0)
    blocks = kUnitsOfACore * std::min(price_.core_ns(plan, id, size), cost.latency_ns + cost.wire_ns) /
             std::max<int64_t>(1, cost.latency_ns + cost.wire_ns);
  return {.port = static_cast<uint32_t>(rank_index) * ports_per_rank_ + price_.port(axis),
          .latency_ns = cost.latency_ns,
          .wire_ns = cost.wire_ns,
          .sends = task.op != Op::recv,
          .receives = task.op != Op::send,
          .card = card_of(rank_index),
          .blocks = static_cast<int>(blocks),
          .blocks_per_byte = shared_.cores > 0};
}

void Graph::require_same(uint32_t rendezvous, const Task& task, int rank) {
  const auto [first, first_rank] = first_member_[rendezvous];
  const bool same_op = first->op == task.op || (is_pair(first->op) && is_pair(task.op));
  if (!mismatch_.empty() ||
      (same_op && first->elems == task.elems && first->dtype == task.dtype && first->algorithm == task.algorithm &&
       first->route == task.route && same_message(*first, task)))
    return;
  mismatch_ = fmt::format("on channel {} rank {} issues {} where rank {} issues {}", channels_[task.channel].name,
                          first_rank, text_of(*first), rank, text_of(task));
}

const RendezvousKey* Graph::key(uint32_t node) const {
  const uint32_t rendezvous = time_.rendezvous_of(node);
  return rendezvous == kNoNode ? nullptr : &keys_[rendezvous];
}

std::string Graph::describe(uint32_t node) const {
  const Origin& origin = origin_[node];
  const Item& item = (*ranks_[origin.rank_index].runs[origin.run])[origin.item];
  return fmt::format("rank {} run {} {} ({})", ranks_[origin.rank_index].rank, origin.run, item.name,
                     channels_[item.channel].name);
}

std::string Graph::absent_from(uint32_t node) const {
  const auto rank_of = [this](uint32_t n) { return ranks_[origin_[n].rank_index].rank; };
  const Task& task = ranks_[origin_[node].rank_index].runs[origin_[node].run]->task(origin_[node].item);
  const std::vector<int> group = mesh_.group(channels_[task.channel].axis, rank_of(node));
  std::vector<int> absent;
  if (is_pair(task.op)) {
    const auto size = static_cast<int>(group.size());
    const int own = mesh_.index_in_group(channels_[task.channel].axis, rank_of(node));
    absent = {group[static_cast<size_t>(((own + task.peer) % size + size) % size)]};
  } else {
    for (const int rank : group)
      if (index_of_rank_.contains(rank)) absent.push_back(rank);
    for (uint32_t other = 0; other < origin_.size(); ++other)
      if (time_.rendezvous_of(other) == time_.rendezvous_of(node)) std::erase(absent, rank_of(other));
  }
  return fmt::format("rank{} {}, which never issue{} it", absent.size() == 1 ? "" : "s", fmt::join(absent, ", "),
                     absent.size() == 1 ? "s" : "");
}

std::string Graph::why_stuck() const {
  if (!mismatch_.empty()) return mismatch_;
  constexpr size_t kLinksShown = 24;
  const std::vector<Blocked> chain = time_.why_stuck();
  std::string text;
  for (size_t i = 0; i < chain.size() && i < kLinksShown; ++i) {
    const Blocked& link = chain[i];
    if (!text.empty()) text += "; ";
    text += describe(link.node);
    switch (link.why) {
      case Blocked::Why::end:
        text += " waits for ";
        break;
      case Blocked::Why::enter:
        text += " may not launch before ";
        break;
      case Blocked::Why::member:
        text += " meets ";
        break;
      case Blocked::Why::missing:
        text += " waits for " + absent_from(link.node);
        break;
    }
    if (link.awaited != kNoNode) text += describe(link.awaited);
  }
  if (chain.size() > kLinksShown) text += fmt::format("; and {} more", chain.size() - kLinksShown);
  return text;
}

}  // namespace slipstream::comm
