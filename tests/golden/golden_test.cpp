// SPDX-License-Identifier: Apache-2.0
// Two tiny models against values that PyTorch computed once (tests/golden/make_golden.py).

#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>

#include "comm/rehearse/finish.h"
#include "engine/base/json.h"
#include "engine/plan/build_job.h"
#include "engine/plan/optimizer.h"
#include "models/model.h"
#include "tests/golden/device.h"
#include "tests/held.h"
#include "tests/paths.h"
#include "tests/test.hpp"
#include "trainer/runtime/rank/rank.h"

using namespace slipstream;

namespace {

std::string bytes_of_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  REQUIRE(file.good());
  return {std::istreambuf_iterator<char>(file), {}};
}

struct Golden {
  explicit Golden(const std::string& name) : json(Json::parse(bytes_of_file(golden_dir() + "/" + name + ".json"))) {
    const std::string data = bytes_of_file(golden_dir() + "/" + name + ".bin");
    for (const Json& row : json.at("tensors").as_array()) {
      size_t elems = 1;
      for (const Json& dim : row.at("shape").as_array()) elems *= static_cast<size_t>(dim.as_int());
      std::vector<float> values(elems);
      std::memcpy(values.data(), data.data() + 4 * row.at("begin_elems").as_int(), 4 * elems);
      tensors[row.at("name").as_string()] = std::move(values);
    }
    for (const Json& id : json.at("ids").as_array()) ids.push_back(static_cast<int32_t>(id.as_int()));
  }
  int64_t whole(const char* key) const { return json.at(key).as_int(); }
  float real(const char* key) const { return static_cast<float>(json.at(key).as_double()); }
  const std::vector<float>& at(const std::string& name) const { return tensors.at(name); }

  Json json;
  std::map<std::string, std::vector<float>> tensors;
  std::vector<int32_t> ids;  // [batch, tokens + 1]
};

Family family_of(const std::string& name) {
  for (size_t i = 0; i < kWords<Family>.size(); ++i)
    if (name == kWords<Family>[i]) return static_cast<Family>(i);
  FAIL("no family " << name);
  return {};
}

/// Returns the layers in the list, or none without one.
std::vector<int64_t> layers_of(const Json& json, const char* key) {
  std::vector<int64_t> layers;
  if (const Json* list = json.find(key))
    for (const Json& layer : list->as_array()) layers.push_back(layer.as_int());
  return layers;
}

ExpertOptions experts_of(const Json& json) {
  const Json* experts = json.find("experts");
  if (experts == nullptr) return {};
  return {.count = experts->at("count").as_int(),
          .top_k = experts->at("top_k").as_int(),
          .ffn_width = experts->at("ffn_width").as_int(),
          .layers = layers_of(*experts, "layers"),
          .normalize = experts->at("normalize").as_bool()};
}

std::unique_ptr<Job> job_of(const Golden& g) {
  const auto whole_or_0 = [&](const char* key) { return g.json.find(key) == nullptr ? 0 : g.whole(key); };
  kernels::RopeScaling scaling;
  if (const Json* list = g.json.find("rope_scaling")) {
    const auto at = [&](size_t i) { return static_cast<float>(list->as_array()[i].as_int()); };
    scaling = {at(0), at(1), at(2), list->as_array()[3].as_int()};
  }
  const models::ModelOptions options{.family = family_of(g.json.at("family").as_string()),
                                     .layers = g.whole("layers"),
                                     .heads = g.whole("heads"),
                                     .kv_heads = g.whole("kv_heads"),
                                     .head_dim = whole_or_0("head_dim"),
                                     .width = g.whole("width"),
                                     .ffn_width = g.whole("ffn_width"),
                                     .context = g.whole("tokens"),
                                     .vocab = g.whole("vocab"),
                                     .tie_embeddings = g.json.at("tied").as_bool(),
                                     .rope_scaling = scaling,
                                     .window = whole_or_0("sliding_window"),
                                     .window_layers = layers_of(g.json, "window_layers"),
                                     .experts = experts_of(g.json),
                                     .batch = g.whole("batch"),
                                     .tokens = g.whole("tokens"),
                                     .global_tokens = g.whole("batch") * g.whole("tokens")};
  Buffers buffers;
  ModelSpec model = models::build_model(options, buffers);
  auto job = std::make_unique<Job>(
      build_job(std::move(model), std::move(buffers), {.bucket_bytes = 4096, .first_bucket_bytes = 1024}));
  const comm::RooflinePrice price(comm::Rates{}, comm::Link{});
  for (Plan* plan : {&job->plan(PlanKind::prime), &job->plan(PlanKind::evaluate), &job->train()}) {
    const comm::Stage stage{plan, &job->buffers};
    REQUIRE(comm::finish({&stage, 1}, job->mesh, job->channels, price).holds());
  }
  return job;
}

struct Batch {
  std::vector<int32_t> inputs, targets;
  explicit Batch(const Golden& g) {
    const auto tokens = static_cast<size_t>(g.whole("tokens"));
    for (size_t i = 0; i < g.ids.size(); ++i) {
      if (i % (tokens + 1) < tokens) inputs.push_back(g.ids[i]);
      if (i % (tokens + 1) > 0) targets.push_back(g.ids[i]);
    }
  }
};

/// A mistake that a test of the test makes; by default there is none.
struct Mutation {
  std::string transpose;  // the name of a square weight
  std::string forget;     // the name of a tensor that is left at zero
  bool swap_betas = false;
  bool no_clip = false;
  bool no_decay = false;
  int64_t late_bias_correction = 0;  // steps
};

UpdateOptions update_of(const Golden& g, const Mutation& m) {
  return {.beta1 = g.json.at(m.swap_betas ? "beta2" : "beta1").as_double(),
          .beta2 = g.json.at(m.swap_betas ? "beta1" : "beta2").as_double(),
          .eps = g.real("eps"),
          .weight_decay = m.no_decay ? 0.0f : g.real("weight_decay"),
          .grad_clip = m.no_clip ? 1e9f : g.real("max_norm")};
}

runtime::LoadBatch loader(const Golden& g, const Mutation& m, int64_t& step) {
  return [&g, m, &step, &optimizer = optimizers().front()](const runtime::StagedBatch& staged) {
    const Batch batch(g);
    std::memcpy(staged.batch, batch.inputs.data(), 4 * batch.inputs.size());
    std::memcpy(staged.batch + 4 * batch.inputs.size(), batch.targets.data(), 4 * batch.targets.size());
    optimizer.write_scalars(update_of(g, m), g.real("learning_rate"), ++step + m.late_bias_correction, staged.scalars);
  };
}

template <typename Use>
void for_each_tensor(runtime::Rank& rank, Use use) {
  const auto& parameters = rank.job().model.parameters;
  for (size_t p = 0; p < parameters.size(); ++p)
    for (size_t t = 0; t < parameters[p].tensors.size(); ++t) use(parameters[p].tensors[t].name, p, t);
}

std::vector<float> first_weights(const Golden& g, const Mutation& m, const std::string& tensor) {
  std::vector<float> values = g.at("weight." + tensor);
  if (tensor == m.forget) std::fill(values.begin(), values.end(), 0.0f);
  if (tensor != m.transpose) return values;
  const auto width = static_cast<size_t>(g.whole("width"));
  REQUIRE(values.size() == width * width);
  for (size_t i = 0; i < width; ++i)
    for (size_t j = 0; j < i; ++j) std::swap(values[i * width + j], values[j * width + i]);
  return values;
}

/// Does element i of this tensor shift all keys of a head alike? Softmax ignores such a shift, so its gradient is
/// rounding.
bool is_key_bias(const std::string& name, size_t i, size_t width) {
  return name.ends_with("attn.c_attn.bias") && i >= width && i < 2 * width;
}

struct Errors {
  double logits = 0, losses = 0, norms = 0;  // absolute
  double gradients = 0;                      // relative to the largest element of the tensor
  double weights = 0;                        // absolute, where the gradient is not rounding
  int64_t compared = 0, small = 0, key_biases = 0;
};

void compare_logits(const Golden& g, runtime::Rank& rank, Errors& errors) {
  const Batch batch(g);
  double loss = 0;
  for (float row : rank.evaluate(batch.inputs, batch.targets)) loss += row;
  errors.losses =
      std::abs(loss / static_cast<double>(batch.inputs.size()) - g.json.at("losses").as_array()[0].as_double());
  const std::vector<float>& golden = g.at("logits");
  const auto vocab = static_cast<size_t>(g.whole("vocab"));
  for (size_t row = 0; row < batch.inputs.size(); ++row) {
    const std::vector<float> logits = rank.logits(static_cast<int64_t>(row));
    for (size_t v = 0; v < vocab; ++v)
      errors.logits = std::max(errors.logits, static_cast<double>(std::abs(logits[v] - golden[row * vocab + v])));
  }
}

void compare_gradients(const Golden& g, runtime::Rank& rank, Errors& errors) {
  for_each_tensor(rank, [&](const std::string& tensor, size_t p, size_t t) {
    const std::vector<float> gradient = tests::whole_tensor(rank, &BucketStorage::gradient, p, t);
    const std::vector<float>& golden = g.at("gradient." + tensor);
    REQUIRE(gradient.size() == golden.size());
    double largest = 0, error = 0;
    for (size_t i = 0; i < golden.size(); ++i) {
      largest = std::max(largest, static_cast<double>(std::abs(golden[i])));
      error = std::max(error, static_cast<double>(std::abs(gradient[i] - golden[i])));
    }
    errors.gradients = std::max(errors.gradients, error / largest);
  });
}

void compare_weights(const Golden& g, runtime::Rank& rank, Errors& errors) {
  for_each_tensor(rank, [&](const std::string& tensor, size_t p, size_t t) {
    const std::vector<float> weights = tests::whole_tensor(rank, &BucketStorage::master, p, t);
    const std::vector<float>&golden = g.at("trained." + tensor), &gradient = g.at("gradient." + tensor);
    for (size_t i = 0; i < golden.size(); ++i) {
      if (is_key_bias(tensor, i, static_cast<size_t>(g.whole("width")))) {
        ++errors.key_biases;
        continue;
      }
      // A row of the embedding without ids has no gradient: it only decays, and is compared.
      if (gradient[i] != 0 && std::abs(gradient[i]) <= 1e-6f) {
        ++errors.small;
        continue;
      }
      ++errors.compared;
      errors.weights = std::max(errors.weights, static_cast<double>(std::abs(weights[i] - golden[i])));
    }
  });
}

Errors measure(const Golden& g, const Mutation& m = {}) {
  int64_t staged = 0;
  auto job = job_of(g);
  std::vector<std::unique_ptr<comm::Communicator>> none(job->channels.size());
  runtime::Rank rank(std::move(job), golden::make_device(), std::move(none), {.update = update_of(g, m)},
                     loader(g, m, staged));
  size_t named = 0;
  for_each_tensor(rank, [&](const std::string& tensor, size_t p, size_t t) {
    rank.set_tensor(p, t, first_weights(g, m, tensor));
    ++named;
  });
  CHECK(3 * named + 1 == g.tensors.size());  // every tensor of the fixture is one of the model's
  Errors errors;
  compare_logits(g, rank, errors);
  rank.prime();
  const double tokens = static_cast<double>(g.whole("batch") * g.whole("tokens"));
  for (int64_t step = 1; step <= g.whole("steps"); ++step) {
    rank.issue(static_cast<uint32_t>(step));
    rank.synchronize();
    const runtime::Rank::Report report = rank.report(static_cast<uint32_t>(step));
    const auto index = static_cast<size_t>(step) - 1;
    errors.losses =
        std::max(errors.losses, std::abs(report.loss_sum / tokens - g.json.at("losses").as_array()[index].as_double()));
    errors.norms = std::max(errors.norms, std::abs(report.norm - g.json.at("norms").as_array()[index].as_double()));
    if (step == 1) compare_gradients(g, rank, errors);
  }
  compare_weights(g, rank, errors);
  return errors;
}

constexpr double kLogits = 1e-5, kLoss = 1e-5, kNorm = 1e-4, kGradients = 1e-4, kWeights = 1e-5;

void check_model(const std::string& name) {
  const Golden g(name);
  const Errors errors = measure(g);
  const double share = static_cast<double>(errors.small) / static_cast<double>(errors.small + errors.compared);
  std::printf(
      "  %s: logits %.1e, losses %.1e, gradients %.1e of the largest, weights %.1e; excluded for |g| <= 1e-6: %.3f %% "
      "of %lld; key biases: %lld\n",
      name.c_str(), errors.logits, errors.losses, errors.gradients, errors.weights, 100 * share,
      static_cast<long long>(errors.small + errors.compared), static_cast<long long>(errors.key_biases));
  CHECK(errors.logits < kLogits);
  CHECK(errors.losses < kLoss);
  CHECK(errors.norms < kNorm);
  CHECK(errors.gradients < kGradients);
  CHECK(errors.weights < kWeights);
  CHECK(share < 0.01);
  CHECK(errors.compared > 4000);
}

}  // namespace

TEST_CASE("a tied GPT-2 equals PyTorch", "[golden]") { check_model("gpt2"); }
TEST_CASE("a Llama with grouped key-value heads equals PyTorch", "[golden]") { check_model("llama"); }

TEST_CASE("every family equals transformers: logits, gradients and 20 steps", "[golden]") {
  for (const char* family : kWords<Family>) check_model(std::string("hf_") + family);
}

TEST_CASE("experts equal transformers, and another choice of them does not", "[golden]") {
  check_model("hf_qwen3_moe_as_given");
  for (const char* name : {"hf_mixtral", "hf_qwen3_moe", "hf_qwen3_moe_as_given"}) {
    INFO(name);
    Golden fewer(name), other(name);
    fewer.json["experts"]["top_k"] = Json(fewer.json.at("experts").at("top_k").as_int() - 1);
    CHECK(measure(fewer, {}).logits > 10 * kLogits);
    other.json["experts"]["normalize"] = Json(!other.json.at("experts").at("normalize").as_bool());
    CHECK(measure(other, {}).logits > 10 * kLogits);
  }
}

TEST_CASE("windows in some of the layers equal transformers", "[golden]") {
  for (const char* name : {"hf_mistral_windows", "hf_qwen2_windows", "hf_qwen3_windows"}) {
    check_model(name);
    // Windows are in all layers, in none, and in the other one.
    Golden wrong(name);
    const Json right = wrong.json.at("window_layers");
    for (const char* layers : {"[]", right == Json::parse("[0]") ? "[1]" : "[0]"}) {
      INFO(name << " " << layers);
      wrong.json["window_layers"] = Json::parse(layers);
      CHECK(measure(wrong, {}).logits > 10 * kLogits);
    }
    wrong.json["sliding_window"] = Json(0);
    CHECK(measure(wrong, {}).logits > 10 * kLogits);
  }
}

TEST_CASE("the tolerances detect wrong formulas", "[golden]") {
  const Golden gpt2("gpt2"), llama("llama");
  for (const Mutation& m :
       {Mutation{.transpose = "transformer.h.1.attn.c_proj.weight"},
        Mutation{.forget = "transformer.h.0.mlp.c_fc.bias"}, Mutation{.forget = "transformer.wpe.weight"}}) {
    const Errors errors = measure(gpt2, m);
    CHECK(errors.logits > 10 * kLogits);
    CHECK(errors.gradients > 10 * kGradients);
    CHECK(errors.losses > kLoss);
  }
  const Errors turned = measure(llama, {.transpose = "model.layers.0.self_attn.q_proj.weight"});
  CHECK(turned.logits > 10 * kLogits);
  CHECK(turned.gradients > 10 * kGradients);
  for (const Golden* g : {&gpt2, &llama})
    for (const Mutation& m : {Mutation{.swap_betas = true}, Mutation{.no_clip = true}, Mutation{.no_decay = true},
                              Mutation{.late_bias_correction = 1}, Mutation{.late_bias_correction = 1'000'000}}) {
      const Errors errors = measure(*g, m);
      CHECK(errors.logits < kLogits);
      CHECK(errors.gradients < kGradients);
      CHECK(errors.weights > kWeights);
    }
}
