// SPDX-License-Identifier: Apache-2.0
// The text of generated ids: what is shown and when, against the text of all ids at once.

#include "trainer/runtime/text/text_stream.h"

#include <algorithm>
#include <random>

#include "engine/base/utf8.h"
#include "engine/data/tokenizers/make_tokenizer.h"
#include "tests/paths.h"
#include "tests/test.hpp"

using namespace slipstream;
using namespace slipstream::runtime;

namespace {

struct Expected {
  std::string text;  // up to a stop text
  bool stopped = false;
};

Expected expected_of(const data::Tokenizer& tokenizer, const std::vector<int32_t>& ids, size_t prompt,
                     const std::vector<std::string>& stops) {
  const std::string all = tokenizer.decode(ids).substr(tokenizer.decode(std::span(ids).first(prompt)).size());
  size_t end = std::string::npos;
  for (const std::string& stop : stops) end = std::min(end, all.find(stop));
  return {all.substr(0, end), end != std::string::npos};
}

bool is_valid(std::string_view text) { return valid_utf8_prefix(text) == text.size(); }

/// Could more text turn the end of this one into a stop text?
bool may_stop(std::string_view text, const std::vector<std::string>& stops) {
  for (const std::string& stop : stops)
    for (size_t size = 1; size < stop.size(); ++size)
      if (text.ends_with(stop.substr(0, size))) return true;
  return false;
}

}  // namespace

TEST_CASE("text stream: shows the text of all ids, whole characters at once, and no stop text", "[generate]") {
  std::vector<std::shared_ptr<const data::Tokenizer>> tokenizers;
  tokenizers.push_back(data::make_tokenizer("bytes", ""));
  for (const char* name : {"gpt2.tokenizer.json", "gpt2_prefix.tokenizer.json", "llama2.tokenizer.json",
                           "llama2_normalized.tokenizer.json", "cl100k_base_ranks.tiktoken"})
    tokenizers.push_back(data::load_tokenizer_file(golden_dir() + "/tokenizers/" + std::string(name)));
  const std::string kText =
      "A na\xc3\xafve \xe2\x82\xac 5 caf\xc3\xa9 \xf0\x9f\x98\x80\xf0\x9f\x98\x80 end. The end of it";
  const uint32_t seed = 3;
  CAPTURE(seed);
  std::mt19937 random(seed);
  int stopped_streams = 0, broken_streams = 0;
  for (const auto& tokenizer : tokenizers)
    for (int round = 0; round < 300; ++round) {
      std::vector<int32_t> ids = tokenizer->encode(kText);
      // Every other text has some ids at random: bytes that are not UTF-8, and begins of stop texts that do not go on.
      if (round % 2 == 1)
        for (int32_t& id : ids)
          if (random() % 3 == 0) {
            do id = static_cast<int32_t>(random() % static_cast<uint32_t>(tokenizer->vocab_size()));
            while (!tokenizer->has_text(id));
          }
      const size_t prompt = 1 + random() % (ids.size() - 1);
      std::vector<std::string> stops;
      const std::string whole = valid_utf8(tokenizer->decode(ids));
      std::vector<size_t> characters{0};
      while (characters.back() < whole.size())
        characters.push_back(characters.back() +
                             static_cast<size_t>(next_code_point(whole, characters.back()).size_bytes));
      for (uint32_t i = random() % 3; i > 0; --i) {
        const size_t first = random() % (characters.size() - 1),
                     last = std::min(first + 1 + random() % 4, characters.size() - 1);
        // Some that come, some that only begin.
        stops.push_back(whole.substr(characters[first], characters[last] - characters[first]) +
                        (random() % 2 == 0 ? "~" : ""));
      }
      CAPTURE(tokenizer->name(), round, prompt, stops, whole);
      std::string shown;
      bool only_valid = true, in_time = true, same = true, stopped = false;
      TextStream stream(*tokenizer, std::span(ids).first(prompt), stops, [&](std::string_view part) {
        only_valid &= is_valid(part);
        shown += part;
      });
      size_t count = prompt;
      while (count < ids.size() && !stopped) {
        stopped = stream.add(ids[count++]);
        const Expected expected =
            expected_of(*tokenizer, {ids.begin(), ids.begin() + static_cast<int64_t>(count)}, prompt, stops);
        same &= stopped == expected.stopped && stream.text() == valid_utf8(expected.text) &&
                valid_utf8(expected.text).starts_with(shown);
        if (stopped || (is_valid(expected.text) && !may_stop(expected.text, stops)))
          in_time &= shown == valid_utf8(expected.text);
      }
      stream.finish();
      CHECK(only_valid);
      CHECK(in_time);
      CHECK(same);
      CHECK(shown == stream.text());
      stopped_streams += stopped;
      broken_streams += shown.find("\xef\xbf\xbd") != std::string::npos;
    }
  CHECK(stopped_streams > 100);
  CHECK(broken_streams > 100);
}
