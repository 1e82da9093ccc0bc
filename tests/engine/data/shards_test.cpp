// SPDX-License-Identifier: Apache-2.0
// Token shards: written data reads back the same, and every kind of damage is named.

#include "engine/data/datasets/shards.h"
#include "engine/data/tokenizers/make_tokenizer.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <random>

#include "engine/base/hash.h"
#include "engine/base/utf8.h"
#include "engine/data/datasets/dataset.h"
#include "engine/data/datasets/text.h"
#include "engine/data/datasets/tokenize.h"
#include "engine/data/sidecar.h"
#include "tests/engine/data/disk.h"
#include "tests/paths.h"
#include "tests/test.hpp"

using namespace slipstream;
using namespace slipstream::data;
using namespace slipstream::tests;

namespace {

std::vector<int32_t> all_of(const TokenSource& source) {
  std::vector<int32_t> ids(static_cast<size_t>(source.count()));
  source.read(0, ids);
  return ids;
}

/// A shard with a matching sidecar, unless the caller changes one of the two afterwards.
TokenShardInfo put_shard(const std::string& name, const std::string& bytes, const std::string& dtype = "uint16") {
  const uint64_t width = dtype == "uint16" ? 2 : 4;
  TokenShardInfo info{.dtype = dtype,
                      .vocab_size = 256,
                      .count = bytes.size() / width,
                      .hash = xxh3_128_hex(bytes.data(), static_cast<int64_t>(bytes.size())),
                      .tokenizer = "bytes",
                      .vocabulary = {}};
  put(name + ".bin", bytes);
  put(name + ".json", write_token_shard_info(info));
  return info;
}

/// Enough distinct characters that ids need four bytes.
std::string wide_text() {
  std::string text;
  for (uint32_t value = 0x10000; value < 0x10000 + 65537; ++value) {
    text += static_cast<char>(0xf0 | value >> 18);
    text += static_cast<char>(0x80 | (value >> 12 & 0x3f));
    text += static_cast<char>(0x80 | (value >> 6 & 0x3f));
    text += static_cast<char>(0x80 | (value & 0x3f));
  }
  return text;
}

/// Characters of 1 to 4 bytes, so that a byte offset does not give the number of characters before it.
std::string mixed_text() {
  std::string text;
  for (int i = 0; i < 5000; ++i) {
    text += "a";
    if (i % 2 == 0) text += "\u00e9";
    if (i % 3 == 0) text += "\u20ac";
    if (i % 7 == 0) text += "\U0001f600";
  }
  return text;
}

}  // namespace

TEST_CASE("text: invalid text files are refused", "[data]") {
  const TempFolder folder;
  put(folder / "ok.txt", std::string("a\0b", 3));
  CHECK(TextFile(folder / "ok.txt").read(0, 3) == std::string("a\0b", 3));
  put(folder / "empty.txt", "");
  CHECK_REFUSED(DataError, TextFile(folder / "empty.txt"), "is empty");
  CHECK_REFUSED(DataError, TextFile(folder / "none.txt"), "does not exist");
  CHECK_REFUSED(DataError, TextFile(folder.path()), "is a folder");
  CHECK_REFUSED(DataError, TextFile(folder / "ok.txt/x"), "does not exist");
  REQUIRE(::mkfifo((folder / "pipe").c_str(), 0600) == 0);
  CHECK_REFUSED(DataError, TextFile(folder / "pipe"), "a pipe or a device");
  ::chmod((folder / "ok.txt").c_str(), 0);
  const bool root = ::geteuid() == 0;
  if (root) REQUIRE(::seteuid(65534) == 0);
  ::chmod(folder.path().c_str(), 0755);
  const std::string message = sentence<DataError>([&] { TextFile(folder / "ok.txt"); });
  if (root) REQUIRE(::seteuid(0) == 0);
  INFO(message);
  // The folder belongs to the first user, so the second one is stopped at the folder or at the file: both are
  // permissions.
  CHECK(has(message, "cannot be read: Permission denied"));
}

TEST_CASE("text: pieces are consecutive, end between characters, and errors count from the start of the file",
          "[data]") {
  const TempFolder folder;
  std::string text = wide_text();
  for (int i = 0; i < 7; ++i) text += text.substr(0, 4 * 40000);
  for (const std::string& start : {std::string(), std::string("a"), std::string("\u00e9"), std::string("\u20ac")}) {
    put(folder / "t.txt", start + text);
    std::string seen;
    int pieces = 0;
    TextFile(folder / "t.txt").for_pieces([&](std::string_view piece, int64_t begin) {
      REQUIRE(begin == std::ssize(seen));
      REQUIRE(valid_utf8_prefix(piece) == piece.size());
      seen += piece;
      ++pieces;
    });
    CHECK(pieces > 1);
    CHECK(seen == start + text);
    const std::string place = "byte " + std::to_string(seen.size());
    put(folder / "t.txt", seen + "\xf0\x9f");
    const DatasetOptions options{.train = folder / "t.txt", .tokenizer = "chars"};
    CHECK_REFUSED(DataError, open_dataset(options), place, "t.txt");
    put(folder / "t.txt", seen + "\xff" + seen);
    CHECK_REFUSED(DataError, open_dataset(options), place, "0xff");
  }
}

TEST_CASE("text: a text that changes while in use is refused", "[data]") {
  const TempFolder folder;
  const std::string text = mixed_text();
  put(folder / "t.txt", text);
  const TextTokens tokens(make_tokenizer("chars", text), std::make_shared<TextFile>(folder / "t.txt"));
  std::vector<int32_t> window(100);
  tokens.read(5000, window);
  std::fstream(folder / "t.txt", std::ios::in | std::ios::out) << std::string(text.size(), 'a');
  CHECK_REFUSED(DataError, tokens.read(5000, window), "t.txt", "It was changed while in use");
  std::filesystem::resize_file(folder / "t.txt", 1);
  CHECK_REFUSED(DataError, tokens.read(5000, window), "t.txt", "It was truncated while in use");
}

TEST_CASE("text: the ids of any window are those of the whole text", "[data]") {
  const TempFolder folder;
  const uint64_t seed = 22;
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  for (const std::string& text :
       {mixed_text(), std::string(1023, 'q'), std::string(1024, 'q'), std::string(70000, 'q')})
    for (const char* name : {"bytes", "chars"}) {
      const auto tokenizer = make_tokenizer(name, text);
      const std::vector<int32_t> ids = tokenizer->encode(text);
      put(folder / "t.txt", text);
      const auto file = std::make_shared<TextFile>(folder / "t.txt");
      for (const int64_t marks_max : {TextTokens::kMarksMax, int64_t{4}}) {
        const TextTokens tokens(tokenizer, file, marks_max);
        CHECK(tokens.hash() == xxh3_128_hex(text.data(), std::ssize(text)));
        CHECK(tokens.resident_bytes() <= 16 * (marks_max + 1));
        REQUIRE(all_of(tokens) == ids);
        for (int trial = 0; trial < 200; ++trial) {
          const size_t begin = random() % (ids.size() + 1);
          std::vector<int32_t> window(random() % (std::min<size_t>(ids.size() - begin, 3000) + 1));
          tokens.read(static_cast<int64_t>(begin), window);
          REQUIRE(std::equal(window.begin(), window.end(), ids.begin() + static_cast<std::ptrdiff_t>(begin)));
        }
      }
    }
}

TEST_CASE("shards: ids come back from 2 and 4 bytes, whole and in ranges", "[data]") {
  const TempFolder folder;
  const uint64_t seed = 21;
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  for (const std::string& text :
       {std::string("x"), std::string("hello\n\xff\x00z", 9), wide_text(), std::string(600011, 'q')}) {
    const bool wide = text.size() > 200000 && text[0] != 'q';
    const auto tokenizer = make_tokenizer(wide ? "chars" : "bytes", text);
    const std::vector<int32_t> ids = tokenizer->encode(text);
    ShardWriter writer(folder / "s", tokenizer);
    writer.append(std::span(ids).first(ids.size() / 2));
    writer.append(std::span(ids).subspan(ids.size() / 2));
    const std::string hash = writer.finish();
    const std::string bytes = bytes_in(folder / "s.bin");
    CHECK(bytes.size() == ids.size() * (wide ? 4 : 2));
    CHECK(writer.size_bytes() == static_cast<int64_t>(bytes.size()));
    CHECK(hash == xxh3_128_hex(bytes.data(), writer.size_bytes()));
    const Shards shards = open_shards(folder / "s.bin");
    CHECK(all_of(*shards.tokens) == ids);
    CHECK(shards.tokenizer->decode(ids) == text);
    put(folder / "t.txt", text);
    const TextTokens encoded(tokenizer, std::make_shared<TextFile>(folder / "t.txt", DataFormat::text));
    for (int trial = 0; trial < 20; ++trial) {
      const size_t begin = random() % ids.size();
      std::vector<int32_t> disk(random() % (std::min<size_t>(ids.size() - begin, 1000) + 1)), read = disk;
      shards.tokens->read(static_cast<int64_t>(begin), disk);
      encoded.read(static_cast<int64_t>(begin), read);
      CHECK(disk == read);
      CHECK(std::equal(disk.begin(), disk.end(), ids.begin() + static_cast<std::ptrdiff_t>(begin)));
    }
  }
  CHECK(folder.entries() == 3);  // no temporary file remains
}

TEST_CASE("shards are little-endian, as those written by hand", "[data]") {
  const TempFolder folder;
  put_shard(folder / "a", std::string("\x01\x00\xff\x00", 4));
  CHECK(all_of(*open_shards(folder / "a.bin").tokens) == std::vector<int32_t>{1, 255});
  put_shard(folder / "b", std::string("\x02\x00\x00\x00", 4), "uint32");
  CHECK(all_of(*open_shards(folder / "b.bin").tokens) == std::vector<int32_t>{2});
}

TEST_CASE("shards: damage is refused with the shard and the numbers", "[data]") {
  const TempFolder folder;
  const std::string bytes("\x01\x00\x02\x00\x03\x00", 6);
  const auto open = [&] { return open_shards(folder / "s.bin"); };
  const auto rewrite = [&](auto change) {
    TokenShardInfo info = put_shard(folder / "s", bytes);
    change(info);
    put(folder / "s.json", write_token_shard_info(info));
  };
  CHECK_REFUSED(DataError, open(), "s.bin", "does not exist");
  put(folder / "s.bin", bytes);
  CHECK_REFUSED(DataError, open(), "s.bin", "no sidecar", "s.json");
  put_shard(folder / "s", "");
  CHECK_REFUSED(DataError, open(), "is empty");
  put_shard(folder / "s", bytes);
  put(folder / "s.bin", bytes.substr(0, 5));
  CHECK_REFUSED(DataError, open(), "5 bytes", "3 tokens of 2 bytes");
  put(folder / "s.bin", bytes.substr(0, 4));
  CHECK_REFUSED(DataError, open(), "4 bytes", "3 tokens");
  put(folder / "s.bin", bytes + "\x01" + std::string(1, '\0'));
  CHECK_REFUSED(DataError, open(), "8 bytes", "3 tokens");
  put(folder / "s.bin", std::string("\x01\x00\x02\x00\x00\x01", 6));
  CHECK_REFUSED(DataError, open(), "id 256 at token 2 (byte 4)", "vocab_size = 256", "s.bin");
  put(folder / "s.bin", std::string("\x01\x00\xff\xff\x00\x01", 6));
  CHECK_REFUSED(DataError, open(), "id 65535 at token 1 (byte 2)");
  put(folder / "s.bin", std::string("\x01\x00\x02\x00\x04\x00", 6));
  CHECK_REFUSED(DataError, open(), "the hash", "was changed");
  rewrite([](TokenShardInfo& info) { info.dtype = "uint32"; });
  CHECK_REFUSED(DataError, open(), "6 bytes", "3 tokens of 4 bytes");
  rewrite([](TokenShardInfo& info) { info.dtype = "float32"; });
  CHECK_REFUSED(DataError, open(), "dtype = \"float32\"");
  rewrite([](TokenShardInfo& info) { info.count = (uint64_t{1} << 62) + 3; });  // 4 times this is 12 again, in 64 bits
  CHECK_REFUSED(DataError, open(), "4611686018427387907 tokens");
  rewrite([](TokenShardInfo& info) { info.vocab_size = 0; });
  CHECK_REFUSED(DataError, open(), "vocab_size = 0");
  rewrite([](TokenShardInfo& info) { info.vocab_size = 257; });
  CHECK_REFUSED(DataError, open(), "vocab_size = 257", "256");
  rewrite([](TokenShardInfo& info) { info.hash = "12"; });
  CHECK_REFUSED(DataError, open(), "32 lowercase");
  CHECK_REFUSED(DataError, open_shards(folder / "x*.bin"), "no file matches");
}

TEST_CASE("shards: a file cut while it is in use is an error, not a crash", "[data]") {
  const TempFolder folder;
  put_shard(folder / "s", std::string(2000, '\0'));
  const Shards shards = open_shards(folder / "s.bin");
  std::filesystem::resize_file(folder / "s.bin", 1000);
  std::vector<int32_t> ids(100);
  shards.tokens->read(0, ids);
  CHECK_REFUSED(DataError, shards.tokens->read(450, ids), "ends at byte 1000");
}

TEST_CASE("shards: offsets may exceed 4 GiB", "[data]") {
  const TempFolder folder;
  const int64_t count = (int64_t{1} << 31) + 1000;  // 4 GiB and 2000 bytes, nearly all of them a hole
  TokenShardInfo info = put_shard(folder / "big", std::string(2, '\0'));
  info.count = static_cast<uint64_t>(count);
  put(folder / "big.json", write_token_shard_info(info));
  std::filesystem::resize_file(folder / "big.bin", static_cast<uintmax_t>(2 * count));
  const int descriptor = ::open((folder / "big.bin").c_str(), O_WRONLY);
  REQUIRE(::pwrite(descriptor, "\x07", 1, 2 * (count - 1)) == 1);
  ::close(descriptor);
  const Shards shards = open_shards(folder / "big.bin", ShardCheck::size);
  CHECK(shards.tokens->count() == count);
  std::vector<int32_t> ids(2);
  shards.tokens->read(count - 2, ids);
  CHECK(ids == std::vector<int32_t>{0, 7});
}

TEST_CASE("tokenize: several shards read as one sequence", "[data]") {
  const TempFolder folder;
  std::string text;
  for (int i = 0; i < 1000; ++i) text += static_cast<char>('a' + i % 23);
  put(folder / "t.txt", text);
  for (const int64_t per_shard : {0, 1000, 999, 337, 100}) {
    const TempFolder out;
    const TokenizeSummary summary =
        tokenize({.texts = {folder / "t.txt"}, .out = out / "s", .tokenizer = "chars", .shard_tokens = per_shard});
    CHECK(summary.vocab_size == 23);
    CHECK(summary.count == 1000);
    CHECK(summary.text_bytes == 1000);
    CHECK(summary.shards.size() == (per_shard == 0 ? 1 : static_cast<size_t>((1000 + per_shard - 1) / per_shard)));
    CHECK(out.entries() == 2 * summary.shards.size());
    const Shards shards = open_shards(out / "s*.bin");
    const std::vector<int32_t> ids = all_of(*shards.tokens);
    CHECK(shards.tokenizer->decode(ids) == text);
    std::vector<int32_t> part(400);
    for (const int64_t begin : {0, 99, 100, 336, 337, 600}) {
      shards.tokens->read(begin, part);
      CHECK(std::equal(part.begin(), part.end(), ids.begin() + begin));
    }
  }
  // There are fewer shards than an earlier command wrote under the same name.
  const TempFolder again;
  for (const auto& [per_shard, shards, removed] : {std::tuple{100, 10, 0}, {337, 3, 7}, {100, 10, 0}}) {
    const TokenizeSummary summary =
        tokenize({.texts = {folder / "t.txt"}, .out = again / "s", .tokenizer = "chars", .shard_tokens = per_shard});
    CHECK(summary.removed == removed);
    CHECK(again.entries() == 2 * static_cast<size_t>(shards));
    CHECK(open_shards(again / "s-*.bin").tokens->count() == 1000);
  }
  CHECK_REFUSED(ResourceError, tokenize({.texts = {folder / "t.txt"}, .out = folder / "t.txt/s"}), "cannot be written");
  put(folder / "bad.txt", "ab\xfe");
  CHECK_REFUSED(DataError, tokenize({.texts = {folder / "bad.txt"}, .out = folder / "s", .tokenizer = "chars"}),
                "byte 2", "bad.txt");
  CHECK(folder.entries() == 2);
}

TEST_CASE("tokenize: a shard that would replace its own text is refused, and the text is whole", "[data]") {
  const TempFolder folder;
  for (const char* name : {"x.bin", "x.json", "x-00001.bin"}) {
    put(folder / name, "some text");
    const int64_t shard_tokens = std::string(name).starts_with("x-") ? 5 : 0;
    for (const std::string& out : {folder / "x", folder / "./x"})
      CHECK_REFUSED(ConfigError, tokenize({.texts = {folder / name}, .out = out, .shard_tokens = shard_tokens}),
                    "would be overwritten", name);
    CHECK(bytes_in(folder / name) == "some text");
    CHECK(folder.entries() == 1);
    std::filesystem::remove(folder / name);
  }
}

TEST_CASE("tokenize: the folder of the shards is created, whatever the tokenizer", "[data]") {
  const TempFolder folder;
  put(folder / "t.txt", "some text");
  const std::string file = golden_dir() + "/tokenizers/llama3.tokenizer.json";
  for (const std::string& tokenizer : {std::string("bytes"), file}) {
    const std::string out = folder / (tokenizer == file ? "new/file/s" : "new/bytes/s");
    tokenize({.texts = {folder / "t.txt"}, .out = out, .tokenizer = tokenizer});
    CHECK(open_shards(out + ".bin").tokens->count() > 0);
  }
}

TEST_CASE("shards: different vocabularies in one pattern are refused", "[data]") {
  const TempFolder folder;
  put(folder / "a.txt", "abc");
  put(folder / "b.txt", "abd");
  tokenize({.texts = {folder / "a.txt"}, .out = folder / "a", .tokenizer = "chars"});
  tokenize({.texts = {folder / "b.txt"}, .out = folder / "b", .tokenizer = "chars"});
  CHECK_REFUSED(DataError, open_shards(folder / "?.bin"), "different tokenizers", "a.bin", "b.bin");
}

TEST_CASE("shards: random damage never does worse than a DataError", "[data]") {
  const TempFolder folder;
  put(folder / "t.txt", "the quick brown fox jumps over the lazy dog, twice");
  tokenize({.texts = {folder / "t.txt"}, .out = folder / "s", .tokenizer = "chars"});
  const std::string good_json = bytes_in(folder / "s.json"), good_bin = bytes_in(folder / "s.bin");
  const uint64_t seed = 22;
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  int accepted = 0;
  for (int trial = 0; trial < 3000; ++trial) {
    std::string json = good_json, bin = good_bin;
    std::string& target = trial % 3 == 0 ? bin : json;
    switch (random() % 4) {
      case 0:
        target[random() % target.size()] ^= static_cast<char>(1 << random() % 8);
        break;
      case 1:
        target.resize(random() % target.size());
        break;
      case 2:
        target.insert(random() % target.size(), 1, static_cast<char>(random()));
        break;
      default:
        for (char& byte : target) byte = static_cast<char>(random());
        break;
    }
    put(folder / "s.json", json);
    put(folder / "s.bin", bin);
    try {
      const Shards shards = open_shards(folder / "s.bin");
      ++accepted;
      if (all_of(*shards.tokens).size() != good_bin.size() / 2 || bin != good_bin)
        FAIL("damage accepted in trial " << trial);
    } catch (const DataError&) {
    }
  }
  CHECK(accepted < 600);  // accepted damage: white space, or another character in the vocabulary that keeps it sorted
}
