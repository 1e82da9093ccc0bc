// SPDX-License-Identifier: Apache-2.0
// Rehearsed timelines, given to the meter of real runs: what it calls a bubble is what the plan has without
// communication, whatever the links.

#include "engine/report/critical_path.h"

#include <functional>

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

/// As rendezvous_of() has it for real jobs.
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

/// Rehearses the plans with links of several speeds, measures a step of every rank and splits its waits. Returns how
/// many ranks had exposed communication.
int check_bubbles(const ToyJob& job, const std::vector<Plan*>& plans, const Mesh& mesh) {
  constexpr uint32_t kRuns = 6, kStep = 3;
  const auto ranks = in_a_row(job, plans, mesh, kRuns, false);
  const Rehearsal instant = rehearse(mesh, job.channels, ranks, SlowerPrice(job.price, 0), {.collapse = false});
  int exposed_count = 0;
  for (double slower : {0.2, 1.0, 3.0, 10.0}) {
    const Rehearsal slow = rehearse(mesh, job.channels, ranks, SlowerPrice(job.price, slower), {.collapse = false});
    REQUIRE(slow.finished);
    std::vector<StepTimes> steps;
    std::vector<std::vector<uint64_t>> ids;
    std::vector<std::vector<std::vector<uint32_t>>> awaited;
    for (size_t r = 0; r < ranks.size(); ++r) {
      const Plan& plan = *ranks[r].runs[0];
      steps.push_back(measured(job, ranks[r], slow.ranks[r], kStep));
      ids.push_back(rendezvous_ids(job, mesh, plan, ranks[r].rank));
      auto& lists = awaited.emplace_back(plan.size());
      for (ItemId id = 0; id < plan.size(); ++id)
        for (const Point& point : plan[id].after) lists[id].push_back(point.item);
    }
    std::vector<RankStep> together;
    for (size_t r = 0; r < ranks.size(); ++r) together.push_back({&steps[r], &ids[r], &awaited[r]});
    split_waits(together);
    for (size_t r = 0; r < ranks.size(); ++r) {
      const StepTimes& t = steps[r];
      const int64_t period_ns = instant.ranks[r].step_period_ns(kStep);
      CAPTURE(job.price.seed, slower, r, t.step_ns, t.compute_ns, t.exposed_ns, t.bubble_ns, t.other_ns, period_ns);
      CHECK(std::abs(t.bubble_ns + t.other_ns - (period_ns - t.compute_ns)) <= 200);  // a task lasts at least 1 ns
      CHECK(t.compute_ns + t.exposed_ns + t.bubble_ns + t.other_ns == t.step_ns);
      int64_t exposed_ns = 0;
      for (const Exposure& wait : t.exposures) {
        CHECK(wait.exposed_ns() >= 0);
        CHECK(wait.bubble_ns >= 0);
        exposed_ns += wait.exposed_ns();
      }
      CHECK(exposed_ns == t.exposed_ns);
      exposed_count += t.exposed_ns > 0;
    }
  }
  return exposed_count;
}

}  // namespace

TEST_CASE("the bubble of a measured pipeline is the idle time that the plan has without communication", "[overlap]") {
  int exposed_count = 0;
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
        exposed_count += check_bubbles(job, plans, mesh);
      }
  CHECK(exposed_count > 50);
}

TEST_CASE("what data-parallel ranks wait for is exposed, less what remains without communication", "[overlap]") {
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
    CHECK(check_bubbles(job, {&plan}, mesh) > 2);
  }
}
