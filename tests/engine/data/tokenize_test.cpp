// SPDX-License-Identifier: Apache-2.0
// tokenize continues only what is still there as it was left, and leaves no files of earlier commands beside its own.

#include "engine/data/datasets/tokenize.h"

#include <functional>

#include "engine/base/hash.h"
#include "engine/base/json.h"
#include "engine/data/datasets/shards.h"
#include "tests/engine/data/disk.h"
#include "tests/paths.h"
#include "tests/test.hpp"

using namespace slipstream;
using namespace slipstream::data;
using namespace slipstream::tests;

namespace {

std::string lines_of(int documents) {
  std::string lines;
  for (int i = 0; i < documents; ++i) lines += "{\"text\": \"document " + std::to_string(1000 + i) + "\"}\n";
  return lines;
}

/// The command ends when a later shard than `shards` begins.
void interrupt(TokenizeOptions options, int shards) {
  const std::string last = fmt::format("{}-{:05}.json", options.out, shards - 1);
  options.progress = [&](int64_t, int64_t) {
    if (std::filesystem::exists(last)) throw ResourceError("interrupted");
  };
  CHECK_REFUSED(ResourceError, tokenize(options), "interrupted");
}

/// Edits OUT.progress.json and makes its own hash fit.
void edit(const std::string& path, const std::function<void(Json&)>& change) {
  Json root = Json::parse(bytes_in(path));
  change(root);
  Json::Object members = root.as_object();
  REQUIRE(members.back().first == "hash");
  members.pop_back();
  const std::string text = Json(members).dump();
  root["hash"] = Json(xxh3_128_hex(text.data(), std::ssize(text)));
  put(path, root.dump());
}

}  // namespace

TEST_CASE("tokenize: --resume refuses another text and shards that are not as they were written", "[data]") {
  const std::string lines = lines_of(200);
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = lines;
    return text.replace(text.find(from), from.size(), to);
  };
  struct Row {
    const char* what;
    std::function<void(const TempFolder&)> change;
    std::string refusal;  // empty: accepted
  };
  const Row rows[] = {
      {"nothing", [](const TempFolder&) {}, ""},
      {"another text after the shards", [&](const TempFolder& f) { put(f / "t.jsonl", with("1199", "9911")); }, ""},
      {"another text of the same size", [&](const TempFolder& f) { put(f / "t.jsonl", with("1001", "1991")); },
       "come from another text"},
      {"another text in the last document of the shards",
       [&](const TempFolder& f) { put(f / "t.jsonl", with("1023", "1993")); }, "come from another text"},
      {"a missing shard", [](const TempFolder& f) { std::filesystem::remove(f / "s-00001.bin"); },
       "s-00001.bin\" is not the one that"},
      {"a cut shard", [](const TempFolder& f) { std::filesystem::resize_file(f / "s-00000.bin", 100); },
       "s-00000.bin\" is not the one that"},
      {"other ids",
       [](const TempFolder& f) {
         std::string bytes = bytes_in(f / "s-00001.bin");
         bytes[4] ^= 1;
         put(f / "s-00001.bin", bytes);
       },
       "it has the hash"},
      {"a missing sidecar", [](const TempFolder& f) { std::filesystem::remove(f / "s-00001.json"); },
       "its .json or .documents was changed"},
      {"missing documents", [](const TempFolder& f) { std::filesystem::remove(f / "s-00000.documents"); },
       "s-00000.bin"},
      {"an edited progress",
       [](const TempFolder& f) {
         std::string text = bytes_in(f / "s.progress.json");
         const size_t at = text.find("\"skip\": ") + 8;
         text[at] = text[at] == '1' ? '2' : '1';
         put(f / "s.progress.json", text);
       },
       "s.progress.json\" was changed"},
      {"a skip beyond the document",
       [](const TempFolder& f) { edit(f / "s.progress.json", [](Json& root) { root["skip"] = Json(14); }); },
       "skips 1 more tokens than its unfinished document has"},
      {"a place beyond the text",
       [](const TempFolder& f) { edit(f / "s.progress.json", [](Json& root) { root["byte"] = Json(1 << 20); }); },
       "continues at byte 1048576"},
  };
  for (const char* tokenizer : {"bytes", "chars"})
    for (const Row& row : rows) {
      INFO(row.what << ", " << tokenizer);
      const TempFolder folder;
      put(folder / "t.jsonl", lines);
      TokenizeOptions options{
          .texts = {folder / "t.jsonl"}, .out = folder / "whole", .tokenizer = tokenizer, .shard_tokens = 150};
      options.end_of_text = false;
      tokenize(options);
      options.out = folder / "s";
      interrupt(options, 2);
      const std::string progress = bytes_in(folder / "s.progress.json");
      row.change(folder);
      options.resume = true;
      if (!row.refusal.empty()) {
        CHECK_REFUSED(DataError, tokenize(options), row.refusal, "tart again without --resume");
        CHECK(std::filesystem::exists(folder / "s.progress.json"));
        continue;
      }
      CHECK(tokenize(options).documents == 200);
      CHECK(open_shards(folder / "s-*.bin").tokens->count() == 200 * 13);
      for (const char* name : {"-00000.bin", "-00001.bin", "-00005.documents", "-00017.bin", "-00017.documents"})
        if (std::string(row.what) == "nothing")
          CHECK(bytes_in(folder / (std::string("s") + name)) == bytes_in(folder / (std::string("whole") + name)));
    }
  // The text decides the vocabulary of chars: a new character after the shards changes the ids in them.
  const TempFolder folder;
  TokenizeOptions options{
      .texts = {folder / "t.jsonl"}, .out = folder / "s", .tokenizer = "chars", .shard_tokens = 150};
  options.end_of_text = false;
  put(folder / "t.jsonl", lines);
  interrupt(options, 2);
  put(folder / "t.jsonl", with("1199", "a199"));
  options.resume = true;
  CHECK_REFUSED(DataError, tokenize(options), "belongs to another command", "chars");
}

TEST_CASE("tokenize: shards of earlier commands that a pattern would read are removed, other files stay", "[data]") {
  const TempFolder folder;
  const std::string lines = lines_of(20);
  put(folder / "t.jsonl", lines);
  put(folder / "t.txt", "not JSON");
  const auto run = [&](const std::string& text, int64_t shard_tokens) {
    const TokenizeSummary summary =
        tokenize({.texts = {text}, .out = folder / "s", .shard_tokens = shard_tokens, .end_of_text = false});
    CHECK(open_shards(folder / "s*.bin").tokens->count() == summary.count);
    return summary.removed;
  };
  const auto exists = [&](const std::string& name) { return std::filesystem::exists(folder / name); };
  CHECK(run(folder / "t.jsonl", 100) == 0);
  CHECK(exists("s-00002.documents"));
  // These files are left by a command that is killed while it removes or writes.
  std::filesystem::remove(folder / "s-00001.bin");
  std::filesystem::remove(folder / "s-00002.json");
  CHECK(run(folder / "t.jsonl", 0) == 2);
  CHECK_FALSE(exists("s-00000.bin"));
  CHECK_FALSE(exists("s-00000.documents"));
  CHECK_FALSE(exists("s-00002.bin"));
  CHECK(run(folder / "t.txt", 0) == 0);
  CHECK_FALSE(exists("s.documents"));  // the new shard has no documents
  CHECK(run(folder / "t.jsonl", 100) == 1);
  CHECK_FALSE(exists("s.bin"));
  CHECK_FALSE(exists("s.json"));
  // There are fewer shards, with a gap between them and those of the earlier command.
  CHECK(run(folder / "t.jsonl", 50) == 0);
  std::filesystem::remove(folder / "s-00003.bin");
  CHECK(run(folder / "t.jsonl", 100) == 2);

  // These files have other names, or belong to other programs or to the user.
  const TempFolder other;
  const std::string text = other / "s-00003.bin";
  const std::vector<std::string> kept = {"s-00003.bin",          "s.bin",       "s-1.bin",
                                         "s-00001-of-00002.bin", "s-x.bin",     "as-00000.bin",
                                         "s-00007.json",         "s-00008.bin", "s-00008.json"};
  for (const std::string& name : kept) put(other / name, lines);
  put(other / "s-00004.bin", "killed");
  CHECK(tokenize({.texts = {text}, .out = other / "s", .shard_tokens = 1000, .end_of_text = false}).removed == 1);
  CHECK(tokenize({.texts = {text}, .out = other / "t", .end_of_text = false}).removed == 0);
  for (const std::string& name : kept) CHECK(bytes_in(other / name) == lines);
  CHECK(tokenize({.texts = {text}, .out = other / "s", .end_of_text = false}).removed == 1);
  CHECK(bytes_in(text) == lines);
  CHECK_FALSE(std::filesystem::exists(other / "s-00000.bin"));

  for (const char* name : {"x.documents", "x.progress.json"}) {
    put(other / name, lines);
    CHECK_REFUSED(ConfigError, tokenize({.texts = {other / name}, .out = other / "x"}), "would be overwritten", name);
  }
  const std::string file = bytes_in(golden_dir() + "/tokenizers/llama3.tokenizer.json");
  put(other / "tokenizer.json", file);
  CHECK_REFUSED(ConfigError,
                tokenize({.texts = {text}, .out = other / "tokenizer", .tokenizer = other / "tokenizer.json"}),
                "would be overwritten: it is the tokenizer");
  CHECK(bytes_in(other / "tokenizer.json") == file);
}

TEST_CASE("tokenize: half a tokenizer of a killed command is removed", "[data]") {
  const TempFolder folder;
  put(folder / "t.txt", "some text");
  std::filesystem::create_directory(folder / "s.tokenizer");
  const std::string gone = ".tmp-999999999";
  for (const std::string& name : {"tokenizer.json" + gone, "tokenizer_config.json" + gone})
    put(folder / ("s.tokenizer/" + name), "half");
  const std::vector<std::string> others = {"tokenizer.json.tmp-1", "vocab.json" + gone, "tokenizer.json"};
  for (const std::string& name : others) put(folder / ("s.tokenizer/" + name), "whole");
  tokenize({.texts = {folder / "t.txt"}, .out = folder / "s"});
  CHECK_FALSE(std::filesystem::exists(folder / ("s.tokenizer/tokenizer.json" + gone)));
  CHECK_FALSE(std::filesystem::exists(folder / ("s.tokenizer/tokenizer_config.json" + gone)));
  for (const std::string& name : others) CHECK(std::filesystem::exists(folder / ("s.tokenizer/" + name)));
}
