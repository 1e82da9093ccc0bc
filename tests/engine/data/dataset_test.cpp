// SPDX-License-Identifier: Apache-2.0
// Splits and vocabularies of a run.

#include "engine/data/datasets/dataset.h"

#include <iostream>

#include "engine/base/hash.h"
#include "engine/data/datasets/tokenize.h"
#include "engine/data/sidecar.h"
#include "tests/engine/data/disk.h"
#include "tests/paths.h"
#include "tests/test.hpp"

using namespace slipstream;
using namespace slipstream::data;
using namespace slipstream::tests;

namespace {

std::string text_of(const TokenSource& source, const Tokenizer& tokenizer) {
  std::vector<int32_t> ids(static_cast<size_t>(source.count()));
  source.read(0, ids);
  return tokenizer.decode(ids);
}

}  // namespace

TEST_CASE("dataset: the last fraction is held out, nothing is lost", "[data]") {
  const TempFolder folder;
  const std::string text = "abcdefghijklmnopqrstuvwxyz0123";  // 30 characters
  put(folder / "t.txt", text);
  for (const auto& [fraction, kept] :
       {std::pair(0.1, 27), std::pair(0.5, 15), std::pair(0.05, 28), std::pair(0.9, 3)}) {
    const Dataset data =
        open_dataset({.train = folder / "t.txt", .validation_fraction = fraction, .tokenizer = "chars"});
    CHECK(data.train->count() == kept);
    CHECK(text_of(*data.train, *data.tokenizer) + text_of(*data.validation, *data.tokenizer) == text);
  }
  const Dataset whole = open_dataset({.train = folder / "t.txt", .validation_fraction = 0});
  CHECK(whole.tokenizer->name() == "bytes");
  CHECK(whole.train->count() == 30);
  CHECK(whole.validation == nullptr);
}

TEST_CASE("dataset: texts, shards and both together give the same tokens", "[data]") {
  const TempFolder folder;
  put(folder / "t.txt", "the quick brown fox jumps over the lazy dog");
  put(folder / "v.txt", "quick dog");
  tokenize({.texts = {folder / "t.txt"}, .out = folder / "t", .tokenizer = "chars"});
  const Dataset texts = open_dataset({.train = folder / "t.txt", .validation = folder / "v.txt", .tokenizer = "chars"});
  const Dataset mixed = open_dataset({.train = folder / "t.bin", .validation = folder / "v.txt", .tokenizer = "chars"});
  const Dataset named = open_dataset({.train = folder / "t.bin", .validation = folder / "v.txt"});
  for (const Dataset* data : {&texts, &mixed, &named}) {
    CHECK(text_of(*data->train, *data->tokenizer) == bytes_in(folder / "t.txt"));
    CHECK(text_of(*data->validation, *data->tokenizer) == "quick dog");
    CHECK(data->tokenizer->vocabulary() == texts.tokenizer->vocabulary());
    CHECK(data->resident_bytes == (data == &texts ? 64 : 32));  // for each text, the positions of its begin and its end
  }
  put(folder / "w.txt", "quick cat!");
  const Dataset both = open_dataset({.train = folder / "t.txt", .validation = folder / "w.txt", .tokenizer = "chars"});
  CHECK(both.tokenizer->vocab_size() == texts.tokenizer->vocab_size() + 1);
  CHECK_REFUSED(DataError, open_dataset({.train = folder / "t.bin", .validation = folder / "w.txt"}), "\"!\"", "byte 9",
                "w.txt");
  CHECK_REFUSED(DataError, open_dataset({.train = folder / "t.bin", .tokenizer = "bytes"}), "tokenizer \"chars\"",
                "data.tokenizer = \"bytes\"");
  tokenize({.texts = {folder / "v.txt"}, .out = folder / "v", .tokenizer = "chars"});
  CHECK_REFUSED(DataError, open_dataset({.train = folder / "t.bin", .validation = folder / "v.bin"}),
                "different vocabularies");
}

TEST_CASE("dataset: shards of an external tokenizer combine with any data.tokenizer and with each other", "[data]") {
  const TempFolder folder;
  const auto shard = [&](const std::string& name, const std::string& tokenizer, int64_t vocab_size,
                         const std::string& hash = "") {
    const std::string bytes("\x50\xc4\x00\x00\x50\xc4\x07\x00", 8);  // the ids 50256 0 50256 7
    put(folder / (name + ".bin"), bytes);
    put(folder / (name + ".json"), write_token_shard_info({.dtype = "uint16",
                                                           .vocab_size = vocab_size,
                                                           .count = 4,
                                                           .hash = hash.empty() ? xxh3_128_hex(bytes.data(), 8) : hash,
                                                           .tokenizer = tokenizer,
                                                           .vocabulary = {}}));
    return folder / (name + ".bin");
  };
  const std::string t = shard("t", "gpt2", 50257), v = shard("v", "gpt2", 50257);
  for (const char* word : {"", "bytes", "chars"}) {
    const Dataset data = open_dataset({.train = t, .validation = v, .tokenizer = word});
    std::vector<int32_t> ids(4);
    data.train->read(0, ids);
    CHECK(ids == std::vector<int32_t>{50256, 0, 50256, 7});
    CHECK(data.tokenizer->name() == "gpt2");
    CHECK(data.tokenizer->vocab_size() == 50257);
  }
  CHECK_REFUSED(DataError, open_dataset({.train = t, .validation = shard("w", "gpt2", 50304)}),
                "different vocabularies", "50257", "50304");
  CHECK_REFUSED(DataError, open_dataset({.train = t, .validation = shard("l", "llama", 50257)}),
                "different tokenizers, gpt2 and llama");
  CHECK_REFUSED(DataError, open_dataset({.train = shard("small", "gpt2", 50256)}), "id 50256");
  put(folder / "v.txt", "some text");
  CHECK_REFUSED(DataError, open_dataset({.train = t, .validation = folder / "v.txt"}), "by name only", "v.txt");
  // One rank of a host reads the whole shard; the others read the sidecar.
  const std::string changed = shard("changed", "gpt2", 50257, std::string(32, '0'));
  CHECK_REFUSED(DataError, open_dataset({.train = changed}), "was changed");
  CHECK(open_dataset({.train = changed, .validation_fraction = 0, .check = ShardCheck::size}).tokenizer->vocab_size() ==
        50257);
}

TEST_CASE("dataset: the advice for a shard of another tokenizer works", "[data]") {
  const TempFolder folder;
  put(folder / "t.txt", "some text of some words");
  const std::string file = golden_dir() + "/tokenizers/llama3.tokenizer.json";
  for (const std::string& tokenizer : {file, std::string("chars")})
    tokenize({.texts = {folder / "t.txt"}, .out = folder / (tokenizer == file ? "f" : "c"), .tokenizer = tokenizer});
  const auto open = [&](const char* shard, const std::string& tokenizer) {
    return open_dataset({.train = folder / shard, .validation_fraction = 0, .tokenizer = tokenizer}).train->count();
  };
  CHECK_REFUSED(DataError, open("f.bin", "chars"), "again with slipstream tokenize, or leave data.tokenizer out.");
  CHECK(open("f.bin", "bytes") > 0);  // the default of data.tokenizer
  for (const std::string& tokenizer : {file, std::string("bytes")})
    CHECK_REFUSED(DataError, open("c.bin", tokenizer), "or set data.tokenizer = \"chars\".");
  CHECK(open("c.bin", "chars") == 23);
}

TEST_CASE("dataset: validation on the training data is noted, whatever the path", "[data]") {
  const TempFolder folder;
  for (const char* name : {"t.txt", "copy.txt"}) put(folder / name, "the quick brown fox");
  put(folder / "other.txt", "the quick brown cat");
  tokenize({.texts = {folder / "t.txt"}, .out = folder / "t"});
  const auto notes = [&](const char* train, const char* validation) {
    return open_dataset({.train = folder / train, .validation = folder / validation}).notes;
  };
  for (const auto& [train, validation] :
       {std::pair("t.txt", "t.txt"), std::pair("t.txt", "copy.txt"), std::pair("t.bin", "t.bin")}) {
    const std::vector<std::string> found = notes(train, validation);
    REQUIRE(found.size() == 1);
    CHECK(found[0].find(fmt::format("{}\" has the content of the training data", validation)) != std::string::npos);
  }
  CHECK(notes("t.txt", "other.txt").empty());
  const Dataset mixed = open_dataset(
      {.sources = {folder / "other.txt", folder / "t.txt"}, .validation = folder / "copy.txt", .tokenizer = "bytes"});
  REQUIRE(mixed.notes.size() == 1);
  CHECK(mixed.notes[0].find("t.txt") != std::string::npos);
}

TEST_CASE("dataset: a split shorter than one window is refused with the numbers", "[data]") {
  const TempFolder folder;
  put(folder / "t.txt", std::string(100, 'a'));
  CHECK(open_dataset({.train = folder / "t.txt", .sequence_length = 9}).validation->count() == 10);
  CHECK_REFUSED(DataError, open_dataset({.train = folder / "t.txt", .sequence_length = 10}), "validation split",
                "10 tokens", "= 11");
  CHECK_REFUSED(DataError, open_dataset({.train = folder / "t.txt", .validation_fraction = 0.5, .sequence_length = 50}),
                "training split", "50 tokens", "= 51");
  CHECK_REFUSED(DataError, open_dataset({.train = folder / "none.txt"}), "none.txt", "does not exist");
  put(folder / "bad.txt", "abc\xc0");
  CHECK_REFUSED(DataError, open_dataset({.train = folder / "bad.txt", .tokenizer = "chars"}), "byte 3", "bad.txt");
  CHECK_REFUSED(DataError, open_dataset({.train = folder / "t.txt", .tokenizer = folder / "tokenizer.json"}),
                "does not exist");
}

TEST_CASE("dataset: tiny Shakespeare as published", "[data]") {
  const std::string path = shared_dir() + "/data/tinyshakespeare.txt";
  if (!std::filesystem::exists(path)) {
    std::cout << "SKIPPED tiny Shakespeare: " << path << " is absent\n";
    return;
  }
  const Dataset data = open_dataset({.train = path, .tokenizer = "chars", .sequence_length = 64});
  CHECK(data.tokenizer->vocab_size() == 65);
  CHECK(data.train->count() == 1003854);
  CHECK(data.validation->count() == 111540);
  std::vector<int32_t> ids(10);
  data.train->read(0, ids);
  CHECK(ids == std::vector<int32_t>{18, 47, 56, 57, 58, 1, 15, 47, 58, 47});  // "First Citi", as nanoGPT encodes it
  CHECK(text_of(*data.train, *data.tokenizer) + text_of(*data.validation, *data.tokenizer) == bytes_in(path));
}
