// SPDX-License-Identifier: Apache-2.0
// Added tokens in texts, whole and in windows: the ids of the library tokenizers.

#include <fmt/core.h>

#include "engine/base/json.h"
#include "engine/data/tokenizers/make_tokenizer.h"
#include "engine/data/tokenizers/tokenizer_json.h"
#include "tests/sample.h"
#include "tests/test.hpp"

using namespace slipstream;
using namespace slipstream::data;

namespace {

/// A tokenizer of bytes, whose ids are their values, and of added tokens from id 256 on, each of which has `members`.
std::shared_ptr<const Tokenizer> with_added(std::initializer_list<std::pair<const char*, const char*>> tokens) {
  Json file = Json::parse(make_tokenizer("bytes", "")->hugging_face_files().at(0).second);
  file["pre_tokenizer"]["use_regex"] = true;
  file["added_tokens"] = Json::array();
  for (const auto& [content, members] : tokens) {
    Json token = Json::parse(members);
    token["id"] = 256 + file["added_tokens"].as_array().size();
    token["content"] = content;
    file["added_tokens"].push_back(std::move(token));
  }
  return parse_tokenizer_json({.text = file.dump(), .where = "T"});
}

/// The bytes as they are, and the added tokens as [0], [1], ...
std::string shown_ids(const std::vector<int32_t>& ids) {
  std::string text;
  for (const int32_t id : ids) text += id < 256 ? std::string(1, static_cast<char>(id)) : fmt::format("[{}]", id - 256);
  return text;
}

std::vector<int32_t> ids_in_windows(const Tokenizer& tokenizer, std::string_view text, size_t window_bytes,
                                    int64_t stop) {
  std::vector<int32_t> seen;
  for (size_t begin = 0, size = window_bytes; begin < text.size();) {
    const int64_t done = tokenizer.encode_window(
        {.text = text.substr(begin, size), .first = begin == 0, .last = begin + size >= text.size(), .stop = stop},
        [&](std::span<const int32_t> piece, int64_t) { seen.insert(seen.end(), piece.begin(), piece.end()); });
    size = done > 0 ? window_bytes : size + 1;
    begin += static_cast<size_t>(done);
  }
  return seen;
}

struct Row {
  const Tokenizer& tokenizer;
  const char *text, *ids;  // of the library tokenizers 0.23.3
};

/// Checks the text whole and in windows of every small size.
void check_rows(std::span<const Row> rows) {
  for (const Row& row : rows) {
    INFO(row.text);
    const std::vector<int32_t> ids = row.tokenizer.encode(row.text);
    CHECK(shown_ids(ids) == row.ids);
    for (size_t window = 1; window < 16; ++window)
      for (const int64_t stop : {-1, 1, 3}) CHECK(ids_in_windows(row.tokenizer, row.text, window, stop) == ids);
  }
}

}  // namespace

TEST_CASE("added tokens: white space that they take ends before the next token", "[data]") {
  constexpr const char* kRight = R"({"rstrip": true, "normalized": false})";
  constexpr const char* kPlain = R"({"normalized": false})";
  constexpr const char* kBoth = R"({"lstrip": true, "rstrip": true, "normalized": false})";
  const auto spaces =
      with_added({{"<pad>", kRight}, {"  ", kPlain}, {"<m>", R"({"lstrip": true, "normalized": false})"}});
  const auto word = with_added({{"<pad>", kRight}, {" L", kPlain}, {"\n", kPlain}});
  const auto dropped = with_added({{"<pad>", kRight}, {"  ", kBoth}, {"\n", kPlain}});
  const auto normalized = with_added({{"<pad>", R"({"rstrip": true})"}, {"  ", "{}"}});
  const auto mixed = with_added({{"<pad>", kRight}, {"  ", "{}"}});
  const Row rows[] = {
      {*spaces, "<pad>  L", "[0][1]L"},
      {*spaces, "<pad>   L", "[0][1] L"},
      {*spaces, "<pad>     L", "[0][1][1] L"},
      {*spaces, "<pad> L", "[0]L"},
      {*spaces, "<pad>  <pad>   ", "[0][1][0][1] "},
      {*spaces, "<pad> <m> \n <m>", "[0][2][2]"},
      {*spaces, "<pad>   <m>", "[0][1][2]"},
      {*spaces, "a   <m>", "a[1][2]"},
      {*word, "<pad>  L", "[0][1]"},
      {*word, "<pad>   L x", "[0][1] x"},
      {*word, "<pad> \n L", "[0][2][1]"},
      {*word, "<pad> \n  x", "[0][2]  x"},
      {*dropped, "<pad>  L", "[0]L"},
      {*dropped, "<pad>     L", "[0]L"},
      {*dropped, "<pad>   \n x", "[0][2] x"},
      {*dropped, "a     L", "a[1]L"},
      {*normalized, "<pad>   L", "[0][1] L"},
      {*mixed, "<pad>  L  L", "[0]L[1]L"},
  };
  check_rows(rows);
  // Every token ends the white space of the one before it, so the time stays linear.
  const std::string text(test_everything() ? 1 << 22 : 1 << 18, ' ');
  CHECK(with_added({{"  ", kRight}})->encode(text).size() == text.size() / 2);
}

TEST_CASE("added tokens: a single word has no word characters beside it", "[data]") {
  const auto raw = with_added({{"foo", R"({"single_word": true, "normalized": false})"},
                               {"oo b", R"({"normalized": false})"},
                               {"<p>", R"({"normalized": false})"},
                               {"<a", R"({"normalized": false})"}});
  const auto normalized = with_added({{"<pad>", R"({"rstrip": true, "normalized": false})"},
                                      {"foo", R"({"single_word": true, "lstrip": true})"},
                                      {"  bar", R"({"single_word": true, "normalized": false})"}});
  const Row rows[] = {
      {*raw, "foo", "[0]"},
      {*raw, "xfoo foox -foo-", "xfoo foox -[0]-"},
      {*raw, "foo b xfoo b", "[0] b xfoo b"},
      {*raw, "<p>foo<p><afoo foo", "[2][0][2][3]foo [0]"},
      {*raw, "_foo foo_ \u00e9foo \u4e2dfoo 1foo foo\u0301", "_foo foo_ \u00e9foo \u4e2dfoo 1foo foo\u0301"},
      {*raw, "foo\u200d \u2014foo\u2581 \u00b2foo", "foo\u200d \u2014[0]\u2581 \u00b2[0]"},
      {*raw, "foofoo foofoob", "foofoo foofoob"},
      {*normalized, "<pad>  foo x  foo  food", "[0][1] x[1]  food"},
      {*normalized, "<pad>   bar", "[0][2]"},
      {*normalized, "<pad>   bars foo", "[0]bars[1]"},
      {*normalized, "x  bar", "x  bar"},
  };
  check_rows(rows);
}
