// SPDX-License-Identifier: Apache-2.0
// Replays the corpus of every fuzzer and mutations of it, and checks what each attack yields.

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <set>
#include <sstream>

#include "tests/fuzz/attacks.h"
#include "tests/fuzz/targets.h"
#include "tests/paths.h"
#include "tests/sample.h"
#include "tests/test.hpp"

using namespace slipstream;
using namespace slipstream::fuzz;

namespace {

constexpr uint64_t kSeed = 20261124;

/// The files of a target's corpus, by their names.
std::map<std::string, std::string> corpus_of(const Target& target) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(source_dir() + "/tests/fuzz/corpus/" + target.name)) {
    std::ifstream file(entry.path(), std::ios::binary);
    std::ostringstream bytes;
    bytes << file.rdbuf();
    files[entry.path().filename().string()] = bytes.str();
  }
  return files;
}

class Mutator {
 public:
  explicit Mutator(uint64_t seed) : random_(seed) {}

  std::string operator()(std::string bytes) {
    for (size_t changes = 1 + below(3); changes > 0; --changes) change(bytes);
    return bytes;
  }

 private:
  size_t below(size_t end) { return static_cast<size_t>(random_() % std::max<size_t>(end, 1)); }

  void change(std::string& bytes) {
    static constexpr uint64_t kExtremes[] = {0, 1, 0xff, 1u << 31, 0xffffffff, uint64_t{1} << 63, ~uint64_t{0}};
    static constexpr std::string_view kNumbers[] = {"-1", "0", "9223372036854775807", "18446744073709551615", "1e999"};
    static constexpr std::string_view kPieces[] = {"[", "{", "\"", "]}", ",", "\\u0000", "\n", ".a", "\xff", "null"};
    const size_t at = below(bytes.size());
    switch (below(6)) {
      case 0:
        if (!bytes.empty()) bytes[at] = static_cast<char>(bytes[at] ^ (1 << below(8)));
        break;
      case 1:
        bytes.resize(at);
        break;
      case 2: {  // a length field
        const uint64_t extreme = kExtremes[below(std::size(kExtremes))];
        const size_t to = below(2) == 0 ? 0 : at;
        std::memcpy(bytes.data() + to, &extreme, std::min<size_t>(8, bytes.size() - to));
        break;
      }
      case 3: {  // a number in a text
        const size_t begin = bytes.find_first_of("0123456789", at);
        if (begin == std::string::npos) break;
        const size_t end = std::min(bytes.find_first_not_of("0123456789", begin), bytes.size());
        bytes.replace(begin, end - begin, kNumbers[below(std::size(kNumbers))]);
        break;
      }
      case 4:
        bytes.insert(at, kPieces[below(std::size(kPieces))]);
        break;
      default:
        bytes.insert(at, bytes.substr(at, below(64)));
    }
  }

  std::mt19937_64 random_;
};

std::string hex_of(std::string_view bytes) {
  std::string digits;
  for (const char byte : bytes.substr(0, 1024)) digits += fmt::format("{:02x}", static_cast<uint8_t>(byte));
  return digits;
}

}  // namespace

TEST_CASE("fuzz_corpus: every attack yields its error", "[fuzz]") {
  for (const Target& target : kTargets) {
    const auto corpus = corpus_of(target);
    std::set<std::string> named;
    for (const Attack& attack : attacks()) {
      if (attack.target != target.name) continue;
      INFO(attack.target << "/" << attack.file);
      CHECK(named.insert(attack.file).second);
      REQUIRE(corpus.contains(attack.file));
      const Outcome outcome = target.run(corpus.at(attack.file));
      CHECK(outcome.breach == "");
      CHECK_FALSE(outcome.accepted);
      CHECK(outcome.code == attack.code);
      CHECK_THAT(outcome.sentence, Catch::Contains(attack.part));
    }
    for (const auto& [name, bytes] : corpus) {
      INFO(target.name << "/" << name);
      if (name.starts_with("valid_"))
        CHECK(target.run(bytes).sentence == "");
      else if (!name.starts_with("found_"))
        CHECK(named.contains(name));
    }
  }
}

TEST_CASE("fuzz_corpus: every reader keeps its contract on the corpus and its mutations", "[fuzz]") {
  const int mutations = test_everything() ? 1000 : 20;
  int64_t inputs = 0;
  for (const Target& target : kTargets) {
    Mutator mutated(kSeed);
    for (const auto& [name, bytes] : corpus_of(target)) {
      for (int i = 0; i <= mutations; ++i, ++inputs) {
        const std::string input = i == 0 ? bytes : mutated(bytes);
        const Outcome outcome = target.run(input);
        if (outcome.breach.empty()) continue;
        FAIL_CHECK(target.name << "/" << name << ", mutation " << i << " of seed " << kSeed << ": " << outcome.breach
                               << "\ninput: " << hex_of(input));
      }
    }
  }
  std::printf("COUNTED %lld inputs of %zu readers, seed %llu\n", static_cast<long long>(inputs), std::size(kTargets),
              static_cast<unsigned long long>(kSeed));
}

TEST_CASE("fuzz_corpus: attacks by size are refused within the limits of memory", "[fuzz]") {
  const auto repeated = [](size_t times, std::string_view text) {
    std::string out;
    for (size_t i = 0; i < times; ++i) out += text;
    return out;
  };
  const auto refusal = [](const Target& target, const std::string& input) {
    const Outcome outcome = target.run(input);
    CHECK(outcome.breach == "");
    return outcome.sentence;
  };
  // There are 100,000 tensors at the same place.
  std::string header = "{";
  for (int i = 0; i < 100'000; ++i)
    header += fmt::format("{}\"{}\":{{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8]}}", i > 0 ? "," : "", i);
  header += "}";
  std::string file(8, '\0');
  const uint64_t header_bytes = header.size();
  std::memcpy(file.data(), &header_bytes, 8);
  CHECK_THAT(refusal(kTargets[0], file + header + std::string(8, '\0')),
             Catch::Contains("begins at byte 0, need 8, the end of the previous tensor"));
  CHECK_THAT(refusal(kTargets[2], repeated(1 << 20, "[")), Catch::Contains("nests deeper than 64 levels"));
  CHECK_THAT(refusal(kTargets[3], std::string((1 << 20) + 1, '#')), Catch::Contains("is larger than 1 MiB"));
  CHECK_THAT(refusal(kTargets[3], repeated(1 << 18, "a.") + "a = 1"),
             Catch::Contains("has a key of more than 16 parts"));
  CHECK_THAT(refusal(kTargets[3], "x" + std::string(1 << 19, 'k') + " = 1"), Catch::Contains("unknown key 'xkkk"));
}

TEST_CASE("fuzz_corpus: the judge finds every breach", "[fuzz]") {
  CHECK(outcome_of(0, [] {}).accepted);
  CHECK(outcome_of(0, [] { throw DataError("[data] x."); }).breach == "");
  CHECK(outcome_of(0, [] { throw DataError("[data] x"); }).breach != "");
  CHECK(outcome_of(0, [] { throw DataError("[data] a\nb."); }).breach != "");
  CHECK(outcome_of(0, [] { throw DataError("[data] {}.", "\xff"); }).breach != "");
  CHECK(outcome_of(0, [] { throw DataError("[data] {}.", std::string(3000, 'x')); }).breach != "");
  CHECK(outcome_of(0, [] { SLIP_ASSERT(1 > 2); }).breach != "");
  CHECK(outcome_of(0, [] { throw std::out_of_range("at"); }).breach != "");
  CHECK(outcome_of(0, [] { require(false, "property"); }).breach != "");
  CHECK(outcome_of(0, [] { must_succeed([] { throw DataError("[data] x."); }); }).breach != "");
  CHECK(outcome_of(1000, [] { std::vector<char>(8 << 20); }).breach == "");
  CHECK(outcome_of(1000, [] { std::vector<char>(10 << 20); }).breach != "");
  CHECK(first_of({outcome_of(0, [] {}), outcome_of(0, [] { require(false, "property"); })}).breach != "");
}
