// SPDX-License-Identifier: Apache-2.0
// Data is what its first bytes say: packed texts are read as they were, and what is no text is refused by its name.

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <random>

#include "engine/base/utf8.h"
#include "engine/data/datasets/dataset.h"
#include "engine/data/datasets/json_text.h"
#include "engine/data/datasets/text.h"
#include "engine/data/datasets/text_input.h"
#include "engine/data/datasets/tokenize.h"
#include "engine/data/tokenizers/make_tokenizer.h"
#include "tests/engine/data/disk.h"
#include "tests/engine/data/packed.h"
#include "tests/paths.h"
#include "tests/test.hpp"

using namespace slipstream;
using namespace slipstream::data;
using namespace slipstream::tests;

namespace {

std::string all_of(TextInput&& input, int64_t step) {
  std::string all, piece(static_cast<size_t>(step), '\0');
  for (int64_t got = 0; (got = input.read(piece.data(), step)) > 0;) all.append(piece, 0, static_cast<size_t>(got));
  return all;
}

std::vector<int32_t> ids_of(const TokenSource& source) {
  std::vector<int32_t> ids(static_cast<size_t>(source.count()));
  source.read(0, ids);
  return ids;
}

std::string lines_of(const std::vector<std::string>& documents, const std::string& key = "text") {
  std::string lines;
  for (const std::string& document : documents) lines += "{\"" + key + "\": \"" + document + "\"}\n";
  return lines;
}

std::string joined(const std::vector<std::string>& documents) {
  std::string all;
  for (const std::string& document : documents) all += document;
  return all;
}

/// Text of several UTF-8 widths.
std::string text_of(uint64_t seed, size_t size_bytes) {
  std::mt19937_64 random(seed);
  std::string text;
  while (text.size() < size_bytes)
    append_code_point(text, std::array<uint32_t, 5>{'a', ' ', 0xe9, 0x4e2d, 0x1f600}[random() % 5]);
  return text;
}

/// While an object exists, standard input is the file `path`.
class StandardInput {
 public:
  explicit StandardInput(const std::string& path) : before_(::dup(STDIN_FILENO)) {
    const int file = ::open(path.c_str(), O_RDONLY);
    ::dup2(file, STDIN_FILENO);
    ::close(file);
  }
  StandardInput(const StandardInput&) = delete;
  StandardInput& operator=(const StandardInput&) = delete;
  ~StandardInput() {
    ::dup2(before_, STDIN_FILENO);
    ::close(before_);
  }

 private:
  int before_;
};

}  // namespace

TEST_CASE("inputs: gzip and Zstandard files have the bytes that were packed, whatever their name", "[data]") {
  const TempFolder folder;
  for (const size_t size_bytes : {1, 511, 512, 513, 70000, 3000000}) {
    const std::string text = text_of(size_bytes, size_bytes), half = text.substr(0, text.size() / 2);
    const std::string other_half = text.substr(half.size());
    INFO(text.size() << " bytes");
    const std::string packings[] = {text,
                                    gzip(text),
                                    gzip(half) + gzip(other_half),  // as `cat a.gz b.gz` gives it
                                    gzip(text, 7000) + std::string(1000, '\0'),
                                    gzip("") + gzip(text),
                                    zstd(text),
                                    zstd(half) + skippable("note") + zstd(other_half),
                                    skippable("table") + zstd(text, 5000)};
    for (const std::string& packed : packings) {
      put(folder / "t.txt", packed);
      for (const int64_t step : {int64_t{100}, int64_t{1} << 20})
        CHECK((all_of(TextInput(folder / "t.txt"), step) == text));
      const TextFile file(folder / "t.txt");
      CHECK(file.size_bytes() == std::ssize(text));
      CHECK((file.read(std::ssize(text) / 3, std::ssize(text)) == text.substr(text.size() / 3)));
    }
  }
  CHECK(folder.entries() == 1);  // the copy has no name
}

TEST_CASE("inputs: packed files that are cut, flipped or followed by other bytes are refused", "[data]") {
  const TempFolder folder;
  const std::string text = text_of(1, 900);
  const auto opened = [&](const std::string& packed) {
    put(folder / "t.gz", packed);
    return sentence<DataError>([&] {
      if (all_of(TextInput(folder / "t.gz", DataFormat::text), 64) != text) throw std::runtime_error("another text");
    });
  };
  for (const std::string& packed : {gzip(text), zstd(text)}) {
    const bool is_gzip = packed[0] == '\x1f';
    CHECK(opened(packed) == "nothing was thrown");
    for (size_t size = is_gzip ? 10 : 5; size < packed.size(); ++size) {
      INFO(size << " bytes");
      CHECK(has(opened(packed.substr(0, size)), "It was cut"));
    }
    CHECK(has(opened(packed + "more"), "is damaged"));
  }
  // Of these formats only gzip has a checksum of the contents.
  for (size_t at = 10; at < gzip(text).size(); ++at) {
    std::string packed = gzip(text);
    packed[at] = static_cast<char>(packed[at] ^ 4);
    INFO("byte " << at);
    const std::string found = opened(packed);
    CHECK((has(found, "is damaged") || has(found, "It was cut")));
  }
}

TEST_CASE("inputs: containers are refused with the command that converts them", "[data]") {
  const TempFolder folder;
  struct Row {
    std::string bytes, name, command;
  };
  const std::string rest(600, '\0');
  std::string tar(600, '\0');
  tar.replace(257, 5, "ustar");
  const std::vector<Row> rows = {
      {std::string("\xfd"
                   "7zXZ\0",
                   6) +
           rest,
       "an xz file", "xz -dk"},
      {"BZh91AY&SY" + rest, "a bzip2 file", "bzip2 -dk"},
      {"\x04\x22\x4d\x18" + rest, "an LZ4 file", "lz4 -dk"},
      {"PK\x03\x04" + rest, "a zip archive", "unzip"},
      {"7z\xbc\xaf\x27\x1c" + rest, "a 7z archive", "7z x"},
      {tar, "a tar archive", "tar -xf"},
      {gzip(tar), "a tar archive", "tar -xf"},
      {gzip(gzip("text")), "a gzip file", "gzip -dk"},
      {"PAR1" + rest, "a Parquet file", "pandas.read_parquet("},
      {std::string("ARROW1\0\0", 8) + rest, "an Arrow file", "pandas.read_feather("},
      {"\xff\xff\xff\xff" + rest, "an Arrow stream", "datasets.Dataset.from_file("},
      {"\x93NUMPY\x01" + rest, "a NumPy array", "numpy.load("},
      {"%PDF-1.7\n", "a PDF", "pdftotext"},
      {std::string("\xff\xfe"
                   "h\0i\0",
                   6),
       "a text in UTF-16", "iconv -f UTF-16"},
      {std::string("\xfe\xff\0h\0i", 6), "a text in UTF-16", "iconv -f UTF-16"},
  };
  for (const Row& row : rows) {
    INFO(row.name);
    put(folder / "t.txt", row.bytes);
    put(folder / "t.bin", row.bytes);
    for (const char* name : {"t.txt", "t.bin"}) {
      CHECK_REFUSED(DataError, open_dataset({.train = folder / name}), row.name, row.command, name);
      CHECK_REFUSED(DataError, tokenize({.texts = {folder / name}, .out = folder / "out"}), row.name, row.command);
    }
    CHECK_FALSE(std::filesystem::exists(folder / "out.bin"));
  }
}

TEST_CASE("inputs: bytes that are no text are refused unless the format is named", "[data]") {
  const TempFolder folder;
  struct Row {
    std::string bytes;
    int64_t wrong;  // the place of the first wrong byte; -1: it is text
  };
  std::string late(3 << 20, 'x');
  late[(3 << 20) - 7] = '\0';
  const std::vector<Row> rows = {{std::string("ab\0c", 4), 2},
                                 {"ab\xff", 2},
                                 {"\xc3", 0},
                                 {"ab\xed\xa0\x80", 2},
                                 {"caf\xe9 au lait", 3},
                                 {std::string("h\0i\0", 4), 1},
                                 {late, (3 << 20) - 7},
                                 {text_of(3, 3 << 20) + "\x80", std::ssize(text_of(3, 3 << 20))},
                                 {"caf\u00e9 \U0001f600\x01\x7f", -1},
                                 {text_of(3, 3 << 20), -1}};
  for (const Row& row : rows) {
    const std::string place = "byte " + std::to_string(row.wrong) + " is";
    put(folder / "t.txt", row.bytes);
    std::vector<int32_t> expected;
    for (const char c : row.bytes) expected.push_back(static_cast<unsigned char>(c));
    for (const int threads : {1, 3}) {
      TokenizeOptions options{.texts = {folder / "t.txt"}, .out = folder / "t", .threads = threads};
      DatasetOptions run{.train = folder / "t.txt", .validation_fraction = 0, .sequence_length = 0};
      if (row.wrong >= 0) {
        CHECK_REFUSED(DataError, tokenize(options), place, "--format text", "t.txt");
        CHECK_REFUSED(DataError, open_dataset(run), place, "data.format = \"text\"", "t.txt");
        options.format = run.format = DataFormat::text;
      }
      tokenize(options);
      CHECK((ids_of(*open_shards(folder / "t.bin").tokens) == expected));
      CHECK((ids_of(*open_dataset(run).train) == expected));
    }
  }
  // Other tokenizers refuse what is not UTF-8 themselves.
  put(folder / "t.txt", std::string("ab\0c", 4));
  CHECK_REFUSED(DataError, open_dataset({.train = folder / "t.txt", .tokenizer = "chars"}), "byte 2 is 0x00");
}

TEST_CASE("inputs: text that begins as JSON is JSON, or is said to be none", "[data]") {
  const TempFolder folder;
  const std::vector<std::string> documents = {"one", "two", "three"};
  const std::string lines = lines_of(documents), content = joined(documents);
  for (const std::string& bytes : {lines, "\n  " + lines, "\xef\xbb\xbf" + lines, gzip(lines), zstd(lines),
                                   std::string("{ \"id\": 1, \"text\": \"onetwothree\"}")})
    for (const char* name : {"a.json", "a.txt", "a.jsonl", "a.bin.x"}) {
      INFO(name);
      put(folder / name, bytes);
      const Dataset data = open_dataset({.train = folder / name, .validation_fraction = 0});
      CHECK(data.tokenizer->decode(ids_of(*data.train)) == content);
      CHECK(data.notes.empty());
      CHECK(tokenize({.texts = {folder / name}, .out = folder / "o", .end_of_text = false}).count ==
            std::ssize(content));
    }
  put(folder / "a.json", lines);
  const Dataset text = open_dataset({.train = folder / "a.json", .validation_fraction = 0, .format = DataFormat::text});
  CHECK(text.tokenizer->decode(ids_of(*text.train)) == lines);
  CHECK(tokenize({.texts = {folder / "a.json"}, .out = folder / "o", .format = DataFormat::text}).count ==
        std::ssize(lines));
  for (const char* array : {"[{\"text\": \"a\"}]", " [\n {\"text\": \"a\"}]"}) {
    put(folder / "a.json", array);
    CHECK_REFUSED(DataError, open_dataset({.train = folder / "a.json"}), "is a JSON array", "jq -c '.[]'",
                  "--format text");
  }
  for (const char* no_json : {"{word}", "[1] a footnote", "(\"", "{"}) {
    put(folder / "a.txt", no_json);
    CHECK(TextFile(folder / "a.txt").format() == DataFormat::text);
  }
}

TEST_CASE("inputs: empty lines at the begin of a part that is read at once are passed over", "[data]") {
  const TempFolder folder;
  const std::string document(100000, 'x'), blank(1000, ' ');
  // Regions of 2 MiB begin at all of these places.
  std::string lines;
  for (int i = 0; i < 60; ++i) lines += blank + "\n\n{\"text\": \"" + document + "\"}\n" + blank + "\n \n";
  put(folder / "t.jsonl", lines);
  const TokenizeSummary summary = tokenize({.texts = {folder / "t.jsonl"}, .out = folder / "t", .end_of_text = false});
  CHECK(summary.documents == 60);
  CHECK(summary.count == 60 * 100000);
  CHECK(summary.notes.empty());
  CHECK(summary.text_bytes == std::ssize(lines));
}

TEST_CASE("inputs: rare lines that are no documents are skipped and counted, many are refused", "[data]") {
  const TempFolder folder;
  const auto refused = [&](int good, int bad) {
    std::vector<std::string> documents(static_cast<size_t>(good), "ab");
    std::string lines = lines_of(documents);
    for (int i = 0; i < bad; ++i) lines += i % 2 == 0 ? "{\"other\": \"c\"}\n" : "no JSON\n";
    put(folder / "t.jsonl", lines);
    const std::string found = sentence<DataError>([&] {
      const Dataset data = open_dataset({.train = folder / "t.jsonl", .validation_fraction = 0, .threads = 2});
      CHECK(data.train->count() == 2 * good);
      const TokenizeSummary summary =
          tokenize({.texts = {folder / "t.jsonl"}, .out = folder / "t", .end_of_text = false, .threads = 2});
      CHECK(summary.documents == good);
      CHECK(summary.count == 2 * good);
      REQUIRE(summary.notes == data.notes);
      REQUIRE(summary.notes.size() == static_cast<size_t>(bad > 0));
      if (bad > 0) {
        CHECK(has(summary.notes[0], fmt::format("{} of {} lines", bad, good + bad)));
        CHECK(has(summary.notes[0], fmt::format("the line at byte {} is no document", 15 * good)));
      }
    });
    if (found != "nothing was thrown") CHECK(has(found, fmt::format("the line at byte {} is no document", 15 * good)));
    return found != "nothing was thrown";
  };
  CHECK_FALSE(refused(40, 0));
  CHECK_FALSE(refused(1, 1));
  CHECK_FALSE(refused(40, 1));
  CHECK(refused(40, 2));
  CHECK_FALSE(refused(198, 2));
  CHECK(refused(197, 2));
  CHECK(refused(0, 1));  // no document at all
  CHECK(refused(0, 200));
}

TEST_CASE("inputs: half a surrogate pair becomes U+FFFD and is counted", "[data]") {
  struct Row {
    const char* json;
    const char* text;
    int64_t replaced;
  };
  const Row rows[] = {
      {R"(cut \ud83d end)", "cut \ufffd end", 1},
      {R"(\ude00)", "\ufffd", 1},
      {R"(\ud83d\ude00)", "\U0001f600", 0},
      {R"(\uD83D\uDE00 \uD83d)", "\U0001f600 \ufffd", 1},
      {R"(\ud83d\ud83d\ude00)", "\ufffd\U0001f600", 1},
      {R"(\ude00\ud83d)", "\ufffd\ufffd", 2},
      {R"(\\ud83d)", "\\ud83d", 0},
      {R"(\\\ud83d\u0041)", "\\\ufffdA", 1},
      {R"(\ud83dA\n)", "\ufffdA\n", 1},
  };
  for (const Row& row : rows) {
    INFO(row.json);
    const JsonLine line = read_json_line("{\"text\": \"" + std::string(row.json) + "\", \"n\": NaN}", 0, "text");
    CHECK(line.problem.empty());
    CHECK(line.text == row.text);
    CHECK(line.replaced == row.replaced);
  }
  CHECK(has(read_json_line("{\"text\": \"\\ud83\"}", 0, "text").problem, "JSON"));
  CHECK(has(read_json_line("{\"text\": \"\xff\"}", 0, "text").problem, "JSON"));
  CHECK(has(read_json_line("{\"text\": null}", 0, "text").problem, "null"));
}

TEST_CASE("inputs: several texts are documents in the order of their names, in training as from tokenize", "[data]") {
  const TempFolder folder;
  const std::string file = golden_dir() + "/tokenizers/qwen2.tokenizer.json";
  const auto tokenizer = load_tokenizer_file(file);
  const int32_t end = tokenizer->special().end_of_text;
  REQUIRE(end >= 0);
  const std::vector<std::string> contents = {"a first text", "one", "two", "a packed text"};
  put(folder / "x0.txt", contents[0]);
  put(folder / "x1.txt", lines_of({contents[1], contents[2]}, "content"));
  put(folder / "x2.txt", zstd(contents[3]));
  std::vector<int32_t> expected;
  std::vector<int64_t> begins;
  for (const std::string& content : contents) {
    begins.push_back(std::ssize(expected));
    for (const int32_t id : tokenizer->encode(content)) expected.push_back(id);
    expected.push_back(end);
  }
  const auto check = [&](const Dataset& data) {
    for (const size_t size : {size_t{1}, size_t{5}, expected.size()}) {
      std::vector<int32_t> ids(expected.size());
      std::vector<int64_t> found;
      for (size_t begin = 0; begin < ids.size(); begin += size) {
        std::vector<int64_t> here;
        data.train->read(static_cast<int64_t>(begin), std::span(ids).subspan(begin, std::min(size, ids.size() - begin)),
                         &here);
        for (const int64_t at : here) found.push_back(at + static_cast<int64_t>(begin));
      }
      CHECK(ids == expected);
      CHECK(found == begins);
    }
  };
  check(open_dataset({.train = folder / "x?.txt",
                      .validation_fraction = 0,
                      .tokenizer = file,
                      .text_key = "content",
                      .documents = true}));
  const std::vector<std::string> named = {folder / "x0.txt", folder / "x1.txt", folder / "x2.txt"};
  for (const auto& texts : {std::vector<std::string>{folder / "x*.txt"}, named}) {
    CHECK(tokenize({.texts = texts, .out = folder / "s", .tokenizer = file, .text_key = "content"}).documents == 4);
    check(open_dataset({.train = folder / "s.bin", .validation_fraction = 0, .tokenizer = file}));
  }
  // chars reads all of them twice.
  const TokenizeSummary chars = tokenize({.texts = {folder / "x*.txt"},
                                          .out = folder / "c",
                                          .tokenizer = "chars",
                                          .text_key = "content",
                                          .end_of_text = false});
  CHECK(chars.count == std::ssize(joined(contents)));
  const Shards shards = open_shards(folder / "c.bin");
  CHECK(shards.tokenizer->decode(ids_of(*shards.tokens)) == joined(contents));
}

TEST_CASE("inputs: an interrupted tokenize of several packed texts goes on where it was", "[data]") {
  const TempFolder folder;
  std::vector<std::string> texts;
  for (int i = 0; i < 5; ++i) {
    std::vector<std::string> documents;
    for (int d = 0; d < 50 + i; ++d) documents.push_back("document " + std::to_string(1000 * i + d));
    const std::string lines = lines_of(documents) + (i == 2 ? "no JSON\n" : "\n \n");
    texts.push_back(folder / ("t" + std::to_string(i)));
    put(texts.back(), i % 3 == 0 ? gzip(lines) : i % 3 == 1 ? lines : zstd(lines));
  }
  TokenizeOptions options{.texts = texts, .out = folder / "whole", .shard_tokens = 100, .end_of_text = false};
  const TokenizeSummary whole = tokenize(options);
  CHECK(whole.documents == 260);
  for (int stop = 1; stop < 40; stop += 4) {
    options.out = folder / ("s" + std::to_string(stop));
    const std::string last = fmt::format("{}-{:05}.json", options.out, stop - 1);
    options.resume = false;
    options.progress = [&](int64_t, int64_t) {
      if (std::filesystem::exists(last)) throw ResourceError("interrupted");
    };
    const std::string found = sentence<ResourceError>([&] { tokenize(options); });
    if (found == "nothing was thrown") break;
    options.progress = {};
    options.resume = true;
    const TokenizeSummary resumed = tokenize(options);
    CHECK(resumed.documents == 260);
    REQUIRE(resumed.notes.size() == 1);
    CHECK(has(resumed.notes[0], "1 of 261 lines"));
    REQUIRE(resumed.shards.size() == whole.shards.size());
    for (size_t i = 0; i < whole.shards.size(); ++i) CHECK(resumed.shards[i].hash == whole.shards[i].hash);
    CHECK((ids_of(*open_shards(options.out + "-*.bin").tokens) == ids_of(*open_shards(folder / "whole-*.bin").tokens)));
  }
  // One of the texts that are done is another one now.
  options.out = folder / "other";
  options.resume = false;
  options.progress = [&](int64_t, int64_t) {
    if (std::filesystem::exists(folder / "other-00012.json")) throw ResourceError("interrupted");
  };
  CHECK_REFUSED(ResourceError, tokenize(options), "interrupted");
  std::string bytes = bytes_in(texts[1]);
  bytes[bytes.find("1007")] = '2';
  put(texts[1], bytes);
  options.progress = {};
  options.resume = true;
  CHECK_REFUSED(DataError, tokenize(options), "come from another text");
}

TEST_CASE("inputs: standard input is read once, as a file of any packing", "[data]") {
  const TempFolder folder;
  const std::string text = text_of(9, 100000);
  for (const std::string& bytes : {text, gzip(text), zstd(text), lines_of({text})}) {
    put(folder / "in", bytes);
    for (const char* name : {"-", "/dev/stdin"}) {
      {
        const StandardInput input(folder / "in");
        CHECK(tokenize({.texts = {name}, .out = folder / "t", .end_of_text = false}).count == std::ssize(text));
      }
      const StandardInput input(folder / "in");
      const Dataset data = open_dataset({.train = name, .validation_fraction = 0});
      CHECK((data.tokenizer->decode(ids_of(*data.train)) == text));
    }
  }
  put(folder / "in", zstd("between"));
  put(folder / "a", "first ");
  put(folder / "b", " last");
  {
    const StandardInput input(folder / "in");
    tokenize({.texts = {folder / "a", "-", folder / "b"}, .out = folder / "t", .end_of_text = false});
    const Shards shards = open_shards(folder / "t.bin");
    CHECK(shards.tokenizer->decode(ids_of(*shards.tokens)) == "first between last");
  }
  {
    const StandardInput input(folder / "in");
    CHECK_REFUSED(ConfigError, tokenize({.texts = {"-", "-"}, .out = folder / "t"}), "named twice");
  }
  put(folder / "in", "");
  const StandardInput input(folder / "in");
  CHECK_REFUSED(DataError, tokenize({.texts = {"-"}, .out = folder / "t"}), "\"standard input\" is empty");
  CHECK_REFUSED(ConfigError, tokenize({.texts = {"-"}, .out = folder / "t", .tokenizer = "chars"}), "is empty");
}

TEST_CASE("inputs: a copy of a packed text that does not fit is an error with the remedy", "[data]") {
  const TempFolder folder;
  put(folder / "t.gz", gzip("some text"));
  const std::string before = ::getenv("TMPDIR") != nullptr ? ::getenv("TMPDIR") : "";
  ::setenv("TMPDIR", (folder / "none").c_str(), 1);
  CHECK_REFUSED(ResourceError, TextFile(folder / "t.gz"), "t.gz", "none", "Set TMPDIR", "slipstream tokenize");
  CHECK(tokenize({.texts = {folder / "t.gz"}, .out = folder / "t"}).count == 9);  // needs no copy
  before.empty() ? ::unsetenv("TMPDIR") : ::setenv("TMPDIR", before.c_str(), 1);
}
