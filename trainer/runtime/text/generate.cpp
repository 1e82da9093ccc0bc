// SPDX-License-Identifier: Apache-2.0
// Runs slipstream generate: text from trained weights, one token at a time.

#include "trainer/runtime/text/generate.h"

#include <unistd.h>

#include <algorithm>
#include <deque>
#include <numeric>
#include <optional>
#include <sstream>

#include "engine/base/check.h"
#include "engine/base/files.h"
#include "engine/base/json.h"
#include "engine/base/log.h"
#include "engine/base/median.h"
#include "engine/base/print.h"
#include "engine/base/utf8.h"
#include "engine/data/datasets/text.h"
#include "engine/data/tokenizers/make_tokenizer.h"
#include "engine/device/clock.h"
#include "trainer/runtime/rank/device_assignment.h"
#include "trainer/runtime/rank/world.h"
#include "trainer/runtime/text/load_generation.h"
#include "trainer/runtime/text/text_stream.h"
#include "trainer/runtime/weights/model_folder.h"
#include "trainer/runtime/weights/text_files.h"

namespace slipstream::runtime {
namespace {

/// Returns the first token for an empty prompt: a line break, if the tokenizer has one.
int32_t first_token(const data::Tokenizer& tokenizer) {
  try {
    return tokenizer.encode("\n").front();
  } catch (const DataError&) {
    return 0;
  }
}

/// Returns the ids of the prompt in the form in which the model saw texts in training.
std::vector<int32_t> ids_of_prompt(const data::Tokenizer& tokenizer, const std::string& prompt) {
  std::vector<int32_t> ids = tokenizer.encode(prompt);
  const data::SpecialIds special = tokenizer.special();
  if (special.prompt_begins || (ids.empty() && special.begin_of_text >= 0))
    ids.insert(ids.begin(), special.begin_of_text);
  if (ids.empty()) ids.push_back(first_token(tokenizer));
  return ids;
}

/// The token ids of every prompt, and the beginning of the output.
struct Prompts {
  std::vector<std::vector<int32_t>> texts;
  std::vector<std::string> shown;
  std::vector<int32_t> ends;  // the ids after which a text ends

  bool ends_at(int32_t id) const { return std::find(ends.begin(), ends.end(), id) != ends.end(); }
};

Prompts prompts_of(const GenerateOptions& options, const data::Tokenizer& tokenizer, const std::string& folder,
                   std::vector<int32_t> ends) {
  if (options.prompt_ids.empty() && !tokenizer.knows_text())
    throw ConfigError(
        "[generate] {} was trained on ids of the external tokenizer \"{}\". Encode the prompt with it and give the "
        "ids, for instance --prompt-ids 15496,995. The continuation is printed as ids.",
        folder, tokenizer.name());
  for (const int32_t id : options.prompt_ids)
    if (id >= tokenizer.vocab_size())
      throw ConfigError("[generate] --prompt-ids has {}, but the tokenizer of {} has {} ids: 0 to {}.", id, folder,
                        tokenizer.vocab_size(), tokenizer.vocab_size() - 1);
  ends.push_back(tokenizer.special().end_of_text);
  Prompts prompts{.texts = {}, .shown = {}, .ends = std::move(ends)};
  if (!options.prompt_ids.empty()) {
    prompts.texts.push_back(options.prompt_ids);
    prompts.shown.emplace_back();
    for (const int32_t id : options.prompt_ids) prompts.shown[0] += fmt::format("{},", id);
    return prompts;
  }
  std::vector<std::string> lines{options.prompt};
  if (!options.prompts_file.empty()) {
    constexpr int64_t kBytesMax = 256 << 20;
    std::istringstream file(data::read_text(options.prompts_file, options.prompts_format, kBytesMax));
    lines.clear();
    for (std::string line; std::getline(file, line);) {
      if (lines.empty() && line.starts_with("\xef\xbb\xbf")) line.erase(0, 3);  // the byte-order mark of UTF-8
      if (line.ends_with('\r')) line.pop_back();
      lines.push_back(line);
    }
  }
  for (const std::string& line : lines) {
    prompts.texts.push_back(ids_of_prompt(tokenizer, line));
    prompts.shown.push_back(line);
  }
  return prompts;
}

/// The cost of a run.
struct Spent {
  int64_t prompt_tokens = 0, made = 0, steps = 0;
  double prompt_seconds = 0, seconds = 0;  // until the first tokens of all groups; for the later ones
  std::vector<double> read_rates;          // in bytes/s, of passes that only read, one after each step
  std::vector<double> shares;              // the shares of these passes' speed at which the steps have read
};

/// Continues some texts at once. The first one is prompt number `first`. `made` is called with each new id, and returns
/// false if its text ends there.
class Continuation {
 public:
  Continuation(models::Generation& generation, const GenerateOptions& options, const std::string& folder)
      : generation_(generation), options_(options), folder_(folder) {}

  template <typename Made>
  void run(std::vector<std::vector<int32_t>> texts, size_t first, Spent& spent, const Made& made) {
    Group group(std::move(texts), first);
    for (const auto& text : group.texts) spent.prompt_tokens += std::ssize(text);
    for (int count = 0; count < options_.tokens && !group.open.empty(); ++count) {
      const int64_t begin_ns = monotonic_ns();
      const std::vector<int> open = group.open;
      if (group.on_their_way.empty()) issue(group, count);
      const size_t passes = group.on_their_way.size();
      // A GPU runs the next step while the host processes the tokens of this one. A text that ends here then has one
      // token too many, which is dropped.
      if (count + 1 < options_.tokens && generation_.passes_ahead() > 0 && all_have_room(open)) issue_step(group, open);
      const std::vector<int32_t> ids = take(group, open, passes, count);
      std::vector<int> still_open;
      for (size_t i = 0; i < open.size(); ++i) {
        group.texts[static_cast<size_t>(open[i])].push_back(ids[i]);
        ++spent.made;
        if (made(open[i], ids[i])) still_open.push_back(open[i]);
      }
      const double seconds = static_cast<double>(monotonic_ns() - begin_ns) / 1e9;
      (count == 0 ? spent.prompt_seconds : spent.seconds) += seconds;
      if (count > 0) spent.steps += std::ssize(open);
      if (count > 0 && options_.bound) compare_with_reading(static_cast<double>(bytes_read(open)) / seconds, spent);
      group.open = std::move(still_open);
    }
    for (; !group.on_their_way.empty(); group.on_their_way.pop_front()) generation_.take();
  }

 private:
  struct Group {
    Group(std::vector<std::vector<int32_t>> texts_, size_t first_)
        : texts(std::move(texts_)), first(first_), open(texts.size()), drawn(texts.size()) {
      std::iota(open.begin(), open.end(), 0);
    }
    std::vector<std::vector<int32_t>> texts;
    size_t first;
    std::vector<int> open;                      // the texts that have not ended
    std::vector<int32_t> drawn;                 // the newest token of each text that has been taken
    std::deque<std::vector<int>> on_their_way;  // the texts of each pass whose tokens have not been taken
  };

  bool all_have_room(const std::vector<int>& texts) const {
    return std::all_of(texts.begin(), texts.end(), [&](int text) { return generation_.has_room(text); });
  }

  void issue_step(Group& group, const std::vector<int>& texts) {
    generation_.step(texts);
    group.on_their_way.push_back(texts);
  }

  /// Computes a new token for every open text. A text that is new or fills its cache begins anew, because all its
  /// positions change, and all keys with them.
  void issue(Group& group, int count) {
    std::vector<int> longer;
    for (const int text : group.open) {
      if (count > 0 && generation_.has_room(text)) {
        longer.push_back(text);
        continue;
      }
      // The prompt's number is used, so that a text does not depend on the others.
      generation_.begin(text, group.texts[static_cast<size_t>(text)],
                        static_cast<uint32_t>(group.first + static_cast<size_t>(text)), static_cast<uint32_t>(count));
      group.drawn[static_cast<size_t>(text)] = generation_.take().front();
    }
    if (!longer.empty()) issue_step(group, longer);
  }

  /// Blocks. Returns the next token of each of these texts.
  std::vector<int32_t> take(Group& group, const std::vector<int>& texts, size_t passes, int count) {
    for (; passes > 0; --passes) {
      const std::span<const int32_t> ids = generation_.take();
      for (size_t i = 0; i < ids.size(); ++i) group.drawn[static_cast<size_t>(group.on_their_way.front()[i])] = ids[i];
      group.on_their_way.pop_front();
    }
    std::vector<int32_t> ids;
    for (const int text : texts) ids.push_back(group.drawn[static_cast<size_t>(text)]);
    if (std::find(ids.begin(), ids.end(), kernels::kNotFinite) != ids.end())
      throw NumericsError("[generate] the logits of token {} are not finite: the weights of {} overflow. Give others.",
                          count + 1, folder_);
    return ids;
  }

  /// Returns the least bytes of memory that the next token of these texts reads.
  int64_t bytes_read(const std::vector<int>& texts) const {
    int64_t sum = generation_.weight_bytes();
    for (const int text : texts) sum += generation_.cache_bytes(text);
    return sum;
  }

  /// This runs directly after the step, because other programs on the host change the speed of the memory.
  void compare_with_reading(double step_rate, Spent& spent) const {
    const double seconds = generation_.read_seconds();
    if (seconds == 0) return;
    const double rate = static_cast<double>(generation_.weight_bytes()) / seconds;
    spent.read_rates.push_back(rate);
    spent.shares.push_back(step_rate / rate);
  }

  models::Generation& generation_;
  const GenerateOptions& options_;
  const std::string& folder_;
};

/// Returns the ids for which the tokenizer has no text.
std::vector<int32_t> without_text(const data::Tokenizer& tokenizer) {
  std::vector<int32_t> ids;
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id)
    if (!tokenizer.has_text(id)) ids.push_back(id);
  return ids;
}

/// Continues one prompt and prints text or ids as they come.
void print_one(Continuation& continuation, const GenerateOptions& options, const data::Tokenizer& tokenizer,
               const Prompts& prompts, bool prints, Spent& spent) {
  const bool as_ids = !options.prompt_ids.empty();
  if (prints) {
    print_result("{}", prompts.shown[0]);
    flush_printed();
  }
  const auto show = [&](std::string_view text) {
    if (prints) print_result("{}", text);
    flush_printed();
  };
  std::optional<TextStream> stream;  // absent if the ids have no text
  if (!as_ids) stream.emplace(tokenizer, prompts.texts[0], options.stops, show);
  continuation.run(prompts.texts, 0, spent, [&](int, int32_t id) {
    if (prompts.ends_at(id)) return false;
    if (as_ids) {
      if (prints) print_result("{},", id);
      flush_printed();
      return true;
    }
    return !stream->add(id);
  });
  if (stream) stream->finish();
  if (prints) print_result("\n");
  flush_printed();
}

/// Continues several prompts and prints one JSON object per line, in the order of the prompts.
void print_many(Continuation& continuation, const GenerateOptions& options, const data::Tokenizer& tokenizer,
                const Prompts& prompts, bool prints, Spent& spent) {
  const auto batch = static_cast<size_t>(options.batch);
  for (size_t first = 0; first < prompts.texts.size(); first += batch) {
    const size_t count = std::min(batch, prompts.texts.size() - first);
    const auto begin = prompts.texts.begin() + static_cast<std::ptrdiff_t>(first);
    std::vector<std::vector<int32_t>> texts(begin, begin + static_cast<std::ptrdiff_t>(count));
    std::vector<TextStream> streams;
    for (const auto& text : texts) streams.emplace_back(tokenizer, text, options.stops, [](std::string_view) {});
    continuation.run(std::move(texts), first, spent, [&](int which, int32_t id) {
      return !prompts.ends_at(id) && !streams[static_cast<size_t>(which)].add(id);
    });
    for (size_t i = 0; i < count && prints; ++i) {
      Json line;
      line["prompt"] = prompts.shown[first + i];
      line["continuation"] = streams[i].text();
      print_result("{}\n", line.dump());
      flush_printed();
    }
  }
}

void print_speed(const Spent& spent) {
  log_info("prompts: {} tokens, {:.1f} tokens/s", spent.prompt_tokens,
           static_cast<double>(spent.prompt_tokens) / spent.prompt_seconds);
  if (spent.steps == 0) return;
  const double rate = static_cast<double>(spent.steps) / spent.seconds;
  log_info("{} tokens, {:.1f} tokens/s", spent.made, rate);
  if (spent.shares.empty()) return;
  const double share = median(spent.shares);
  log_info("bound: {:.1f} tokens/s by weights, keys and values at {:.2f} GB/s; {:.0f}% of it", rate / share,
           median(spent.read_rates) / 1e9, 100 * share);
}

DType dtype_of(const ModelFolder& weights, const std::string& asked) {
  const auto& tensors = weights.tensors();
  const bool all =
      std::all_of(tensors.begin(), tensors.end(), [](const auto& tensor) { return tensor.dtype() == "BF16"; });
  return asked == "bfloat16" || (asked == "auto" && all) ? DType::bf16 : DType::f32;
}

/// A single process takes a GPU if it can. Ranks that share a model take GPUs only when asked, because they exchange
/// every sum through memory of the host.
std::unique_ptr<Device> device_of(World& world, const std::string& asked) {
  if (world.size() == 1)
    return assign_device_alone(asked == "cuda"  ? DeviceChoice::cuda
                               : asked == "cpu" ? DeviceChoice::cpu
                                                : DeviceChoice::automatic)
        .make_device();
  RunConfig config;
  config.device.kind = asked == "cuda" ? DeviceChoice::cuda : DeviceChoice::cpu;
  return assign_device(world, config).make_device();
}

/// Returns null for ids, which need no tokenizer.
std::shared_ptr<const data::Tokenizer> tokenizer_of(const GenerateOptions& options, const ModelFolder& weights) {
  try {
    return data::load_tokenizer(weights.model_dir());
  } catch (const DataError&) {
    if (options.prompt_ids.empty()) throw;
    return data::restore_tokenizer("ids", {}, weights.model().options.vocab, weights.model_dir());
  }
}

void check_options(const GenerateOptions& options) {
  check_sampling(options.sampling);
  for (const std::string& stop : options.stops)
    if (stop.empty() || valid_utf8_prefix(stop) != stop.size())
      throw ConfigError("[generate] --stop is {}, need the text before which the output ends.",
                        stop.empty() ? "empty" : "not UTF-8");
}

void generate_on(World& world, const GenerateOptions& options, const ModelFolder& weights) {
  const std::string& folder = weights.dir();
  const models::ModelOptions& model = weights.model().options;
  const auto tokenizer = tokenizer_of(options, weights);
  if (tokenizer->vocab_size() > model.vocab)
    throw CheckpointError(
        "[generate] the tokenizer of {} has {} ids, but its model has {}. Give the folder of a run or of its weights.",
        folder, tokenizer->vocab_size(), model.vocab);
  const Prompts prompts = prompts_of(options, *tokenizer, folder, ends_of_text(weights));
  int64_t longest = 0;
  for (const auto& text : prompts.texts) longest = std::max(longest, std::ssize(text));
  const int64_t capacity = std::min(model.context, longest + options.tokens);
  const GenerationOptions asked{
      .sequences = static_cast<int>(std::min<int64_t>(std::ssize(prompts.texts), options.batch)),
      .capacity = capacity,
      .dtype = dtype_of(weights, options.dtype),
      .sampling = options.sampling,
      .seed = options.seed,
      .vocab = tokenizer->vocab_size(),
      .holes = without_text(*tokenizer)};
  models::Generation generation = load_generation(weights, asked, device_of(world, options.device), world);
  Continuation continuation(generation, options, folder);
  Spent spent;
  (options.prompts_file.empty() ? print_one : print_many)(continuation, options, *tokenizer, prompts, world.rank() == 0,
                                                          spent);
  if (world.rank() == 0 && (options.bound || ::isatty(STDERR_FILENO) != 0)) print_speed(spent);
}

}  // namespace

void check_sampling(const SamplingOptions& o) {
  if (!(o.temperature >= 0)) throw ConfigError("--temperature {} must be at least 0.", o.temperature);
  if (o.top_k < 0) throw ConfigError("--top-k {} must be at least 0 (0: all tokens).", o.top_k);
  if (!(o.top_p > 0 && o.top_p <= 1)) throw ConfigError("--top-p {} must be above 0 and at most 1.", o.top_p);
  if (!(o.min_p >= 0 && o.min_p <= 1)) throw ConfigError("--min-p {} must be from 0 to 1.", o.min_p);
  if (!(o.repetition_penalty > 0 && o.repetition_penalty <= 100))
    throw ConfigError("--repetition-penalty {} must be above 0 and at most 100 (1: none).", o.repetition_penalty);
}

int generate(const GenerateOptions& options) {
  World world;
  log_setup(world.rank());
  try {
    std::optional<ModelFolder> weights;
    world.together([&] {
      check_options(options);
      weights.emplace(options.checkpoint,
                      checkpoint::HashShare{.index = world.rank_on_host(), .count = world.ranks_on_host()});
    });
    world.together([&] { generate_on(world, options, *weights); });
    return 0;
  } catch (const AgreedFailure& failure) {
    return static_cast<int>(failure.code());
  }
}

}  // namespace slipstream::runtime
