// SPDX-License-Identifier: Apache-2.0
// Multipliers of learning rate and weight decay: what they change, and the same bits on every layout.

#include <algorithm>

#include "tests/engine/data/disk.h"
#include "tests/equivalence/trained.h"
#include "tests/test.hpp"
#include "trainer/planner/planner.h"

namespace slipstream::equivalence {  // where Layout is that of the tests
namespace {

constexpr int kSteps = 3;

Layout layout_of(bool llama, std::vector<UpdateMultipliers> multipliers) {
  Layout layout{.name = llama ? "llama" : "gpt2", .model = llama ? tiny_llama() : tiny_gpt2()};
  layout.multipliers = std::move(multipliers);
  return layout;
}

const std::vector<float>& tensor(const Trained& trained, const std::string& name) {
  const auto at = std::find(trained.names.begin(), trained.names.end(), name);
  REQUIRE(at != trained.names.end());
  return trained.weights[static_cast<size_t>(at - trained.names.begin())];
}

}  // namespace

TEST_CASE("multipliers: the first row that matches a tensor holds, alone") {
  const Trained plain = train(layout_of(false, {}), kSteps);
  // A power of two: the product with the learning rate is exact, as is half the learning rate.
  const Trained half = train(layout_of(false, {{.pattern = "*", .learning_rate = 0.5}}), kSteps);
  CHECK(half.hash == train(with(layout_of(false, {}), [](Layout& l) { l.learning_rate /= 2; }), kSteps).hash);
  CHECK(half.hash != plain.hash);
  const Trained same =
      train(layout_of(false, {{.pattern = "*.weight"}, {.pattern = "*ln_?.bias", .weight_decay = 0}}), kSteps);
  CHECK(same.hash == plain.hash);
  // Frozen tensors stay; with the first row, the second has no effect on them.
  const Trained frozen = train(layout_of(false, {{.pattern = "*.c_attn.bias", .learning_rate = 0, .weight_decay = 5},
                                                 {.pattern = "*.bias", .learning_rate = 2, .weight_decay = 1}}),
                               kSteps);
  const Trained before = train(layout_of(false, {{.pattern = "*", .learning_rate = 0}}), kSteps);
  for (const std::string& name : plain.names) {
    INFO(name);
    CHECK((tensor(frozen, name) == tensor(before, name)) == name.ends_with(".c_attn.bias"));
  }
}

TEST_CASE("multipliers: decay by hand in one step without gradient") {
  // A gradient factor of 0 leaves only the decay: p (1 - lr f w g), in float as the kernel rounds.
  Layout layout = layout_of(true, {{.pattern = "*norm*", .learning_rate = 0.25, .weight_decay = 3},
                                   {.pattern = "*k_proj*", .weight_decay = 0},
                                   {.pattern = "*q_proj*", .learning_rate = 2}});
  layout.max_norm = 1e-30f;
  layout.eps = 1;
  const Trained after = train(layout, 1);
  layout.multipliers = {{.pattern = "*", .learning_rate = 0}};
  const Trained before = train(layout, 1);
  for (const std::string& name : before.names) {
    INFO(name);
    const double rate = name.find("norm") != std::string::npos     ? 0.25
                        : name.find("q_proj") != std::string::npos ? 2
                                                                   : 1;
    const double decay = name.find("norm") != std::string::npos ? 3 : name.find("k_proj") != std::string::npos ? 0 : 1;
    const std::vector<float>&was = tensor(before, name), &is = tensor(after, name);
    double worst = 0;
    for (size_t i = 0; i < was.size(); ++i)
      worst = std::max(worst, std::abs(is[i] - was[i] * (1 - 1e-2 * rate * 0.1 * decay)));
    CHECK(worst < 1e-7);
    if (decay > 0) CHECK(is != was);
  }
}

TEST_CASE("multipliers: every layout trains the model of one rank") {
  const std::vector<UpdateMultipliers> rows{{.pattern = "*k_proj*", .learning_rate = 0.5},
                                            {.pattern = "*norm*", .learning_rate = 3, .weight_decay = 0.5},
                                            {.pattern = "*.attn.*", .learning_rate = 0.25, .weight_decay = 2},
                                            {.pattern = "*ln_f*", .weight_decay = 1}};
  for (const bool llama : {false, true}) {
    const Layout base = with(layout_of(llama, rows), [](Layout& l) {
      l.micro_batch = 2, l.micro_batches = 4, l.model.split_tied_embedding = false;
    });
    const Trained one = train(base, kSteps);
    const auto close = [&](const Layout& layout) {
      INFO(layout.name);
      const Trained other = train(layout, kSteps);
      CHECK(difference(other.weights, one.weights) < 2e-5);
      for (const std::string& hash : other.rank_hashes) CHECK(hash == other.hash);
      return other;
    };
    const auto ranks = [&](const char* name, auto change) {
      return with(base, [&](Layout& l) {
        l.name = name, l.ranks = 2, l.micro_batches = 2;
        change(l);
      });
    };
    const Trained data = close(ranks("data", [](Layout&) {}));
    const auto zero = [&](int stage) { return close(ranks("zero", [&](Layout& l) { l.zero_stage = stage; })).hash; };
    CHECK(zero(1) == data.hash);
    CHECK(zero(2) == zero(3));  // they sum micro-batches in another order
    CHECK(close(ranks("buckets", [](Layout& l) { l.bucket_bytes = 1 << 30; })).hash == data.hash);
    close(with(base, [](Layout& l) { l.name = "pipeline", l.stages = 2; }));
    close(with(base, [](Layout& l) { l.name = "tensor", l.tensor = 2; }));
  }
}

}  // namespace slipstream::equivalence
