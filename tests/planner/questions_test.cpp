// SPDX-License-Identifier: Apache-2.0
// Questions to plans against virtual time: an item waits for another exactly if slowing the other delays it.

#include "trainer/planner/forecast/questions.h"

#include <algorithm>
#include <cstdio>
#include <deque>

#include "engine/base/check.h"
#include "engine/plan/transfer_name.h"
#include "tests/paths.h"
#include "tests/test.hpp"

using namespace slipstream;
using namespace slipstream::planner;

namespace {

constexpr uint32_t kRuns = 3;
constexpr int64_t kLong = int64_t{1} << 40;  // nanoseconds, far more than all else together

Planned plan_of(int ranks, const std::vector<std::string>& sets) {
  PlanRequest request;
  request.run_file = source_dir() + "/configs/runs/gpt2_124m.toml";
  request.sets = {"model.layers=4",       "model.width=64",           "model.heads=2",
                  "model.vocab_size=256", "train.sequence_length=64", "train.micro_batch_size=1"};
  request.sets.insert(request.sets.end(), sets.begin(), sets.end());
  request.ranks = ranks;
  request.machine = source_dir() + "/configs/machines/h100x8.toml";
  request.whole = true;
  return make_plan(request);
}

bool is_same_message(const Task& a, const Task& b) {
  const auto is_pair = [](Op op) { return op == Op::send || op == Op::recv; };
  if (is_pair(a.op) && is_pair(b.op)) return same_transfer(a.name, b.name);
  return a.op == b.op && a.name == b.name;
}

/// Every item takes as long as any other, except for one message or local item of one run, which takes kLong.
class OneSlow : public comm::Price {
 public:
  OneSlow(const std::vector<comm::RankRuns>& ranks, const comm::Place& slow) : ranks_(ranks), slow_(slow) {}
  int64_t local_ns(const Plan& plan, ItemId item) const override { return ns(plan, item); }
  comm::Link link(Axis) const override { return {}; }
  comm::WireCost wire(const Plan& plan, ItemId item, Axis, int) const override { return {ns(plan, item), 0, 0}; }

 private:
  int64_t ns(const Plan& plan, ItemId item) const {
    const Plan& of_slow = *ranks_[slow_.rank_index].runs[slow_.run];
    const bool is_itself = &plan == &of_slow && item == slow_.item;
    const bool is_task = !of_slow.is_spine(slow_.item) && is_communication(of_slow[slow_.item].op);
    bool is_its_message = false;
    if (is_task && !plan.is_spine(item))
      for (const comm::RankRuns& rank : ranks_)
        is_its_message |= rank.runs[slow_.run] == &plan && is_same_message(of_slow.task(slow_.item), plan.task(item));
    return is_itself || is_its_message ? kLong : 1000;
  }

  const std::vector<comm::RankRuns>& ranks_;
  comm::Place slow_;
};

/// Every run has a plan of its own, so that one item of one run can be slow.
struct Copies {
  explicit Copies(const Planned& planned) {
    for (const comm::RankRuns& rank : runs_of(planned.finished.stages, kRuns)) {
      comm::RankRuns copy{.rank = rank.rank, .runs = {}, .seams = rank.seams};
      for (const Plan* plan : rank.runs) copy.runs.push_back(&plans.emplace_back(*plan));
      ranks.push_back(copy);
    }
  }
  std::deque<Plan> plans;
  std::vector<comm::RankRuns> ranks;
};

}  // namespace

TEST_CASE("questions: an item waits for another exactly if slowing the other delays it", "[planner]") {
  struct Row {
    int ranks;
    std::vector<std::string> sets;
  };
  const std::vector<Row> rows = {
      {2, {"zero.stage=3", "train.global_batch_size=4"}},
      {2, {"zero.stage=1", "train.global_batch_size=2", "overlap.bucket_size=64KiB"}},
      {4, {"parallel.pipeline=2", "train.global_batch_size=6"}},
      {2,
       {"parallel.pipeline=2", "pipeline.virtual_stages=2", "pipeline.schedule=interleaved_1f1b",
        "train.global_batch_size=2"}},
  };
  int64_t waits = 0, pairs = 0;
  for (const Row& row : rows) {
    CAPTURE(row.sets);
    const Planned planned = plan_of(row.ranks, row.sets);
    const Job& job = *planned.finished.job;
    const Copies copies(planned);
    const auto sizes = [&](uint32_t r) { return static_cast<ItemId>(copies.ranks[r].runs[0]->size()); };
    const auto stages = static_cast<uint32_t>(copies.ranks.size());
    for (uint32_t slow_rank = 0; slow_rank < stages; ++slow_rank)
      for (ItemId slow_item = 0; slow_item < sizes(slow_rank); slow_item += 7)
        for (uint32_t slow_run = 1; slow_run < kRuns; ++slow_run) {
          const comm::Place slow{slow_rank, slow_run, slow_item};
          const comm::Rehearsal played =
              comm::rehearse(job.mesh, job.channels, copies.ranks, OneSlow(copies.ranks, slow),
                             {.contention = false, .slows_local_work = false, .splits_idle = false});
          REQUIRE(played.finished);
          for (uint32_t r = 0; r < stages; ++r)
            for (ItemId item = slow_item % 5; item < sizes(r); item += 5) {
              const comm::Place later{r, kRuns - 1, item};
              if (later == slow) continue;
              const std::vector<comm::WaitStep> chain =
                  comm::why_waits(job.mesh, job.channels, copies.ranks, later, slow);
              // The two ends of one message begin and end together.
              if (!chain.empty() && std::all_of(chain.begin(), chain.end(), [](const comm::WaitStep& step) {
                    return step.because == comm::Because::meeting;
                  }))
                continue;
              const bool is_delayed = played.ranks[r].runs[kRuns - 1][item].start_ns >= kLong;
              CAPTURE((*copies.ranks[r].runs[0])[item].name, (*copies.ranks[slow_rank].runs[0])[slow_item].name,
                      slow_run);
              REQUIRE(is_delayed == !chain.empty());
              waits += is_delayed;
              ++pairs;
            }
        }
  }
  CHECK(waits > pairs / 10);
  CHECK(waits < pairs);
  std::printf("COUNTED pairs of items whose wait was compared with virtual time: %lld\n",
              static_cast<long long>(pairs));
}

TEST_CASE("questions: an item without time never makes the rehearsed step longer, and what waits for it gains",
          "[planner]") {
  const Planned planned = plan_of(2, {"zero.stage=3", "train.global_batch_size=4"});
  const Plan& plan = planned.finished.job->train();
  size_t gains = 0;
  for (ItemId item = 0; item < plan.size(); item += 5) {
    const FreedAnswer answer = ask_freed(planned, find_item(planned, plan[item].name));
    CAPTURE(plan[item].name);
    CHECK(answer.freed_step_ms <= answer.step_ms + 1e-6);
    CHECK(answer.step_ms - answer.freed_step_ms <= answer.took_ms + 1e-6);
    gains += answer.freed_step_ms < answer.step_ms;
  }
  CHECK(gains > 3);
}

TEST_CASE("questions: names are found, and unknown and ambiguous ones are refused", "[planner]") {
  const Planned planned = plan_of(4, {"parallel.pipeline=2", "train.global_batch_size=6"});
  const auto refusal = [&](const std::string& text) -> std::string {
    try {
      find_item(planned, text);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "";
  };
  std::string shared;
  for (const Task& task : planned.finished.stages[0]->train().tasks)
    for (const Task& other : planned.finished.stages[1]->train().tasks)
      if (task.name == other.name) shared = task.name;
  REQUIRE(!shared.empty());
  CHECK(refusal(shared).find("2 stages have an item '" + shared + "'") != std::string::npos);
  CHECK(find_item(planned, shared + "@1").stage == 1);
  CHECK(refusal(shared + "@2").find("names no stage") != std::string::npos);
  CHECK(refusal(shared + "x").find("did you mean '" + shared + "'") != std::string::npos);
  const std::string only = planned.finished.stages[1]->train().spine[1].name;
  CHECK(find_item(planned, only).stage == 1);
}
