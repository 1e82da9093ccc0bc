// SPDX-License-Identifier: Apache-2.0
// Runs slipstream generate: text from trained weights, one token at a time.

#include "runtime/generate.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "engine/base/check.h"
#include "engine/base/finite.h"
#include "engine/base/philox.h"
#include "engine/base/print.h"
#include "engine/checkpoint/weights.h"
#include "engine/data/make_tokenizer.h"
#include "engine/device/device.h"
#include "engine/plan/build_job.h"
#include "planner/plan_options.h"
#include "planner/planner.h"
#include "runtime/device_assignment.h"
#include "runtime/rank.h"

namespace slipstream::runtime {
namespace {

/// The folder itself, or the final weights of a run folder.
std::string weights_folder(const std::string& path) {
  for (const char* inside : {"", "/checkpoints/final", "/final"})
    if (std::filesystem::exists(path + inside + "/" + checkpoint::kWeightsFile)) return path + inside;
  throw CheckpointError(
      "[generate] {} has no {}, and neither has its checkpoints/final. Give the folder of a run or of its weights.",
      path, checkpoint::kWeightsFile);
}

/// Larger sizes indicate a damaged file.
constexpr int64_t kMaxLayers = 65536, kMaxSize = int64_t{1} << 24;

template <typename T>
T entry(const Json& config, const std::string& key, const std::string& folder) {
  const Json* value = config.find(key);
  if (value == nullptr)
    throw CheckpointError("[generate] {}/config.json lacks {}. Give the folder of a run or of its weights.", folder,
                          key);
  const bool right = std::is_same_v<T, bool>      ? value->is_bool()
                     : std::is_same_v<T, int64_t> ? value->is_int()
                     : std::is_same_v<T, double>  ? value->is_number()
                                                  : value->is_string();
  if (!right)
    throw CheckpointError(
        "[generate] {}/config.json: {} has the wrong type. Give the folder of a run or of its weights.", folder, key);
  if constexpr (std::is_same_v<T, bool>)
    return value->as_bool();
  else if constexpr (std::is_same_v<T, int64_t>)
    return value->as_int();
  else if constexpr (std::is_same_v<T, double>)
    return value->as_double();
  else
    return value->as_string();
}

models::ModelOptions options_of(const Json& config, const std::string& folder) {
  const auto whole = [&](const std::string& key) {
    const auto value = entry<int64_t>(config, key, folder);
    const int64_t most = key == "n_layer" || key == "num_hidden_layers" ? kMaxLayers : kMaxSize;
    if (value < 1 || value > most)
      throw CheckpointError(
          "[generate] {}/config.json: {} is {}, need 1 to {}. Give the folder of a run or of its weights.", folder, key,
          value, most);
    return value;
  };
  const auto family = entry<std::string>(config, "model_type", folder);
  models::ModelOptions options;
  if (family == "gpt2")
    options = {.family = Family::gpt2,
               .layers = whole("n_layer"),
               .heads = whole("n_head"),
               .kv_heads = whole("n_head"),
               .width = whole("n_embd"),
               .ffn_width = whole("n_inner"),
               .context = whole("n_positions"),
               .vocab = whole("vocab_size"),
               .tie_embeddings = entry<bool>(config, "tie_word_embeddings", folder),
               .norm_eps = static_cast<float>(entry<double>(config, "layer_norm_epsilon", folder))};
  else if (family == "llama")
    options = {.family = Family::llama,
               .layers = whole("num_hidden_layers"),
               .heads = whole("num_attention_heads"),
               .kv_heads = whole("num_key_value_heads"),
               .width = whole("hidden_size"),
               .ffn_width = whole("intermediate_size"),
               .context = whole("max_position_embeddings"),
               .vocab = whole("vocab_size"),
               .tie_embeddings = entry<bool>(config, "tie_word_embeddings", folder),
               .rope_theta = static_cast<float>(entry<double>(config, "rope_theta", folder)),
               .norm_eps = static_cast<float>(entry<double>(config, "rms_norm_eps", folder))};
  else
    throw CheckpointError("[generate] {}/config.json: model_type is \"{}\", need gpt2 or llama.", folder, family);
  options.batch = 1;
  options.tokens = options.context;
  options.global_tokens = options.context;
  return options;
}

ModelSpec model_of(const models::ModelOptions& options, Buffers& buffers, const std::string& folder) {
  try {
    return models::build_model(options, buffers);
  } catch (const ConfigError& error) {
    throw CheckpointError("[generate] {}/config.json is not a model: {}", folder, error.what());
  }
}

/// First token of an empty prompt: a line break, if the tokenizer has one.
int32_t first_token(const data::Tokenizer& tokenizer) {
  try {
    return tokenizer.encode("\n").front();
  } catch (const DataError&) {
    return 0;
  }
}

void load_weights(Rank& rank, const checkpoint::SafetensorsFile& file) {
  const auto& parameters = rank.job().model.parameters;
  for (size_t p = 0; p < parameters.size(); ++p)
    for (size_t t = 0; t < parameters[p].tensors.size(); ++t) {
      const NamedTensor& named = parameters[p].tensors[t];
      const checkpoint::TensorInfo& info = file.get(named.name);
      std::vector<int64_t> shape = named.whole_shape();
      if (named.transposed_on_disk) std::swap(shape[0], shape[1]);
      if (info.shape != shape)
        throw CheckpointError("[generate] {} in {} has {} elements, but the model of config.json needs {}.", named.name,
                              file.path(), info.elems(), named.whole_elems());
      std::vector<float> values(static_cast<size_t>(named.whole_elems()));
      file.read_floats(info, values);
      if (!all_finite(values))
        throw CheckpointError("[generate] {} in {} has weights that are not finite. Give weights of another run.",
                              named.name, file.path());
      if (named.transposed_on_disk) {
        const auto rows = static_cast<size_t>(named.shape[0]), columns = static_cast<size_t>(named.shape[1]);
        std::vector<float> turned(values.size());
        for (size_t r = 0; r < rows; ++r)
          for (size_t c = 0; c < columns; ++c) turned[r * columns + c] = values[c * rows + r];
        values.swap(turned);
      }
      rank.set_tensor(p, t, values);
    }
}

/// Samples from softmax(logits / temperature) among the top_k most likely tokens (0: all).
int32_t sample(std::vector<float> logits, double temperature, int top_k, double uniform) {
  const auto best = std::max_element(logits.begin(), logits.end());
  if (temperature == 0) return static_cast<int32_t>(best - logits.begin());
  float floor = -INFINITY;
  if (top_k > 0 && static_cast<size_t>(top_k) < logits.size()) {
    std::vector<float> sorted = logits;
    std::nth_element(sorted.begin(), sorted.begin() + (top_k - 1), sorted.end(), std::greater<>());
    floor = sorted[static_cast<size_t>(top_k) - 1];
  }
  const double top = *best;
  double total = 0;
  std::vector<double> weights(logits.size());
  for (size_t i = 0; i < logits.size(); ++i)
    total += weights[i] = logits[i] < floor ? 0.0 : std::exp((logits[i] - top) / temperature);
  double target = uniform * total;
  for (size_t i = 0; i < weights.size(); ++i) {
    target -= weights[i];
    if (target < 0) return static_cast<int32_t>(i);
  }
  return static_cast<int32_t>(best - logits.begin());
}

}  // namespace

int generate(const GenerateOptions& options) {
  if (!(options.temperature >= 0)) throw ConfigError("--temperature {} must be at least 0.", options.temperature);
  if (options.top_k < 0) throw ConfigError("--top-k {} must be at least 0 (0: all tokens).", options.top_k);
  const std::string folder = weights_folder(options.checkpoint);
  const checkpoint::FinalWeights weights = checkpoint::read_final(folder);
  const auto tokenizer = data::load_tokenizer(folder);
  const models::ModelOptions model_options = options_of(weights.config, folder);
  if (tokenizer->vocab_size() > model_options.vocab)
    throw CheckpointError(
        "[generate] the tokenizer of {} has {} ids, but its model has {}. Give the folder of a run or of its weights.",
        folder, tokenizer->vocab_size(), model_options.vocab);

  if (options.prompt_ids.empty() && !tokenizer->knows_text())
    throw ConfigError(
        "[generate] {} was trained on ids of the external tokenizer \"{}\". Encode the prompt with it and give the "
        "ids, for instance --prompt-ids 15496,995. The continuation is printed as ids.",
        folder, tokenizer->name());
  for (const int32_t id : options.prompt_ids)
    if (id >= tokenizer->vocab_size())
      throw ConfigError("[generate] --prompt-ids has {}, but the tokenizer of {} has {} ids: 0 to {}.", id, folder,
                        tokenizer->vocab_size(), tokenizer->vocab_size() - 1);

  const DeviceAssignment assignment = assign_device_alone(options.device == "cuda"  ? DeviceChoice::cuda
                                                          : options.device == "cpu" ? DeviceChoice::cpu
                                                                                    : DeviceChoice::automatic);
  Buffers buffers;
  ModelSpec model = model_of(model_options, buffers, folder);
  const auto job = std::make_shared<Job>(build_job(std::move(model), std::move(buffers), {}));
  planner::require_holds(planner::finish_plans({job}, comm::RooflinePrice(comm::Rates{}, comm::Link{})));
  std::vector<std::unique_ptr<comm::Communicator>> none(job->channels.size());
  Rank rank(job, assignment.make_device(), std::move(none), {.threads = planner::threads_of(RunConfig{}, 1)}, {});
  load_weights(rank, weights.weights);

  const bool as_ids = !options.prompt_ids.empty();
  std::vector<int32_t> text = as_ids ? options.prompt_ids : tokenizer->encode(options.prompt);
  if (text.empty()) text.push_back(first_token(*tokenizer));
  const auto shown = [&](int32_t id) {
    return as_ids ? fmt::format("{},", id) : tokenizer->decode(std::vector<int32_t>{id});
  };
  std::string begin = options.prompt;
  for (const int32_t id : options.prompt_ids) begin += shown(id);
  print_result("{}", begin);
  const Philox random(options.seed, "generate");
  const auto context = static_cast<size_t>(model_options.context);
  std::vector<int32_t> window(context, 0);
  const std::vector<int32_t> targets(context, 0);
  for (int n = 0; n < options.tokens; ++n) {
    const size_t used = std::min(text.size(), context);
    std::copy(text.end() - static_cast<std::ptrdiff_t>(used), text.end(), window.begin());
    rank.evaluate(window, targets);
    rank.drain();
    std::vector<float> logits = rank.logits(static_cast<int64_t>(used) - 1);
    logits.resize(static_cast<size_t>(tokenizer->vocab_size()));  // ids of the padding have no meaning
    if (!all_finite(logits))
      throw NumericsError("[generate] the logits of token {} are not finite: the weights of {} overflow. Give others.",
                          n + 1, folder);
    const int32_t next =
        sample(std::move(logits), options.temperature, options.top_k, random.uniform(static_cast<uint64_t>(n)));
    text.push_back(next);
    print_result("{}", shown(next));
    flush_printed();
  }
  print_result("\n");
  return 0;
}

}  // namespace slipstream::runtime
