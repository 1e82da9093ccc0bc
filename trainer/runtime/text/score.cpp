// SPDX-License-Identifier: Apache-2.0
// Runs slipstream eval by sums of the losses of tokens.

#include "trainer/runtime/text/score.h"

#include <algorithm>
#include <cmath>
#include <sstream>

#include "engine/base/check.h"
#include "engine/base/files.h"
#include "engine/base/json.h"
#include "engine/base/print.h"
#include "engine/data/datasets/text.h"
#include "engine/data/tokenizers/make_tokenizer.h"
#include "trainer/runtime/text/evaluated_folder.h"
#include "trainer/runtime/weights/model_folder.h"

namespace slipstream::runtime {
namespace {

constexpr int64_t kFileBytesMax = int64_t{4} << 30;

/// One line of a file of questions.
struct Line {
  const std::string& source;
  int64_t number;

  [[noreturn]] void fail(const std::string& problem) const {
    throw DataError("[eval] {} line {}: {}. Give questions in the form of HellaSwag or ARC.", files::shown(source),
                    number, problem);
  }
  const Json& member(const Json& object, const char* key) const {
    const Json* value = object.is_object() ? object.find(key) : nullptr;
    if (value == nullptr) fail(fmt::format("no \"{}\"", key));
    return *value;
  }
  const std::string& text(const Json& object, const char* key) const {
    const Json& value = member(object, key);
    if (!value.is_string()) fail(fmt::format("\"{}\" is {}, need a string", key, value.type_name()));
    return value.as_string();
  }
  const Json::Array& list(const Json& object, const char* key) const {
    const Json& value = member(object, key);
    if (!value.is_array() || value.as_array().size() < 2) fail(fmt::format("\"{}\" is no list of two or more", key));
    return value.as_array();
  }
};

Question hellaswag(const Json& json, const Line& line) {
  Question question{.context = line.text(json, "ctx")};
  for (const Json& ending : line.list(json, "endings")) {
    if (!ending.is_string()) line.fail("\"endings\" is no list of strings");
    question.endings.push_back(" " + ending.as_string());
  }
  // The published file has numbers, and copies of it have texts.
  const Json& label = line.member(json, "label");
  const std::string number = label.is_string() ? label.as_string() : label.dump();
  const int64_t most = std::ssize(question.endings) - 1;
  if (number.size() != 1 || number[0] < '0' || number[0] - '0' > most)
    line.fail(fmt::format("\"label\" is {}, need 0 to {}", files::printable(number, 40), most));
  question.answer = number[0] - '0';
  return question;
}

Question arc(const Json& json, const Line& line) {
  const Json& asked = line.member(json, "question");
  Question question{.context = "Question: " + line.text(asked, "stem") + "\nAnswer:", .endings = {}, .answer = -1};
  const std::string& key = line.text(json, "answerKey");
  for (const Json& choice : line.list(asked, "choices")) {
    if (line.text(choice, "label") == key) question.answer = std::ssize(question.endings);
    question.endings.push_back(" " + line.text(choice, "text"));
  }
  if (question.answer < 0) line.fail(fmt::format("no choice has the label \"{}\"", files::printable(key, 40)));
  return question;
}

/// Sums the losses of parts of sequences, some sequences at a time.
class Losses {
 public:
  struct Sequence {
    std::vector<int32_t> ids;  // 2 to tokens + 1 ids
    int64_t first = 1;         // the first id whose loss counts
    double* sum = nullptr;     // nats are added to it
  };

  Losses(const ModelFolder& weights, int64_t tokens, const EvalOptions& options)
      : tokens_(tokens),
        batch_(options.batch),
        model_(weights, {.tokens = tokens, .batch = options.batch, .device = options.device}) {}

  void add(Sequence sequence) {
    waiting_.push_back(std::move(sequence));
    if (std::ssize(waiting_) == batch_) flush();
  }
  void flush() {
    if (waiting_.empty()) return;
    const auto rows = static_cast<size_t>(batch_ * tokens_);
    std::vector<int32_t> ids(rows), targets(rows);
    for (size_t s = 0; s < waiting_.size(); ++s) {
      const std::vector<int32_t>& all = waiting_[s].ids;
      const auto at = static_cast<std::ptrdiff_t>(s) * tokens_;
      std::copy(all.begin(), all.end() - 1, ids.begin() + at);
      std::copy(all.begin() + 1, all.end(), targets.begin() + at);
    }
    const std::vector<float> losses = model_.losses(ids, targets);
    for (size_t s = 0; s < waiting_.size(); ++s)
      for (int64_t i = waiting_[s].first; i < std::ssize(waiting_[s].ids); ++i)
        *waiting_[s].sum += static_cast<double>(losses[s * static_cast<size_t>(tokens_) + static_cast<size_t>(i - 1)]);
    waiting_.clear();
  }

 private:
  int64_t tokens_, batch_;
  EvaluatedFolder model_;
  std::vector<Sequence> waiting_;
};

struct Setting {
  const EvalOptions& options;
  const ModelFolder& weights;
  const data::Tokenizer& tokenizer;
  int64_t context;
};

void perplexity(const Setting& s) {
  const std::string text = data::read_text(s.options.text, s.options.format, kFileBytesMax);
  std::vector<int32_t> ids = s.tokenizer.encode(text);
  const data::SpecialIds special = s.tokenizer.special();
  const bool marked = special.prompt_begins;
  if (marked) ids.insert(ids.begin(), special.begin_of_text);
  if (ids.size() < 2)
    throw DataError("[eval] {} has {} tokens, need at least 2. Give a longer text.", files::shown(s.options.text),
                    ids.size());
  const int64_t count = std::ssize(ids) - 1, tokens = std::min(s.context, count);
  const int64_t stride = s.options.stride > 0 ? std::min(s.options.stride, tokens) : tokens;
  Losses losses(s.weights, tokens, s.options);
  double nats = 0;
  for (int64_t counted = 0; counted < count;) {
    // The targets after those that already count, with as many tokens before them as fit.
    const int64_t end = counted == 0 ? tokens : std::min(count, counted + stride), begin = end - tokens;
    losses.add({{ids.begin() + begin, ids.begin() + end + 1}, counted - begin + 1, &nats});
    counted = end;
  }
  losses.flush();
  // Counts the bytes of the text itself and not those of the decoded ids, which a normalizer may have changed.
  const double mean = nats / static_cast<double>(count), bits = nats / std::log(2.0) / static_cast<double>(text.size());
  if (s.options.json) {
    Json json;
    json["tokens"] = count;
    json["nats_per_token"] = mean;
    json["perplexity"] = std::exp(mean);
    json["bits_per_byte"] = bits;
    print_result("{}\n", json.dump());
    return;
  }
  print_result("{} tokens in sequences of {}, one every {}\n", count, tokens, stride);
  print_result("loss {:.4f} nats per token, perplexity {:.4f}, {:.4f} bits per byte\n", mean, std::exp(mean), bits);
}

void multiple_choice(const Setting& s) {
  const std::vector<Question> questions =
      read_questions(data::read_text(s.options.choices, DataFormat::jsonl, kFileBytesMax), s.options.choices);
  const data::SpecialIds special = s.tokenizer.special();
  struct Ending {
    std::vector<int32_t> ids;
    int64_t first;
    double nats = 0;
  };
  std::vector<std::vector<Ending>> all;
  int64_t longest = 2;
  for (const Question& question : questions) {
    all.emplace_back();
    std::vector<int32_t> before = s.tokenizer.encode(question.context);
    if (special.prompt_begins) before.insert(before.begin(), special.begin_of_text);
    for (const std::string& ending : question.endings) {
      std::vector<int32_t> ids = s.tokenizer.encode(question.context + ending);
      if (special.prompt_begins) ids.insert(ids.begin(), special.begin_of_text);
      // The ids after those of the context. If the two merge, it is at least the last id.
      int64_t first = std::clamp<int64_t>(std::ssize(before), 1, std::max<int64_t>(1, std::ssize(ids) - 1));
      if (const int64_t dropped = std::ssize(ids) - (s.context + 1); dropped > 0) {
        ids.erase(ids.begin(), ids.begin() + dropped);
        first = std::max<int64_t>(1, first - dropped);
      }
      if (ids.size() < 2) throw DataError("[eval] question {} has an ending without a token before it.", all.size());
      longest = std::max(longest, std::ssize(ids));
      all.back().push_back({std::move(ids), first});
    }
  }
  Losses losses(s.weights, longest - 1, s.options);
  for (auto& endings : all)
    for (Ending& ending : endings) losses.add({ending.ids, ending.first, &ending.nats});
  losses.flush();
  int64_t right = 0, right_by_byte = 0;
  for (size_t q = 0; q < all.size(); ++q) {
    size_t best = 0, best_by_byte = 0;
    const auto by_byte = [&](size_t i) {
      return all[q][i].nats / static_cast<double>(std::max<size_t>(1, questions[q].endings[i].size() - 1));
    };
    for (size_t i = 1; i < all[q].size(); ++i) {
      if (all[q][i].nats < all[q][best].nats) best = i;
      if (by_byte(i) < by_byte(best_by_byte)) best_by_byte = i;
    }
    right += static_cast<int64_t>(best) == questions[q].answer;
    right_by_byte += static_cast<int64_t>(best_by_byte) == questions[q].answer;
  }
  const auto count = static_cast<double>(all.size());
  const double share = static_cast<double>(right) / count, share_by_byte = static_cast<double>(right_by_byte) / count;
  if (s.options.json) {
    Json json;
    json["questions"] = std::ssize(all);
    json["acc"] = share;
    json["acc_norm"] = share_by_byte;
    print_result("{}\n", json.dump());
    return;
  }
  print_result("{} questions: acc {:.4f} (likeliest ending), acc_norm {:.4f} (likeliest per byte)\n", all.size(), share,
               share_by_byte);
}

}  // namespace

std::vector<Question> read_questions(const std::string& text, const std::string& source) {
  std::vector<Question> questions;
  std::istringstream lines(text);
  int64_t number = 0;
  for (std::string raw; std::getline(lines, raw);) {
    const Line line{source, ++number};
    if (raw.find_first_not_of(" \t\r") == std::string::npos) continue;
    const Json json = Json::parse(raw, fmt::format("{} line {}", files::shown(source), number));
    if (json.is_object() && json.find("endings") != nullptr)
      questions.push_back(hellaswag(json, line));
    else if (json.is_object() && json.find("answerKey") != nullptr)
      questions.push_back(arc(json, line));
    else
      line.fail("neither \"endings\" nor \"answerKey\"");
  }
  if (questions.empty())
    throw DataError("[eval] {} has no question. Give one JSON object per line.", files::shown(source));
  return questions;
}

int evaluate(const EvalOptions& options) {
  if (options.text.empty() == options.choices.empty())
    throw ConfigError("[eval] needs one of --text and --choices: a text for its perplexity, or a file of questions.");
  if (options.stride > 0 && options.text.empty()) throw ConfigError("[eval] --stride {} needs --text.", options.stride);
  const ModelFolder weights(options.checkpoint);
  const auto tokenizer = data::load_tokenizer(weights.model_dir());
  if (!tokenizer->knows_text())
    throw ConfigError("[eval] {} was trained on ids of the external tokenizer \"{}\", which cannot encode a text.",
                      files::shown(weights.dir()), tokenizer->name());
  const models::ModelOptions& model = weights.model().options;
  if (tokenizer->vocab_size() > model.vocab)
    throw CheckpointError("[eval] the tokenizer of {} has {} ids, but its model has {}. Give the folder of a run.",
                          files::shown(weights.dir()), tokenizer->vocab_size(), model.vocab);
  if (options.context > model.context)
    throw ConfigError("[eval] --context {} exceeds the model's context of {}. Use at most that.", options.context,
                      model.context);
  const Setting setting{options, weights, *tokenizer, options.context > 0 ? options.context : model.context};
  options.text.empty() ? multiple_choice(setting) : perplexity(setting);
  return 0;
}

}  // namespace slipstream::runtime
