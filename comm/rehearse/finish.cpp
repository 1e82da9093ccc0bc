// SPDX-License-Identifier: Apache-2.0
// The one global order, the pruning of waits, and the proof.

#include "comm/rehearse/finish.h"

#include <algorithm>
#include <tuple>

#include "comm/rehearse/clocks.h"
#include "comm/rehearse/graph.h"
#include "comm/rehearse/seams.h"
#include "engine/base/check.h"
#include "engine/base/parallel.h"

namespace slipstream::comm {
namespace {

/// One rank per pipeline stage, which represents the others of its stage.
std::vector<RankRuns> representatives(std::span<const StageRuns> stages, const Mesh& mesh, size_t sequence = 0) {
  if (stages.size() != static_cast<size_t>(mesh.stages()))
    throw PlanError("[plan] {} plans were given for {} pipeline stages.", stages.size(), mesh.stages());
  std::vector<RankRuns> ranks;
  for (int stage = 0; stage < mesh.stages(); ++stage)
    ranks.push_back({mesh.rank({.pipeline = stage}), stages[static_cast<size_t>(stage)].sequences[sequence], {}});
  return ranks;
}

std::vector<StageRuns> in_a_row(std::span<const Stage> stages, size_t runs) {
  std::vector<StageRuns> rows;
  for (const Stage& stage : stages) rows.push_back({{std::vector<const Plan*>(runs, stage.plan)}, stage.buffers});
  return rows;
}

/// Every plan once, in the order of its first run.
std::vector<const Plan*> distinct(const std::vector<std::vector<const Plan*>>& sequences) {
  std::vector<const Plan*> plans;
  for (const std::vector<const Plan*>& runs : sequences)
    for (const Plan* plan : runs)
      if (std::find(plans.begin(), plans.end(), plan) == plans.end()) plans.push_back(plan);
  return plans;
}

/// The last run that follows two runs of its kind, or the last run if there is none.
size_t steady_run(const std::vector<const Plan*>& runs) {
  for (size_t run = runs.size(); run-- > 2;)
    if (runs[run]->kind == runs[run - 1]->kind && runs[run]->kind == runs[run - 2]->kind) return run;
  return runs.size() - 1;
}

void add_waits_of_before(Plan& plan) {
  for (ItemId id = static_cast<ItemId>(plan.spine.size()); id < plan.size(); ++id) {
    const std::optional<Point>& before = plan.task(id).before;
    if (!before) continue;
    if (!plan.is_spine(before->item))
      throw PlanError("[plan] {} names item {} as the first that waits for it, but the spine has {} items.",
                      plan.task(id).name, before->item, plan.spine.size());
    std::vector<Point>& after = plan.spine[before->item].after;
    if (std::find(after.begin(), after.end(), Point{id}) == after.end()) after.push_back({id});
  }
}

/// Sorts the items of every stage by (start, key). The key is equal on all members of a rendezvous. Local items come
/// first among equals, because only their own rank sees them.
void sort_by_start(std::span<const Stage> stages, const Graph& graph) {
  constexpr RendezvousKey kLocal{};
  for (size_t s = 0; s < stages.size(); ++s) {
    Plan& plan = *stages[s].plan;
    struct Entry {
      int64_t start_ns;
      bool meets;
      RendezvousKey key;
      ItemId item;
      auto rank() const { return std::tie(start_ns, meets, key, item); }
    };
    std::vector<Entry> entries;
    entries.reserve(plan.size());
    for (ItemId id = 0; id < plan.size(); ++id) {
      const uint32_t node = graph.node(s, 0, id);
      const RendezvousKey* key = graph.key(node);
      entries.push_back({graph.time().start_ns(node), key != nullptr, key ? *key : kLocal, id});
    }
    std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) { return a.rank() < b.rank(); });
    plan.order.clear();
    for (const Entry& entry : entries) plan.order.push_back(entry.item);
  }
}

/// Throws unless tasks that match by append order also match by the sorted order.
void require_same_rendezvous(std::span<const Stage> stages, const Graph& appended, const Graph& sorted) {
  std::map<uint32_t, uint32_t> was;
  for (size_t s = 0; s < stages.size(); ++s)
    for (ItemId id = 0; id < stages[s].plan->size(); ++id) {
      const uint32_t now = sorted.time().rendezvous_of(sorted.node(s, 0, id));
      if (now == kNoNode) continue;
      const uint32_t before = appended.time().rendezvous_of(appended.node(s, 0, id));
      if (was.try_emplace(now, before).first->second != before)
        throw PlanError("[plan] stage {} would issue {} where another stage issues another task of its group.", s,
                        (*stages[s].plan)[id].name);
    }
}

/// The vector clocks of the current plan, by which the waits of one item after the other are dropped.
class Pruner {
 public:
  Pruner(Plan& plan, size_t channel_count) : plan_(plan), clocks_(channel_count), node_of_(plan.size()) {}

  int64_t prune() {
    int64_t dropped = 0;
    for (ItemId id : plan_.order) dropped += prune_item(id);
    return dropped;
  }

 private:
  int64_t prune_item(ItemId id) {
    std::vector<Point>& after = plan_[id].after;
    const uint32_t node = node_of_[id] = clocks_.begin(plan_[id].channel);
    // The latest one comes first, because it may imply the others, but never the reverse.
    std::sort(after.begin(), after.end(), [this](Point a, Point b) { return node_of_[a.item] > node_of_[b.item]; });
    return static_cast<int64_t>(std::erase_if(after, [&](Point point) {
      const uint32_t earlier = node_of_[point.item];
      if (clocks_.ordered(earlier, node)) return true;
      clocks_.wait(node, earlier);
      return false;
    }));
  }

  Plan& plan_;
  Clocks clocks_;
  std::vector<uint32_t> node_of_;
};

void prove_gates(const std::vector<RankRuns>& ranks, const Mesh& mesh, const std::vector<Channel>& channels,
                 const Price& price, Proof& proof) {
  // No deadlock depends on times, so transfers need not share ports.
  const auto gate_graph = [&](Gate gate) {
    return Graph(mesh, channels, ranks, price, {.rehearse = {.gate = gate, .contention = false}});
  };
  // A task that has ended has entered, so the waits of the serial gate contain the waits of the others.
  if (gate_graph(Gate::serial).solve()) return;
  for (Gate gate : {Gate::none, Gate::launch_order, Gate::serial}) {
    Graph graph = gate_graph(gate);
    if (graph.solve()) continue;
    if (!proof.deadlock.empty()) proof.deadlock += "\n";
    proof.deadlock += std::string(name_of(gate)) + ": " + graph.why_stuck();
  }
}

}  // namespace

int64_t prune(Plan& plan, size_t channel_count) {
  require_finished(plan);
  return Pruner(plan, channel_count).prune();
}

uint64_t order_hash(std::span<const Plan* const> plans) {
  uint64_t hash = 14695981039346656037ull;  // FNV-1a, 64 bits
  auto add_byte = [&hash](uint8_t byte) { hash = (hash ^ byte) * 1099511628211ull; };
  auto add = [&add_byte](uint64_t value) {
    for (int shift = 0; shift < 64; shift += 8) add_byte(static_cast<uint8_t>(value >> shift));
  };
  for (const Plan* plan : plans) {
    add(plan->order.size());
    for (ItemId id : plan->order) {
      const Item& item = (*plan)[id];
      for (char c : item.name) add_byte(static_cast<uint8_t>(c));
      add(id);
      add(item.channel);
      add(static_cast<uint64_t>(item.op));
      if (plan->is_spine(id)) continue;
      const Task& task = plan->task(id);
      add(static_cast<uint64_t>(task.elems));
      add(static_cast<uint64_t>(task.dtype));
      add(static_cast<uint64_t>(task.algorithm));
      add(static_cast<uint64_t>(task.peer));
      if (task.op != Op::all_to_all_v) continue;
      for (int64_t value :
           {int64_t{task.route.experts}, task.route.row_elems, task.route.source_rows, task.route.bound_rows,
            task.route.begin_rows, int64_t{task.route.round}, int64_t{task.route.rounds}, int64_t{task.route.reverse}})
        add(static_cast<uint64_t>(value));
    }
  }
  return hash;
}

void Proof::include(Proof finished) {
  pruned_count += finished.pruned_count;
  if (std::any_of(hazards.begin(), hazards.end(), [](const Hazard& hazard) { return !hazard.by_chance; })) return;
  hazard_count += finished.hazard_count;
  std::move(finished.hazards.begin(), finished.hazards.end(), std::back_inserter(hazards));
}

Proof prove(std::span<const StageRuns> stages, const Mesh& mesh, const std::vector<Channel>& channels,
            const Price& price) {
  Proof proof;
  for (size_t sequence = 0; sequence < stages[0].sequences.size(); ++sequence) {
    std::vector<RankRuns> ranks = representatives(stages, mesh, sequence);
    std::vector<HazardReport> reports(stages.size());
    for_each_index(stages.size(), threads_for(stages.size()), [&](size_t s) {
      ranks[s].seams = link_all(ranks[s].runs, channels);
      reports[s] = find_hazards({ranks[s].runs, ranks[s].seams}, channels, stages[s].buffers);
    });
    for (size_t s = 0; s < stages.size(); ++s) {
      if (sequence == 0) proof.seam_waits += std::ssize(ranks[s].seams[steady_run(ranks[s].runs)]);
      proof.hazard_count += reports[s].count;
      std::move(reports[s].hazards.begin(), reports[s].hazards.end(), std::back_inserter(proof.hazards));
    }
    if (proof.deadlock.empty()) prove_gates(ranks, mesh, channels, price, proof);
  }
  std::vector<const Plan*> all;
  for (const StageRuns& stage : stages)
    for (const Plan* plan : distinct(stage.sequences)) {
      all.push_back(plan);
      proof.items += static_cast<int64_t>(plan->size());
      for (ItemId id = 0; id < plan->size(); ++id) proof.waits += static_cast<int64_t>((*plan)[id].after.size());
    }
  proof.order_hash = order_hash(all);
  return proof;
}

bool can_end(std::span<const Stage> stages, const Mesh& mesh, const std::vector<Channel>& channels,
             const Price& price) {
  const std::vector<RankRuns> ranks = representatives(in_a_row(stages, 1), mesh);
  for (const Stage& stage : stages) add_waits_of_before(*stage.plan);
  return Graph(mesh, channels, ranks, price, {.rehearse = {.contention = false}, .in_order_channels = false}).solve();
}

Proof finish(std::span<const Stage> stages, const Mesh& mesh, const std::vector<Channel>& channels, const Price& price,
             Checks checks) {
  const std::vector<RankRuns> ranks = representatives(in_a_row(stages, 1), mesh);
  for (const Stage& stage : stages) add_waits_of_before(*stage.plan);

  Graph unlimited(mesh, channels, ranks, price, {.rehearse = {.contention = false}, .in_order_channels = false});
  if (!unlimited.solve()) throw PlanError("[plan] {} can never end: {}.", stages[0].plan->kind, unlimited.why_stuck());
  sort_by_start(stages, unlimited);

  // The order depends only on work and links, so that the plan is the same with every table of NCCL's blocks.
  Graph in_order(mesh, channels, ranks, price, {.rehearse = {.slows_local_work = false}});
  if (!in_order.solve())
    throw PlanError("[plan] {} cannot run with its channels in order: {}.", stages[0].plan->kind, in_order.why_stuck());
  require_same_rendezvous(stages, unlimited, in_order);
  sort_by_start(stages, in_order);

  Proof ordered;
  std::vector<HazardReport> implicit_order(stages.size());
  std::vector<int64_t> pruned(stages.size());
  for_each_index(stages.size(), threads_for(stages.size()), [&](size_t s) {
    const Stage& stage = stages[s];
    // This comes before pruning. After it, the order of a channel would hide an order that a pass should have declared.
    if (checks != Checks::none) implicit_order[s] = find_implicit_order(*stage.plan, channels, stage.buffers);
    pruned[s] = prune(*stage.plan, channels.size());
  });
  for (size_t s = 0; s < stages.size(); ++s) {
    ordered.hazard_count += implicit_order[s].count;
    std::move(implicit_order[s].hazards.begin(), implicit_order[s].hazards.end(), std::back_inserter(ordered.hazards));
    ordered.pruned_count += pruned[s];
  }
  if (checks != Checks::all) return ordered;
  constexpr size_t kRunsProved = 3;
  Proof proof = prove(in_a_row(stages, kRunsProved), mesh, channels, price);
  proof.include(std::move(ordered));
  return proof;
}

}  // namespace slipstream::comm
