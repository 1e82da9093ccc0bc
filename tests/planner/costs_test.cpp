// SPDX-License-Identifier: Apache-2.0
// The planner's cost of work outside the model equals that on the kernel's op card; a step's operations are the
// model's, for every layout.

#include <fmt/core.h>

#include <map>

#include "engine/config/machine.h"
#include "engine/report/utilization.h"
#include "kernels/adamw/adamw.h"
#include "kernels/cast/cast.h"
#include "kernels/muon/muon.h"
#include "kernels/sum_squares/sum_squares.h"
#include "tests/defaults.h"
#include "tests/test.hpp"
#include "trainer/planner/planner.h"

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
      if (job.groups.size() > 1) return {};
      int64_t elems = 0;  // an item without a bucket updates all of them
      for (const BucketStorage& each : job.storage)
        if (!storage || storage == &each) elems += each.shard_elems;
      return kernels::adamw_cost(
          {.working = job.groups.front().placement.rounds_updates() ? &rounded : nullptr, .elems = elems});
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
      for (ItemId i = 0; i < job->train().size(); ++i) {
        const Item& item = job->train()[i];
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
  CHECK(spec.scalars.size() * sizeof(float) == sizeof(kernels::AdamwScalars));
  CHECK(spec.clip_scalar * sizeof(float) == offsetof(kernels::AdamwScalars, clip));
  // In step 2, 1 - 0.5^2 = 3/4 and 1 - 0.75^2 = 7/16.
  kernels::AdamwScalars scalars;
  spec.write_scalars({.beta1 = 0.5, .beta2 = 0.75}, 0.25, 2, {&scalars.learning_rate, spec.scalars.size()});
  CHECK(scalars.learning_rate == 0.25f);
  CHECK(scalars.inv_bias1 == 4.0f / 3);
  CHECK(scalars.inv_bias2 == 16.0f / 7);
  CHECK(scalars.clip == 1.0f);
}

TEST_CASE("the descriptor of Muon has the numbers of its op card", "[plan]") {
  const OptimizerSpec& spec = optimizers()[static_cast<size_t>(OptimizerName::muon)];
  CHECK(spec.scalars.size() * sizeof(float) == sizeof(kernels::MuonScalars));
  CHECK(spec.clip_scalar * sizeof(float) == offsetof(kernels::MuonScalars, clip));
  kernels::MuonScalars scalars;
  spec.write_scalars({.weight_decay = 0.5}, 0.25, 2, {&scalars.learning_rate, spec.scalars.size()});
  CHECK(scalars.learning_rate == 0.25f);
  CHECK(scalars.decay == 0.875f);
  CHECK(scalars.clip == 1.0f);
  bfloat16 rounded;
  for (const auto& [rows, cols] : {std::pair{64, 64}, {1, 7}, {96, 24}, {13, 100}})
    for (DType products : {DType::f32, DType::bf16})
      for (bool rounds : {false, true}) {
        const kernels::Muon args{
            .working = rounds ? &rounded : nullptr, .rows = rows, .cols = cols, .product_dtype = products};
        const UpdateShape shape{int64_t{rows} * cols, rows, cols, rounds, products};
        CHECK(spec.cost(shape).flops == kernels::muon_cost(args).flops);
        CHECK(spec.cost(shape).bytes == kernels::muon_cost(args).bytes);
        CHECK(spec.workspace_bytes(shape) == kernels::muon_workspace_bytes(args));
      }
}

TEST_CASE("muon: matrices of blocks are its group, AdamW has the rest, and memory counts one state of them", "[plan]") {
  for (const char* family : {"gpt2", "llama"})
    for (int world : {1, 4}) {
      const std::vector<std::string> sets{std::string("model.family=") + family, "zero.stage=1",
                                          "optimizer.adamw_learning_rate=3e-4"};
      std::vector<std::string> muon_sets = sets;
      muon_sets.push_back("optimizer.name=muon");
      const FinishedJob with_muon = planned(world, muon_sets);
      const Job& job = *with_muon.job;
      REQUIRE(job.groups.size() == 2);
      CHECK(job.groups[0].rate_factor == 1);
      CHECK(job.groups[1].rate_factor == Approx(0.5));  // relative to 6e-4
      int64_t matrix_elems = 0, other_elems = 0, layers = 0;
      for (uint32_t p : job.groups[0].parameters) {
        const ParameterSpec& parameter = job.model.parameters[p];
        CHECK(parameter.tensors[0].shape.size() == 2);
        CHECK(
            (parameter.name().find("attn") != std::string::npos || parameter.name().find("mlp") != std::string::npos));
        matrix_elems += parameter.elems;
        layers += parameter.name().find(".3.") != std::string::npos;
      }
      CHECK(layers == 4);  // matrices in the last layer: qkv, out, up, down
      CHECK(matrix_elems == 4 * (family == std::string("gpt2") ? 12 : 4 + 3 * 4) * 256 * 256);
      for (uint32_t p : job.groups[1].parameters) other_elems += job.model.parameters[p].elems;
      CHECK(matrix_elems + other_elems >= job.model.parameter_elems());
      // Matrices have one state and the rest has two; a shard of ZeRO-1 has at most an eighth of padding.
      const int64_t states =
          job.buffers[job.buffers.find("momentum")].size_bytes + job.buffers[job.buffers.find("variance")].size_bytes;
      const double exact = 4.0 / world * static_cast<double>(matrix_elems + 2 * other_elems);
      CHECK(static_cast<double>(states) >= exact);
      CHECK(static_cast<double>(states) <= (world == 1 ? 1.01 : 1.15) * exact);
      const kernels::Muon widest{.rows = 1024, .cols = 256};
      CHECK(job.buffers[job.ids.update_workspace].size_bytes == kernels::muon_workspace_bytes(widest));
    }
}

TEST_CASE("the operations of a step are the closed form of the model, on every layout", "[report]") {
  // The products take 2 operations for each weight and token in forward, and 4 in backward; attention has 2 products of
  // D over half of T x T, and 5 in backward.
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
  // With a window the blocks of a ring differ: chunks have 16, 8 and 4 tokens, and the window is shorter than a chunk,
  // as long, and longer.
  for (const int window : {1, 5, 8, 23, 60}) {
    const std::vector<std::string> sets{"model.family=mistral", fmt::format("model.sliding_window={}", window)};
    const auto hidden = [&](int ranks) {  // operations without the additions of gradients in a ring
      const std::string context = fmt::format("parallel.context={}", ranks);
      return model_flops(planned(ranks, {sets[0], context}).stages) -
             model_flops(planned(ranks, {sets[0], sets[1], context}).stages);
    };
    const double pairs = static_cast<double>((64 - window) * (64 - window + 1)) / 2;
    for (const int ranks : {1, 2, 4, 8}) {
      CAPTURE(window, ranks);
      CHECK(hidden(ranks) == Approx(layers * rows * (4 + 10) * width * pairs).epsilon(1e-6));
    }
  }
  // Three of the four layers have the window.
  const std::vector<std::string> some{"model.family=qwen2", "model.sliding_window=8", "model.window_layers=[0, 2, 3]"};
  const auto flops = [](int ranks, std::vector<std::string> sets) {
    sets.push_back(fmt::format("parallel.context={}", ranks));
    return model_flops(planned(ranks, sets).stages);
  };
  for (const int ranks : {1, 2, 4})
    CHECK(flops(ranks, {some[0]}) - flops(ranks, some) ==
          Approx(3 * rows * (4 + 10) * width * (64 - 8) * (64 - 8 + 1) / 2).epsilon(1e-6));
  // 1e9 operations take 10 ms on 2 ranks with 1e11 operations per second.
  CHECK(utilization(1e9, 10, 2, 1e11) == Approx(0.5));
  CHECK(peak_flops_per_second({.flops_per_second_f32 = 1, .flops_per_second_bf16 = 2}, DType::bf16) == 2);
  CHECK(peak_flops_per_second({.flops_per_second_f32 = 1, .flops_per_second_bf16 = 2}, DType::f32) == 1);
}
