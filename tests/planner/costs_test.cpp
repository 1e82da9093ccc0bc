// SPDX-License-Identifier: Apache-2.0
// The planner's cost of work outside the model equals that on the kernel's op card; a step's operations are the
// model's, for every layout.

#include <map>

#include "engine/config/machine.h"
#include "engine/report/utilization.h"
#include "kernels/adamw/adamw.h"
#include "kernels/cast/cast.h"
#include "kernels/sum_squares/sum_squares.h"
#include "planner/planner.h"
#include "tests/defaults.h"
#include "tests/test.hpp"

using namespace slipstream;
using namespace slipstream::planner;

namespace {

FinishedJob planned(int world, const std::vector<std::string>& more) {
  std::vector<std::string> sets{
      "model.layers=4",           "model.heads=4",    "model.width=256",          "model.ffn_width=1024",
      "model.vocab_size=1000",    "model.context=64", "train.sequence_length=64", "train.micro_batch_size=1",
      "train.global_batch_size=8"};
  sets.insert(sets.end(), more.begin(), more.end());
  return build_finished_job({.config = resolve(default_run_config(sets), {.world = world}), .machine = this_host(1)});
}

/// The op card's cost of an item of the update or a sum of gradients; nothing for other items.
std::optional<Cost> of_card(const Job& job, const Item& item) {
  const BucketStorage* storage = item.bucket >= 0 ? &job.storage[static_cast<size_t>(item.bucket)] : nullptr;
  switch (item.op) {
    case Op::update: {
      bfloat16 rounded;
      int64_t elems = 0;  // without a bucket it updates all of them
      for (const BucketStorage& each : job.storage)
        if (!storage || storage == &each) elems += each.shard_elems;
      return kernels::adamw_cost({.working = job.gather_dtype() == DType::bf16 ? &rounded : nullptr, .elems = elems});
    }
    case Op::sum_squares: {
      std::vector<kernels::SumSquaresPart> parts(item.writes.size());
      parts[0].elems = storage->shard_elems;
      return kernels::sum_squares_cost(
          {.x = nullptr, .parts = parts.data(), .part_count = static_cast<int64_t>(parts.size()), .results = nullptr});
    }
    case Op::add:
      return kernels::add_cost({.elems = item.writes[0].size_bytes / 4});
    default:
      return {};
  }
}

}  // namespace

TEST_CASE("the planner charges the costs that the kernels declare", "[plan]") {
  std::map<Op, int> seen;
  const std::pair<int, std::vector<std::string>> jobs[] = {
      {1, {}},
      {2, {"zero.stage=1", "train.dtype=bfloat16"}},
      {2, {"zero.stage=2", "train.dtype=bfloat16", "model.tie_embeddings=false"}},
      {2, {"zero.stage=3", "zero.prefetch_depth=1"}},
      {2, {"parallel.pipeline=2", "model.tie_embeddings=true"}},
  };
  for (const auto& [world, sets] : jobs) {
    const FinishedJob finished = planned(world, sets);
    for (const auto& job : finished.stages)
      for (ItemId i = 0; i < job->train.size(); ++i) {
        const Item& item = job->train[i];
        const std::optional<Cost> card = of_card(*job, item);
        if (!card) continue;
        INFO(item.name << " with " << (sets.empty() ? "defaults" : sets[0]));
        CHECK(item.cost.flops == card->flops);
        CHECK(item.cost.bytes == card->bytes);
        ++seen[item.op];
      }
  }
  for (const Op op : {Op::update, Op::sum_squares, Op::add}) CHECK(seen[op] > 1);
}

TEST_CASE("the descriptor's scalars are the struct that the kernel reads", "[plan]") {
  const OptimizerSpec& spec = optimizers().front();
  CHECK(spec.scalars_bytes() == sizeof(kernels::AdamwScalars));
  CHECK(spec.clip_scalar * sizeof(float) == offsetof(kernels::AdamwScalars, clip));
  // Step 2: 1 - 0.5^2 = 3/4 and 1 - 0.75^2 = 7/16.
  kernels::AdamwScalars scalars;
  spec.write_scalars({.beta1 = 0.5, .beta2 = 0.75}, 0.25, 2, {&scalars.learning_rate, spec.scalars.size()});
  CHECK(scalars.learning_rate == 0.25f);
  CHECK(scalars.inv_bias1 == 4.0f / 3);
  CHECK(scalars.inv_bias2 == 16.0f / 7);
  CHECK(scalars.clip == 1.0f);
}

TEST_CASE("the operations of a step are the closed form of the model, on every layout", "[report]") {
  // Products: 2 operations a weight and token forward, 4 backward; attention: 2 products of D over half of T x T,
  // backward 5.
  const double layers = 4, width = 256, vocab = 1000, tokens = 64, rows = 8;
  const double weights = layers * 12 * width * width + vocab * width;
  const double closed = 6 * weights * rows * tokens + layers * rows * (4 + 10) * width * tokens * (tokens + 1) / 2;
  const double alone = model_flops(planned(1, {}).stages);
  CHECK(alone >= closed);  // plus norms, activations and the loss
  CHECK(alone <= 1.03 * closed);
  for (const auto& [world, sets] :
       std::initializer_list<std::pair<int, std::vector<std::string>>>{{1, {"train.recompute=full"}},
                                                                       {1, {"train.recompute=selective"}},
                                                                       {4, {}},
                                                                       {2, {"parallel.pipeline=2"}},
                                                                       {4, {"zero.stage=3", "zero.prefetch_depth=1"}},
                                                                       {2, {"parallel.tensor=2"}},
                                                                       {2, {"parallel.context=2"}}}) {
    INFO(world << " ranks, " << (sets.empty() ? "data" : sets[0]));
    CHECK(model_flops(planned(world, sets).stages) == Approx(alone).epsilon(0.02));
  }
  // 1e9 operations in 10 ms on 2 ranks of 1e11 a second.
  CHECK(utilization(1e9, 10, 2, 1e11) == Approx(0.5));
  CHECK(peak_flops_per_second({.flops_per_second_f32 = 1, .flops_per_second_bf16 = 2}, DType::bf16) == 2);
  CHECK(peak_flops_per_second({.flops_per_second_f32 = 1, .flops_per_second_bf16 = 2}, DType::f32) == 1);
}
