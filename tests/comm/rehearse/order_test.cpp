// SPDX-License-Identifier: Apache-2.0
// The one global order: pipelines that deadlock when issued as reached, fuzz, ties, cycles and symmetric ranks.

#include <iostream>
#include <random>
#include <set>

#include "engine/base/check.h"
#include "tests/comm/rehearse/toy_plans.h"

using namespace slipstream;
using namespace slipstream::comm;

namespace {
constexpr Gate kGates[] = {Gate::none, Gate::launch_order, Gate::serial};
constexpr int64_t kStuck = -1;

/// Makespan of one step under a gate, without the 1 ns of the optimizer item.
int64_t step_ns(const ToyJob& job, const std::vector<Plan*>& plans, const Mesh& mesh, Gate gate) {
  const Rehearsal rehearsal = rehearse_in_a_row(job, plans, mesh, 1, {.gate = gate});
  if (!rehearsal.finished) {
    CHECK_FALSE(rehearsal.deadlock.empty());
    return kStuck;
  }
  return rehearsal.makespan_ns - 1;
}

std::vector<int64_t> under_all_gates(const ToyJob& job, const std::vector<Plan*>& plans, const Mesh& mesh) {
  std::vector<int64_t> times;
  for (Gate gate : kGates) times.push_back(step_ns(job, plans, mesh, gate));
  return times;
}

}  // namespace

TEST_CASE("pipelines deadlock when tasks are issued as reached, and never in the global order") {
  struct Row {
    int chunks, channels;
    std::vector<int64_t> reached, global;
  };
  const Row rows[] = {
      {1, 1, {kStuck, kStuck, kStuck}, {708, 708, 708}},    {1, 2, {708, kStuck, kStuck}, {708, 708, 708}},
      {1, 4, {708, kStuck, kStuck}, {708, 708, 708}},       {2, 1, {kStuck, kStuck, kStuck}, {1182, 1182, 1182}},
      {2, 2, {kStuck, kStuck, kStuck}, {1182, 1182, 1182}}, {2, 4, {1182, kStuck, kStuck}, {1182, 1182, 1182}},
  };
  const Mesh mesh(MeshSizes{.pipeline = 4});
  for (const Row& row : rows) {
    INFO(row.chunks << " chunks, " << row.channels << " channels");
    const PipelineShape shape{.chunks = row.chunks, .channels = row.channels};
    ToyJob reached;
    const std::vector<Plan*> as_reached = toy_pipeline(reached, shape);
    for (Plan* plan : as_reached) order_as_reached(*plan, reached.channels.size());
    CHECK(under_all_gates(reached, as_reached, mesh) == row.reached);

    ToyJob job;
    const std::vector<Plan*> plans = toy_pipeline(job, shape);
    const Proof proof = finish(job, plans, mesh);
    INFO(proof.deadlock << (proof.hazards.empty() ? "" : proof.hazards[0].sentence()));
    CHECK(proof.holds());
    CHECK(under_all_gates(job, plans, mesh) == row.global);
  }
}

TEST_CASE("a deadlock is reported by rank and item") {
  ToyJob job;
  const std::vector<Plan*> plans = toy_pipeline(job, {});
  for (Plan* plan : plans) order_as_reached(*plan, job.channels.size());
  const Rehearsal rehearsal =
      rehearse_in_a_row(job, plans, Mesh(MeshSizes{.pipeline = 4}), 1, {.gate = Gate::launch_order});
  REQUIRE_FALSE(rehearsal.finished);
  INFO(rehearsal.deadlock);
  CHECK(rehearsal.deadlock.find("may not launch before") != std::string::npos);
  CHECK(rehearsal.deadlock.find("recv") != std::string::npos);
  CHECK(rehearsal.deadlock.find("rank ") != std::string::npos);
}

TEST_CASE("jitter: the order fixed by the nominal rehearsal cannot deadlock at any real speed") {
  const uint64_t seeds = 30;
  for (int chunks : {1, 2}) {
    ToyJob job;
    const std::vector<Plan*> plans = toy_pipeline(job, {.chunks = chunks, .reduce_ns = 30});
    const Mesh mesh(MeshSizes{.data = 2, .pipeline = 4});
    REQUIRE(finish(job, plans, mesh).holds());
    job.price.jitter = 0.9;
    for (job.price.seed = 1; job.price.seed <= seeds; ++job.price.seed)
      for (Gate gate : kGates) {
        INFO("seed " << job.price.seed << ", " << name_of(gate));
        CHECK(rehearse_in_a_row(job, plans, mesh, 3, {.gate = gate}).finished);
      }
  }
}

TEST_CASE("one representative per stage ends every item when all ranks do") {
  for (bool bandwidth_bound : {false, true})
    for (Gate gate : kGates) {
      ToyJob job;
      const std::vector<Plan*> plans = toy_pipeline(job, {.chunks = 2, .reduce_ns = 30});
      const Mesh mesh(MeshSizes{.data = 2, .pipeline = 4, .tensor = 2});
      REQUIRE(finish(job, plans, mesh).holds());
      job.price.bandwidth_bound = bandwidth_bound;
      const Rehearsal few = rehearse_in_a_row(job, plans, mesh, 3, {.gate = gate});
      const Rehearsal all = rehearse_in_a_row(job, plans, mesh, 3, {.gate = gate, .collapse = false});
      REQUIRE(few.finished);
      REQUIRE(all.finished);
      REQUIRE(few.ranks.size() == 4);
      REQUIRE(all.ranks.size() == 16);
      int differences = 0;
      for (const RankTimes& times : all.ranks) {
        const RankTimes& representative = few.ranks[static_cast<size_t>(mesh.coordinates(times.rank).pipeline)];
        for (size_t run = 0; run < 3; ++run)
          for (size_t i = 0; i < times.runs[run].size(); ++i)
            differences += times.runs[run][i].end_ns != representative.runs[run][i].end_ns;
        CHECK(times.exposed_ns == representative.exposed_ns);
      }
      CHECK(differences == 0);
    }
}

namespace {

/// Makes a job that can run in a hidden global sequence: compute, messages between random stages, and collectives over
/// all.
std::vector<Plan*> random_job(ToyJob& job, int stages, uint64_t seed) {
  std::mt19937_64 random(seed);
  auto below = [&](size_t n) { return static_cast<int>(random() % n); };
  std::deque<ToyPlan> plans;
  std::vector<Names> done(static_cast<size_t>(stages));
  std::vector<std::string> waiting(static_cast<size_t>(stages));  // a task that the next compute item must wait for
  std::vector<std::vector<ToyTask>> tasks(static_cast<size_t>(stages));
  for (int s = 0; s < stages; ++s) plans.emplace_back(job);
  auto some_done = [&](int s) {
    const Names& names = done[static_cast<size_t>(s)];
    Names some;
    for (int i = below(3); i-- > 0 && !names.empty();) some.push_back(names[static_cast<size_t>(below(names.size()))]);
    return some;
  };
  auto add = [&](int s, ToyTask task) {
    task.after = some_done(s);
    done[static_cast<size_t>(s)].push_back(task.name);
    if (below(2)) waiting[static_cast<size_t>(s)] = task.name;
    tasks[static_cast<size_t>(s)].push_back(std::move(task));
  };
  for (int step = 0; step < 60; ++step) {
    const int64_t time_ns = 1 + below(40);
    const int kind = below(10);
    const int a = below(static_cast<size_t>(stages));
    if (kind < 5 || stages == 1) {
      Names after = some_done(a);
      if (std::string& task = waiting[static_cast<size_t>(a)]; !task.empty()) after.push_back(std::exchange(task, ""));
      plans[static_cast<size_t>(a)].compute(named("c{}", step), time_ns, {}, {}, after);
      done[static_cast<size_t>(a)].push_back(named("c{}", step));
    } else if (kind < 9) {
      const int b = (a + 1 + below(static_cast<size_t>(stages - 1))) % stages;
      const int way = below(3);
      const std::string wire = way == 0 ? "pipe_fwd" : way == 1 ? "pipe_bwd" : "both";
      add(a, {.name = named("s{}", step),
              .channel = way < 2 ? wire + "_out" : wire,
              .axis = Axis::pipeline,
              .op = Op::send,
              .time_ns = time_ns,
              .peer = b - a});
      add(b, {.name = named("r{}", step),
              .channel = way < 2 ? wire + "_in" : wire,
              .axis = Axis::pipeline,
              .op = Op::recv,
              .time_ns = time_ns,
              .peer = a - b});
    } else {
      for (int s = 0; s < stages; ++s)
        add(s, {.name = named("all{}", step),
                .channel = "norm",
                .axis = Axis::world,
                .op = Op::all_reduce,
                .time_ns = time_ns});
    }
  }
  std::vector<Plan*> built;
  for (int s = 0; s < stages; ++s) {
    plans[static_cast<size_t>(s)].compute("end", 1);
    for (const ToyTask& task : tasks[static_cast<size_t>(s)]) plans[static_cast<size_t>(s)].task(task);
    built.push_back(&plans[static_cast<size_t>(s)].build());
  }
  return built;
}

}  // namespace

TEST_CASE("fuzz: random plans never deadlock in the global order, nominal or jittered") {
  const uint64_t first_seed = 4200;
  int reached_stuck = 0;
  for (uint64_t seed = first_seed; seed < first_seed + 150; ++seed) {
    INFO("seed " << seed);
    const int stages = 2 + static_cast<int>(seed % 4);
    const Mesh mesh(MeshSizes{.pipeline = stages});
    ToyJob job;
    const std::vector<Plan*> plans = random_job(job, stages, seed);
    const Proof proof = finish(job, plans, mesh);
    CHECK(proof.deadlock == "");
    CHECK(step_ns(job, plans, mesh, Gate::launch_order) == step_ns(job, plans, mesh, Gate::none));
    job.price.jitter = 0.9;
    for (job.price.seed = 1; job.price.seed <= 3; ++job.price.seed)
      for (Gate gate : kGates) CHECK(rehearse_in_a_row(job, plans, mesh, 2, {.gate = gate}).finished);

    ToyJob naive;
    const std::vector<Plan*> as_reached = random_job(naive, stages, seed);
    for (Plan* plan : as_reached) order_as_reached(*plan, naive.channels.size());
    reached_stuck += step_ns(naive, as_reached, mesh, Gate::serial) == kStuck;
  }
  CHECK(reached_stuck > 50);  // the fuzz is hard enough to tell the two orders apart
}

TEST_CASE("two ranks that break ties differently have different hashes, and serial launches deadlock") {
  auto build = [](ToyJob& job) {
    std::vector<Plan*> plans;
    for (int stage = 0; stage < 2; ++stage) {
      ToyPlan plan(job);
      plan.compute("first", 10).compute("end", 1);
      for (const char* name : {"a", "b"})
        plan.task({.name = name,
                   .channel = name,
                   .axis = Axis::world,
                   .op = Op::all_reduce,
                   .time_ns = 5,
                   .after = {"first"},
                   .before = "end"});
      plans.push_back(&plan.build());
    }
    return plans;
  };
  ToyJob job;
  const std::vector<Plan*> plans = build(job);
  const Mesh mesh(MeshSizes{.pipeline = 2});
  const Proof proof = finish(job, plans, mesh);
  CHECK(proof.holds());
  ToyJob again;
  CHECK(finish(again, build(again), mesh).order_hash == proof.order_hash);

  std::vector<ItemId>& order = plans[1]->order;
  std::swap(*std::find(order.begin(), order.end(), item_named(*plans[1], "a")),
            *std::find(order.begin(), order.end(), item_named(*plans[1], "b")));
  std::vector<StageRuns> rows;
  for (const Plan* plan : plans) rows.push_back({{{plan, plan, plan}}, &job.buffers});
  const Proof mutant = prove(rows, mesh, job.channels, job.price);
  CHECK(mutant.order_hash != proof.order_hash);
  CHECK(mutant.deadlock.find("serial") != std::string::npos);
  CHECK(mutant.deadlock.find("launch order") == std::string::npos);
}

TEST_CASE("tasks of one channel keep the same order on all stages, whatever is appended between them") {
  ToyJob job;
  std::vector<Plan*> plans;
  for (int stage = 0; stage < 2; ++stage) {
    ToyPlan plan(job);
    // Stage 0 is ready for x first and stage 1 for y: both must choose the same.
    plan.compute(stage == 0 ? "x_ready" : "y_ready", 10)
        .compute(stage == 0 ? "y_ready" : "x_ready", 30)
        .compute("end", 1);
    for (const char* name : {"x", "y"})
      plan.task({.name = name,
                 .channel = "norm",
                 .axis = Axis::world,
                 .op = Op::all_reduce,
                 .time_ns = 5,
                 .after = {std::string(name) + "_ready"},
                 .before = "end"});
    plans.push_back(&plan.build());
  }
  CHECK(finish(job, plans, Mesh(MeshSizes{.pipeline = 2})).holds());
  std::vector<std::string> orders[2];
  for (size_t s = 0; s < 2; ++s)
    for (ItemId id : plans[s]->order)
      if (!plans[s]->is_spine(id)) orders[s].push_back((*plans[s])[id].name);
  CHECK(orders[0] == orders[1]);
}

TEST_CASE("sequence parallel on one channel: the computed order beats the appended one") {
  auto build = [](ToyJob& job) -> Plan& {
    const int layers = 4, chunks = 4;
    ToyPlan plan(job);
    for (int l = 0; l < layers; ++l) {
      for (int c = 0; c < chunks; ++c) plan.compute(named("Q{}.{}", l, c), 25);
      for (int c = 0; c < chunks; ++c) {
        plan.compute(named("P{}.{}", l, c), 25);
        if (c > 0) plan.compute(named("N{}.{}", l, c - 1), 2);
      }
      plan.compute(named("N{}.{}", l, chunks - 1), 2);
    }
    plan.compute("end", 1);
    for (int l = 0; l < layers; ++l)
      for (int c = 0; c < chunks; ++c) {
        plan.task({.name = named("rs{}.{}", l, c),
                   .channel = "tensor",
                   .axis = Axis::tensor,
                   .op = Op::reduce_scatter,
                   .time_ns = 10,
                   .after = {named("P{}.{}", l, c)},
                   .before = named("N{}.{}", l, c)});
        plan.task({.name = named("ag{}.{}", l, c),
                   .channel = "tensor",
                   .axis = Axis::tensor,
                   .op = Op::all_gather,
                   .time_ns = 10,
                   .after = {named("N{}.{}", l, c)},
                   .before = l + 1 < layers ? named("Q{}.{}", l + 1, c) : std::string("end")});
      }
    return plan.build();
  };
  const Mesh mesh(MeshSizes{.tensor = 2});
  ToyJob appended;
  Plan& as_appended = build(appended);
  order_as_reached(as_appended, appended.channels.size());
  CHECK(rehearse_in_a_row(appended, {&as_appended}, mesh, 1).makespan_ns == 923);
  ToyJob job;
  Plan& plan = build(job);
  finish(job, {&plan}, mesh);
  CHECK(rehearse_in_a_row(job, {&plan}, mesh, 1).makespan_ns == 883);
}

namespace {

/// Counts how often a rehearsal asks for the price of an item: once in every run that it plays.
class CountingPrice : public Price {
 public:
  explicit CountingPrice(const Price& price) : price_(price) {}
  int64_t local_ns(const Plan& plan, ItemId item) const override {
    ++counts[{&plan, item}];
    return price_.local_ns(plan, item);
  }
  Link link(Axis axis) const override { return price_.link(axis); }
  WireCost wire(const Plan& plan, ItemId item, Axis axis, int ranks) const override {
    ++counts[{&plan, item}];
    return price_.wire(plan, item, axis, ranks);
  }
  mutable std::map<std::pair<const Plan*, ItemId>, int64_t> counts;

 private:
  const Price& price_;
};

}  // namespace

TEST_CASE(
    "finish proves three runs in a row of every stage under the strictest gate, with the waits of a steady state") {
  constexpr int64_t kOrderings = 2;  // rehearsals that give a plan its order
  const Mesh mesh(MeshSizes{.data = 2, .pipeline = 2});
  const auto counted = [&](Checks checks) {
    ToyJob job;
    const std::vector<Plan*> plans = toy_pipeline(job, {.stages = 2, .micro_batches = 2, .reduce_ns = 30});
    const CountingPrice price(job.price);
    const Proof proof = finish(stages_of(job, plans), mesh, job.channels, price, checks);
    CHECK(price.counts.size() == plans[0]->size() + plans[1]->size());
    std::set<int64_t> counts;
    for (const auto& [item, count] : price.counts) counts.insert(count);
    int64_t steady = 0;
    for (const Plan* plan : plans) {
      const std::vector<const Plan*> runs(9, plan);
      steady += std::ssize(link_all(runs, job.channels).back());
    }
    CHECK(steady > 0);
    CHECK(proof.seam_waits == (checks == Checks::all ? steady : 0));
    return counts;
  };
  CHECK(counted(Checks::none) == std::set<int64_t>{kOrderings});
  CHECK(counted(Checks::all) == std::set<int64_t>{kOrderings + 3});
}

TEST_CASE("waits that contradict each other are refused, naming the cycle") {
  ToyJob job;
  ToyPlan plan(job);
  plan.compute("forward", 10).compute("backward", 10);
  plan.task({.name = "reduce_early",
             .channel = "reduce",
             .axis = Axis::data,
             .op = Op::all_reduce,
             .after = {"backward"},
             .before = "forward"});
  Plan& built = plan.build();
  try {
    finish(job, built);
    FAIL("a cycle was accepted");
  } catch (const PlanError& error) {
    const std::string text = error.what();
    INFO(text);
    for (const char* name : {"forward", "backward", "reduce_early", "rank 0"})
      CHECK(text.find(name) != std::string::npos);
  }
}

TEST_CASE("a receive without a send and collectives that do not match are refused by name") {
  const Mesh mesh(MeshSizes{.pipeline = 2});
  auto refusal = [&](const std::string& op_of_stage_1) {
    ToyJob job;
    std::vector<Plan*> plans;
    for (int stage = 0; stage < 2; ++stage) {
      ToyPlan plan(job);
      plan.compute("work", 10);
      if (stage == 0)
        plan.task({.name = "get",
                   .channel = "pipe_fwd_in",
                   .axis = Axis::pipeline,
                   .op = Op::recv,
                   .before = "work",
                   .peer = 1});
      else if (op_of_stage_1 == "bigger")
        plan.task({.name = "put", .channel = "pipe_fwd_out", .axis = Axis::pipeline, .op = Op::send, .peer = -1});
      plans.push_back(&plan.build());
    }
    if (op_of_stage_1 == "bigger") plans[1]->tasks[0].elems = 7;
    try {
      finish(job, plans, mesh);
    } catch (const PlanError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  INFO(refusal(""));
  CHECK(refusal("").find("get") != std::string::npos);
  CHECK(refusal("").find("never issues") != std::string::npos);
  INFO(refusal("bigger"));
  CHECK(refusal("bigger").find("put") != std::string::npos);
  CHECK(refusal("bigger").find("7") != std::string::npos);
}

TEST_CASE("the bounds of all_to_all_v are the same on all ranks, and belong to the hash of a plan") {
  const Mesh mesh(MeshSizes{.pipeline = 2});
  const Route route{.experts = 2, .row_elems = 4, .source_rows = 8, .bound_rows = 16};
  const auto proof_of = [&](const Route& of_stage_0, const Route& of_stage_1) {
    ToyJob job;
    std::vector<Plan*> plans;
    for (const Route& each : {of_stage_0, of_stage_1}) {
      ToyPlan plan(job);
      plan.compute("work", 10);
      plan.task({.name = "dispatch", .channel = "experts", .axis = Axis::world, .op = Op::all_to_all_v});
      plans.push_back(&plan.build());
      plans.back()->tasks[0].route = each;
    }
    return finish(job, plans, mesh);
  };
  const auto changed = [&](auto change) {
    Route other = route;
    change(other);
    return other;
  };
  const uint64_t hash = proof_of(route, route).order_hash;
  CHECK(proof_of(route, route).order_hash == hash);
  for (const Route& other : {changed([](Route& r) { r.experts = 1; }), changed([](Route& r) { r.row_elems = 5; }),
                             changed([](Route& r) { r.source_rows = 9; }), changed([](Route& r) { r.bound_rows = 15; }),
                             changed([](Route& r) { r.reverse = true; })}) {
    CHECK(proof_of(other, other).order_hash != hash);
    std::string refusal;
    try {
      proof_of(route, other);
    } catch (const PlanError& error) {
      refusal = error.what();
    }
    INFO(refusal);
    CHECK(refusal.find("2 experts a rank, 8 rows of 4, bound 16") != std::string::npos);
  }
}

TEST_CASE("plans that name missing channels, items or peers are refused without a crash") {
  const Mesh mesh(MeshSizes{.data = 2});
  auto broken = [&](auto&& breaks) {
    ToyJob job;
    ToyPlan plan(job);
    plan.compute("work", 10).compute("end", 1);
    plan.task({.name = "reduce",
               .channel = "reduce",
               .axis = Axis::data,
               .op = Op::all_reduce,
               .after = {"work"},
               .before = "end"});
    Plan& built = plan.build();
    breaks(built);
    CHECK_THROWS_AS(finish(job, built), PlanError);
  };
  broken([](Plan& plan) { plan.tasks[0].channel = 9; });
  broken([](Plan& plan) { plan.tasks[0].after = {{77}}; });
  broken([](Plan& plan) { plan.tasks[0].before = Point{2}; });
  broken([](Plan& plan) { plan.tasks[0].after = {{2}}; });
  broken([](Plan& plan) { plan.spine[0].op = Op::send; });
  ToyJob job;
  ToyPlan plan(job);
  Plan& unfinished = plan.compute("work", 1).build();
  CHECK_THROWS_AS(rehearse_in_a_row(job, {&unfinished}, mesh, 1), PlanError);
}

TEST_CASE("scale: 70 thousand spine items and 200 tasks") {
  ToyJob job;
  ToyPlan plan(job);
  const int layers = 48, micro_batches = 128, pieces = 11;
  for (int m = 0; m < micro_batches; ++m)
    for (int l = 0; l < layers; ++l)
      for (int p = 0; p < pieces; ++p)
        plan.compute(named("{}.{}", m, l) + named(".{}", p), 100, {named("param{}", l), named("act{}", l)},
                     {named("act{}", l)});
  plan.compute("end", 1);
  for (int t = 0; t < 200; ++t)
    plan.task({.name = named("rs{}", t),
               .channel = "reduce",
               .axis = Axis::data,
               .op = Op::all_reduce,
               .time_ns = 200,
               .after = {named("{}.{}", micro_batches - 1, t % layers) + named(".{}", t % pieces)},
               .before = "end"});
  Plan& built = plan.build();
  const Proof proof = finish(job, built);
  CHECK(proof.holds());
  CHECK(proof.items == layers * micro_batches * pieces + 1 + 200);
}
