// SPDX-License-Identifier: Apache-2.0
// Runs slipstream generate: text from trained weights, one token at a time.

#include "runtime/generate.h"

#include <unistd.h>

#include <algorithm>
#include <optional>

#include "engine/base/check.h"
#include "engine/base/finite.h"
#include "engine/base/log.h"
#include "engine/base/philox.h"
#include "engine/base/print.h"
#include "engine/data/make_tokenizer.h"
#include "engine/device/clock.h"
#include "engine/device/device.h"
#include "engine/plan/build_job.h"
#include "planner/plan_options.h"
#include "planner/planner.h"
#include "runtime/device_assignment.h"
#include "runtime/model_folder.h"
#include "runtime/rank.h"
#include "runtime/sampling.h"

namespace slipstream::runtime {
namespace {

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

/// Prints the text of ids as they come: whole characters, and nothing from a stop text on.
class Printer {
 public:
  Printer(const data::Tokenizer& tokenizer, std::vector<int32_t> prompt, std::vector<std::string> stops)
      : tokenizer_(tokenizer),
        ids_(std::move(prompt)),
        stops_(std::move(stops)),
        begin_(tokenizer.decode(ids_).size()) {}

  /// True if the text contains a stop text now.
  bool add(int32_t id) {
    ids_.push_back(id);
    const std::string text = tokenizer_.decode(ids_).substr(begin_);
    size_t end = text.size();
    bool stopped = false;
    for (const std::string& stop : stops_)
      if (const size_t at = text.find(stop); at != std::string::npos) {
        end = std::min(end, at);
        stopped = true;
      }
    // The end of the text may begin a stop text or be a part of a character.
    if (!stopped) {
      for (const std::string& stop : stops_)
        for (size_t size = std::min(stop.size(), text.size()); size > 0; --size)
          if (text.ends_with(stop.substr(0, size))) {
            end = std::min(end, text.size() - size);
            break;
          }
      end = std::min(end, text.size() - open_character(text));
    }
    if (end > printed_) {
      print_result("{}", text.substr(printed_, end - printed_));
      flush_printed();
      printed_ = end;
    }
    return stopped;
  }
  /// The rest, once no more ids come.
  void finish() { print_result("{}", tokenizer_.decode(ids_).substr(begin_ + printed_)); }

 private:
  static size_t open_character(const std::string& text) {
    for (size_t back = 1; back <= std::min<size_t>(3, text.size()); ++back) {
      const auto byte = static_cast<unsigned char>(text[text.size() - back]);
      if ((byte & 0xc0) == 0x80) continue;
      return byte >= 0xc2 && byte < 0xf5 && back < (byte < 0xe0 ? 2u : byte < 0xf0 ? 3u : 4u) ? back : 0;
    }
    return 0;
  }

  const data::Tokenizer& tokenizer_;
  std::vector<int32_t> ids_;
  std::vector<std::string> stops_;
  size_t begin_, printed_ = 0;
};

/// The ids of the prompt as the model is used to them.
std::vector<int32_t> ids_of_prompt(const data::Tokenizer& tokenizer, const std::string& prompt) {
  std::vector<int32_t> ids = tokenizer.encode(prompt);
  const data::SpecialIds special = tokenizer.special();
  if (special.prompt_begins || (ids.empty() && special.begin_of_text >= 0))
    ids.insert(ids.begin(), special.begin_of_text);
  if (ids.empty()) ids.push_back(first_token(tokenizer));
  return ids;
}

}  // namespace

int generate(const GenerateOptions& options) {
  check_sampling(options.sampling);
  const ModelFolder weights(options.checkpoint);
  const std::string& folder = weights.dir();
  const auto tokenizer = data::load_tokenizer(folder);
  models::ModelOptions model_options = weights.model().options;
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

  const bool as_ids = !options.prompt_ids.empty();
  std::vector<int32_t> text = as_ids ? options.prompt_ids : ids_of_prompt(*tokenizer, options.prompt);
  // Every token costs a pass over the whole sequence, so the sequence is no longer than needed.
  model_options.tokens = std::min(model_options.context, std::ssize(text) + options.tokens);
  model_options.global_tokens = model_options.tokens;

  const DeviceAssignment assignment = assign_device_alone(options.device == "cuda"  ? DeviceChoice::cuda
                                                          : options.device == "cpu" ? DeviceChoice::cpu
                                                                                    : DeviceChoice::automatic);
  Buffers buffers;
  ModelSpec model = model_of(model_options, buffers, folder);
  const auto job = std::make_shared<Job>(build_job(std::move(model), std::move(buffers), {}));
  planner::require_holds(planner::finish_plans({job}, comm::RooflinePrice(comm::Rates{}, comm::Link{})));
  std::vector<std::unique_ptr<comm::Communicator>> none(job->channels.size());
  Rank rank(job, assignment.make_device(), std::move(none), {.threads = planner::threads_of(RunConfig{}, 1)}, {});
  weights.require(tensors_of_model(rank.job().model), false);
  load_weights(rank, weights);

  std::string begin = options.prompt;
  for (const int32_t id : options.prompt_ids) begin += fmt::format("{},", id);
  print_result("{}", begin);
  flush_printed();
  std::optional<Printer> printer;
  if (!as_ids) printer.emplace(*tokenizer, text, options.stops);
  const Philox random(options.seed, "generate");
  const auto context = static_cast<size_t>(model_options.tokens);
  std::vector<int32_t> window(context, 0);
  const std::vector<int32_t> targets(context, 0);
  const int32_t end_of_text = tokenizer->special().end_of_text;
  const int64_t begin_ns = monotonic_ns();
  int made = 0;
  bool stopped = false;
  while (made < options.tokens && !stopped) {
    const size_t used = std::min(text.size(), context);
    std::copy(text.end() - static_cast<std::ptrdiff_t>(used), text.end(), window.begin());
    rank.evaluate(window, targets);
    rank.drain();
    std::vector<float> logits = rank.logits(static_cast<int64_t>(used) - 1);
    logits.resize(static_cast<size_t>(tokenizer->vocab_size()));  // ids of the padding have no meaning
    if (!all_finite(logits))
      throw NumericsError("[generate] the logits of token {} are not finite: the weights of {} overflow. Give others.",
                          made + 1, folder);
    const int32_t next = sample(std::move(logits), options.sampling, text, random.uniform(static_cast<uint64_t>(made)));
    ++made;
    text.push_back(next);
    if (as_ids) {
      print_result("{},", next);
      flush_printed();
    } else if (next == end_of_text) {
      break;
    } else {
      stopped = printer->add(next);
    }
  }
  if (printer && !stopped) printer->finish();
  print_result("\n");
  flush_printed();
  if (::isatty(STDERR_FILENO) != 0)
    log_info("{} tokens, {:.1f} tokens/s", made, made / (static_cast<double>(monotonic_ns() - begin_ns + 1) / 1e9));
  return 0;
}

}  // namespace slipstream::runtime
