// SPDX-License-Identifier: Apache-2.0
// Rows of divided experts: the proof of reductions refuses every task of a real plan whose rows take another way than
// their counts, and every gather or sum of tokens that is another one. (A task that is missing leaves the rows of an
// earlier layer in the same memory, which have the same type; the equal models of experts_test notice it.)

#include <cstdio>
#include <functional>

#include <fmt/core.h>

#include "comm/rehearse/reductions.h"
#include "tests/equivalence/table.h"
#include "tests/test.hpp"

using namespace slipstream;
using namespace slipstream::equivalence;

namespace {

/// Four experts on two ranks, of which each token passes two, in both of two layers.
Layout divided_experts(Recomputation recompute, ExpertExchange exchange, double capacity = 2) {
  Layout layout{.name = "mixtral", .model = tiny_llama(), .ranks = 2, .micro_batch = 1, .micro_batches = 2};
  layout.model.family = Family::mixtral;
  layout.model.context = layout.model.tokens = 8;
  layout.model.experts = {.count = 4, .top_k = 2, .ffn_width = 24, .capacity_factor = capacity};
  layout.expert = 2;
  layout.model.expert_exchange = exchange;
  layout.recompute = recompute;
  return layout;
}

std::string first_fault(const std::vector<std::unique_ptr<Job>>& jobs) {
  std::vector<const Job*> stages;
  for (const auto& job : jobs) stages.push_back(job.get());
  const comm::ReductionReport report = comm::find_incomplete(stages);
  return report.found.empty() ? "" : report.found[0].sentence();
}

/// Makes a task do nothing.
void erase(Task& task) {
  task.op = Op::copy;
  task.reads.clear(), task.writes.clear();
}

}  // namespace

TEST_CASE("routes: rows that take another way than their counts are refused", "[routes]") {
  // With a capacity of equal loads, rows travel in two rounds.
  for (const auto& [recompute, capacity] :
       {std::pair{Recomputation::none, 2.0}, {Recomputation::full, 2.0}, {Recomputation::none, 1.0}}) {
    const Layout layout = divided_experts(recompute, ExpertExchange::exact, capacity);
    CAPTURE(name_of(recompute), capacity);
    const auto jobs = make_jobs(layout, 0);
    REQUIRE(first_fault(jobs) == "");
    Job& job = *jobs[0];
    const Plan whole = job.train();
    std::vector<ItemId> routed;
    for (ItemId id = static_cast<ItemId>(whole.spine.size()); id < whole.size(); ++id)
      if (whole.task(id).op == Op::all_to_all_v) routed.push_back(id);
    // Rows and their weights go there; rows come back; so do gradients, and the numbers of the weights.
    CHECK(routed.size() >= 2 * 2 * 6);
    int64_t mutants = 0;
    const auto refused = [&](ItemId id, const char* what, const std::function<void(Task&)>& change) {
      CAPTURE(whole.task(id).name, what);
      change(job.train().task(id));
      CHECK(first_fault(jobs) != "");
      job.train() = whole;
      ++mutants;
    };
    for (ItemId id : routed) {
      const Task& task = whole.task(id);
      const Slice& counts = task.reads[1];
      refused(id, "travels the other way", [](Task& t) { t.route.reverse = !t.route.reverse; });
      refused(id, "reads no counts", [](Task& t) { t.reads[1] = t.reads[0]; });
      if (task.route.rounds > 1) {
        refused(id, "travels in the other round", [](Task& t) { t.route.round = 1 - t.route.round; });
        if (task.route.reverse) refused(id, "never returns", &erase);
      }
      for (ItemId other : routed)
        if (const Slice& others = whole.task(other).reads[1]; others != counts) {
          refused(id, "reads counts of another layer or micro-batch", [&](Task& t) { t.reads[1] = others; });
          break;
        }
    }
    for (ItemId id = static_cast<ItemId>(whole.spine.size()); id < whole.size(); ++id)
      if (whole.task(id).name.find("counts.") != std::string::npos) refused(id, "counts are not gathered", &erase);
    for (Piece& piece : job.model.pieces) {
      if (!piece.name.starts_with("late_experts_gradient")) continue;
      const std::vector<Work> works = piece.works;
      for (size_t i = 0; i < works.size(); ++i) {
        if (works[i].meaning.rule != Rule::weight_gradient) continue;
        CAPTURE(piece.layer, works[i].name);
        piece.works.erase(piece.works.begin() + static_cast<std::ptrdiff_t>(i));
        CHECK(first_fault(jobs).find("gradient") != std::string::npos);
        piece.works = works;
        ++mutants;
      }
    }
    std::printf("  COUNTED %s: %zu routed tasks, %lld mutants\n", name_of(recompute), routed.size(),
                static_cast<long long>(mutants));
  }
}

TEST_CASE("routes: gathers and sums of tokens that are other ones are refused", "[routes]") {
  for (const Recomputation recompute : {Recomputation::none, Recomputation::full}) {
    CAPTURE(name_of(recompute));
    const auto jobs = make_jobs(divided_experts(recompute, ExpertExchange::gather), 0);
    REQUIRE(first_fault(jobs) == "");
    Job& job = *jobs[0];
    const Plan whole = job.train();
    std::vector<ItemId> gathers, sums;
    for (ItemId id = static_cast<ItemId>(whole.spine.size()); id < whole.size(); ++id)
      if (job.channels[whole.task(id).channel].role == Role::experts)
        (whole.task(id).op == Op::all_gather ? gathers : sums).push_back(id);
    // In each layer and micro-batch: choices, weights and tokens, and gradients; sums of outputs, of gradients, and of
    // the gradients of weights.
    CHECK(gathers.size() == 2 * 2 * (recompute == Recomputation::full ? 7 : 4));
    CHECK(sums.size() >= 2 * 2 * 3);
    int64_t mutants = 0;
    const auto refused = [&](ItemId id, const char* what, const std::function<void(Task&)>& change) {
      CAPTURE(whole.task(id).name, what);
      change(job.train().task(id));
      CHECK(first_fault(jobs) != "");
      job.train() = whole;
      ++mutants;
    };
    for (ItemId id : gathers) {
      refused(id, "sums instead of gathering", [](Task& t) { t.op = Op::reduce_scatter; });
      refused(id, "sums everywhere", [](Task& t) { t.op = Op::all_reduce; });
      refused(id, "gathers what is gathered", [](Task& t) { t.reads = t.writes; });
    }
    for (ItemId id : sums) {
      refused(id, "gathers instead of summing", [](Task& t) { t.op = Op::all_gather; });
      refused(id, "exchanges terms instead of summing them", [](Task& t) { t.op = Op::all_to_all; });
      refused(id, "sums what is complete", [&](Task& t) { t.reads = whole.task(gathers[0]).reads; });
      refused(id, "is only copied", [](Task& t) { t.op = Op::copy; });
    }
    std::printf("  COUNTED %s: %zu gathers and %zu sums of tokens, %lld mutants\n", name_of(recompute), gathers.size(),
                sums.size(), static_cast<long long>(mutants));
  }
}
