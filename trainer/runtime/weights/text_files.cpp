// SPDX-License-Identifier: Apache-2.0
// Copies the files of a folder that concern texts, or makes those that it lacks.

#include "trainer/runtime/weights/text_files.h"

#include <algorithm>
#include <filesystem>
#include <optional>

#include "engine/base/check.h"
#include "engine/base/document.h"
#include "engine/base/log.h"
#include "engine/data/tokenizers/make_tokenizer.h"

namespace slipstream::runtime {
namespace {

constexpr const char* kGenerationFile = "generation_config.json";
constexpr int64_t kBytesMax = 256 << 20;

std::optional<std::string> read_beside(const std::string& dir, const std::string& name) {
  const std::string path = dir + "/" + name;
  if (std::error_code error; !std::filesystem::exists(path, error)) return {};
  return files::read_file(path, files::Owner::checkpoint, kBytesMax);
}

models::TextIds ids_of(const data::Tokenizer& tokenizer) {
  const data::SpecialIds special = tokenizer.special();
  models::TextIds ids{.begin_of_text = special.begin_of_text};
  if (special.end_of_text >= 0) ids.ends_of_text = {special.end_of_text};
  return ids;
}

void add_file(const std::string& name, std::string bytes, TextFiles& to) {
  const bool known =
      std::any_of(to.files.begin(), to.files.end(), [&](const auto& file) { return file.first == name; });
  if (!known) to.files.emplace_back(name, std::move(bytes));
}

}  // namespace

TextFiles text_files_of(const ModelFolder& folder) {
  TextFiles all{.ids = folder.model().ids, .dtype = folder.dtype(), .files = {}, .tokenizer = {}, .problem = {}};
  const auto copy = [&](const std::string& name) {
    if (auto bytes = read_beside(folder.model_dir(), name)) add_file(name, std::move(*bytes), all);
  };
  std::error_code error;
  if (std::filesystem::exists(folder.model_dir() + "/" + data::kTokenizerFile, error) ||
      std::filesystem::exists(folder.model_dir() + "/tokenizer.json", error)) {
    try {
      const auto tokenizer = data::load_tokenizer(folder.model_dir());
      for (auto& [name, bytes] : data::write_tokenizer(*tokenizer)) add_file(name, std::move(bytes), all);
      all.tokenizer = tokenizer->name();
    } catch (const DataError& refused) {
      all.problem = refused.what();  // other programs may be able to read it
    }
  }
  for (const char* name : {kGenerationFile, "special_tokens_map.json", "chat_template.jinja", "chat_template.json",
                           "tokenizer.model", "tekken.json"})
    copy(name);
  if (all.tokenizer.empty())
    for (const char* name :
         {"tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt", "added_tokens.json"})
      copy(name);
  add_file(kGenerationFile, models::hugging_face_generation_config(all.ids), all);
  return all;
}

TextFiles text_files_of(const data::Tokenizer& tokenizer, const std::string& init) {
  TextFiles all;
  for (auto& [name, bytes] : data::write_tokenizer(tokenizer)) add_file(name, std::move(bytes), all);
  all.tokenizer = tokenizer.name();
  all.ids = ids_of(tokenizer);
  if (!init.empty()) {
    try {
      TextFiles before = text_files_of(ModelFolder(init, {.count = 0}));
      all.dtype = before.dtype;
      if (!tokenizer.knows_text() || before.tokenizer == all.tokenizer) {
        all.ids = before.ids;
        for (auto& [name, bytes] : before.files) add_file(name, std::move(bytes), all);
      }
    } catch (const Error& error) {
      log_warn("[checkpoint] the chat template and the settings of generation of model.init are not copied: {}",
               error.what());
    }
  }
  add_file(kGenerationFile, models::hugging_face_generation_config(all.ids), all);
  return all;
}

TextFiles read_text_files(const std::string& dir) {
  TextFiles all;
  std::error_code error;
  if (!std::filesystem::exists(dir + "/" + checkpoint::kConfigFile, error)) return all;
  const Json config = checkpoint::read_config(dir);
  const Json* vocab = config.find("vocab_size");
  if (vocab != nullptr && vocab->is_int()) all.ids = models::read_text_ids(config, vocab->as_int());
  const Json* dtype = config.find("dtype");
  if (dtype != nullptr && *dtype == Json("bfloat16")) all.dtype = DType::bf16;
  for (const auto& entry : std::filesystem::directory_iterator(dir, error)) {
    const std::string name = entry.path().filename();
    const bool unfinished = name.find(".tmp-") != std::string::npos;
    if (name == checkpoint::kConfigFile || unfinished || !entry.is_regular_file(error)) continue;
    if (auto bytes = read_beside(dir, name)) add_file(name, std::move(*bytes), all);
  }
  return all;
}

std::vector<int32_t> ends_of_text(const ModelFolder& folder) {
  const models::HuggingFaceModel& model = folder.model();
  std::vector<int32_t> ends = model.ids.ends_of_text;
  if (const auto text = read_beside(folder.model_dir(), kGenerationFile)) {
    const std::string where = files::shown(folder.model_dir() + "/" + kGenerationFile);
    const Json config = parse_object({.text = *text, .where = where, .owner = files::Owner::checkpoint});
    const auto more = models::read_text_ids(config, model.options.vocab).ends_of_text;
    ends.insert(ends.end(), more.begin(), more.end());
  }
  return ends;
}

}  // namespace slipstream::runtime
