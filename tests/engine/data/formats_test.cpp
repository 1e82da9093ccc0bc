// SPDX-License-Identifier: Apache-2.0
// Data of other programs: the same ids and documents as written, and every kind of damage is named.

#include "engine/data/datasets/foreign_tokens.h"

#include <numeric>
#include <random>

#include "engine/base/hash.h"
#include "engine/data/datasets/dataset.h"
#include "engine/data/datasets/json_lines.h"
#include "engine/data/datasets/tokenize.h"
#include "engine/data/tokenizers/make_tokenizer.h"
#include "tests/engine/data/disk.h"
#include "tests/paths.h"
#include "tests/test.hpp"

using namespace slipstream;
using namespace slipstream::data;
using namespace slipstream::tests;

namespace {

template <typename T>
std::string packed(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

template <typename T>
std::string packed_as(const std::vector<int32_t>& values) {
  return packed(std::vector<T>(values.begin(), values.end()));
}

std::string llm_c(int32_t magic, int32_t version, int32_t count, const std::string& ids) {
  std::vector<int32_t> header(256);
  header[0] = magic;
  header[1] = version;
  header[2] = count;
  return packed(header) + ids;
}

struct Megatron {
  std::vector<int32_t> lengths;
  std::vector<int64_t> offsets, documents;
  char type = 8;
  uint64_t version = 1;
};

std::string index_of(const Megatron& index) {
  return std::string("MMIDIDX\0\0", 9) + packed(std::vector<uint64_t>{index.version}) + index.type +
         packed(std::vector<uint64_t>{index.lengths.size(), index.documents.size()}) + packed(index.lengths) +
         packed(index.offsets) + packed(index.documents);
}

/// All ids, and the beginnings of all documents, read in windows of `size`.
std::pair<std::vector<int32_t>, std::vector<int64_t>> contents(const TokenSource& source, int64_t size) {
  std::vector<int32_t> ids(static_cast<size_t>(source.count()));
  std::vector<int64_t> begins;
  for (int64_t begin = 0; begin < source.count(); begin += size) {
    std::vector<int64_t> found;
    source.read(
        begin,
        std::span(ids).subspan(static_cast<size_t>(begin), static_cast<size_t>(std::min(size, source.count() - begin))),
        &found);
    for (const int64_t at : found) begins.push_back(begin + at);
  }
  return {ids, begins};
}

using Begins = std::vector<int64_t>;

}  // namespace

TEST_CASE("formats: llm.c files have the ids and documents of their header's type", "[data]") {
  const TempFolder folder;
  const std::vector<int32_t> gpt2{50256, 1, 2, 50256, 3, 4, 5, 50256, 6}, llama{128000, 70000, 2, 128000, 7};
  put(folder / "g.bin", llm_c(20240520, 1, 9, packed_as<uint16_t>(gpt2)));
  put(folder / "l.bin", llm_c(20240801, 7, 5, packed_as<uint32_t>(llama)));
  CHECK(format_of(folder / "g.bin", DataFormat::automatic) == DataFormat::llm_c);
  CHECK(format_of(folder / "l.bin", DataFormat::automatic) == DataFormat::llm_c);
  for (const int64_t size : {1, 2, 4, 9}) {
    const Dataset data = open_dataset({.train = folder / "g.bin", .validation_fraction = 0});
    CHECK(data.tokenizer->name() == "gpt2");
    CHECK(data.tokenizer->vocab_size() == 50257);
    CHECK(contents(*data.train, size) == std::pair(gpt2, Begins{0, 3, 7}));
    const Dataset wide = open_dataset({.train = folder / "l.bin", .validation_fraction = 0});
    CHECK(wide.tokenizer->vocab_size() == 128256);
    CHECK(contents(*wide.train, size) == std::pair(llama, Begins{0, 3}));
  }
  // Shards follow each other, and a document may cross from one to the next.
  put(folder / "s-1.bin", llm_c(20240520, 1, 3, packed_as<uint16_t>({7, 8, 50256})));
  put(folder / "s-0.bin", llm_c(20240520, 1, 2, packed_as<uint16_t>({50256, 9})));
  const Dataset both = open_dataset({.train = folder / "s-*.bin", .validation_fraction = 0});
  CHECK(contents(*both.train, 5) == std::pair(std::vector<int32_t>{50256, 9, 7, 8, 50256}, Begins{0, 4}));
  CHECK_REFUSED(DataError, open_dataset({.train = folder / "?.bin"}), "ids of gpt2", "of llama3");
}

TEST_CASE("formats: nanoGPT files are raw ids of a named format", "[data]") {
  const TempFolder folder;
  const std::vector<int32_t> ids{5, 64, 0, 1, 7};
  put(folder / "t.bin", packed_as<uint16_t>(ids));
  CHECK_REFUSED(DataError, open_dataset({.train = folder / "t.bin"}), "has no sidecar", "data.format");
  CHECK_REFUSED(ConfigError, open_dataset({.train = folder / "t.bin", .format = DataFormat::nanogpt}),
                "does not record its vocabulary", "model.vocab_size");
  const Dataset data = open_dataset(
      {.train = folder / "t.bin", .validation_fraction = 0, .format = DataFormat::nanogpt, .vocab_size = 65});
  CHECK(contents(*data.train, 2) == std::pair(ids, Begins{}));
  CHECK_FALSE(data.train->has_documents());
  CHECK_REFUSED(
      DataError,
      open_dataset({.train = folder / "t.bin", .format = DataFormat::nanogpt, .vocab_size = 65, .documents = true}),
      "data.document_mask needs documents", "t.bin");
  CHECK_REFUSED(DataError, open_dataset({.train = folder / "t.bin", .format = DataFormat::nanogpt, .vocab_size = 64}),
                "has the id 64 at token 1 (byte 2)", "vocab_size = 64");
  put(folder / "odd.bin", "abc");
  CHECK_REFUSED(DataError, open_dataset({.train = folder / "odd.bin", .format = DataFormat::nanogpt, .vocab_size = 9}),
                "has 3 bytes, need 2 for each");
}

TEST_CASE("formats: every source has its own format", "[data]") {
  const TempFolder folder;
  const std::string file = golden_dir() + "/tokenizers/llama3.tokenizer.json";
  const std::vector<int32_t> ids = {7, 400, 2};
  put(folder / "n.bin", packed_as<uint16_t>(ids));
  put(folder / "d.txt", "a text beside");
  DatasetOptions options{.sources = {folder / "n.bin", folder / "d.txt"},
                         .weights = {},
                         .validation_fraction = 0,
                         .tokenizer = file,
                         .formats = {DataFormat::nanogpt, DataFormat::automatic},
                         .sequence_length = 2};
  std::vector<int32_t> expected = ids;
  const std::vector<int32_t> text = load_tokenizer_file(file)->encode("a text beside");
  expected.insert(expected.end(), text.begin(), text.end());
  CHECK(contents(*open_dataset(options).train, 100).first == expected);
  // The validation data is read by `format`, not by one of `formats`.
  options.validation = folder / "d.txt";
  CHECK(contents(*open_dataset(options).validation, 100).first == text);
  options.format = DataFormat::nanogpt;
  CHECK_REFUSED(DataError, open_dataset(options), "d.txt", "nanoGPT");
}

TEST_CASE("formats: Megatron files of every type have the ids and documents of their index", "[data]") {
  const TempFolder folder;
  const std::vector<int32_t> ids{1, 2, 3, 4, 5, 6, 7, 100};
  const std::vector<int32_t> lengths{2, 1, 0, 4, 1};
  const Begins documents{0, 2, 3, 5, 5};  // sequences; the second document has no token, nor has the last
  const std::pair<char, std::string> types[] = {{1, packed_as<uint8_t>(ids)},
                                                {3, packed_as<int16_t>(ids)},
                                                {4, packed_as<int32_t>(ids)},
                                                {5, packed_as<int64_t>(ids)},
                                                {8, packed_as<uint16_t>(ids)}};
  for (const auto& [type, bytes] : types) {
    INFO("type " << static_cast<int>(type));
    Megatron index{.lengths = lengths, .offsets = {}, .documents = documents, .type = type};
    const auto width = static_cast<int64_t>(bytes.size() / ids.size());
    for (const int64_t tokens : {0, 2, 3, 3, 7}) index.offsets.push_back(tokens * width);
    put(folder / "m.bin", bytes);
    put(folder / "m.idx", index_of(index));
    for (const char* name : {"m", "m.bin", "m.idx"}) {
      CHECK(format_of(folder / name, DataFormat::automatic) == DataFormat::megatron);
      const Dataset data = open_dataset({.train = folder / name, .validation_fraction = 0, .vocab_size = 101});
      for (const int64_t size : {1, 3, 8}) CHECK(contents(*data.train, size) == std::pair(ids, Begins{0, 3}));
    }
    CHECK_REFUSED(DataError, open_dataset({.train = folder / "m", .vocab_size = 100}), "has the id 100 at token 7");
  }
}

TEST_CASE("formats: every count, length and offset of a Megatron index is checked", "[data]") {
  const TempFolder folder;
  put(folder / "m.bin", packed_as<uint16_t>({1, 2, 3, 4, 5, 6}));
  const Megatron good{.lengths = {2, 4}, .offsets = {0, 4}, .documents = {0, 1, 2}};
  const auto refusal = [&](auto change) {
    Megatron index = good;
    change(index);
    put(folder / "m.idx", index_of(index));
    return sentence<DataError>(
        [&] { open_dataset({.train = folder / "m", .validation_fraction = 0, .vocab_size = 100}); });
  };
  const auto text_refusal = [&](const std::string& bytes) {
    put(folder / "m.idx", bytes);
    return sentence<DataError>(
        [&] { open_dataset({.train = folder / "m", .validation_fraction = 0, .vocab_size = 100}); });
  };
  CHECK(refusal([](Megatron&) {}) == "nothing was thrown");
  CHECK_THAT(refusal([](Megatron& m) { m.version = 2; }), Catch::Contains("has version 2, need 1"));
  CHECK_THAT(refusal([](Megatron& m) { m.type = 6; }), Catch::Contains("has ids of type 6"));
  CHECK_THAT(refusal([](Megatron& m) { m.lengths[0] = -1; }), Catch::Contains("has -1 tokens in sequence 0"));
  CHECK_THAT(refusal([](Megatron& m) { m.lengths[1] = 5; }), Catch::Contains("has 5 tokens in sequence 1"));
  CHECK_THAT(refusal([](Megatron& m) { m.lengths[1] = 3; }), Catch::Contains("has 5 tokens of 2 bytes"));
  CHECK_THAT(refusal([](Megatron& m) { m.offsets[1] = 6; }), Catch::Contains("has sequence 1 at byte 6, need 4"));
  CHECK_THAT(refusal([](Megatron& m) { m.offsets[1] = INT64_MIN; }), Catch::Contains("need 4"));
  CHECK_THAT(refusal([](Megatron& m) { m.documents = {1, 2}; }), Catch::Contains("first document at sequence 1"));
  CHECK_THAT(refusal([](Megatron& m) { m.documents[1] = 3; }), Catch::Contains("has document 1 at sequence 3"));
  CHECK_THAT(refusal([](Megatron& m) { m.documents = {0, 1, 0}; }), Catch::Contains("has document 2 at sequence 0"));
  CHECK_THAT(refusal([](Megatron& m) {
               m.documents = {0, 1};
             }),
             Catch::Contains("ends its documents at sequence 1, need 2: its last document has no end."));
  CHECK_THAT(refusal([](Megatron& m) { m.documents = {0}; }), Catch::Contains("1 ends of documents"));
  CHECK_THAT(refusal([](Megatron& m) { m.documents = {0}; }), Catch::Contains("call end_document()"));
  const std::string bytes = index_of(good);
  CHECK_THAT(text_refusal(bytes.substr(0, 20)), Catch::Contains("has 20 bytes, need its header of 34"));
  CHECK_THAT(text_refusal(bytes + "a"), Catch::Contains("after its header, need 12"));
  CHECK_THAT(text_refusal("X" + bytes.substr(1)), Catch::Contains("does not begin with MMIDIDX"));
  std::string wraps = bytes;
  wraps[18 + 7] = '\x40';  // 2^62 sequences more
  CHECK_THAT(text_refusal(wraps), Catch::Contains("for each of 4611686018427387906 sequences"));
  CHECK(text_refusal(bytes + "ab") == "nothing was thrown");  // the index has a mode for each sequence
}

TEST_CASE("formats: JSON lines give the ids and documents that tokenize writes", "[data]") {
  const TempFolder folder;
  const uint64_t seed = 5;
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  std::string lines, expected;
  Begins begins;
  for (int i = 0; i < 400; ++i) {
    std::string text;
    for (uint64_t size = random() % 40; size > 0; --size) text += static_cast<char>('a' + random() % 26);
    if (i == 7) text = "\u00e9\n\"";
    if (!text.empty()) begins.push_back(std::ssize(expected));
    expected += text;
    lines += i == 7 ? "{\"id\": 7, \"text\": \"\\u00e9\\n\\\"\"}\r\n" : "{\"text\": \"" + text + "\"}\n";
    if (i % 50 == 0) lines += "  \n";
  }
  put(folder / "t.jsonl", lines);
  for (const char* tokenizer : {"bytes", "chars"}) {
    const Dataset data =
        open_dataset({.train = folder / "t.jsonl", .validation_fraction = 0, .tokenizer = tokenizer, .threads = 2});
    tokenize({.texts = {folder / "t.jsonl"}, .out = folder / tokenizer, .tokenizer = tokenizer, .end_of_text = false});
    const Dataset shards = open_dataset(
        {.train = folder / (std::string(tokenizer) + ".bin"), .validation_fraction = 0, .tokenizer = tokenizer});
    for (const int64_t size : {17, 1000, 100000}) {
      const auto [ids, found] = contents(*data.train, size);
      CHECK(data.tokenizer->decode(ids) == expected);
      CHECK(contents(*shards.train, size) == std::pair(ids, found));
      if (std::string(tokenizer) == "bytes") CHECK(found == begins);
    }
  }
  put(folder / "bad.jsonl", "{\"text\": \"a\"}\n{\"txt\": \"b\"}\n[1]\n");
  CHECK_REFUSED(DataError, open_dataset({.train = folder / "bad.jsonl"}), "line at byte 14", "bad.jsonl");
  CHECK_REFUSED(DataError, open_dataset({.train = folder / "bad.jsonl", .tokenizer = "chars"}), "line at byte 14");
  put(folder / "none.jsonl", "{\"text\": \"\"}\n\n");
  CHECK_REFUSED(DataError, open_dataset({.train = folder / "none.jsonl"}), "has no tokens");
  // A named format is used whatever the name of the file is.
  put(folder / "t.bin", "some text");
  const Dataset text = open_dataset({.train = folder / "t.bin", .validation_fraction = 0, .format = DataFormat::text});
  CHECK(text.tokenizer->decode(contents(*text.train, 9).first) == "some text");
}

TEST_CASE("formats: a damaged index of documents is refused", "[data]") {
  const TempFolder folder;
  std::string lines;
  for (int i = 0; i < 1500; ++i) lines += "{\"text\": \"abc\"}\n";
  put(folder / "t.jsonl", lines);
  CHECK_REFUSED(ConfigError, tokenize({.texts = {folder / "t.jsonl"}, .out = folder / "t"}),
                "the tokenizer bytes has no", "--no-end-of-text");
  tokenize({.texts = {folder / "t.jsonl"}, .out = folder / "t", .end_of_text = false});
  std::vector<uint64_t> begins(1500);
  for (size_t i = 0; i < begins.size(); ++i) begins[i] = 3 * i;
  CHECK(bytes_in(folder / "t.documents") == packed(begins));
  const auto open = [&] { return open_dataset({.train = folder / "t.bin"}); };
  CHECK(contents(*open().train, 100).second.size() == 1350);
  begins[700] = 4500;
  put(folder / "t.documents", packed(begins));
  CHECK_REFUSED(DataError, open(), "document 700 begins at token 4500, need 2098 to 4499");
  begins[700] = begins[699];
  put(folder / "t.documents", packed(begins));
  CHECK_REFUSED(DataError, open(), "document 700 begins at token 2097, need 2098");
  begins.pop_back();
  put(folder / "t.documents", packed(begins));
  CHECK_REFUSED(DataError, open(), "has 11992 bytes, need 8 for each of the 1500 documents");
  std::filesystem::remove(folder / "t.documents");
  CHECK_REFUSED(DataError, open(), "t.documents", "does not exist");
}

TEST_CASE("formats: ids of another width are refused with the remedy", "[data]") {
  const TempFolder folder;
  std::mt19937_64 random(4);
  std::vector<int32_t> ids(2000);
  for (int32_t& id : ids) id = static_cast<int32_t>(random() % 300);
  DatasetOptions options{
      .train = folder / "n.bin", .validation_fraction = 0, .format = DataFormat::nanogpt, .vocab_size = 300};
  const auto opened = [&] { return contents(*open_dataset(options).train, 700).first; };
  put(folder / "n.bin", packed_as<uint32_t>(ids));
  CHECK_REFUSED(DataError, opened(), "n.bin", "2000 ids of 4 bytes", "nanogpt-uint32");
  options.format = DataFormat::nanogpt_uint32;
  CHECK(opened() == ids);
  put(folder / "n.bin", packed_as<int64_t>(ids));
  CHECK_REFUSED(DataError, opened(), "2000 ids of 8 bytes", "must be converted");
  options.format = DataFormat::nanogpt;
  CHECK_REFUSED(DataError, opened(), "ids of 4 bytes");
  put(folder / "n.bin", packed_as<uint16_t>(ids));
  CHECK(opened() == ids);
  // One id that is not 0 at an odd place is enough for the refusal.
  for (size_t i = 1; i < ids.size(); i += 2) ids[i] = 0;
  put(folder / "n.bin", packed_as<uint16_t>(ids));
  CHECK_REFUSED(DataError, opened(), "1000 ids of 4 bytes");
  ids[1001] = 7;
  put(folder / "n.bin", packed_as<uint16_t>(ids));
  CHECK(opened() == ids);
}

TEST_CASE("formats: ids of 2 bytes are refused for a vocabulary above 65536", "[data]") {
  const TempFolder folder;
  const std::string ids = packed_as<uint16_t>({1, 2, 3, 4});
  put(folder / "n.bin", ids);
  put(folder / "m.bin", ids);
  put(folder / "m.idx", index_of({.lengths = {4}, .offsets = {0}, .documents = {0, 1}}));
  put(folder / "s.bin", ids);
  for (const int64_t vocab_size : {65536, 65537}) {
    put(folder / "s.json",
        fmt::format(
            "{{\"dtype\": \"uint16\", \"vocab_size\": {}, \"count\": 4, \"hash\": \"{}\", \"tokenizer\": \"own\"}}",
            vocab_size, xxh3_128_hex(ids.data(), std::ssize(ids))));
    for (const std::string name : {"n.bin", "m.bin", "s.bin"}) {
      const auto open = [&] {
        return open_dataset({.train = folder / name,
                             .validation_fraction = 0,
                             .format = name == "n.bin" ? DataFormat::nanogpt : DataFormat::automatic,
                             .vocab_size = vocab_size});
      };
      if (vocab_size == 65536) CHECK(open().train->count() == 4);
      if (vocab_size > 65536) CHECK_REFUSED(DataError, open(), name, "2 bytes, which end at 65535", "65537 ids");
    }
  }
}

TEST_CASE("formats: ids whose files do not record a tokenizer mix by a tokenizer file only", "[data]") {
  const TempFolder folder;
  put(folder / "n.bin", packed_as<uint16_t>({1, 2, 3, 4}));
  put(folder / "m.bin", packed_as<uint16_t>({5, 6}));
  put(folder / "m.idx", index_of({.lengths = {2}, .offsets = {0}, .documents = {0, 1}}));
  DatasetOptions options{.sources = {folder / "m.bin", folder / "n.bin"},
                         .weights = {},
                         .validation_fraction = 0,
                         .formats = {DataFormat::automatic, DataFormat::nanogpt},
                         .vocab_size = 50};
  CHECK_REFUSED(DataError, open_dataset(options), "m.bin\" (megatron) and ", "n.bin\" (nanogpt) do not both record",
                "data.tokenizer");
  options.tokenizer = golden_dir() + "/tokenizers/llama3.tokenizer.json";
  CHECK(contents(*open_dataset(options).train, 10).first == std::vector<int32_t>{5, 6, 1, 2, 3, 4});
}
