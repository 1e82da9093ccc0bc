// SPDX-License-Identifier: Apache-2.0
// Writes tokenizer.json and tokenizer_config.json.

#include "engine/data/tokenizers/write_tokenizer_json.h"

#include "engine/base/json.h"
#include "engine/data/tokenizers/byte_alphabet.h"

namespace slipstream::data {
namespace {

Json object_of(std::initializer_list<Json::Member> members) { return Json(Json::Object(members)); }

Json byte_level() {
  return object_of({{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}});
}

struct Content {
  Json::Array added;
  Json pre_tokenizer, decoder;
  Json::Object vocab;
  Json::Array merges;
  bool whole_words = false;
};

HuggingFaceFiles files_of(Content content, const std::string& end_of_text) {
  const Json model = object_of({{"type", "BPE"},
                                {"dropout", Json()},
                                {"unk_token", Json()},
                                {"continuing_subword_prefix", Json()},
                                {"end_of_word_suffix", Json()},
                                {"fuse_unk", false},
                                {"byte_fallback", false},
                                {"ignore_merges", content.whole_words},
                                {"vocab", Json(std::move(content.vocab))},
                                {"merges", Json(std::move(content.merges))}});
  const Json root = object_of({{"version", "1.0"},
                               {"truncation", Json()},
                               {"padding", Json()},
                               {"added_tokens", Json(std::move(content.added))},
                               {"normalizer", Json()},
                               {"pre_tokenizer", std::move(content.pre_tokenizer)},
                               {"post_processor", Json()},
                               {"decoder", std::move(content.decoder)},
                               {"model", model}});
  Json config = object_of({{"tokenizer_class", "PreTrainedTokenizerFast"}, {"clean_up_tokenization_spaces", false}});
  if (!end_of_text.empty()) config["eos_token"] = Json(end_of_text);
  return {{"tokenizer.json", root.dump(1) + "\n"}, {"tokenizer_config.json", config.dump(2) + "\n"}};
}

}  // namespace

HuggingFaceFiles hugging_face_files_of(const BpeParts& parts) {
  const std::string& pattern = parts.words.rules.at(0).pattern.text();
  const BpeModel& model = parts.model;
  Content content;
  content.whole_words = model.whole_words;
  std::vector<bool> is_added(model.tokens.size());
  std::string end_of_text;
  for (const AddedToken& token : parts.added) {
    is_added[static_cast<size_t>(token.id)] = true;
    if (token.id == parts.special.end_of_text) end_of_text = token.content;
    content.added.push_back(object_of({{"id", token.id},
                                       {"content", token.content},
                                       {"single_word", false},
                                       {"lstrip", token.strip_left},
                                       {"rstrip", token.strip_right},
                                       {"normalized", token.normalized},
                                       {"special", token.special}}));
  }
  for (size_t id = 0; id < model.tokens.size(); ++id)
    if (!is_added[id] && !model.tokens[id].empty())
      content.vocab.emplace_back(characters_of_bytes(model.tokens[id]), Json(id));
  for (const Merge& merge : model.merges)
    content.merges.push_back(Json(characters_of_bytes(model.tokens[static_cast<size_t>(merge.left)]) + " " +
                                  characters_of_bytes(model.tokens[static_cast<size_t>(merge.right)])));
  const Json split = object_of(
      {{"type", "Split"}, {"pattern", object_of({{"Regex", pattern}})}, {"behavior", "Isolated"}, {"invert", false}});
  content.pre_tokenizer = object_of({{"type", "Sequence"}, {"pretokenizers", Json(Json::Array{split, byte_level()})}});
  content.decoder = byte_level();
  return files_of(std::move(content), end_of_text);
}

HuggingFaceFiles hugging_face_files_of_bytes() {
  Content content;
  for (int byte = 0; byte < 256; ++byte)
    content.vocab.emplace_back(characters_of_bytes(std::string(1, static_cast<char>(byte))), Json(byte));
  content.pre_tokenizer = byte_level();
  content.decoder = byte_level();
  return files_of(std::move(content), "");
}

HuggingFaceFiles hugging_face_files_of_chars(std::span<const std::string> characters) {
  Content content;
  for (const std::string& character : characters) content.vocab.emplace_back(character, Json(content.vocab.size()));
  content.decoder = object_of({{"type", "Fuse"}});
  return files_of(std::move(content), "");
}

}  // namespace slipstream::data
