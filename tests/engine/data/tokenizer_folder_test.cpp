// SPDX-License-Identifier: Apache-2.0
// A tokenizer is a folder: ids and ends of texts are those of AutoTokenizer
// (tests/golden/make_golden_tokenizer_folders.py).

#include <filesystem>

#include "engine/base/check.h"
#include "engine/base/json.h"
#include "engine/data/datasets/dataset.h"
#include "engine/data/datasets/shards.h"
#include "engine/data/datasets/tokenize.h"
#include "engine/data/tokenizers/make_tokenizer.h"
#include "tests/engine/data/disk.h"
#include "tests/paths.h"
#include "tests/test.hpp"

using namespace slipstream;
using namespace slipstream::data;
using namespace slipstream::tests;

namespace {

const Json& golden() {
  static const Json instance =
      Json::parse(bytes_in(golden_dir() + "/tokenizer_folders.json"), "tokenizer_folders.json");
  return instance;
}

/// The tokenizer.json of the rows, whose <|endoftext|> is id 0 of 257.
void put_files(const TempFolder& folder, const Json& beside) {
  put(folder / "tokenizer.json", golden().at("tokenizer").dump());
  for (const auto& [file, content] : beside.as_object()) put(folder / file, content.dump());
}

std::vector<int32_t> ints(const Json& list) {
  std::vector<int32_t> all;
  for (const Json& id : list.as_array()) all.push_back(static_cast<int32_t>(id.as_int()));
  return all;
}

/// The tokenizer of a folder with these files beside the rows' tokenizer.json.
std::shared_ptr<const Tokenizer> with(const TempFolder& folder, const std::string& beside) {
  put_files(folder, Json::parse(beside));
  return load_tokenizer(folder / "");
}

}  // namespace

TEST_CASE("tokenizer folder: the files beside tokenizer.json count as for AutoTokenizer", "[data]") {
  const std::string text = golden().at("text").as_string();
  REQUIRE(golden().at("rows").as_array().size() == 12);
  size_t unchanged = 0;
  for (const Json& row : golden().at("rows").as_array()) {
    INFO(row.at("name").as_string());
    const TempFolder folder, copy;
    put_files(folder, row.at("files"));
    const auto tokenizer = load_tokenizer(folder / "");
    CHECK(tokenizer->encode(text) == ints(row.at("ids")));
    CHECK(tokenizer->vocab_size() == row.at("size").as_int());
    // Without a name, documents end with <|endoftext|>.
    const int64_t end = row.at("end").as_int();
    CHECK(tokenizer->special().end_of_text == (end < 0 ? 0 : end));
    // The file, the folder, and a copy that needs no other file are one tokenizer.
    for (const auto& [name, bytes] : write_tokenizer(*tokenizer)) put(copy / name, bytes);
    for (const auto& same : {load_tokenizer_file(folder / "tokenizer.json"), load_tokenizer_file(folder / ""),
                             load_tokenizer(copy / ""), make_tokenizer(folder / "", "")}) {
      CHECK(same->name() == tokenizer->name());
      CHECK(same->special().end_of_text == tokenizer->special().end_of_text);
      CHECK(same->special().begin_of_text == tokenizer->special().begin_of_text);
      CHECK(same->encode(text) == tokenizer->encode(text));
    }
    // Files that add nothing leave the name that shards have unchanged.
    const TempFolder alone;
    unchanged += with(alone, "{}")->name() == tokenizer->name() ? 1 : 0;
  }
  CHECK(unchanged == 3);
}

TEST_CASE("tokenizer folder: config.json names the end of texts that no other file names", "[data]") {
  const auto end = [](const std::string& beside) {
    const TempFolder folder;
    return with(folder, beside)->special().end_of_text;
  };
  const std::string two =
      R"("tokenizer_config.json": {"added_tokens_decoder": {"257": {"content": "<e>", "special": true}}})";
  CHECK(end("{" + two + "}") == 0);
  CHECK(end("{" + two + R"(, "config.json": {"eos_token_id": 257}})") == 257);
  CHECK(end("{" + two + R"(, "config.json": {"eos_token_id": [3, 257, 0]}})") == 257);  // 3 is a letter
  CHECK(end("{" + two + R"(, "config.json": {"eos_token_id": null}})") == 0);
  CHECK(end(R"({"config.json": {"eos_token_id": 5}})") == 0);
  CHECK(end(R"({"tokenizer_config.json": {"eos_token": "<z>"}, "config.json": {"eos_token_id": 0}})") == 257);
}

TEST_CASE("tokenizer folder: ids that contradict each other are refused with token and ids", "[data]") {
  const struct {
    const char* beside;
    std::vector<std::string> parts;
  } rows[] = {
      {R"({"tokenizer_config.json": {"added_tokens_decoder": {"5": {"content": "<|endoftext|>"}}}})",
       {"added_tokens_decoder.5", "\"<|endoftext|>\" the id 5", "tokenizer.json has it as 0"}},
      {R"({"tokenizer_config.json": {"added_tokens_decoder": {"300": {"content": "<|call|>"}}}})",
       {"added_tokens_decoder.300", "\"<|call|>\" the id 300", "next free id of tokenizer.json is 257"}},
      {R"({"tokenizer_config.json": {"added_tokens_decoder": {"5": {"content": "<|call|>"}}}})",
       {"\"<|call|>\" the id 5", "257"}},
      {R"({"tokenizer_config.json": {"added_tokens_decoder": {"33": {"content": "B"}}}})",
       {"\"B\" the id 33", "as 34"}},
      {R"({"tokenizer_config.json": {"added_tokens_decoder": {"x": {"content": "<|call|>"}}}})", {"is no id"}},
      {R"({"tokenizer_config.json": {"added_tokens_decoder": {"257": "<|call|>"}}})", {"is no id with a token"}},
      {R"({"added_tokens.json": {"<|call|>": 259}})", {"added_tokens.json", "\"<|call|>\" the id 259", "257"}},
      {R"({"added_tokens.json": {"<|call|>": -1}})", {"added_tokens.json", "-1"}},
      {R"({"special_tokens_map.json": []})", {"special_tokens_map.json beside", "no JSON object"}},
      {R"({"config.json": 7})", {"config.json beside", "no JSON object"}},
  };
  for (const auto& row : rows) {
    INFO(row.beside);
    const TempFolder folder;
    try {
      with(folder, row.beside);
      FAIL("accepted");
    } catch (const DataError& error) {
      for (const std::string& part : row.parts) CHECK_THAT(error.what(), Catch::Contains(part));
    }
  }
  const TempFolder empty;
  CHECK_REFUSED(DataError, load_tokenizer_file(empty / ""), "has no tokenizer", "tokenizer.json");
}

TEST_CASE("tokenizer folder: documents of a run and of shards have the end that the folder names", "[data]") {
  const TempFolder folder, out;
  const auto tokenizer =
      with(folder, R"({"tokenizer_config.json": {}, "special_tokens_map.json": {"eos_token": "<|im_end|>"}})");
  put(out / "t.jsonl", "{\"text\": \"one <|im_end|>\"}\n{\"text\": \"two\"}\n");
  const std::vector<int32_t> right = [&] {
    std::vector<int32_t> ids = tokenizer->encode("one <|im_end|>");
    REQUIRE(ids.back() == 257);
    ids.push_back(257);
    for (const int32_t id : tokenizer->encode("two")) ids.push_back(id);
    ids.push_back(257);
    return ids;
  }();
  const auto ids_of = [](const TokenSource& source) {
    std::vector<int32_t> ids(static_cast<size_t>(source.count()));
    source.read(0, ids);
    return ids;
  };
  DatasetOptions options{.train = out / "t.jsonl", .validation_fraction = 0, .tokenizer = folder / ""};
  CHECK(ids_of(*open_dataset(options).train) == right);
  CHECK(tokenize({.texts = {out / "t.jsonl"}, .out = out / "s", .tokenizer = folder / ""}).vocab_size == 258);
  CHECK(ids_of(*open_shards(out / "s.bin").tokens) == right);
  // Shards fit the folder, and carry all that it says.
  options.train = out / "s.bin";
  CHECK(ids_of(*open_dataset(options).train) == right);
  CHECK(open_shards(out / "s.bin").tokenizer->special().end_of_text == 257);
}

TEST_CASE("tokenizer folder: the field input with a token of tokenizer_config.json", "[data]") {
  const std::string field = shared_dir() + "/data/field_inputs/tok-config-added-token";
  if (!std::filesystem::exists(field)) return;
  const TempFolder out;
  tokenize({.texts = {field + "/docs.jsonl"}, .out = out / "s", .tokenizer = field});
  const Shards shards = open_shards(out / "s.bin");
  std::vector<int32_t> ids(static_cast<size_t>(shards.tokens->count()));
  shards.tokens->read(0, ids);
  CHECK(ids == std::vector<int32_t>{79, 78, 69, 221, 257, 221, 84, 87, 79, 0, 84, 72, 82, 69, 69, 0});
}
