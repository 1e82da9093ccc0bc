// SPDX-License-Identifier: Apache-2.0
// Mixtures of experts train the model of one rank in every layout: up to rounding, because sums are divided.

#include "tests/equivalence/table.h"
#include "tests/equivalence/trained.h"
#include "tests/test.hpp"

using namespace slipstream;
using namespace slipstream::equivalence;

namespace {

constexpr int kSteps = 3;
constexpr double kTolerance = 2e-5;      // the tolerance of tensor_test
constexpr double kMuonTolerance = 1e-4;  // orthogonalization raises the noise of small singular values

/// Four experts, of which each token passes two, in both layers.
Layout mixtral() {
  Layout layout{.name = "mixtral", .model = tiny_llama(), .micro_batch = 8};
  layout.model.family = Family::mixtral;
  layout.model.context = layout.model.tokens = 8;
  layout.model.experts = {.count = 4, .top_k = 2, .ffn_width = 24};
  return layout;
}
/// Eight experts, of which each token passes three, in the second of two layers, with both losses that balance them.
Layout qwen3_moe() {
  Layout layout{.name = "qwen3_moe", .model = tiny_llama(), .micro_batch = 8};
  models::ModelOptions& o = layout.model;
  o.family = Family::qwen3_moe;
  o.context = o.tokens = 8;
  o.head_dim = 10;
  o.experts = {.count = 8,
               .top_k = 3,
               .ffn_width = 12,
               .layers = {1},
               .normalize = false,
               .balance = ExpertBalance::auxiliary,
               .balance_rate = 0.1,
               .z_loss = 0.01};
  return layout;
}

/// Sigmoid scores, groups and shared experts, as DeepSeek-V3 has them.
Layout with_shared_experts() {
  Layout layout{.name = "shared experts", .model = tiny_llama(), .micro_batch = 8};
  layout.model.family = Family::qwen3_moe;
  layout.model.context = layout.model.tokens = 8;
  layout.model.experts = {.count = 8,
                          .top_k = 2,
                          .shared = 2,
                          .ffn_width = 12,
                          .layers = {1},
                          .router = RouterKind::sigmoid,
                          .groups = 4,
                          .group_top_k = 2,
                          .scale = 1.5};
  return layout;
}

/// The gradient of the experts' output is masked before it travels.
Layout with_dropout() {
  Layout layout = mixtral();
  layout.name = "dropout";
  layout.model.dropout = {.residual = 0.2, .seed = 3};
  return layout;
}

void check_same_model(const Trained& a, const Trained& b, double tolerance = kTolerance) {
  CHECK(a.names == b.names);
  CHECK(difference(std::vector<float>(a.losses.begin(), a.losses.end()),
                   std::vector<float>(b.losses.begin(), b.losses.end())) < tolerance);
  CHECK(difference(std::vector<float>(a.norms.begin(), a.norms.end()),
                   std::vector<float>(b.norms.begin(), b.norms.end())) < tolerance);
  CHECK(difference(a.gradients, b.gradients) < tolerance);
  CHECK(difference(a.weights, b.weights) < tolerance);
  for (const std::string& hash : a.rank_hashes) CHECK(hash == a.hash);
}

/// Calls body(what, change) for layouts of 2 and 4 replicas and for those of one, which change the model in no other
/// way.
template <typename Body>
void for_layouts(const Body& body) {
  body("accumulation", [](Layout& l) { l.micro_batch = 4, l.micro_batches = 2; });
  body("pipeline", [](Layout& l) { l.stages = 2, l.micro_batch = 4, l.micro_batches = 2; });
  body("pipeline that delays gradients of weights",
       [](Layout& l) { l.stages = 2, l.schedule = ScheduleKind::zb_h1, l.micro_batch = 4, l.micro_batches = 2; });
  const auto paired = [](Layout& l) { l.micro_batch = 4, l.micro_batches = 2, l.order = make_paired_schedule(2); };
  body("paired passes", paired);
  body("paired passes, recompute selective", [&](Layout& l) { paired(l), l.recompute = Recomputation::selective; });
  for (const Recomputation how : {Recomputation::selective, Recomputation::full})
    body(name_of(how), [&](Layout& l) { l.recompute = how; });
}

/// Trains every layout of divided experts beside one rank.
void check_divided(ExpertExchange exchange) {
  for (const Layout& whole : {mixtral(), qwen3_moe(), with_shared_experts(), with_dropout()}) {
    const Trained expected = train(whole, kSteps);
    const auto same = [&](const std::string& what, auto change) {
      CAPTURE(whole.name, name_of(exchange), what);
      Layout layout = with(whole, change);
      layout.model.expert_exchange = exchange;
      check_same_model(train(layout, kSteps), expected);
    };
    // With a capacity of equal loads, rows travel in two rounds.
    const bool exact = exchange == ExpertExchange::exact;
    const std::vector<double> capacities = exact ? std::vector{2.0, 1.0} : std::vector{2.0};
    for (const auto& [ranks, expert] : {std::pair{2, 2}, {4, 2}, {4, 4}})
      for (const int stage : {0, 1, 2, 3})
        for (const double capacity : capacities) {
          const std::string axis = fmt::format("expert {} of {}, ZeRO-{}, capacity {}", expert, ranks, stage, capacity);
          const auto divided = [&, ranks = ranks, expert = expert](Layout& l) {
            l.micro_batch = l.micro_batch / ranks, l.ranks = ranks, l.expert = expert, l.zero_stage = stage;
            l.model.split_tied_embedding = false;
            l.model.experts.capacity_factor = capacity;
          };
          same(axis, divided);
          for_layouts([&](const std::string& what, auto change) {
            same(axis + ", " + what, [&](Layout& l) { change(l), divided(l); });
          });
        }
    for (const int stage : {0, 1, 2, 3}) {
      const auto of_context = [&](int expert, int data) {
        same(fmt::format("expert {} of context 2 x data {}, ZeRO-{}", expert, data, stage), [&](Layout& l) {
          l.context = 2, l.ranks = data, l.expert = expert, l.micro_batch = l.micro_batch / data;
          l.zero_stage = stage, l.model.split_tied_embedding = false;
        });
      };
      of_context(2, 1), of_context(2, 2), of_context(4, 2);
    }
  }
}

}  // namespace

TEST_CASE("experts: replicated experts train the model of one rank", "[experts]") {
  for (const Layout& whole : {mixtral(), qwen3_moe(), with_shared_experts()}) {
    const Trained expected = train(whole, kSteps);
    const auto same = [&](const std::string& what, auto change) {
      CAPTURE(whole.name, what);
      check_same_model(train(with(whole, change), kSteps), expected);
    };
    for_layouts(same);
    for (const int stage : {0, 1, 2, 3})
      same("ZeRO-" + std::to_string(stage), [&](Layout& l) {
        l.ranks = 2, l.micro_batch = 4, l.zero_stage = stage, l.model.split_tied_embedding = false;
      });
    for (const int context : {2, 4})
      same("context " + std::to_string(context), [&](Layout& l) { l.context = context; });
  }
}

TEST_CASE("experts: rows that travel by counts train the model of one rank", "[experts]") {
  check_divided(ExpertExchange::exact);
}

TEST_CASE("experts: gathered tokens train the model of one rank", "[experts]") {
  check_divided(ExpertExchange::gather);
}

TEST_CASE("experts: slots, groups of shards and small parameters that stay do not change what is trained",
          "[experts]") {
  for (const Layout& whole : {mixtral(), with_shared_experts()}) {
    const Trained expected = train(whole, kSteps);
    const auto same = [&](const std::string& what, int ranks, int expert, auto change) {
      CAPTURE(whole.name, what, ranks, expert);
      check_same_model(train(with(whole,
                                  [&](Layout& l) {
                                    l.ranks = ranks, l.expert = expert, l.zero_stage = 3;
                                    l.model.split_tied_embedding = false;
                                    change(l);
                                    l.micro_batch = l.micro_batch / ranks / l.micro_batches;
                                  }),
                             kSteps),
                       expected);
    };
    for (const int depth : {0, 2})
      for (const bool paired : {false, true})
        same("prefetch " + std::to_string(depth) + (paired ? ", paired passes" : ""), 4, 2, [&](Layout& l) {
          l.prefetch_depth = depth, l.micro_batches = 2;
          if (paired) l.order = make_paired_schedule(2);
        });
    same("layers stay gathered", 4, 2, [](Layout& l) { l.reshard_after_forward = false, l.micro_batches = 2; });
    same("small parameters stay", 4, 2, [](Layout& l) { l.persistent_elems = 48, l.micro_batches = 2; });
    same("whole gradients accumulate", 4, 2,
         [](Layout& l) { l.zero_stage = 2, l.accumulate_unsharded = true, l.micro_batches = 2; });
    for (const int stage : {1, 2, 3}) {
      const auto in_groups = [&](int ranks, int expert, int group) {
        same(fmt::format("ZeRO-{} in groups of {}", stage, group), ranks, expert,
             [&](Layout& l) { l.zero_stage = stage, l.shard_size = group, l.micro_batches = 8 / ranks; });
      };
      in_groups(8, 2, 4);  // two of a group hold the same experts
      in_groups(4, 2, 2);  // no two of a group do: experts stay whole
      in_groups(8, 4, 2);  // the experts of a layer are in two groups
    }
  }
}

TEST_CASE("experts: gradients and parameters of divided experts travel encoded", "[experts]") {
  const Layout whole = mixtral();
  const Trained expected = train(whole, kSteps);
  for (const auto& [ranks, expert, group] : {std::tuple{2, 2, 0}, {4, 2, 0}, {8, 2, 4}, {8, 4, 2}})
    for (const int stage : {0, 1, 2, 3})
      for (const Format& wire : {Format(DType::bf16), kInt8}) {
        if (stage == 0 && group > 0) continue;
        CAPTURE(ranks, expert, group, stage, name_of(wire));
        const Trained trained = train(with(whole,
                                           [&, ranks = ranks, expert = expert, group = group](Layout& l) {
                                             l.ranks = ranks, l.expert = expert, l.shard_size = group;
                                             l.zero_stage = stage, l.model.split_tied_embedding = false;
                                             l.micro_batches = ranks == 2 ? 2 : 1;
                                             l.micro_batch = l.micro_batch / ranks / l.micro_batches;
                                             l.wire_dtype = wire, l.error_feedback = wire == kInt8;
                                             if (stage > 0) l.gather_dtype = wire;
                                           }),
                                      kSteps);
        for (const std::string& hash : trained.rank_hashes) CHECK(hash == trained.hash);
        const double off = difference(trained.weights, expected.weights);
        std::printf("  expert %d of %d, groups of %d, ZeRO-%d, %s: weights %.1e\n", expert, ranks, group, stage,
                    wire == kInt8 ? "int8" : "bfloat16", off);
        CHECK(off > 0);
        CHECK(off < (wire == kInt8 ? 1e-1 : 2e-2));
      }
}

TEST_CASE("experts: Muon updates the matrices of divided experts as one rank does", "[experts]") {
  for (const Layout& plain : {mixtral(), qwen3_moe()}) {
    const Layout whole = with(plain, [](Layout& l) { l.groups = muon_on_matrices(); });
    const Trained expected = train(whole, kSteps);
    for (const auto& [ranks, expert] : {std::pair{2, 2}, {4, 2}, {4, 4}})
      for (const int stage : {0, 1}) {
        const auto divided = [&, ranks = ranks, expert = expert](Layout& l) {
          l.micro_batch = l.micro_batch / ranks, l.ranks = ranks, l.expert = expert, l.zero_stage = stage;
          l.model.split_tied_embedding = false;
        };
        const auto same = [&](const std::string& what, auto change) {
          CAPTURE(whole.name, ranks, expert, stage, what);
          check_same_model(train(with(whole, change), kSteps), expected, kMuonTolerance);
        };
        same("plain", divided);
        for_layouts(
            [&](const std::string& what, auto change) { same(what, [&](Layout& l) { change(l), divided(l); }); });
      }
    if (plain.model.experts.balance != ExpertBalance::none) continue;
    CAPTURE(whole.name);
    check_same_model(train(with(whole,
                                [](Layout& l) {
                                  l.micro_batch = 1, l.ranks = 8, l.expert = 2, l.zero_stage = 1, l.shard_size = 4;
                                  l.model.split_tied_embedding = false;
                                }),
                           kSteps),
                     expected, kMuonTolerance);
  }
}

TEST_CASE("experts: rows travel in as many rounds as the capacity needs", "[experts]") {
  // Each token passes one of eight experts, so that eight times the rows of equal loads can arrive.
  Layout whole = mixtral();
  whole.micro_batch = 8;
  whole.model.experts = {.count = 8, .top_k = 1, .ffn_width = 12, .normalize = false};
  const Trained expected = train(whole, kSteps);
  for (const bool paired : {false, true}) {
    const Layout divided = with(whole, [&](Layout& l) {
      l.ranks = l.expert = 8, l.micro_batch = 1, l.model.experts.capacity_factor = 1;
      l.model.split_tied_embedding = false;
      if (paired) l.ranks = l.expert = 4, l.micro_batches = 2, l.order = make_paired_schedule(2);
    });
    CAPTURE(paired);
    check_same_model(train(divided, kSteps), expected);
  }
}

TEST_CASE("experts: with one expert for a token, both exchanges give the same bits", "[experts]") {
  for (const Layout& whole : {mixtral(), qwen3_moe(), with_shared_experts()})
    for (const DType dtype : {DType::f32, DType::bf16}) {
      CAPTURE(whole.name, name_of(dtype));
      Layout layout = with(whole, [&](Layout& l) {
        l.ranks = l.expert = 2, l.micro_batch = 2;
        l.model.dtype = dtype;
        l.model.experts.top_k = 1, l.model.experts.group_top_k = 1;
      });
      const Trained exact = train(layout, kSteps);
      layout.model.expert_exchange = ExpertExchange::gather;
      const Trained gathered = train(layout, kSteps);
      CHECK(gathered.hash == exact.hash);
      CHECK(gathered.losses == exact.losses);
      CHECK(gathered.norms == exact.norms);
      layout.model.experts.top_k = 2;  // the comparison can fail
      CHECK(train(layout, kSteps).hash != exact.hash);
    }
}
