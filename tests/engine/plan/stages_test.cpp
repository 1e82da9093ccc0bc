// SPDX-License-Identifier: Apache-2.0
// The division of a model: accesses determine the transfers, every parameter is in one place, and memory follows the
// schedule.

#include <algorithm>
#include <cstdio>
#include <map>
#include <numeric>
#include <set>

#include "engine/base/check.h"
#include "engine/base/philox.h"
#include "engine/plan/job.h"
#include "engine/plan/stages.h"
#include "models/model.h"
#include "tests/test.hpp"

using namespace slipstream;

namespace {

models::ModelOptions options_of(bool llama, int layers) {
  return {.family = llama ? Family::llama : Family::gpt2,
          .layers = layers,
          .heads = 2,
          .kv_heads = 2,
          .width = 16,
          .ffn_width = 32,
          .context = 8,
          .vocab = 40,
          .batch = 2,
          .tokens = 8,
          .global_tokens = 64,
          .micro_batches = 4};
}

struct Cut {
  ModelSpec model;
  Buffers buffers;
  std::vector<Chunk> chunks;
};

Cut cut(models::ModelOptions options, const PipelineSchedule& schedule, const std::vector<int>& layers, int stage) {
  options.cuts = cuts_of(layers);
  options.ends_apart = schedule.placement.ends_apart();
  options.split_backward = schedule.splits_backward;
  Cut result;
  result.model = models::build_model(options, result.buffers);
  result.chunks = cut_stage(result.model, result.buffers, schedule, layers, stage);
  return result;
}

std::vector<std::string> names(const Buffers& buffers, const std::vector<BufferId>& ids) {
  std::vector<std::string> result;
  for (BufferId id : ids) result.push_back(buffers[id].name);
  return result;
}

/// A model that consists of layers with given costs.
ModelSpec priced(const std::vector<int64_t>& costs, int64_t embedding, int64_t head) {
  ModelSpec model;
  model.layers = static_cast<int>(costs.size());
  const auto add = [&](int layer, int64_t cost) {
    model.forward.push_back(static_cast<uint32_t>(model.pieces.size()));
    model.pieces.push_back({.name = "p", .layer = layer, .works = {{"w", {cost, 0}, {}, {}, {}}}, .ready = {}});
  };
  add(-1, embedding);
  for (size_t l = 0; l < costs.size(); ++l) add(static_cast<int>(l), costs[l]);
  add(model.layers, head);
  return model;
}

}  // namespace

TEST_CASE("one tensor crosses a cut in each direction, under one name at both ends", "[stages]") {
  for (bool llama : {false, true})
    for (ScheduleKind kind : {ScheduleKind::one_f_one_b, ScheduleKind::zb_h1}) {
      const PipelineSchedule schedule = make_schedule(kind, {3, 4, 1});
      std::vector<Cut> stages;
      for (int s = 0; s < 3; ++s) stages.push_back(cut(options_of(llama, 6), schedule, {2, 3, 1}, s));
      for (int s = 0; s < 3; ++s) {
        CAPTURE(llama, name_of(kind), s);
        const Cut& here = stages[static_cast<size_t>(s)];
        const Chunk& chunk = here.chunks[0];
        CHECK(chunk.activations_in.size() == (s > 0 ? 1u : 0u));
        CHECK(chunk.gradients_in.size() == (s < 2 ? 1u : 0u));
        CHECK(chunk.activations_out.size() == (s < 2 ? 1u : 0u));
        CHECK(chunk.gradients_out.size() == (s > 0 ? 1u : 0u));
        if (s == 2) continue;
        const Cut& next = stages[static_cast<size_t>(s) + 1];
        CHECK(names(here.buffers, chunk.activations_out) == names(next.buffers, next.chunks[0].activations_in));
        CHECK(names(here.buffers, chunk.gradients_in) == names(next.buffers, next.chunks[0].gradients_out));
      }
    }
}

TEST_CASE("random models: every piece runs once, every parameter is updated once, a tied table twice", "[stages]") {
  const uint64_t seed = 9;
  std::printf("  seed %llu\n", static_cast<unsigned long long>(seed));
  const Philox random(seed, "cuts");
  uint64_t drawn = 0;
  const auto draw = [&](int bound) { return static_cast<int>(random.below(drawn++, static_cast<uint64_t>(bound))); };
  for (int round = 0; round < 60; ++round) {
    const ScheduleKind kind = static_cast<ScheduleKind>(draw(5));
    const int p = 2 + draw(3), v = kind == ScheduleKind::interleaved_1f1b ? 1 + draw(3) : chunks_of(kind);
    std::vector<int> layers;
    for (int part = 0; part < p * v; ++part) layers.push_back(part == 0 || part + 1 == p * v ? draw(3) : 1 + draw(2));
    const int total = std::accumulate(layers.begin(), layers.end(), 0);
    if (total == 0) continue;
    models::ModelOptions options = options_of(draw(2) == 0, total);
    options.tie_embeddings = draw(2) == 0;
    const PipelineSchedule schedule = make_schedule(kind, {p, 2 * p, v});
    Buffers whole_buffers;
    const ModelSpec whole = models::build_model(options, whole_buffers);
    std::map<std::string, int> updates, works;
    const auto count = [&](const ModelSpec& model, const std::vector<uint32_t>& pieces, int step) {
      for (uint32_t piece : pieces)
        for (const Work& work : model.pieces[piece].works)
          if (work.name != "residual_sum" && work.name != "take_batch") works[work.name] += step;
    };
    count(whole, whole.forward, 1);
    count(whole, whole.backward, 1);
    for (int stage = 0; stage < p; ++stage) {
      const Cut here = cut(options, schedule, layers, stage);
      count(here.model, here.model.forward, -1);
      count(here.model, here.model.backward, -1);
      const ParameterLayout layout = place_parameters(here.model, {});  // throws unless every element is ready once
      CHECK(layout.flat_elems > 0);
      for (const ParameterSpec& parameter : here.model.parameters) ++updates[parameter.name()];
    }
    for (const auto& [name, left] : works) {
      CAPTURE(round, name, name_of(kind));
      // The embedding share of a tied table may be dense where it is apart from the head's share, and rows where the
      // two are together.
      if (name.find("embedding") == std::string::npos) CHECK(left == 0);
    }
    for (const ParameterSpec& parameter : whole.parameters) {
      const bool tied = options.tie_embeddings && schedule.placement.ends_apart() && parameter.layer == -1 &&
                        parameter.name().find("wpe") == std::string::npos;
      CHECK(updates[parameter.name()] == (tied ? 2 : 1));
    }
  }
}

TEST_CASE("activations have as many copies as micro-batches are alive", "[stages]") {
  for (ScheduleKind kind : {ScheduleKind::gpipe, ScheduleKind::one_f_one_b}) {
    const PipelineSchedule schedule = make_schedule(kind, {4, 9, 1});
    for (int stage = 0; stage < 4; ++stage) {
      const Cut here = cut(options_of(false, 4), schedule, {1, 1, 1, 1}, stage);
      CHECK(here.buffers.instances(here.buffers.find("layer" + std::to_string(stage) + ".qkv")) ==
            (kind == ScheduleKind::gpipe ? 9 : 4 - stage));
      if (stage == 3) CHECK(here.buffers.instances(here.buffers.find("logits")) == 1);
    }
  }
  // Every stage of ZB-V has as many as the first stage of 1F1B has with two layers.
  const PipelineSchedule folded = make_schedule(ScheduleKind::zb_v, {4, 9, 2});
  for (int stage = 0; stage < 4; ++stage) {
    const Cut here = cut(options_of(false, 8), folded, std::vector<int>(8, 1), stage);
    const auto copies = [&](int layer) {
      return here.buffers.instances(here.buffers.find("layer" + std::to_string(layer) + ".qkv"));
    };
    CHECK(copies(stage) == 7 - stage);
    CHECK(copies(7 - stage) == stage + 1);
  }
}

TEST_CASE("a model whose output gradients are shared is not split", "[stages]") {
  const PipelineSchedule schedule = make_schedule(ScheduleKind::zb_h1, {2, 2, 1});
  for (bool llama : {false, true}) {
    models::ModelOptions options = options_of(llama, 2);
    options.cuts = {1};
    options.ends_apart = true;
    Buffers buffers;
    ModelSpec model = models::build_model(options, buffers);
    CHECK_THROWS_AS(cut_stage(model, buffers, schedule, {1, 1}, 0), PlanError);
  }
}

TEST_CASE("balanced layers: no other cut has a faster slowest part", "[stages]") {
  const auto flops = [](const Cost& cost) { return static_cast<double>(cost.flops); };
  CHECK(balanced_layers(priced({1, 1, 1, 1, 1, 1}, 0, 0), 3, flops) == std::vector<int>{2, 2, 2});
  CHECK(balanced_layers(priced({1, 1, 1, 1, 1, 1}, 0, 2), 2, flops) == std::vector<int>{4, 2});
  CHECK(balanced_layers(priced({1, 1, 1, 1, 1, 1}, 3, 2), 3, flops).size() == 3);
  const uint64_t seed = 4;
  std::printf("  seed %llu\n", static_cast<unsigned long long>(seed));
  const Philox random(seed, "balance");
  uint64_t drawn = 0;
  const auto draw = [&](int64_t bound) {
    return static_cast<int64_t>(random.below(drawn++, static_cast<uint64_t>(bound)));
  };
  for (int round = 0; round < 50; ++round) {
    const int layers = 4 + static_cast<int>(draw(4));
    std::vector<int64_t> costs;
    for (int l = 0; l < layers; ++l) costs.push_back(1 + draw(9));
    const int64_t embedding = draw(20), head = draw(20);
    const auto slowest = [&](const std::vector<int>& cut) {
      int64_t worst = 0;
      size_t l = 0;
      for (size_t part = 0; part < cut.size(); ++part) {
        int64_t sum = (part == 0 ? embedding : 0) + (part + 1 == cut.size() ? head : 0);
        for (int i = 0; i < cut[part]; ++i) sum += costs[l++];
        worst = std::max(worst, sum);
      }
      return worst;
    };
    int64_t best = INT64_MAX;  // the best of all cuts into three, which are tried one by one
    for (int a = 1; a < layers; ++a)
      for (int b = 1; a + b < layers; ++b) best = std::min(best, slowest({a, b, layers - a - b}));
    const std::vector<int> chosen = balanced_layers(priced(costs, embedding, head), 3, flops);
    CHECK(std::accumulate(chosen.begin(), chosen.end(), 0) == layers);
    CHECK(*std::min_element(chosen.begin(), chosen.end()) >= 1);
    CHECK(slowest(chosen) == best);
  }
  CHECK_THROWS_AS(balanced_layers(priced({1, 1}, 0, 0), 3, flops), ConfigError);
}
