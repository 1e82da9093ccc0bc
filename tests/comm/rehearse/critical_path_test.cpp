// SPDX-License-Identifier: Apache-2.0
// Rehearsed timelines are given to the meter of real runs: its bubble is the idle time that the plan has without
// communication, at every speed of the links.

#include "engine/report/critical_path.h"

#include <functional>
#include <memory>

#include "tests/comm/rehearse/toy_plans.h"

using namespace slipstream;
using namespace slipstream::comm;

namespace {

uint64_t tag(ChannelId channel, ItemId item) { return uint64_t{channel} << 32 | item; }

/// The spans that the streams of one rank would have recorded.
StepTimes measured(const ToyJob& job, const RankRuns& rank, const RankTimes& times, uint32_t step) {
  std::vector<ChannelKind> kinds;
  for (const Channel& channel : job.channels)
    kinds.push_back(channel.name == "compute"    ? ChannelKind::compute
                    : channel.axis == Axis::self ? ChannelKind::local
                    : channel.axis == Axis::data ? ChannelKind::communication
                                                 : ChannelKind::stages);
  OverlapMeter meter(kinds);
  std::vector<int64_t> free_ns(kinds.size(), 0);
  for (uint32_t run = 0; run < rank.runs.size(); ++run) {
    const Plan& plan = *rank.runs[run];
    for (ItemId id : plan.order) {
      const ChannelId channel = plan[id].channel;
      int64_t& now_ns = free_ns[channel];
      std::vector<slipstream::Span> spans;
      const auto wait_for = [&](uint32_t other, ItemId item) {
        const int64_t end_ns = times.runs[other][item].end_ns;
        if (end_ns <= now_ns) return;
        spans.push_back({.kind = slipstream::Span::Kind::wait,
                         .awaited = tag((*rank.runs[other])[item].channel, item),
                         .item = id,
                         .step = run,
                         .begin_ns = now_ns,
                         .end_ns = end_ns});
        now_ns = end_ns;
      };
      if (run < rank.seams.size())
        for (const SeamWait& wait : rank.seams[run])
          if (wait.to == id) wait_for(wait.run, wait.from);
      for (const Point& point : plan[id].after) wait_for(run, point.item);
      spans.push_back({.kind = slipstream::Span::Kind::work,
                       .item = id,
                       .step = run,
                       .begin_ns = now_ns,
                       .end_ns = times.runs[run][id].end_ns});
      now_ns = times.runs[run][id].end_ns;
      meter.add(channel, spans);
    }
  }
  for (uint32_t s = 0; s < step; ++s) meter.take(s, true);
  return meter.take(step, true);
}

/// The same as rendezvous_of() for real jobs.
std::vector<uint64_t> rendezvous_ids(const ToyJob& job, const Mesh& mesh, const Plan& plan, int rank) {
  std::vector<uint64_t> ids(plan.size(), 0);
  std::map<std::string, int> met;
  for (ItemId id : plan.order) {
    if (!is_communication(plan[id].op)) continue;
    const Task& task = plan.task(id);
    const Channel& channel = job.channels[task.channel];
    const auto group = mesh.group(channel.axis, rank);
    const auto n = static_cast<int>(group.size());
    const int own = mesh.index_in_group(channel.axis, rank), other = ((own + task.peer) % n + n) % n;
    std::string line = named("{} {}", wire_name(channel), group[0]);
    if (task.op == Op::send) line += named(" {} {}", own, other);
    if (task.op == Op::recv) line += named(" {} {}", other, own);
    ids[id] = std::hash<std::string>{}(named("{} {}", line, met[line]++));
  }
  return ids;
}

struct Counts {
  int exposed = 0, joined = 0;  // ranks that had exposed communication, and ranks whose works were joined
};

/// Rehearses the plans with links of several speeds, measures a step of every rank and splits its waits.
Counts check_bubbles(const ToyJob& job, const std::vector<Plan*>& plans, const Mesh& mesh) {
  constexpr uint32_t kRuns = 6, kStep = 3;
  const auto ranks = in_a_row(job, plans, mesh, kRuns, false);
  const Rehearsal instant = rehearse(mesh, job.channels, ranks, SlowerPrice(job.price, 0), {.collapse = false});
  Counts counts;
  for (double slower : {0.2, 1.0, 3.0, 10.0}) {
    const Rehearsal slow = rehearse(mesh, job.channels, ranks, SlowerPrice(job.price, slower), {.collapse = false});
    REQUIRE(slow.finished);
    std::vector<StepTimes> steps;
    std::vector<PlanGraph> graphs;
    for (size_t r = 0; r < ranks.size(); ++r) {
      const Plan& plan = *ranks[r].runs[0];
      steps.push_back(measured(job, ranks[r], slow.ranks[r], kStep));
      PlanGraph& graph =
          graphs.emplace_back(PlanGraph{.rendezvous_ids = rendezvous_ids(job, mesh, plan, ranks[r].rank),
                                        .awaited = std::vector<std::vector<uint32_t>>(plan.size()),
                                        .awaited_before = std::vector<std::vector<uint32_t>>(plan.size())});
      for (ItemId id = 0; id < plan.size(); ++id) {
        graph.channels.push_back(plan[id].channel);
        for (const Point& point : plan[id].after) graph.awaited[id].push_back(point.item);
      }
      for (const SeamWait& wait : ranks[r].seams[kStep])
        if (wait.run + 1 == kStep) graph.awaited_before[wait.to].push_back(wait.from);
    }
    std::vector<StepTimes> joined = steps;
    std::vector<RankStep> together, joined_together;
    for (size_t r = 0; r < ranks.size(); ++r) {
      joined[r].works = joined_works(steps[r].works, graphs[r]);
      auto previous = std::make_shared<StepTimes>(*steps[r].previous);
      previous->works = joined_works(previous->works, graphs[r]);
      joined[r].previous = previous;
      together.push_back({&steps[r], &graphs[r]});
      joined_together.push_back({&joined[r], &graphs[r]});
      counts.joined += joined[r].works.size() < steps[r].works.size();
    }
    split_waits(together);
    split_waits(joined_together);
    for (size_t r = 0; r < ranks.size(); ++r) {
      const StepTimes& t = steps[r];
      const int64_t period_ns = instant.ranks[r].step_period_ns(kStep);
      CAPTURE(job.price.seed, slower, r, t.step_ns, t.compute_ns, t.exposed_ns, t.bubble_ns, t.other_ns, period_ns);
      CHECK(std::abs(t.bubble_ns + t.other_ns - (period_ns - t.compute_ns)) <= 200);  // a task lasts at least 1 ns
      CHECK(joined[r].exposed_ns == t.exposed_ns);
      CHECK(joined[r].bubble_ns == t.bubble_ns);
      CHECK(t.compute_ns + t.exposed_ns + t.bubble_ns + t.other_ns == t.step_ns);
      int64_t exposed_ns = 0;
      for (const Exposure& wait : t.exposures) {
        CHECK(wait.exposed_ns() >= 0);
        CHECK(wait.bubble_ns >= 0);
        exposed_ns += wait.exposed_ns();
      }
      CHECK(exposed_ns == t.exposed_ns);
      counts.exposed += t.exposed_ns > 0;
    }
  }
  return counts;
}

}  // namespace

TEST_CASE("the bubble of a measured pipeline is the idle time that the plan has without communication", "[overlap]") {
  Counts all;
  for (int chunks : {1, 2})
    for (int data : {1, 2})
      for (uint64_t seed : {0, 1, 2, 3}) {
        CAPTURE(chunks, data);
        ToyJob job;
        const std::vector<Plan*> plans = toy_pipeline(job, {.chunks = chunks,
                                                            .forward_ns = 10000,
                                                            .backward_ns = 20000,
                                                            .transfer_ns = 2000,
                                                            .reduce_ns = data > 1 ? 20000 : 0});
        const Mesh mesh(MeshSizes{.data = data, .pipeline = 4});
        REQUIRE(finish(job, plans, mesh).holds());
        job.price.jitter = seed > 0 ? 0.5 : 0;
        job.price.seed = seed;
        const Counts counts = check_bubbles(job, plans, mesh);
        all.exposed += counts.exposed;
        all.joined += counts.joined;
      }
  CHECK(all.exposed > 50);
  CHECK(all.joined > 50);
}

TEST_CASE("waits of data-parallel ranks are exposed, less the waits that remain without communication", "[overlap]") {
  const std::pair<const char*, std::function<Plan&(ToyJob&)>> strategies[] = {
      {"ddp",
       [](ToyJob& job) -> Plan& {
         return toy_ddp(job, {.forward_ns = 10000, .backward_ns = 20000, .reduce_ns = 15000});
       }},
      {"ZeRO-1",
       [](ToyJob& job) -> Plan& {
         return toy_zero1(
             job,
             {.forward_ns = 10000, .backward_ns = 20000, .scatter_ns = 6000, .update_ns = 1000, .gather_ns = 8000});
       }},
      {"ZeRO-1 whose gathers travel under the next step",
       [](ToyJob& job) -> Plan& {
         return toy_zero1(job, {.forward_ns = 10000,
                                .backward_ns = 20000,
                                .scatter_ns = 6000,
                                .update_ns = 1000,
                                .gather_ns = 14000,
                                .clip = true});
       }},
      {"ZeRO-3", [](ToyJob& job) -> Plan& {
         return toy_zero3(
             job, {.forward_ns = 10000, .backward_ns = 20000, .gather_ns = 8000, .scatter_ns = 6000, .update_ns = 500});
       }}};
  for (const auto& [name, make] : strategies) {
    CAPTURE(name);
    ToyJob job;
    Plan& plan = make(job);
    const Mesh mesh(MeshSizes{.data = 2});
    REQUIRE(finish(job, {&plan}, mesh).holds());
    CHECK(check_bubbles(job, {&plan}, mesh).exposed > 2);
  }
}
