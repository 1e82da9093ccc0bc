// SPDX-License-Identifier: Apache-2.0
// The gradients of whole models against central differences of their own evaluation, element by element.

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "engine/base/philox.h"
#include "tests/equivalence/trained.h"
#include "tests/held.h"
#include "tests/models/mixed_layers.h"
#include "tests/test.hpp"
#include "trainer/runtime/rank/rank.h"

using namespace slipstream;

namespace {

/// The loss of the batch of step 1, from a rank whose weights may be changed.
class Model {
 public:
  explicit Model(const equivalence::Layout& layout) : layout_(layout), rank_(make(layout_, staged_)) {
    // Weights as large as trained ones: at 0.02 most of a tiny model's gradients vanish in the rounding of the loss.
    for (size_t p = 0; p < parameters().size(); ++p)
      for (size_t t = 0; t < parameters()[p].tensors.size(); ++t) {
        const NamedTensor& named = parameters()[p].tensors[t];
        const Philox random(9, named.name);
        std::vector<float> values(static_cast<size_t>(named.whole_elems()));
        for (size_t i = 0; i < values.size(); ++i)
          values[i] = (parameters()[p].init.kind == Init::Kind::ones ? 1.0f : 0.0f) + 0.3f * random.normal(i);
        rank_.set_tensor(p, t, values);
      }
  }

  const std::vector<ParameterSpec>& parameters() const { return rank_.job().model.parameters; }

  /// With dropout the loss comes from a training step, whose batch and masks are always those of step 1 and whose
  /// update changes nothing.
  double loss() {
    if (layout_.model.dropout.any()) return training_loss();
    const int64_t T = layout_.model.tokens, rows = layout_.micro_batch * T;
    std::vector<int32_t> ids(static_cast<size_t>(rows)), targets(ids.size()),
        begins(layout_.model.documents ? ids.size() : 0);
    double sum = 0;
    for (int m = 0; m < layout_.micro_batches; ++m) {
      for (int64_t i = 0; i < rows; ++i) {
        ids[static_cast<size_t>(i)] =
            equivalence::token_of(1, m * layout_.micro_batch + i / T, i % T, layout_.model.vocab);
        targets[static_cast<size_t>(i)] =
            equivalence::token_of(1, m * layout_.micro_batch + i / T, i % T + 1, layout_.model.vocab);
        if (layout_.model.documents)
          begins[static_cast<size_t>(i)] =
              equivalence::document_begin_of(layout_, m * layout_.micro_batch + i / T, i % T);
      }
      for (float loss : rank_.evaluate(ids, targets, begins)) sum += loss;
    }
    return sum / static_cast<double>(layout_.micro_batches * rows);
  }

  std::vector<std::vector<std::vector<float>>> gradients() {
    training_loss();
    std::vector<std::vector<std::vector<float>>> all;
    for (size_t p = 0; p < parameters().size(); ++p) {
      all.emplace_back();
      for (size_t t = 0; t < parameters()[p].tensors.size(); ++t)
        all.back().push_back(tests::whole_tensor(rank_, &BucketStorage::gradient, p, t));
    }
    return all;
  }

  std::vector<float> tensor(size_t p, size_t t) { return tests::whole_tensor(rank_, &BucketStorage::master, p, t); }
  void set(size_t p, size_t t, const std::vector<float>& values) { rank_.set_tensor(p, t, values); }

 private:
  double training_loss() {
    if (step_++ == 0) rank_.prime();
    rank_.issue(step_);
    rank_.synchronize();
    return rank_.report(step_).loss_sum /
           static_cast<double>(layout_.micro_batch * layout_.micro_batches * layout_.model.tokens);
  }

  static runtime::Rank make(const equivalence::Layout& layout, int64_t& staged) {
    auto job = equivalence::make_job(layout, 0);
    std::vector<std::unique_ptr<comm::Communicator>> none(job->channels.size());
    return runtime::Rank(std::move(job), make_cpu_device(), std::move(none), {},
                         equivalence::detail::loader(layout, 0, staged));
  }

  equivalence::Layout layout_;
  int64_t staged_ = 0;
  uint32_t step_ = 0;
  runtime::Rank rank_;
};

/// The central difference of fourth order of the loss along one element.
double slope(Model& model, size_t p, size_t t, size_t i, float step) {
  const std::vector<float> start = model.tensor(p, t);
  const auto at = [&](float by) {
    std::vector<float> moved = start;
    moved[i] += by;
    model.set(p, t, moved);
    // The actual change, rounding included.
    return std::pair(model.loss(), static_cast<double>(moved[i]) - static_cast<double>(start[i]));
  };
  const auto [up, du] = at(step);
  const auto [down, dd] = at(-step);
  const auto [up2, du2] = at(2 * step);
  const auto [down2, dd2] = at(-2 * step);
  model.set(p, t, start);
  return (4 * (up - down) / (du - dd) - (up2 - down2) / (du2 - dd2)) / 3;
}

void check_gradients(const equivalence::Layout& layout, float step = 1e-2f) {
  Model still(layout);
  const auto gradients = still.gradients();
  Model model(layout);
  const Philox random(17, layout.name);
  double worst = 0;
  int checked = 0;
  for (size_t p = 0; p < gradients.size(); ++p)
    for (size_t t = 0; t < gradients[p].size(); ++t) {
      const std::vector<float>& g = gradients[p][t];
      size_t largest = 0;
      for (size_t i = 0; i < g.size(); ++i)
        if (std::abs(g[i]) > std::abs(g[largest])) largest = i;
      std::vector<size_t> elements{largest, 0, g.size() - 1};
      for (uint64_t n = 0; n < 3; ++n)
        elements.push_back(random.below(static_cast<uint64_t>(100 * p + 10 * t) + n, g.size()));
      for (size_t i : elements) {
        INFO(layout.name << ": " << model.parameters()[p].tensors[t].name << "[" << i << "]");
        const double expected = slope(model, p, t, i, step);
        const double scale = std::max(1e-2, static_cast<double>(std::abs(g[largest])));
        const double error = std::abs(static_cast<double>(g[i]) - expected) / scale;
        CHECK(error < 2e-3);
        worst = std::max(worst, error);
        ++checked;
      }
    }
  std::printf("  %s: %d elements, largest error %.1e of the tensor's largest gradient\n", layout.name.c_str(), checked,
              worst);
}

equivalence::Layout small(models::ModelOptions model, const std::string& name) {
  model.width = model.family == Family::gpt2 ? 8 : 16;
  model.ffn_width = 12;
  model.tokens = model.context = 5;
  model.vocab = 43;
  return {.name = name, .model = model, .micro_batch = 2, .max_norm = 0};
}

}  // namespace

TEST_CASE("gradients are the slopes of the loss", "[models]") {
  check_gradients(small(equivalence::tiny_gpt2(), "gpt2, tied, rows"));
  check_gradients(small(equivalence::tiny_llama(), "llama, grouped heads, untied"));
  equivalence::Layout cut = small(equivalence::tiny_gpt2(), "gpt2, two micro-batches, dense");
  cut.micro_batches = 2;
  check_gradients(cut);
  equivalence::Layout tied = small(equivalence::tiny_llama(), "llama, tied, unsplit");
  tied.model.tie_embeddings = true;
  tied.model.split_tied_embedding = false;
  check_gradients(tied);
  for (const models::ModelOptions& model : {equivalence::tiny_gpt2(), equivalence::tiny_llama()}) {
    equivalence::Layout chunks =
        small(model, std::string(name_of(model.family)) + ", logits of 4 of 10 tokens at once");
    chunks.head_tokens = 4;
    chunks.micro_batches = 2;
    check_gradients(chunks);
  }
  equivalence::Layout scaled = small(equivalence::tiny_llama(), "llama, wide heads, scaled positions");
  scaled.model.head_dim = 6;  // four heads: wider than the model
  scaled.model.rope_scaling = {.factor = 4, .original_context = 8};
  check_gradients(scaled);
  equivalence::Layout qwen2 = small(equivalence::tiny_llama(), "qwen2, grouped heads, untied");
  qwen2.model.family = Family::qwen2;
  check_gradients(qwen2);
  equivalence::Layout qwen3 = small(equivalence::tiny_llama(), "qwen3, wide heads, two micro-batches");
  qwen3.model.family = Family::qwen3;
  qwen3.model.head_dim = 6;
  qwen3.micro_batches = 2;
  check_gradients(qwen3);
  equivalence::Layout mistral = small(equivalence::tiny_llama(), "mistral, window");
  mistral.model.family = Family::mistral;
  mistral.model.window = 3;
  check_gradients(mistral);
  for (const models::ModelOptions& model : {equivalence::tiny_gpt2(), equivalence::tiny_llama()}) {
    equivalence::Layout packed = small(model, std::string(name_of(model.family)) + ", documents, two micro-batches");
    packed.model.documents = true;
    packed.document_tokens = 3;
    packed.micro_batches = 2;
    check_gradients(packed);
  }
}

TEST_CASE("gradients of a model whose layers differ are the slopes of the loss", "[models]") {
  for (const int64_t layers : {3, 4}) {
    equivalence::Layout mixed = small(equivalence::tiny_llama(), fmt::format("{} mixed layers", layers));
    mixed.model.layers = layers;
    mixed.model.table = tests::mixed_layers;
    mixed.micro_batches = 2;
    check_gradients(mixed);
  }
}

// A token passes all experts, because the loss jumps where its choice changes. Golden values have choices.
TEST_CASE("gradients of a mixture of experts are the slopes of the loss", "[models]") {
  equivalence::Layout mixtral = small(equivalence::tiny_llama(), "mixtral");
  mixtral.model.family = Family::mixtral;
  mixtral.model.experts = {.count = 3, .top_k = 3, .ffn_width = 12};
  check_gradients(mixtral);
  equivalence::Layout qwen3 = small(equivalence::tiny_llama(), "qwen3_moe, a dense layer, two micro-batches");
  qwen3.model.family = Family::qwen3_moe;
  qwen3.model.experts = {.count = 4, .top_k = 4, .ffn_width = 7, .layers = {1}, .normalize = false};
  qwen3.micro_batches = 2;
  check_gradients(qwen3, 5e-3f);  // scores bend more than other activations
  equivalence::Layout sigmoid = small(equivalence::tiny_llama(), "sigmoid scores, normalized and scaled");
  sigmoid.model.family = Family::qwen3_moe;
  sigmoid.model.experts = {
      .count = 3, .top_k = 3, .shared = 2, .ffn_width = 9, .router = RouterKind::sigmoid, .scale = 1.5};
  check_gradients(sigmoid);
}

TEST_CASE("gradients with dropout are the slopes of the loss under the same masks", "[models]") {
  const auto dropping = [](models::ModelOptions model, const char* name, models::DropoutRates rates) {
    equivalence::Layout layout = small(model, name);
    layout.model.dropout = rates;
    layout.micro_batches = 2;
    layout.same_batch = true;
    layout.learning_rate = 0;
    return layout;
  };
  check_gradients(dropping(equivalence::tiny_gpt2(), "gpt2, embedding and residual",
                           {.embedding = 0.2, .residual = 0.3, .seed = 5}));
  check_gradients(dropping(equivalence::tiny_gpt2(), "gpt2, embedding alone", {.embedding = 0.4, .seed = 6}));
  check_gradients(dropping(equivalence::tiny_gpt2(), "gpt2, attention alone", {.attention = 0.4, .seed = 8}));
  check_gradients(dropping(equivalence::tiny_llama(), "llama, grouped heads, all",
                           {.embedding = 0.2, .residual = 0.3, .attention = 0.2, .seed = 7}));
}
