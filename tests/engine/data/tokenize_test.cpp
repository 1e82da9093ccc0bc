// SPDX-License-Identifier: Apache-2.0
// tokenize continues only what is still there as it was left, and leaves no files of earlier commands beside its own.

#include "engine/data/tokenize.h"

#include <functional>

#include "engine/base/json.h"
#include "engine/data/hash.h"
#include "engine/data/shards.h"
#include "tests/engine/data/disk.h"
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
      {"another text behind the shards", [&](const TempFolder& f) { put(f / "t.jsonl", with("1199", "9911")); }, ""},
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
       "skips 1 tokens more than the document has"},
      {"a place beyond the text",
       [](const TempFolder& f) { edit(f / "s.progress.json", [](Json& root) { root["byte"] = Json(1 << 20); }); },
       "goes on at byte 1048576"},
  };
  for (const char* tokenizer : {"bytes", "chars"})
    for (const Row& row : rows) {
      INFO(row.what << ", " << tokenizer);
      const TempFolder folder;
      put(folder / "t.jsonl", lines);
      TokenizeOptions options{
          .text = folder / "t.jsonl", .out = folder / "whole", .tokenizer = tokenizer, .shard_tokens = 150};
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
  // The text decides the vocabulary of chars: a new character behind the shards changes the ids in them.
  const TempFolder folder;
  TokenizeOptions options{.text = folder / "t.jsonl", .out = folder / "s", .tokenizer = "chars", .shard_tokens = 150};
  put(folder / "t.jsonl", lines);
  interrupt(options, 2);
  put(folder / "t.jsonl", with("1199", "a199"));
  options.resume = true;
  CHECK_REFUSED(DataError, tokenize(options), "belongs to another command", "chars");
}
