// SPDX-License-Identifier: Apache-2.0
// Rehearsed step times of the strategies equal the formulas that can be derived by hand.

#include <algorithm>
#include <functional>
#include <map>

#include "tests/comm/rehearse/toy_plans.h"

using namespace slipstream;
using namespace slipstream::comm;

namespace {

/// Finishes a plan on `data` ranks and returns its steady period; checks the proof on the way.
int64_t period(ToyJob& job, Plan& plan, int data = 4, bool replayed = false) {
  const Mesh mesh(MeshSizes{.data = data});
  const Proof proof = finish(job, plan, data);
  INFO(proof.deadlock << (proof.hazards.empty() ? "" : proof.hazards[0].sentence()));
  CHECK(proof.holds());
  const Rehearsal rehearsal = rehearse_in_a_row(job, {&plan}, mesh, 6, {.replayed = replayed});
  REQUIRE(rehearsal.finished);
  if (replayed) CHECK(rehearsal.ranks[0].bubble_ns <= 6);  // the barriers of six runs take 1 ns each
  return rehearsal.ranks[0].step_period_ns(4);
}

/// Idle time of compute that is charged to an item, communication or not.
int64_t charged_ns(const RankTimes& times) {
  int64_t total_ns = 0;
  for (const Exposed& exposed : times.exposed) total_ns += exposed.time_ns;
  return total_ns;
}

}  // namespace

TEST_CASE("data parallel: compute bound and network bound") {
  const DdpShape shape;  // 8 layers, 2 per bucket, forward 100, backward 200
  ToyJob job;
  // Each optimizer item takes 1 ns, and only the last one runs after the last reduction.
  CHECK(period(job, toy_ddp(job, shape)) == 8 * 300 + 150 + 1);
  DdpShape slow = shape;
  slow.reduce_ns = 700;  // longer than the 400 of a bucket's backward
  ToyJob other;
  CHECK(period(other, toy_ddp(other, slow)) == 8 * 100 + 2 * 200 + 4 * 700 + 1);
}

TEST_CASE("ZeRO-1: updates and gathers hide under the next step's forward, by links alone") {
  auto of = [](const Zero1Shape& shape) {
    ToyJob job;
    return period(job, toy_zero1(job, shape));
  };
  CHECK(of({}) == 8 * 300 + 60 + 10 + 80);
  CHECK(of({.clip = true}) == 8 * 300 + 60 + 2 + 20 + 10 + 80);
  // Gathers slower than a forward use the backward's time, unless they must wait for the norm.
  CHECK(of({.gather_ns = 150}) == 8 * 300 + 60 + 10 + 150);
  CHECK(of({.gather_ns = 150, .clip = true}) == 8 * 200 + 60 + 2 + 20 + 10 + 8 * 150 + 100);
}

TEST_CASE("ZeRO-1 as a graph: all gathers after the norm are exposed, because a graph is a barrier") {
  constexpr int64_t kBarrier = 1;
  auto of = [](const Zero1Shape& shape) {
    ToyJob job;
    return period(job, toy_zero1(job, shape), 4, true);
  };
  // Without clipping, gathers follow reductions during the backward pass, and only the last one is after it.
  CHECK(of({}) == 8 * 300 + 60 + 10 + 80 + kBarrier);
  CHECK(of({.gather_ns = 150}) == 8 * 300 + 60 + 10 + 150 + kBarrier);
  CHECK(of({.clip = true}) == 8 * 300 + 60 + 2 + 20 + 10 + 8 * 80 + kBarrier);
  CHECK(of({.gather_ns = 150, .clip = true}) == 8 * 300 + 60 + 2 + 20 + 10 + 8 * 150 + kBarrier);
}

TEST_CASE("ZeRO-3: with one slot every gather is exposed, with two only the first") {
  auto of = [](int slots) {
    ToyJob job;
    return period(job, toy_zero3(job, {.slots = slots}), 2);
  };
  CHECK(of(1) == 16 * 80 + 8 * 300 + 60 + 5);
  CHECK(of(2) == 8 * 300 + 60 + 5 + 80);
  CHECK(of(3) == 8 * 300 + 60 + 5 + 80);
}

TEST_CASE("tensor parallel in chunks: only the last chunk is exposed") {
  auto forward = [](int layers, int chunks, int64_t q, int64_t p, int64_t m) {
    ToyJob job;
    ToyPlan plan(job);
    for (int l = 0; l < layers; ++l) {
      for (int c = 0; c < chunks; ++c) plan.compute(named("Q{}.{}", l, c), q);
      for (int c = 0; c < chunks; ++c) plan.compute(named("P{}.{}", l, c), p);
    }
    plan.compute("end", 1);
    for (int l = 0; l < layers; ++l)
      for (int c = 0; c < chunks; ++c)
        plan.task({.name = named("ar{}.{}", l, c),
                   .channel = "tensor",
                   .axis = Axis::tensor,
                   .op = Op::all_reduce,
                   .time_ns = m,
                   .after = {named("P{}.{}", l, c)},
                   .before = l + 1 < layers ? named("Q{}.{}", l + 1, c) : std::string("end")});
    Plan& built = plan.build();
    const Mesh mesh(MeshSizes{.tensor = 2});
    finish(job, {&built}, mesh);
    return rehearse_in_a_row(job, {&built}, mesh, 1).makespan_ns - 1;
  };
  CHECK(forward(6, 4, 25, 25, 20) == 6 * 200 + 20);
  CHECK(forward(6, 1, 100, 100, 80) == 6 * 280);
  CHECK(forward(6, 4, 25, 25, 60) == 6 * (25 + 4 * 60 + 25) + 25 * 3);
}

TEST_CASE("hybrid sharding: two channels overlap the inner and the outer reduction") {
  auto backward = [](bool two_channels) {
    ToyJob job;
    ToyPlan plan(job);
    for (int l = 7; l >= 0; --l) plan.compute(named("B{}", l), 50);
    plan.compute("end", 1);
    for (int l = 7; l >= 0; --l) {
      plan.task({.name = named("rs{}", l),
                 .channel = "inner",
                 .axis = Axis::data_inner,
                 .op = Op::reduce_scatter,
                 .time_ns = 60,
                 .after = {named("B{}", l)}});
      plan.task({.name = named("ar{}", l),
                 .channel = two_channels ? "outer" : "inner",
                 .axis = two_channels ? Axis::data_outer : Axis::data_inner,
                 .op = Op::all_reduce,
                 .time_ns = 90,
                 .after = {named("rs{}", l)},
                 .before = "end"});
    }
    Plan& built = plan.build();
    const Mesh mesh(MeshSizes{.data = 4, .data_inner = 2});
    finish(job, {&built}, mesh);
    return rehearse_in_a_row(job, {&built}, mesh, 1).makespan_ns - 1;
  };
  CHECK(backward(true) == 50 + 60 + 8 * 90);
  CHECK(backward(false) == 50 + 8 * 150);
}

TEST_CASE("context ring: the keys and values of a block travel while the previous block computes") {
  const int ranks = 4;
  ToyJob job;
  ToyPlan plan(job);
  for (int i = 0; i < ranks; ++i) plan.compute(named("A{}", i), 50, {named("kv{}", i % 2)}, {"o"});
  for (int i = 1; i < ranks; ++i)
    plan.task({.name = named("hop{}", i),
               .channel = "context",
               .axis = Axis::context,
               .op = Op::exchange,
               .time_ns = 40,
               .after = i >= 2 ? Names{named("A{}", i - 2)} : Names{},
               .before = named("A{}", i),
               .reads = {named("kv{}", (i - 1) % 2)},
               .writes = {named("kv{}", i % 2)},
               .peer = 1});
  Plan& built = plan.build();
  const Mesh mesh(MeshSizes{.context = ranks});
  finish(job, {&built}, mesh);
  CHECK(rehearse_in_a_row(job, {&built}, mesh, 1).makespan_ns == ranks * 50);
  CHECK(rehearse_in_a_row(job, {&built}, mesh, 1, {.collapse = false}).makespan_ns == ranks * 50);
}

TEST_CASE("idle time of a pipeline: waiting for compute is a bubble, waiting for a transfer is exposed communication") {
  // 1F1B as published, forward 100, backward 200, p = 4 stages, m = 8 micro-batches: (p-1)(f+b) idle on every stage of
  // a step. Pipeline transfers lengthen it, and none of that is a bubble of the schedule.
  for (int64_t transfer_ns : {1, 10}) {
    ToyJob job;
    const PipelineShape shape{
        .stages = 4, .micro_batches = 8, .forward_ns = 100, .backward_ns = 200, .transfer_ns = transfer_ns};
    const std::vector<Plan*> plans = toy_pipeline(job, shape);
    const Mesh mesh(MeshSizes{.pipeline = 4});
    REQUIRE(finish(job, plans, mesh).holds());
    const Rehearsal rehearsal = rehearse_in_a_row(job, plans, mesh, 1);
    for (const RankTimes& times : rehearsal.ranks) {
      int64_t computed_ns = 0;
      for (ItemId i = 0; i < plans[0]->spine.size(); ++i) computed_ns += times.runs[0][i].duration_ns();
      const int64_t last_ns =
          times.runs[0][static_cast<size_t>(plans[static_cast<size_t>(times.rank)]->spine.size()) - 1].end_ns;
      CAPTURE(transfer_ns, times.rank, times.bubble_ns, times.exposed_ns);
      CHECK(times.bubble_ns + charged_ns(times) + computed_ns == last_ns);  // nothing is lost
      CHECK(times.exposed_ns <= 2 * 8 * 3 * transfer_ns);  // at most every hop of every micro-batch, one after another
      if (times.rank > 0) CHECK(times.bubble_ns > 0);
    }
    // The first stage waits for the round trip of the first micro-batch and of the last, nothing else.
    CHECK(rehearsal.ranks[0].bubble_ns + rehearsal.ranks[0].exposed_ns >=
          3 * (shape.forward_ns + shape.backward_ns) * shape.layers_per_chunk);
  }
}

namespace {

/// What compute of one rank waits for over `runs` runs if communication takes no time, found by solving the waits of
/// all ranks: a fixed point over the plans' points, channel orders and seams. Local channels compute, too.
std::vector<int64_t> idle_without_communication(const ToyJob& job, const Mesh& mesh,
                                                const std::vector<RankRuns>& ranks) {
  struct Key {
    size_t rank, run, item;
    auto operator<=>(const Key&) const = default;
  };
  std::map<Key, std::vector<Key>> before;
  std::map<std::string, std::vector<Key>> members;  // the members that meet
  for (size_t r = 0; r < ranks.size(); ++r) {
    std::map<ChannelId, Key> tails;
    std::map<std::string, int> met;
    for (size_t run = 0; run < ranks[r].runs.size(); ++run) {
      const Plan& plan = *ranks[r].runs[run];
      for (ItemId id : plan.order) {
        const Key key{r, run, id};
        std::vector<Key>& waits = before[key];
        if (const auto tail = tails.find(plan[id].channel); tail != tails.end()) waits.push_back(tail->second);
        tails[plan[id].channel] = key;
        for (const Point& point : plan[id].after) waits.push_back({r, run, point.item});
        if (!is_communication(plan[id].op)) continue;
        const Task& task = plan.task(id);
        const Channel& channel = job.channels[task.channel];
        const auto group = mesh.group(channel.axis, ranks[r].rank);
        const auto n = static_cast<int>(group.size());
        const int own = mesh.index_in_group(channel.axis, ranks[r].rank), other = ((own + task.peer) % n + n) % n;
        std::string line = named("{} {}", wire_name(channel), group[0]);
        if (task.op == Op::send) line += named(" {} {}", own, other);
        if (task.op == Op::recv) line += named(" {} {}", other, own);
        members[named("{} {}", line, met[line]++)].push_back(key);
      }
      if (run < ranks[r].seams.size())
        for (const SeamWait& wait : ranks[r].seams[run]) before[{r, run, wait.to}].push_back({r, wait.run, wait.from});
    }
  }
  for (const auto& [line, keys] : members)
    for (const Key& key : keys)
      for (const Key& other : keys)
        if (key != other)
          for (const Key& wait : std::vector<Key>(before[other]))
            if (std::find(keys.begin(), keys.end(), wait) == keys.end()) before[key].push_back(wait);
  std::map<Key, int64_t> end;
  const std::function<int64_t(const Key&)> end_of = [&](const Key& key) {
    if (const auto known = end.find(key); known != end.end()) return known->second;
    int64_t start = 0;
    for (const Key& wait : before[key]) start = std::max(start, end_of(wait));
    const Plan& plan = *ranks[key.rank].runs[key.run];
    const auto item = static_cast<ItemId>(key.item);
    return end[key] =
               start + (is_communication(plan[item].op) ? 0 : std::max<int64_t>(1, job.price.local_ns(plan, item)));
  };
  std::vector<int64_t> idle;
  for (size_t r = 0; r < ranks.size(); ++r) {
    int64_t last = 0, computed = 0;
    for (size_t run = 0; run < ranks[r].runs.size(); ++run)
      for (ItemId i = 0; i < ranks[r].runs[run]->spine.size(); ++i) {
        last = std::max(last, end_of({r, run, i}));
        computed += std::max<int64_t>(1, job.price.local_ns(*ranks[r].runs[run], i));
      }
    idle.push_back(last - computed);
  }
  return idle;
}

}  // namespace

namespace {

/// Rehearses a pipeline at links of several speeds. Returns how many ranks had exposed communication.
int check_bubble(const PipelineShape& shape, int data, uint64_t seed) {
  ToyJob job;
  const std::vector<Plan*> plans = toy_pipeline(job, shape);
  const Mesh mesh(MeshSizes{.data = data, .pipeline = shape.stages});
  REQUIRE(finish(job, plans, mesh).holds());
  job.price.jitter = seed > 0 ? 0.6 : 0;
  job.price.seed = seed;
  const auto ranks = in_a_row(job, plans, mesh, 3);
  const std::vector<int64_t> idle = idle_without_communication(job, mesh, ranks);
  std::vector<int64_t> exposed(ranks.size(), 0);
  int64_t tasks = 0;
  for (const RankRuns& rank : ranks)
    for (const Plan* plan : rank.runs) tasks += static_cast<int64_t>(plan->tasks.size());
  int exposed_count = 0;
  for (double slower : {0.0, 0.1, 1.0, 4.0, 30.0}) {
    const SlowerPrice price(job.price, slower);
    const Rehearsal rehearsal = rehearse(mesh, job.channels, ranks, price);
    REQUIRE(rehearsal.finished);
    for (size_t r = 0; r < ranks.size(); ++r) {
      const RankTimes& times = rehearsal.ranks[r];
      CAPTURE(slower, r);
      CHECK(times.bubble_ns == idle[r]);
      CHECK(times.exposed_ns >= exposed[r]);              // a slower link exposes no less
      if (slower == 0) CHECK(times.exposed_ns <= tasks);  // each task lasts 1 ns
      CHECK(charged_ns(times) == times.exposed_ns);
      exposed[r] = times.exposed_ns;
      exposed_count += slower > 0 && times.exposed_ns > 0;
    }
  }
  return exposed_count;
}

}  // namespace

TEST_CASE("the bubble does not depend on the speed of links: it is the idle time of compute without communication") {
  int exposed_count = 0;
  for (int stages : {2, 3, 4})
    for (int chunks : {1, 2})
      for (int channels : {2, 4})
        for (int data : {1, 2})
          for (uint64_t seed : {0, 1, 2}) {
            CAPTURE(stages, chunks, channels, data, seed);
            exposed_count += check_bubble({.stages = stages,
                                           .micro_batches = 2 * stages,
                                           .chunks = chunks,
                                           .channels = channels,
                                           .reduce_ns = data > 1 ? 30 : 0},
                                          data, seed);
          }
  CHECK(exposed_count > 500);
}

TEST_CASE("bounded in flight: bucket i is reduced before backward i + K") {
  auto makespan = [](int in_flight) {
    ToyJob job;
    ToyPlan plan(job);
    for (int l = 7; l >= 0; --l) plan.compute(named("B{}", l), 100, {}, {named("stage{}", (7 - l) % in_flight)});
    plan.compute("end", 1);
    for (int l = 7; l >= 0; --l)
      plan.task({.name = named("rs{}", l),
                 .channel = "reduce",
                 .axis = Axis::data,
                 .op = Op::reduce_scatter,
                 .time_ns = 150,
                 .after = {named("B{}", l)},
                 .before = l >= in_flight ? named("B{}", l - in_flight) : std::string("end"),
                 .reads = {named("stage{}", (7 - l) % in_flight)}});
    Plan& built = plan.build();
    finish(job, built);
    return rehearse_in_a_row(job, {&built}, Mesh(MeshSizes{.data = 2}), 1).makespan_ns - 1;
  };
  CHECK(makespan(1) == 8 * 250);
  CHECK(makespan(2) == 100 + 8 * 150);
  CHECK(makespan(8) == 100 + 8 * 150);
}

TEST_CASE("transfers of two channels on one port share it; on ports of their own they do not") {
  ToyJob job;
  job.price.bandwidth_bound = true;
  ToyPlan plan(job);
  plan.compute("first", 10).compute("end", 1);
  for (const char* channel : {"reduce", "gather"})
    plan.task({.name = channel,
               .channel = channel,
               .axis = Axis::data,
               .op = Op::all_reduce,
               .time_ns = 100,
               .after = {"first"},
               .before = "end"});
  Plan& built = plan.build();
  finish(job, built);
  const Mesh mesh(MeshSizes{.data = 2});
  CHECK(rehearse_in_a_row(job, {&built}, mesh, 1).makespan_ns == 10 + 200 + 1);
  CHECK(rehearse_in_a_row(job, {&built}, mesh, 1, {.contention = false}).makespan_ns == 10 + 100 + 1);
}

TEST_CASE("a transfer on multiprocessors slows local work of its rank; one on a copy engine or an adapter does not") {
  ToyJob job;
  job.price.bandwidth_bound = true;
  job.price.card_multiprocessors = 100;
  ToyPlan plan(job);
  plan.compute("first", 10).compute("beside", 100).compute("end", 1);
  plan.task({.name = "reduce",
             .channel = "reduce",
             .axis = Axis::data,
             .op = Op::all_reduce,
             .time_ns = 60,
             .after = {"first"},
             .before = "end"});
  plan.task({.name = "load", .channel = "h2d", .op = Op::load, .time_ns = 100, .after = {"first"}, .before = "end"});
  job.channels.back().role = Role::h2d;  // by a copy engine, so it is not slowed
  Plan& built = plan.build();
  finish(job, built);
  const Mesh mesh(MeshSizes{.data = 2});
  Channel& reduce = job.channels[1];
  REQUIRE(reduce.name == "reduce");
  reduce.blocks = 25;
  // Of the 100 ns, 45 pass beside the transfer, which takes a quarter of the card for 60 ns.
  for (const auto& [engine, beside_ns] :
       {std::pair{Engine::sm, int64_t{115}}, {Engine::copy, int64_t{100}}, {Engine::nic, int64_t{100}}}) {
    reduce.engine = engine;
    const Rehearsal rehearsal = rehearse_in_a_row(job, {&built}, mesh, 1);
    CAPTURE(name_of(engine));
    CHECK(rehearsal.makespan_ns == 10 + beside_ns + 1);
    CHECK(rehearsal.ranks[0].runs[0][item_named(built, "load")].duration_ns() == 100);
    CHECK(rehearsal.ranks[0].exposed_ns == 0);
    CHECK(rehearse_in_a_row(job, {&built}, mesh, 1, {.slows_local_work = false}).makespan_ns == 10 + 100 + 1);
  }
}

TEST_CASE("idle time after a local task is charged to it only while it runs") {
  ToyJob job;
  ToyPlan plan(job);
  plan.compute("backward", 10).compute("forward", 5);
  plan.task({.name = "reduce",
             .channel = "reduce",
             .axis = Axis::data,
             .op = Op::all_reduce,
             .time_ns = 30,
             .after = {"backward"}});
  plan.task(
      {.name = "adamw", .channel = "update", .op = Op::update, .time_ns = 7, .after = {"reduce"}, .before = "forward"});
  Plan& built = plan.build();
  finish(job, built);
  const RankTimes times = rehearse_in_a_row(job, {&built}, Mesh(MeshSizes{.data = 2}), 1).ranks[0];
  CHECK(times.exposed_ns == 30);
  CHECK(charged_ns(times) - times.exposed_ns == 7);  // charged to the local task
  REQUIRE(times.exposed.size() == 2);
  CHECK(built[times.exposed[0].awaited].name == "adamw");
  CHECK(built[times.exposed[1].awaited].name == "reduce");
  CHECK(times.busy_ns == std::vector<int64_t>{15, 30, 7});
}

TEST_CASE("prices: the roofline, its launch cost, and measurements in its place") {
  ToyJob job;
  ToyPlan toy(job);
  toy.compute("a", 0).compute("b", 0);
  toy.task({.name = "reduce", .channel = "reduce", .axis = Axis::data, .op = Op::all_reduce});
  Plan& plan = toy.build();
  plan.spine[0].cost = {1000, 10};  // operations, bytes
  plan.spine[1].cost = {1000, 4000};
  plan.tasks[0].elems = 500;
  RooflinePrice roofline({.flops_per_second = 1e9, .bytes_per_second = 2e9, .launch_ns = 3}, {1e9, 50});
  CHECK(roofline.local_ns(plan, 0) == 1003);
  CHECK(roofline.local_ns(plan, 1) == 2003);
  CHECK(roofline.wire(plan, 2, Axis::data, 2).wire_ns == 2000);
  CHECK(roofline.wire(plan, 2, Axis::data, 2).latency_ns == 100);
  roofline.set_link(Axis::tensor, {1e10, 1}, 1);
  CHECK(roofline.wire(plan, 2, Axis::tensor, 2).wire_ns == 200);
  CHECK(roofline.port(Axis::tensor) == 1);
  CHECK(roofline.port(Axis::data) == 0);

  MeasuredPrice measured(roofline);
  measured.set(plan, {77, -1, 88});
  CHECK(measured.local_ns(plan, 0) == 77);
  CHECK(measured.local_ns(plan, 1) == 2003);
  CHECK(measured.wire(plan, 2, Axis::data, 2).wire_ns == 88);
  CHECK(measured.wire(plan, 2, Axis::data, 2).latency_ns == 0);
  CHECK(measured.wire(plan, 2, Axis::data, 2).bytes == 2000);
}
