// SPDX-License-Identifier: Apache-2.0
// Two tiny models against what PyTorch computed for them once (scripts/make_golden.py).

#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>

#include "cli/rank.h"
#include "comm/rehearse/finish.h"
#include "engine/base/json.h"
#include "kernels/adamw/adamw.h"
#include "models/model.h"
#include "tests/test.hpp"

using namespace slipstream;

namespace {

std::string bytes_of_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  REQUIRE(file.good());
  return {std::istreambuf_iterator<char>(file), {}};
}

struct Golden {
  explicit Golden(const std::string& name)
      : json(Json::parse(bytes_of_file(std::string(GOLDEN_DIR) + "/" + name + ".json"))) {
    const std::string data = bytes_of_file(std::string(GOLDEN_DIR) + "/" + name + ".bin");
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

std::unique_ptr<Job> job_of(const Golden& g) {
  const models::ModelOptions options{
      .family = g.json.at("family").as_string() == "gpt2" ? models::Family::gpt2 : models::Family::llama,
      .layers = g.whole("layers"), .heads = g.whole("heads"), .kv_heads = g.whole("kv_heads"), .width = g.whole("width"),
      .ffn_width = g.whole("ffn_width"), .context = g.whole("tokens"), .vocab = g.whole("vocab"),
      .tie_embeddings = g.json.at("tied").as_bool(), .batch = g.whole("batch"), .tokens = g.whole("tokens"),
      .global_tokens = g.whole("batch") * g.whole("tokens")};
  Buffers buffers;
  ModelSpec model = models::build_model(options, buffers);
  auto job = std::make_unique<Job>(build_job(std::move(model), std::move(buffers), {.bucket_bytes = 4096, .first_bucket_bytes = 1024}));
  const comm::RooflinePrice price(comm::Rates{}, comm::Link{});
  for (Plan* plan : {&job->prime, &job->evaluate, &job->train}) {
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

cli::Rank rank_of(const Golden& g, int64_t& step) {
  auto job = job_of(g);
  std::vector<std::unique_ptr<comm::Communicator>> none(job->channels.size());
  const cli::LoadBatch load = [&g, &step](const cli::StagedBatch& staged) {
    const Batch batch(g);
    std::memcpy(staged.batch, batch.inputs.data(), 4 * batch.inputs.size());
    std::memcpy(staged.batch + 4 * batch.inputs.size(), batch.targets.data(), 4 * batch.targets.size());
    const double t = static_cast<double>(++step);
    const kernels::AdamwScalars scalars{.learning_rate = g.real("learning_rate"),
                                        .inv_bias1 = static_cast<float>(1 / (1 - std::pow(g.json.at("beta1").as_double(), t))),
                                        .inv_bias2 = static_cast<float>(1 / (1 - std::pow(g.json.at("beta2").as_double(), t))),
                                        .clip = 1};
    std::memcpy(staged.scalars, &scalars, sizeof scalars);
  };
  return cli::Rank(std::move(job), make_cpu_device(), std::move(none),
                   {.update = {.beta1 = g.real("beta1"), .beta2 = g.real("beta2"), .eps = g.real("eps"),
                               .weight_decay = g.real("weight_decay"), .max_norm = g.real("max_norm")}},
                   load);
}

template <typename Use>
void for_each_tensor(cli::Rank& rank, Use use) {
  const auto& parameters = rank.job().model.parameters;
  for (size_t p = 0; p < parameters.size(); ++p)
    for (size_t t = 0; t < parameters[p].tensors.size(); ++t) use(parameters[p].tensors[t].name, p, t);
}

/// Does element i of this tensor shift all keys of a head alike? Softmax does not see it: its gradient is rounding.
bool is_key_bias(const std::string& name, size_t i, size_t width) {
  return name.ends_with("attn.c_attn.bias") && i >= width && i < 2 * width;
}

void check_model(const std::string& name) {
  const Golden g(name);
  int64_t staged = 0;
  cli::Rank rank = rank_of(g, staged);
  size_t named = 0;
  for_each_tensor(rank, [&](const std::string& tensor, size_t p, size_t t) {
    INFO(tensor);
    REQUIRE(g.tensors.contains("weight." + tensor));
    rank.set_tensor(p, t, g.at("weight." + tensor));
    ++named;
  });
  CHECK(3 * named + 1 == g.tensors.size());  // every tensor of the fixture is one of the model's

  const Batch batch(g);
  const double tokens = static_cast<double>(batch.inputs.size());
  double loss = 0;
  for (float row : rank.evaluate(batch.inputs, batch.targets)) loss += row;
  const double golden_loss = g.json.at("losses").as_array()[0].as_double();
  CHECK(std::abs(loss / tokens - golden_loss) < 1e-5);
  const std::vector<float>& golden_logits = g.at("logits");
  const auto vocab = static_cast<size_t>(g.whole("vocab"));
  double logit_error = 0;
  for (size_t row = 0; row < batch.inputs.size(); ++row) {
    const std::vector<float> logits = rank.logits(static_cast<int64_t>(row));
    for (size_t v = 0; v < vocab; ++v)
      logit_error = std::max(logit_error, static_cast<double>(std::abs(logits[v] - golden_logits[row * vocab + v])));
  }
  CHECK(logit_error < 1e-5);

  rank.prime();
  double gradient_error = 0;
  for (int64_t step = 1; step <= g.whole("steps"); ++step) {
    rank.issue(static_cast<uint32_t>(step));
    rank.synchronize();
    const cli::Rank::Report report = rank.report(static_cast<uint32_t>(step));
    const auto index = static_cast<size_t>(step) - 1;
    CHECK(std::abs(report.loss_sum / tokens - g.json.at("losses").as_array()[index].as_double()) < 1e-5);
    CHECK(std::abs(report.norm - g.json.at("norms").as_array()[index].as_double()) < 1e-4);
    if (step > 1) continue;
    for_each_tensor(rank, [&](const std::string& tensor, size_t p, size_t t) {
      INFO(tensor);
      const std::vector<float> gradient = rank.gradient(p, t);
      const std::vector<float>& golden = g.at("gradient." + tensor);
      REQUIRE(gradient.size() == golden.size());
      double largest = 0, error = 0;
      for (size_t i = 0; i < golden.size(); ++i) {
        largest = std::max(largest, static_cast<double>(std::abs(golden[i])));
        error = std::max(error, static_cast<double>(std::abs(gradient[i] - golden[i])));
      }
      CHECK(error < 1e-4 * largest);
      gradient_error = std::max(gradient_error, error / largest);
    });
  }

  int64_t compared = 0, small = 0, key_biases = 0;
  double weight_error = 0;
  for_each_tensor(rank, [&](const std::string& tensor, size_t p, size_t t) {
    INFO(tensor);
    const std::vector<float> weights = rank.tensor(p, t);
    const std::vector<float>&golden = g.at("trained." + tensor), &gradient = g.at("gradient." + tensor);
    double error = 0;
    for (size_t i = 0; i < golden.size(); ++i) {
      if (is_key_bias(tensor, i, static_cast<size_t>(g.whole("width")))) {
        ++key_biases;
        continue;
      }
      // A row of the embedding that no id names has no gradient at all: it only decays, and is compared.
      if (gradient[i] != 0 && std::abs(gradient[i]) <= 1e-6f) {
        ++small;
        continue;
      }
      ++compared;
      error = std::max(error, static_cast<double>(std::abs(weights[i] - golden[i])));
    }
    CHECK(error < 1e-5);
    weight_error = std::max(weight_error, error);
  });
  const double share = static_cast<double>(small) / static_cast<double>(small + compared);
  std::printf("  %s: logits %.1e, gradients %.1e of the largest, weights %.1e; excluded for |g| <= 1e-6: %.3f %% of %lld; key biases: %lld\n",
              name.c_str(), logit_error, gradient_error, weight_error, 100 * share, static_cast<long long>(small + compared),
              static_cast<long long>(key_biases));
  CHECK(share < 0.01);
  CHECK(compared > 4000);
}

}  // namespace

TEST_CASE("a tied GPT-2 equals PyTorch", "[golden]") { check_model("gpt2"); }
TEST_CASE("a Llama with grouped key-value heads equals PyTorch", "[golden]") { check_model("llama"); }
