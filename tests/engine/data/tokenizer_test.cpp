// SPDX-License-Identifier: Apache-2.0
// Laws of tokenizers and of the hash.

#include "engine/data/tokenizers/make_tokenizer.h"

#include <iostream>
#include <random>
#include <set>

#include "engine/base/files.h"
#include "engine/base/hash.h"
#include "engine/base/utf8.h"
#include "engine/data/sidecar.h"
#include "tests/engine/data/disk.h"
#include "tests/test.hpp"

using namespace slipstream;
using namespace slipstream::data;
using namespace slipstream::tests;

namespace {

std::string random_bytes(std::mt19937_64& random, size_t size) {
  std::string bytes(size, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

std::string random_utf8(std::mt19937_64& random, size_t points) {
  std::string text;
  while (points > 0) {
    const auto value = static_cast<uint32_t>(random() % (random() % 2 ? 0x110000 : 0x300));
    if (value >= 0xd800 && value <= 0xdfff) continue;
    append_code_point(text, value);
    --points;
  }
  return text;
}

}  // namespace

TEST_CASE("utf8: every code point round-trips, and all other bytes are refused", "[data]") {
  std::string text;
  for (uint32_t value = 0; value < 0x110000; ++value) {
    if (value >= 0xd800 && value <= 0xdfff) continue;
    text.clear();
    append_code_point(text, value);
    const CodePoint point = next_code_point(text, 0);
    if (point.value != value || point.size_bytes != static_cast<int>(text.size())) FAIL("code point " << value);
    if (text.size() > 1 && next_code_point(std::string_view(text).substr(0, text.size() - 1), 0).size_bytes != 0)
      FAIL("cut code point " << value);
  }
  for (const char* bad :
       {"\x80", "\xc0\x80", "\xc1\xbf", "\xe0\x9f\xbf", "\xed\xa0\x80", "\xed\xbf\xbf", "\xf0\x8f\xbf\xbf",
        "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xff", "\xe2\x28\xa1", "\xc3\x28"})
    CHECK(next_code_point(bad, 0).size_bytes == 0);
}

TEST_CASE("bytes: decode(encode(x)) is x for random bytes", "[data]") {
  const uint64_t seed = 11;
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  const auto tokenizer = make_tokenizer("bytes", "");
  CHECK(tokenizer->vocab_size() == 256);
  for (const size_t size : {0, 1, 2, 255, 256, 257, 4099}) {
    const std::string text = random_bytes(random, size);
    CHECK(tokenizer->decode(tokenizer->encode(text)) == text);
  }
  CHECK(tokenizer->encode("\x80"
                          "a\xff") == std::vector<int32_t>{128, 97, 255});
}

TEST_CASE("chars: ids are the ranks of the sorted distinct code points", "[data]") {
  const auto tokenizer = make_tokenizer("chars",
                                        "b\xc3\xa9"
                                        "a\nb\xf0\x9f\x99\x82");  // b e-acute a newline b smile
  CHECK(tokenizer->vocab_size() == 5);
  CHECK(tokenizer->vocabulary() == std::vector<std::string>{"\n", "a", "b", "\xc3\xa9", "\xf0\x9f\x99\x82"});
  CHECK(tokenizer->encode("ab\xc3\xa9") == std::vector<int32_t>{1, 2, 3});
  CHECK(tokenizer->decode(std::vector<int32_t>{4, 0}) == "\xf0\x9f\x99\x82\n");

  const uint64_t seed = 12;
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  for (const size_t points : {1, 2, 97, 1024}) {
    const std::string text = random_utf8(random, points);
    const auto own = make_tokenizer("chars", text);
    CHECK(own->decode(own->encode(text)) == text);
    const auto restored = restore_tokenizer("chars", own->vocabulary(), own->vocab_size(), "here");
    CHECK(restored->encode(text) == own->encode(text));
  }
}

TEST_CASE("tokenizers: pieces are bounded and make up the whole; a place is counted from the beginning of the text",
          "[data]") {
  std::mt19937_64 random(17);
  for (const size_t points :
       {size_t{0}, Tokenizer::kPieceIds - 1, Tokenizer::kPieceIds, 2 * Tokenizer::kPieceIds + 5}) {
    const std::string text = random_utf8(random, points) + "a";
    for (const char* name : {"bytes", "chars"}) {
      const auto tokenizer = make_tokenizer(name, text);
      std::vector<int32_t> ids;
      int64_t bytes = 0;
      const int64_t done = tokenizer->encode_window({.text = text}, [&](std::span<const int32_t> piece, int64_t size) {
        REQUIRE(!piece.empty());
        REQUIRE(piece.size() <= Tokenizer::kPieceIds);
        REQUIRE(tokenizer->decode(piece) == text.substr(static_cast<size_t>(bytes), static_cast<size_t>(size)));
        bytes += size;
        ids.insert(ids.end(), piece.begin(), piece.end());
      });
      CHECK(done == std::ssize(text));
      CHECK(ids == tokenizer->encode(text));
      CHECK(tokenizer->decode(ids) == text);
    }
  }
  const std::string late = std::string(Tokenizer::kPieceIds + 3, 'a') + "z";
  CHECK_REFUSED(DataError, make_tokenizer("chars", "a")->encode(late),
                "byte " + std::to_string(Tokenizer::kPieceIds + 3));
}

TEST_CASE("tokenizers: bad input is refused with the place", "[data]") {
  CHECK_REFUSED(DataError,
                make_tokenizer("chars",
                               "abc\xff"
                               "d"),
                "not UTF-8", "byte 3", "0xff");
  CHECK_REFUSED(DataError, make_tokenizer("chars", "ab\xe2\x82"), "byte 2");
  CHECK_REFUSED(DataError, make_tokenizer("chars", ""), "at least 1 character");
  const auto tokenizer = make_tokenizer("chars", "ab");
  CHECK_REFUSED(DataError, tokenizer->encode("abz"), "U+007A", "byte 2", "2 characters");
  CHECK_REFUSED(DataError, tokenizer->encode("a\xf0\x9f\x99\x82"), "U+1F642", "byte 1");
  CHECK_REFUSED(DataError, tokenizer->decode(std::vector<int32_t>{0, 2}), "id 2 at index 1");
  CHECK_REFUSED(DataError, tokenizer->decode(std::vector<int32_t>{-1}), "id -1");
  CHECK_REFUSED(DataError, make_tokenizer("bytes", "")->decode(std::vector<int32_t>{256}), "id 256", "255");
  CHECK_REFUSED(DataError, make_tokenizer("gpt2/tokenizer.json", "x"), "gpt2/tokenizer.json", "does not exist");
  CHECK_REFUSED(ConfigError, make_tokenizer("words", "x"), "\"words\" is unknown");
}

TEST_CASE("tokenizers: the sidecar brings them back, a damaged one is refused", "[data]") {
  const TempFolder folder;
  const std::string path = folder / kTokenizerFile;
  for (const char* name : {"bytes", "chars"}) {
    const std::string text("q\"\\\n\0\x7f\xc3\xa9", 8);
    const auto tokenizer = make_tokenizer(name, text);
    for (const auto& [file, bytes] : write_tokenizer(*tokenizer)) put(folder / file, bytes);
    const auto back = load_tokenizer(folder.path());
    CHECK(back->name() == name);
    CHECK(back->vocabulary() == tokenizer->vocabulary());
    CHECK(back->encode(text) == tokenizer->encode(text));
  }
  const auto refused = [&](const std::string& json, const std::string& part) {
    put(path, json);
    CHECK_REFUSED(DataError, load_tokenizer(folder.path()), part, std::string(kTokenizerFile));
  };
  refused("", "is empty");
  refused("[]", "does not begin with {");
  refused("{", "not JSON");
  refused("{} x", "not JSON");
  refused("{}", "lacks the key \"tokenizer\"");
  refused(R"({"tokenizer":"bytes","tokenizer":"chars"})", "duplicate key");
  refused(R"({"tokenizer":"bytes","x":1})", "unknown key \"x\"");
  refused(R"({"tokenizer":7})", "an integer in \"tokenizer\"");
  refused(R"({"tokenizer":"words"})", "names the tokenizer \"words\" without vocab_size");
  refused(R"({"tokenizer":"","vocab_size":7})", "names the tokenizer \"\"");
  refused(R"({"tokenizer":"words","vocab_size":0})", "vocab_size = 0");
  refused(R"({"tokenizer":"words","vocab_size":1,"vocabulary":["a"]})", "need none");
  refused(R"({"tokenizer":"bytes","vocab_size":257})", "vocab_size = 257");
  refused(R"({"tokenizer":"chars"})", "lists no characters");
  refused(R"({"tokenizer":"chars","vocabulary":["a","a"]})", "sorted and distinct");
  refused(R"({"tokenizer":"chars","vocabulary":["b","a"]})", "sorted and distinct");
  refused(R"({"tokenizer":"chars","vocabulary":["ab"]})", "need one character");
  refused(R"({"tokenizer":"chars","vocabulary":[""]})", "need one character");
  refused(R"({"tokenizer":"chars","vocabulary":["\ud800"]})", "not JSON");
  refused(R"({"tokenizer":"chars","vocabulary":[7]})", "need a string");
  refused(R"({"tokenizer":"bytes","vocabulary":["a"]})", "need none");
  refused(std::string("{\"tokenizer\":\"bytes\"}\0x", 23), "not JSON");
  refused("{\"tokenizer\":" + std::string(100000, '['), "deeper than 64");
  CHECK_REFUSED(DataError, load_tokenizer(folder / "none"), "has no tokenizer", "slipstream_tokenizer.json");
}

TEST_CASE("tokenizers: an external tokenizer has a name and a number of ids, and no text", "[data]") {
  const TempFolder folder;
  for (const auto& [file, bytes] : write_tokenizer(*restore_tokenizer("gpt2", {}, 50257, "here")))
    put(folder / file, bytes);
  const auto tokenizer = load_tokenizer(folder.path());
  CHECK(tokenizer->name() == "gpt2");
  CHECK(tokenizer->vocab_size() == 50257);
  CHECK(!tokenizer->knows_text());
  CHECK(tokenizer->vocabulary().empty());
  CHECK_REFUSED(DataError, tokenizer->encode("a"), "gpt2", "by name only", "token shards");
  CHECK_REFUSED(DataError, tokenizer->decode(std::vector<int32_t>{1}), "gpt2", "by name only");
  CHECK(make_tokenizer("bytes", "")->knows_text());
}

TEST_CASE("hash: published values, and pieces equal the whole", "[data]") {
  CHECK(xxh3_128_hex("", 0) == "99aa06d3014798d86001c324468d497f");
  CHECK(xxh3_128_hex("a", 1) == "a96faf705af16834e6c632b61e964e1f");
  const uint64_t seed = 13;
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  for (const size_t size : {1, 16, 17, 240, 241, 1024, 100003}) {
    const std::string bytes = random_bytes(random, size);
    Xxh3 pieces;
    for (size_t at = 0; at < size;) {
      const size_t take = std::min<size_t>(size - at, random() % 1000);
      pieces.update(bytes.data() + at, static_cast<int64_t>(take));
      at += take;
    }
    CHECK(pieces.hex() == xxh3_128_hex(bytes.data(), static_cast<int64_t>(size)));
  }
}

TEST_CASE("files::shown: errors print no control characters", "[data]") {
  CHECK(files::shown(std::string("a\0b\n\xff\xc3\xa9", 7)) == "\"a\\x00b\\x0a\\xff\xc3\xa9\"");
  CHECK(files::shown(std::string(1000, 'x')).size() < 300);
}
