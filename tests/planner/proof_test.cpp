// SPDX-License-Identifier: Apache-2.0
// The subject of a job's proof: all its plans, in a row as in a run. A plan whose proof fails is not returned.

#include "engine/base/check.h"
#include "engine/config/load.h"
#include "engine/config/machine.h"
#include "tests/defaults.h"
#include "tests/test.hpp"
#include "trainer/planner/planner.h"

using namespace slipstream;
using namespace slipstream::planner;

namespace {

/// A small model with ZeRO-3 on two ranks: layers are gathered in every plan that computes. `change` sees the plans
/// before they have an order.
JobRequest request(const std::function<void(Job&)>& change = {}, const std::vector<std::string>& more = {}) {
  std::vector<std::string> sets{"model.layers=3",
                                "model.heads=2",
                                "model.width=16",
                                "model.vocab_size=64",
                                "model.context=16",
                                "train.sequence_length=16",
                                "train.micro_batch_size=1",
                                "train.global_batch_size=2",
                                "zero.stage=3",
                                "zero.prefetch_depth=1"};
  sets.insert(sets.end(), more.begin(), more.end());
  JobRequest asked{.config = resolve(default_run_config(sets), {.world = 2}), .machine = this_host(1)};
  // The planner asks for times of jobs that it is still writing.
  if (change)
    asked.spine_ns = [change](const Job& job) {
      change(const_cast<Job&>(job));
      return std::vector<int64_t>{};
    };
  return asked;
}

const std::vector<std::string> kSaving{"checkpoint.interval=1", "checkpoint.async=true"};

Task& first_gather(Plan& plan) {
  for (Task& task : plan.tasks)
    if (task.op == Op::all_gather && task.before) return task;
  FAIL("no gather");
  return plan.tasks[0];
}

std::string refusal(const JobRequest& asked) {
  try {
    build_finished_job(asked);
  } catch (const PlanError& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("a training or evaluation plan that fails its proof is not run", "[proof]") {
  CHECK(build_finished_job(request()).proof.holds());
  for (PlanKind kind : {PlanKind::train, PlanKind::evaluate}) {
    // In this plan, compute no longer waits for the layer that it reads.
    const JobRequest broken = request([kind](Job& job) { first_gather(job.plan(kind)).before.reset(); });
    const FinishedJob found = build_proved_job(broken);
    INFO(name_of(kind));
    CHECK(!found.proof.holds());
    const std::string sentence = refusal(broken);
    INFO(sentence);
    CHECK(sentence.find("failed its proof") != std::string::npos);
    CHECK(sentence.find("parameters.slots") != std::string::npos);
    JobRequest compared = broken;
    compared.proves = false;
    CHECK_NOTHROW(build_finished_job(compared));
  }
}

TEST_CASE("an implicit order is found in the plans of evaluation and saving, and with two copies of the weights",
          "[proof]") {
  const auto implicit_order = [](PlanKind kind, const std::vector<std::string>& more) {
    return build_proved_job(request(
                                [kind](Job& job) {
                                  // Two tasks of one channel write the same bytes: only their channel orders them,
                                  // without a wait.
                                  std::vector<Task>& tasks = job.plan(kind).tasks;
                                  tasks.push_back(tasks.front());
                                  tasks.back().name = "again";
                                  tasks.back().before.reset();
                                  tasks.back().after.clear();
                                },
                                more))
        .proof;
  };
  for (const auto& [kind, more] : {std::pair<PlanKind, std::vector<std::string>>{PlanKind::evaluate, {}},
                                   {PlanKind::train, {"zero.stage=1", "optimizer.double_buffer=true"}},
                                   {PlanKind::save, kSaving}}) {
    const comm::Proof proof = implicit_order(kind, more);
    CHECK(!proof.holds());
    REQUIRE(!proof.hazards.empty());
    INFO(proof.hazards[0].sentence());
    CHECK(proof.hazards[0].sentence().find("again") != std::string::npos);
  }
}

TEST_CASE("the hash that ranks compare before step 0 changes with every plan", "[proof]") {
  const uint64_t plain = build_finished_job(request({}, kSaving)).proof.order_hash;
  CHECK(build_finished_job(request({}, kSaving)).proof.order_hash == plain);
  CHECK(build_finished_job(request()).proof.order_hash != plain);
  for (PlanKind kind : {PlanKind::train, PlanKind::evaluate, PlanKind::prime, PlanKind::save})
    CHECK(build_finished_job(request([kind](Job& job) { job.plan(kind).tasks[0].name += "'"; }, kSaving))
              .proof.order_hash != plain);
}

namespace {

/// Counts how often a rehearsal asks for the price of a plan's first item: once in every run that it plays.
class CountingPrice : public comm::Price {
 public:
  explicit CountingPrice(const comm::Price& price) : price_(price) {}
  int64_t local_ns(const Plan& plan, ItemId item) const override {
    if (item == 0) ++counts[&plan];
    return price_.local_ns(plan, item);
  }
  comm::Link link(Axis axis) const override { return price_.link(axis); }
  comm::WireCost wire(const Plan& plan, ItemId item, Axis axis, int ranks) const override {
    return price_.wire(plan, item, axis, ranks);
  }
  mutable std::map<const Plan*, int64_t> counts;

 private:
  const comm::Price& price_;
};

}  // namespace

TEST_CASE("the proof plays three steps and two evaluations in a row under the strictest gate", "[proof]") {
  constexpr int64_t kOrderings = 2;  // rehearsals that give a plan its order
  for (const bool twice : {false, true}) {
    CAPTURE(twice);
    const JobRequest asked =
        request({}, {"zero.stage=1", std::string("optimizer.double_buffer=") + (twice ? "true" : "false")});
    const comm::RooflinePrice roofline({.flops_per_second = 1e9, .bytes_per_second = 0, .launch_ns = 0}, {1e9, 100});
    const CountingPrice price(roofline);
    const auto job = std::make_shared<Job>(*build_drafted_job(asked).job);
    finish_plans({job}, price, true);
    const auto runs = [&](PlanKind kind, int64_t steps) {
      return price.counts[&job->plan(kind, steps)] - (steps == 0 ? kOrderings : 0);
    };
    CHECK(runs(PlanKind::prime, 0) == 1);
    if (!twice) {  // the last step follows an evaluation
      CHECK(runs(PlanKind::train, 0) == 4);
      CHECK(runs(PlanKind::evaluate, 0) == 2);
      continue;
    }
    // Every other step and evaluation finds the two copies of the weights exchanged.
    for (int64_t steps : {0, 1}) {
      CHECK(runs(PlanKind::train, steps) == 3);
      CHECK(runs(PlanKind::evaluate, steps) == 2);
    }
    // Plans that are only compared have an order of their steps alone.
    const CountingPrice ordering(roofline);
    const auto compared = std::make_shared<Job>(*build_drafted_job(asked).job);
    finish_plans({compared}, ordering, false);
    CHECK(ordering.counts.size() == 1);
    CHECK(ordering.counts[&compared->train()] == kOrderings);
  }
}

TEST_CASE("the proof counts the items of every plan of every stage once", "[proof]") {
  const FinishedJob finished = build_finished_job(request({}, {"parallel.pipeline=2", "zero.stage=0"}));
  int64_t items = 0;
  for (const auto& job : finished.stages)
    items += static_cast<int64_t>(job->train().size() + job->plan(PlanKind::evaluate).size() +
                                  job->plan(PlanKind::prime).size());
  CHECK(finished.proof.items == items);
}
