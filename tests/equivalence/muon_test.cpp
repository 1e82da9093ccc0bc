// SPDX-License-Identifier: Apache-2.0
// Muon in a run: whole trainings against the optimizers in double, every layout against one rank, the owners of
// matrices against the best division, and updates under the transfers of later gradients.

#include <cmath>
#include <cstdio>
#include <map>
#include <numeric>
#include <random>
#include <set>

#include "comm/rehearse/rehearse.h"
#include "comm/rehearse/seams.h"
#include "engine/plan/layout.h"
#include "engine/plan/update_shards.h"
#include "tests/equivalence/trained.h"
#include "tests/reference/optimizer.h"
#include "tests/test.hpp"

using namespace slipstream;
using namespace slipstream::equivalence;

namespace {

constexpr int kSteps = 4;

const OptimizerSpec* spec_of(OptimizerName name) { return &optimizers()[static_cast<size_t>(name)]; }

/// Weights of attention and of the feed-forward network, by their names.
bool is_hidden(const std::string& name) {
  const auto has = [&](const char* word) { return name.find(word) != std::string::npos; };
  return name.ends_with(".weight") && (has("attn") || has("mlp") || has("moe"));
}

/// AdamW's learning rate is three quarters of Muon's.
std::vector<GroupRule> muon_groups() {
  return {{"matrices", spec_of(OptimizerName::muon),
           [](const ModelSpec&, const ParameterSpec& parameter) { return is_hidden(parameter.name()); }},
          {"others", spec_of(OptimizerName::adamw), nullptr, 0.75}};
}

Layout muon_layout(const models::ModelOptions& model, int ranks = 1) {
  Layout layout{.name = "muon", .model = model, .ranks = ranks, .micro_batch = 12 / ranks};
  layout.groups = muon_groups();
  return layout;
}

/// Mistakes that a test of the test makes in the reference.
struct Mistake {
  MuonScaling scaling = MuonScaling::match_rms_adamw;
  double momentum = 0.95, decay = 0.1, rate_factor = 0.75;
  bool nesterov = true, clips = true, forgets = false;  // with `forgets`, momentum is zero before every step
};

/// The largest difference of a weight after kSteps steps from the same steps in double, relative to the largest change
/// of a weight of the tensor.
double update_error(const Layout& layout, const Mistake& mistake) {
  const auto job = make_job(layout, 0);
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const ParameterSpec& parameter : job->model.parameters)
    for (const NamedTensor& tensor : parameter.tensors) shapes[tensor.name] = tensor.shape;
  const Trained start = train(layout, 0);
  std::vector<std::vector<double>> weights, momenta, variances;
  for (const std::vector<float>& tensor : start.weights) {
    weights.emplace_back(tensor.begin(), tensor.end());
    momenta.emplace_back(tensor.size(), 0.0);
    variances.emplace_back(tensor.size(), 0.0);
  }
  Trained trained;
  for (int step = 1; step <= kSteps; ++step) {
    trained = train(layout, step);
    const double norm = trained.norms.back();
    const double clip = layout.max_norm > 0 && mistake.clips ? std::min(1.0, layout.max_norm / (norm + 1e-6)) : 1.0;
    for (size_t t = 0; t < weights.size(); ++t) {
      std::vector<double> g(trained.gradients[t].begin(), trained.gradients[t].end());
      for (double& element : g) element *= clip;
      const std::vector<int64_t>& shape = shapes.at(trained.names[t]);
      if (is_hidden(trained.names[t])) {
        const auto rows = static_cast<double>(shape[0]), cols = static_cast<double>(shape[1]);
        if (mistake.forgets) std::fill(momenta[t].begin(), momenta[t].end(), 0.0);
        const double scale = mistake.scaling == MuonScaling::original ? std::sqrt(std::max(1.0, rows / cols))
                                                                      : 0.2 * std::sqrt(std::max(rows, cols));
        const auto next = reference::muon_step({weights[t], momenta[t]}, g, static_cast<size_t>(shape[0]),
                                               static_cast<size_t>(shape[1]),
                                               {.learning_rate = static_cast<double>(layout.learning_rate),
                                                .weight_decay = mistake.decay,
                                                .momentum = mistake.momentum,
                                                .nesterov = mistake.nesterov,
                                                .newton_schulz_steps = 5,
                                                .eps = 1e-7,
                                                .scale = scale});
        weights[t] = next.p, momenta[t] = next.m;
        continue;
      }
      for (size_t i = 0; i < g.size(); ++i) {
        const auto next =
            reference::adamw_step({weights[t][i], momenta[t][i], variances[t][i]}, g[i],
                                  {.learning_rate = mistake.rate_factor * static_cast<double>(layout.learning_rate),
                                   .beta1 = 0.9,
                                   .beta2 = 0.95,
                                   .eps = static_cast<double>(layout.eps),
                                   .weight_decay = shape.size() > 1 ? 0.1 : 0.0},
                                  step);
        weights[t][i] = next.p, momenta[t][i] = next.m, variances[t][i] = next.v;
      }
    }
  }
  double worst = 0;
  for (size_t t = 0; t < weights.size(); ++t) {
    double error = 0, change = 0, largest = 0;
    for (size_t i = 0; i < weights[t].size(); ++i) {
      error = std::max(error, std::abs(static_cast<double>(trained.weights[t][i]) - weights[t][i]));
      change = std::max(change, std::abs(weights[t][i] - static_cast<double>(start.weights[t][i])));
      largest = std::max(largest, std::abs(weights[t][i]));
    }
    worst =
        std::max(worst, (error - 2 * kSteps * 0x1p-24 * largest) / change);  // the rounding of the sums is subtracted
  }
  return worst;
}

// Float products against double over four steps, relative to the largest change of a weight.
constexpr double kUpdateTolerance = 2e-5;
// Ranks add gradients in another order than one rank.
constexpr double kRanksTolerance = 2e-5;

void check_ranks_agree(const Trained& trained) {
  for (const std::string& hash : trained.rank_hashes) CHECK(hash == trained.hash);
}

}  // namespace

TEST_CASE("the rows of a matrix are its outputs, as in torch.nn.Linear", "[muon]") {
  // The shapes are written by hand: those of the modules of transformers, transposed for the Conv1D of GPT-2. The
  // factor "original" is max(1, rows / cols)^0.5, which a transposed file would invert.
  for (const models::ModelOptions& model : {tiny_gpt2(), tiny_llama()}) {
    const std::unique_ptr<Job> job = make_job(muon_layout(model), 0);
    const int64_t width = model.width, hidden = model.ffn_width;
    int compared = 0;
    for (const ParameterSpec& parameter : job->model.parameters)
      for (const NamedTensor& tensor : parameter.tensors)
        for (const auto& [name, outputs, inputs] :
             {std::tuple("mlp.c_fc.weight", hidden, width), std::tuple("mlp.c_proj.weight", width, hidden),
              std::tuple("attn.c_attn.weight", 3 * width, width), std::tuple("mlp.gate_proj.weight", hidden, width),
              std::tuple("mlp.down_proj.weight", width, hidden)})
          if (tensor.name.ends_with(name)) {
            INFO(tensor.name);
            ++compared;
            CHECK(tensor.shape == std::vector<int64_t>{outputs, inputs});
          }
    CHECK(compared >= 2 * model.layers);
  }
}

TEST_CASE("muon: a run equals the optimizers in double", "[equivalence]") {
  models::ModelOptions experts = tiny_llama();  // every expert has its own matrices
  experts.family = Family::mixtral;
  experts.experts = {.count = 4, .top_k = 2, .ffn_width = 24};
  for (const models::ModelOptions& model : {tiny_gpt2(), tiny_llama(), experts})
    for (float max_norm : {0.5f, 0.0f})
      for (MuonScaling scaling : {MuonScaling::match_rms_adamw, MuonScaling::original}) {
        Layout layout = muon_layout(model);
        layout.max_norm = max_norm, layout.muon_scaling = scaling;
        layout.model.split_tied_embedding = false;  // one gradient for both uses of the table
        const double error = update_error(layout, {.scaling = scaling});
        std::printf("  %s, clip %.1f, %s: %.1e of the largest change\n", name_of(model.family),
                    static_cast<double>(max_norm), name_of(scaling), error);
        CHECK(error < kUpdateTolerance);
      }
}

TEST_CASE("muon: the tolerance of a run sees every wrong number", "[equivalence]") {
  Layout layout = muon_layout(tiny_llama());
  for (const Mistake& mistake :
       {Mistake{.scaling = MuonScaling::original}, Mistake{.momentum = 0.94}, Mistake{.decay = 0.0},
        Mistake{.rate_factor = 1.0}, Mistake{.nesterov = false}, Mistake{.clips = false}, Mistake{.forgets = true}})
    CHECK(update_error(layout, mistake) > 100 * kUpdateTolerance);
}

TEST_CASE("muon: all reduce modes train the model of one rank, with the same bits", "[equivalence]") {
  for (const models::ModelOptions& model : {tiny_gpt2(), tiny_llama()})
    for (DType dtype : {DType::f32, DType::bf16})
      for (int ranks : {2, 3})
        for (int micro_batches : {1, 2})
          for (float max_norm : {0.5f, 0.0f}) {
            if (dtype == DType::bf16 && (ranks == 3 || micro_batches == 1)) continue;
            Layout alone = muon_layout(model);
            alone.model.dtype = dtype;
            alone.max_norm = max_norm;
            alone.micro_batches = micro_batches, alone.micro_batch = 12 / micro_batches;
            alone.model.split_tied_embedding = false;
            const Trained one = train(alone, kSteps);
            Layout layout = alone;
            layout.ranks = ranks, layout.micro_batch = 12 / micro_batches / ranks;
            const Trained bucketed = train(layout, kSteps);
            CAPTURE(ranks, micro_batches, max_norm, name_of(dtype));
            check_ranks_agree(bucketed);
            const double off = difference(bucketed.weights, one.weights);
            CHECK(off < (dtype == DType::f32 ? kRanksTolerance : 3e-2));
            CHECK(off > 0);
            for (ReduceMode mode : {ReduceMode::per_parameter, ReduceMode::flat, ReduceMode::naive}) {
              const Trained other = train(with(layout, [&](Layout& l) { l.reduce_mode = mode; }), kSteps);
              CHECK(other.hash == bucketed.hash);
            }
            for (ReduceMode mode : {ReduceMode::bucketed, ReduceMode::per_parameter, ReduceMode::flat})
              for (bool spine : {true, false}) {
                const Trained sharded = train(with(layout,
                                                   [&](Layout& l) {
                                                     l.reduce_mode = mode, l.zero_stage = 1, l.update_on_spine = spine;
                                                     l.delay_seed = spine ? 0 : 7;
                                                   }),
                                              kSteps);
                check_ranks_agree(sharded);
                // Squares of a gradient that two shards divide are added in another order.
                if (max_norm > 0)
                  CHECK(difference(sharded.weights, bucketed.weights) < (dtype == DType::f32 ? 1e-5 : 1e-2));
                else
                  CHECK(sharded.hash == bucketed.hash);
              }
          }
}

TEST_CASE("muon: two copies of the weights, one update at the end and other places of the update keep the bits",
          "[equivalence]") {
  for (int stage : {0, 1})
    for (float max_norm : {0.5f, 0.0f}) {
      Layout layout = muon_layout(tiny_gpt2(), 2);
      layout.zero_stage = stage, layout.max_norm = max_norm, layout.evaluate_between = true;
      layout.model.split_tied_embedding = false;
      const Trained plain = train(layout, kSteps);
      CAPTURE(stage, max_norm);
      for (const Layout& other : {with(layout, [](Layout& l) { l.double_buffer = true; }),
                                  with(layout, [](Layout& l) { l.update_on_spine = false; }),
                                  with(layout, [](Layout& l) { l.optimizer_per_bucket = false; }),
                                  with(layout, [](Layout& l) { l.bucket_bytes = 1 << 30; })}) {
        const Trained same = train(other, kSteps);
        check_ranks_agree(same);
        if (stage == 0 || max_norm == 0 || other.bucket_bytes == layout.bucket_bytes)
          CHECK(same.hash == plain.hash);
        else
          CHECK(difference(same.weights, plain.weights) < 1e-5);
      }
    }
}

TEST_CASE("muon: groups of shards, stages, shared sequences and encoded transfers train the model of one rank",
          "[equivalence]") {
  for (models::ModelOptions model : {tiny_gpt2(), tiny_llama()}) {
    model.tokens = model.context = 8;
    model.split_tied_embedding = false;
    const Layout alone = muon_layout(model);
    const Trained one = train(alone, kSteps);
    struct Row {
      const char* name;
      double tolerance;
      std::function<void(Layout&)> change;
    };
    const Row rows[] = {
        {"ZeRO-1 in groups of 2 of 4", kRanksTolerance,
         [](Layout& l) { l.ranks = 4, l.micro_batch = 3, l.zero_stage = 1, l.shard_size = 2; }},
        {"more ranks than matrices of a bucket, ZeRO-1", kRanksTolerance,
         [](Layout& l) { l.ranks = 6, l.micro_batch = 2, l.zero_stage = 1; }},
        {"two stages", kRanksTolerance, [](Layout& l) { l.stages = 2, l.micro_batch = 6, l.micro_batches = 2; }},
        {"two stages x 2 data ranks, ZeRO-1", kRanksTolerance,
         [](Layout& l) { l.stages = 2, l.ranks = 2, l.micro_batch = 3, l.micro_batches = 2, l.zero_stage = 1; }},
        {"a sequence on two ranks", kRanksTolerance, [](Layout& l) { l.context = 2; }},
        {"a sequence on two ranks, ZeRO-1", kRanksTolerance, [](Layout& l) { l.context = 2, l.zero_stage = 1; }},
        // Rounding moves small singular values, and with them a matrix, more than the loss.
        {"bfloat16 gradients", 5e-2, [](Layout& l) { l.ranks = 2, l.micro_batch = 6, l.wire_dtype = DType::bf16; }},
        {"bfloat16 gradients and parameters, ZeRO-1", 5e-2,
         [](Layout& l) {
           l.ranks = 2, l.micro_batch = 6, l.zero_stage = 1, l.wire_dtype = DType::bf16, l.gather_dtype = DType::bf16;
         }},
        {"int8 gradients fed back", 4e-1,
         [](Layout& l) { l.ranks = 2, l.micro_batch = 6, l.wire_dtype = kInt8, l.error_feedback = true; }},
        {"int8 gradients fed back, and parameters, ZeRO-1", 4e-1,
         [](Layout& l) {
           l.ranks = 2, l.micro_batch = 6, l.zero_stage = 1, l.wire_dtype = kInt8, l.error_feedback = true,
           l.gather_dtype = kInt8;
         }},
    };
    for (const Row& row : rows) {
      const Trained trained = train(with(alone, row.change), kSteps);
      const double off = difference(trained.weights, one.weights);
      const double loss = std::abs(trained.losses.back() / one.losses.back() - 1);
      std::printf("  %s, %s: weights %.1e, loss %.1e\n", model.family == Family::gpt2 ? "gpt2" : "llama", row.name, off,
                  loss);
      CAPTURE(row.name);
      check_ranks_agree(trained);
      CHECK(off < row.tolerance);
      CHECK(loss < (row.tolerance == kRanksTolerance ? 1e-7 : 1e-4));
    }
  }
}

TEST_CASE("muon: every matrix has one owner, and the most expensive owner of a bucket is near the best division",
          "[equivalence]") {
  for (models::ModelOptions model : {tiny_gpt2(), tiny_llama()})
    for (int ranks : {2, 3, 4, 6})
      for (int64_t bucket_bytes : {int64_t{8} << 10, int64_t{64} << 10, int64_t{1} << 30}) {
        model.layers = 4;
        model.split_tied_embedding = false;
        Layout layout = muon_layout(model, ranks);
        layout.zero_stage = 1, layout.bucket_bytes = bucket_bytes;
        std::map<std::pair<int64_t, int64_t>, int> owners;  // of the range of a matrix in the flat order
        std::vector<std::map<size_t, int64_t>> costs(static_cast<size_t>(ranks));
        std::map<size_t, std::vector<int64_t>> parameters;  // cost of each, by bucket
        std::unique_ptr<Job> job;
        std::vector<std::string> orders;
        for (int rank = 0; rank < ranks; ++rank) {
          job = make_job(layout, rank);
          std::string order;
          for (ItemId id : job->train().order) order += job->train()[id].name + " ";
          orders.push_back(order);
          for (size_t b = 0; b < job->storage.size(); ++b) {
            if (job->layout.buckets[b].group != 0) continue;
            Item update;
            update.bucket = static_cast<int32_t>(b), update.group = 0;
            for (const UpdateShard& shard : update_shards(*job, update)) {
              const int64_t begin = job->storage[b].shard_offset_elems +
                                    (shard.master.begin_bytes - job->storage[b].master.begin_bytes) / 4;
              ++owners[{begin, shard.elems}];
              CHECK(shard.rows * shard.cols == shard.elems);
              CHECK(shard.master.end_bytes() <= job->storage[b].master.end_bytes());
              costs[static_cast<size_t>(rank)][b] += optimizers()[1].cost({shard.elems, shard.rows, shard.cols}).flops;
            }
          }
        }
        for (const std::string& order : orders) CHECK(order == orders[0]);
        // Every tensor of the group, where its parameter is in the flat order.
        std::set<std::pair<int64_t, int64_t>> expected;
        for (uint32_t p : job->groups[0].parameters)
          for (const NamedTensor& tensor : job->model.parameters[p].tensors)
            expected.emplace(job->layout.parameter_offsets[p] + tensor.begin_elems, tensor.elems());
        CHECK(owners.size() == expected.size());
        int64_t before = -1;
        for (const auto& [range, count] : owners) {
          CHECK(count == 1);
          CHECK(expected.contains(range));
          CHECK(range.first >= before);
          before = range.first + range.second;
        }
        for (size_t b = 0; b < job->storage.size(); ++b) {
          const Bucket& bucket = job->layout.buckets[b];
          if (bucket.group != 0) continue;
          int64_t all = 0, most = 0, largest = 0;
          for (const auto& of_rank : costs) {
            const auto found = of_rank.find(b);
            all += found == of_rank.end() ? 0 : found->second;
            most = std::max(most, found == of_rank.end() ? 0 : found->second);
          }
          for (uint32_t p = bucket.first_part; p < bucket.first_part + bucket.part_count; ++p) {
            int64_t cost = 0;
            for (const NamedTensor& tensor : job->model.parameters[job->layout.parts[p].part.parameter].tensors)
              cost += optimizers()[1].cost({tensor.elems(), tensor.shape[0], tensor.shape[1]}).flops;
            largest = std::max(largest, cost);
          }
          // The plan charges every rank the most expensive owner's cost.
          CHECK(update_cost(*job, b).flops == most);
          const double least = std::max(static_cast<double>(all) / ranks, static_cast<double>(largest));
          CHECK(static_cast<double>(most) <= (4.0 / 3 - 1.0 / (3 * ranks)) * least + static_cast<double>(largest));
        }
      }
}

TEST_CASE("owners: the largest is within 4/3 - 1/(3 n) of the best division, and equal owners take turns",
          "[equivalence]") {
  const uint64_t seed = 11;
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  double worst = 1;
  for (int trial = 0; trial < 300; ++trial) {
    const size_t owners = 2 + random() % 3, items = 1 + random() % 8;
    std::vector<int64_t> costs;
    for (size_t i = 0; i < items; ++i) costs.push_back(1 + static_cast<int64_t>(random() % 40));
    std::vector<int64_t> totals(owners, 0);
    const std::vector<int> given = owners_of(costs, totals);
    std::vector<int64_t> loads(owners, 0);
    REQUIRE(given.size() == items);
    for (size_t i = 0; i < items; ++i) loads.at(static_cast<size_t>(given[i])) += costs[i];
    CHECK(loads == totals);
    // The best of all divisions is found by trying each.
    int64_t best = std::accumulate(costs.begin(), costs.end(), int64_t{0});
    size_t divisions = 1;
    for (size_t i = 0; i < items; ++i) divisions *= owners;
    for (size_t division = 0; division < divisions; ++division) {
      std::vector<int64_t> sums(owners, 0);
      size_t rest = division;
      for (size_t i = 0; i < items; ++i, rest /= owners) sums[rest % owners] += costs[i];
      best = std::min(best, *std::max_element(sums.begin(), sums.end()));
    }
    const double ratio = static_cast<double>(*std::max_element(loads.begin(), loads.end())) / static_cast<double>(best);
    worst = std::max(worst, ratio);
    CHECK(ratio <= 4.0 / 3 - 1.0 / (3.0 * static_cast<double>(owners)) + 1e-12);
  }
  CHECK(worst > 1);  // the control: some division is not the best
  std::vector<int64_t> totals(3, 0);
  const std::vector<int64_t> one{5};
  std::set<int> seen;
  for (int call = 0; call < 3; ++call) seen.insert(owners_of(one, totals)[0]);
  CHECK(seen.size() == 3);
}

TEST_CASE("muon: early matrices are orthogonalized while later gradients travel", "[equivalence]") {
  const comm::RooflinePrice price({.flops_per_second = 5e9, .bytes_per_second = 1e10, .launch_ns = 1000}, {1e8, 20000});
  for (int stage : {0, 1})
    for (bool spine : {true, false}) {
      Layout layout = muon_layout(tiny_gpt2(), 2);
      layout.model.layers = 4;
      layout.zero_stage = stage, layout.update_on_spine = spine, layout.max_norm = 0;
      layout.model.split_tied_embedding = false;
      const auto job = make_job(layout, 0);
      std::vector<const Plan*> plans(3, &job->train());
      const comm::RankRuns runs{.rank = 0, .runs = plans, .seams = comm::link_all(plans, job->channels)};
      const comm::Rehearsal rehearsal = comm::rehearse(job->mesh, job->channels, {&runs, 1}, price, {});
      REQUIRE(rehearsal.finished);
      int64_t last_arrival_ns = 0, before = 0;
      const auto& times = rehearsal.ranks[0].runs[1];
      for (ItemId id = 0; id < job->train().size(); ++id)
        if (job->channels[job->train()[id].channel].role == Role::reduce)
          last_arrival_ns = std::max(last_arrival_ns, times[id].end_ns);
      for (ItemId id = 0; id < job->train().size(); ++id) {
        const Item& item = job->train()[id];
        if (item.op == Op::update && item.group == 0) before += times[id].end_ns < last_arrival_ns;
      }
      CAPTURE(stage, spine, before);
      CHECK(before >= 1);
      // Parameters of both groups return in the order in which the next forward pass needs them.
      std::map<int64_t, uint32_t> gathers;  // ready position of a bucket's gradients, by the start of its gather
      for (ItemId id = 0; id < job->train().size(); ++id)
        if (job->train()[id].op == Op::all_gather && spine)
          gathers.emplace(times[id].start_ns,
                          job->layout.buckets[static_cast<size_t>(job->train()[id].bucket)].ready_position);
      CHECK(gathers.empty() == (stage == 0 || !spine));
      uint32_t latest = UINT32_MAX;
      for (const auto& [start_ns, ready] : gathers) {
        CHECK(ready <= latest);
        latest = ready;
      }
      // With clipping every update waits for the norm of all gradients.
      layout.max_norm = 0.5f;
      const auto clipped = make_job(layout, 0);
      std::map<ItemId, size_t> position;
      for (ItemId id : clipped->train().order) position.emplace(id, position.size());
      ItemId clip = 0;
      while (clipped->train()[clip].op != Op::clip) ++clip;
      for (ItemId id = 0; id < clipped->train().size(); ++id)
        if (clipped->train()[id].op == Op::update) CHECK(position.at(id) > position.at(clip));
    }
}

TEST_CASE("muon: each group has its own learning rate among the scalars of a step", "[equivalence]") {
  const auto job = make_job(muon_layout(tiny_gpt2()), 0);
  std::vector<float> scalars(static_cast<size_t>(job->scalars()));
  write_scalars(*job, {.weight_decay = 0.5}, 0.25, 1, scalars);
  CHECK(scalars[0] == 0.25f);
  CHECK(scalars[1] == 0.875f);
  CHECK(scalars[static_cast<size_t>(job->groups[1].first_scalar)] == 0.1875f);
}

TEST_CASE("muon: unsupported combinations are refused", "[equivalence]") {
  Layout layout = muon_layout(tiny_llama(), 2);
  layout.tensor = 2;
  CHECK_THROWS_WITH(make_job(layout, 0), Catch::Contains("ranks hold parts of it"));
}
