// SPDX-License-Identifier: Apache-2.0
// Tokenizers of merges: ids and texts of the libraries tokenizers and tiktoken, cuts, hostile files.

#include <filesystem>
#include <random>

#include "engine/base/json.h"
#include "engine/base/utf8.h"
#include "engine/data/datasets/dataset.h"
#include "engine/data/datasets/tokenize.h"
#include "engine/data/tokenizers/make_tokenizer.h"
#include "engine/data/tokenizers/tokenizer_json.h"
#include "tests/engine/data/disk.h"
#include "tests/paths.h"
#include "tests/sample.h"
#include "tests/test.hpp"

using namespace slipstream;
using namespace slipstream::data;
using namespace slipstream::tests;

namespace {

/// tests/golden/make_golden_tokenizers.py made it.
const std::string kGolden = golden_dir() + "/tokenizers/";

std::string path_of(const std::string& name) {
  return kGolden + name + (name.ends_with("_ranks") ? ".tiktoken" : ".tokenizer.json");
}

const Json& cases() {
  static const Json instance = Json::parse(bytes_in(kGolden + "cases.json"), "cases.json");
  return instance;
}

std::vector<std::string> texts() {
  std::vector<std::string> all;
  for (const Json& text : cases().at("texts").as_array()) all.push_back(text.as_string());
  return all;
}

std::vector<int32_t> ids_of(const Json& list) {
  std::vector<int32_t> ids;
  for (const Json& id : list.as_array()) ids.push_back(static_cast<int32_t>(id.as_int()));
  return ids;
}

}  // namespace

TEST_CASE("tokenizer files: ids and texts equal those of tokenizers and tiktoken", "[data]") {
  const std::vector<std::string> all = texts();
  REQUIRE(all.size() > 100);
  REQUIRE(cases().at("ids").as_object().size() == 16);
  for (const auto& [name, lists] : cases().at("ids").as_object()) {
    INFO(name);
    const auto tokenizer = load_tokenizer_file(path_of(name));
    const Json::Array& decoded = cases().at("decoded").at(name).as_array();
    for (size_t i = 0; i < all.size(); ++i) {
      INFO("text " << i << ": " << all[i]);
      const std::string& text = decoded[i].is_null() ? all[i] : decoded[i].as_string();
      const std::vector<int32_t> ids = ids_of(lists.as_array()[i]);
      CHECK(tokenizer->encode(all[i]) == ids);
      // These libraries write one U+FFFD for each broken byte, but our decoder keeps the bytes.
      if (name.starts_with("llama2") || name.starts_with("mistral")) {
        if (valid_utf8_prefix(tokenizer->decode(ids)) == tokenizer->decode(ids).size())
          CHECK(tokenizer->decode(ids) == text);
        continue;
      }
      CHECK(valid_utf8(tokenizer->decode(ids)) == text);
    }
  }
}

namespace {

/// All golden texts in random order until `bytes` are reached.
std::string long_text(std::mt19937_64& random, size_t bytes) {
  const std::vector<std::string> all = texts();
  std::string text;
  while (text.size() < bytes) text += all[random() % all.size()] + (random() % 4 == 0 ? "\n" : "");
  return text;
}

std::vector<std::string> names() {
  std::vector<std::string> all;
  for (const auto& [name, lists] : cases().at("ids").as_object()) all.push_back(name);
  return all;
}

std::vector<int32_t> all_of(const TokenSource& source) {
  std::vector<int32_t> ids(static_cast<size_t>(source.count()));
  source.read(0, ids);
  return ids;
}

}  // namespace

TEST_CASE("tokenizer files: a text in windows has the ids of the whole, and so has every cut", "[data]") {
  const uint64_t seed = 31;
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  for (const std::string& name : names()) {
    INFO(name);
    const auto tokenizer = load_tokenizer_file(path_of(name));
    const std::string text = long_text(random, test_everything() ? 400000 : 40000);
    const std::vector<int32_t> ids = tokenizer->encode(text);
    for (const size_t window_bytes : {size_t{3000}, size_t{20011}}) {
      std::vector<int32_t> seen;
      size_t windows = 0;
      for (size_t begin = 0, size = window_bytes; begin < text.size();) {
        const bool last = begin + size >= text.size();
        const int64_t done = tokenizer->encode_window(
            {.text = std::string_view(text).substr(begin, size), .first = begin == 0, .last = last},
            [&](std::span<const int32_t> piece, int64_t) { seen.insert(seen.end(), piece.begin(), piece.end()); });
        size = done > 0 ? window_bytes : 2 * size;
        begin += static_cast<size_t>(done);
        ++windows;
      }
      CHECK(windows > 1);
      CHECK(seen == ids);
    }
  }
}

TEST_CASE("tokenizer files: any range of a text on disk has the ids of the whole text", "[data]") {
  const TempFolder folder;
  const uint64_t seed = 32;
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  for (const std::string& name : names()) {
    INFO(name);
    const std::string text = long_text(random, 30000);
    put(folder / "t.txt", text);
    const Dataset data = open_dataset({.train = folder / "t.txt",
                                       .validation_fraction = 0,
                                       .tokenizer = path_of(name),
                                       .format = DataFormat::text,  // the text has NUL
                                       .sequence_length = 8});
    const std::vector<int32_t> ids = data.tokenizer->encode(text);
    REQUIRE(all_of(*data.train) == ids);
    for (int trial = 0; trial < 30; ++trial) {
      const size_t begin = random() % ids.size();
      std::vector<int32_t> window(random() % (std::min<size_t>(ids.size() - begin, 3000) + 1));
      data.train->read(static_cast<int64_t>(begin), window);
      REQUIRE(std::equal(window.begin(), window.end(), ids.begin() + static_cast<std::ptrdiff_t>(begin)));
    }
  }
}

TEST_CASE("tokenize: shards of documents do not depend on threads, and an interrupted command resumes", "[data]") {
  const uint64_t seed = 33;
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  const std::vector<std::string> sample = {"qwen2", "llama2", "cl100k_base_ranks"};
  for (const std::string& name : test_everything() ? names() : sample) {
    INFO(name);
    const TempFolder folder;
    const auto tokenizer = load_tokenizer_file(path_of(name));
    const int32_t end = tokenizer->special().end_of_text;
    REQUIRE((end >= 0 || !name.starts_with("qwen2")));
    // Documents of all sizes: none, some bytes, and several parts of half a MiB.
    std::string text, lines;
    std::vector<int32_t> expected;
    std::vector<uint64_t> begins;
    for (const size_t bytes :
         {size_t{0}, size_t{10}, size_t{3000}, size_t{1400000}, size_t{0}, size_t{5000}, size_t{1}}) {
      const std::string document = bytes == 0 ? "" : long_text(random, bytes);
      Json line = Json::object();
      line["text"] = Json(document);
      lines += line.dump() + (random() % 2 == 0 ? "\n\n" : "\r\n");
      text += document + "\x1e\x1e";
      if (document.empty()) continue;
      begins.push_back(expected.size());
      const std::vector<int32_t> ids = tokenizer->encode(document);
      expected.insert(expected.end(), ids.begin(), ids.end());
      if (end >= 0) expected.push_back(end);
    }
    put(folder / "t.txt", text);
    TokenizeOptions options{.texts = {folder / "t.txt"},
                            .out = folder / "one",
                            .tokenizer = path_of(name),
                            .format = DataFormat::text,  // the text has NUL
                            .separator = "\x1e\x1e",
                            .end_of_text = end >= 0,
                            .threads = 3};
    const TokenizeSummary whole = tokenize(options);
    CHECK(whole.documents == 5);
    Shards shards = open_shards(folder / "one.bin");
    REQUIRE(all_of(*shards.tokens) == expected);
    CHECK(shards.tokenizer->name() == tokenizer->name());
    CHECK(shards.tokenizer->encode("a <|endoftext|> b") == tokenizer->encode("a <|endoftext|> b"));
    const std::string kept = bytes_in(folder / "one.documents");
    REQUIRE(kept.size() == 8 * begins.size());
    CHECK(kept == std::string(reinterpret_cast<const char*>(begins.data()), kept.size()));

    // The command ends at different places, and the next one continues.
    options.out = folder / "many";
    options.shard_tokens = 40000;
    options.threads = 2;
    options.resume = true;
    int interruptions = 0;
    // The files are those of a writer that has ended, of one that runs, and of other commands.
    const std::string gone = ".tmp-999999999", here = ".tmp-1";
    const std::vector<std::string> abandoned = {"many-00007.bin" + gone, "many-00007.documents" + gone,
                                                "many.progress.json" + gone, "many-00001.json" + gone},
                                   others = {"many-00008.bin" + here, "many-x.bin" + gone, "another-00007.bin" + gone,
                                             "many-00007.bin.tmp-", "many-00007.txt" + gone};
    for (const auto& names : {abandoned, others})
      for (const std::string& file : names) put(folder / file, "half");
    for (bool done = false; !done;) {
      int parts = 0;
      options.progress = [&](int64_t, int64_t) {
        if (++parts > 2 + interruptions) throw ResourceError("interrupted");
      };
      try {
        const TokenizeSummary resumed = tokenize(options);
        CHECK(resumed.count == std::ssize(expected));
        CHECK(resumed.documents == whole.documents);
        done = true;
      } catch (const ResourceError&) {
        ++interruptions;
      }
    }
    CHECK(interruptions > 1);
    for (const std::string& file : abandoned) CHECK_FALSE(std::filesystem::exists(folder / file));
    for (const std::string& file : others) CHECK(std::filesystem::remove(folder / file));
    shards = open_shards(folder / "many-*.bin");
    CHECK(all_of(*shards.tokens) == expected);
    options.progress = {};

    // JSON lines have the same documents, including those without text.
    put(folder / "t.jsonl", lines);
    options = {.texts = {folder / "t.jsonl"}, .out = folder / "lines", .tokenizer = path_of(name), .threads = 2};
    options.end_of_text = end >= 0;
    CHECK(tokenize(options).documents == 7);
    std::vector<int32_t> with_empty = all_of(*open_shards(folder / "lines.bin").tokens);
    if (end < 0) CHECK(with_empty == expected);
    if (end >= 0) CHECK(with_empty.size() == expected.size() + 2);
  }
  const TempFolder folder;
  put(folder / "t.txt", long_text(random, 1000000));
  const auto lines_of = [&](const std::string& content) {
    put(folder / "bad.jsonl", content);
    tokenize({.texts = {folder / "bad.jsonl"}, .out = folder / "bad", .tokenizer = "bytes", .end_of_text = false});
  };
  CHECK_REFUSED(DataError, lines_of("{\"text\":\"a\"}\n{\"txt\":\"b\"}\n{}\n"), "line at byte 13", "text", "bad.jsonl");
  CHECK_REFUSED(DataError, lines_of("{\"text\":7}\n"), "needs a string, got an integer");
  CHECK_REFUSED(DataError, lines_of("[\n"), "line at byte 0");
  TokenizeOptions other{.texts = {folder / "t.txt"},
                        .out = folder / "other",
                        .shard_tokens = 1000,
                        .format = DataFormat::text,
                        .resume = true};
  other.progress = [](int64_t, int64_t) { throw ResourceError("interrupted"); };
  CHECK_REFUSED(ResourceError, tokenize(other), "interrupted");
  other.shard_tokens = 2000;
  CHECK_REFUSED(DataError, tokenize(other), "other.progress.json", "1000 tokens per shard", "2000 tokens per shard",
                "without --resume");
}

TEST_CASE("tokenizer files: what the format allows and this reader does not is named with its path", "[data]") {
  const std::string good = bytes_in(path_of("llama3"));
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    const size_t at = text.find(from);
    REQUIRE(at != std::string::npos);
    return text.replace(at, from.size(), to);
  };
  const auto parse = [&](const std::string& text) { return parse_tokenizer_json({.text = text, .where = "T"}); };
  CHECK(parse(good)->vocab_size() > 900);
  struct Row {
    const char *from, *to, *path, *need;
  };
  const std::string a = "\"a\":" + std::to_string(load_tokenizer_file(path_of("llama3"))->encode("a")[0]);
  const Row rows[] = {
      {"\"version\":\"1.0\"", "\"version\":\"2.0\"", "version", "need \"1.0\""},
      {"\"type\":\"BPE\"", "\"type\":\"Unigram\"", "model.type", "need \"BPE\""},
      {"\"dropout\":null", "\"dropout\":0.1", "model.dropout", "need null"},
      {"\"continuing_subword_prefix\":null", "\"continuing_subword_prefix\":\"##\"", "model.continuing_subword_prefix",
       "null"},
      {"\"end_of_word_suffix\":null", "\"end_of_word_suffix\":\"</w>\"", "model.end_of_word_suffix", "null"},
      {"\"unk_token\":null", "\"unk_token\":7", "model.unk_token", "need a string"},
      {"\"normalizer\":null", "\"normalizer\":{\"type\":\"Lowercase\"}", "normalizer.type", "need NFC"},
      {"\"normalizer\":null",
       "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},{\"type\":\"Strip\"}]}",
       "normalizer.normalizers[1].type", "Strip"},
      {"\"normalizer\":null", "\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"a\"},\"content\":\"b\"}",
       "normalizer.pattern.Regex", "unknown key"},
      {"\"normalizer\":null", "\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"String\":\"ab\"},\"content\":\"b\"}",
       "normalizer.pattern.String", "need one character"},
      {"\"normalizer\":null", "\"normalizer\":7", "normalizer", "is an integer, need an object"},
      {"\"behavior\":\"Isolated\"", "\"behavior\":\"Contiguous\"", "pre_tokenizer.pretokenizers[0].behavior",
       "Isolated"},
      {"{\"Regex\":\"", "{\"Regex\":\"\\\\b|", "pre_tokenizer.pretokenizers[0].pattern.Regex", "\\b is not supported"},
      {"{\"Regex\":\"", "{\"Regex\":\"(a)\\\\1|", "pattern.Regex", "\\1|"},
      {"{\"Regex\":\"", "{\"Regex\":\"^a|", "pattern.Regex", "the anchor ^"},
      {"{\"Regex\":\"", "{\"Regex\":\"(?<=a)b|", "pattern.Regex", "the group (?<="},
      {"{\"Regex\":\"", "{\"Regex\":\"a*|", "pattern.Regex", "matches the empty text"},
      {"{\"Regex\":\"", "{\"Regex\":\"(a|", "pattern.Regex", "cannot be compiled"},
      {"\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":false}]",
       "\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"trim_offsets\":true,\"use_regex\":false}]",
       "pre_tokenizer.pretokenizers[1].add_prefix_space", "need false after another"},
      {"\"pre_tokenizer\":{\"type\":\"Sequence\"", "\"pre_tokenizer\":{\"type\":\"Whitespace\"", "pre_tokenizer.type",
       "Whitespace"},
      {"\"post_processor\":{\"type\":\"Sequence\"", "\"post_processor\":{\"type\":\"BertProcessing\"",
       "post_processor.type", "Bert"},
      {"\"decoder\":{\"type\":\"ByteLevel\"", "\"decoder\":{\"type\":\"WordPiece\"", "decoder.type", "ByteLevel"},
      {"\"single_word\":false", "\"single_word\":1", "added_tokens[0].single_word", "need true or false"},
      {"\"content\":\"<|endoftext|>\"", "\"content\":\"\"", "added_tokens[0].content", "empty"},
      {"\"added_tokens\":[{\"id\":", "\"added_tokens\":[{\"id\":9", "added_tokens[0].id", "need"},
      {"\"added_tokens\":[{\"id\":", "\"added_tokens\":[{\"id\":-", "added_tokens[0].id", "not an id"},
      {"\"added_tokens\":[{\"id\":", "\"added_tokens\":[{\"id\":1.5,\"x\":", "added_tokens[0].x", "unknown key"},
      {"\"merges\":[", "\"merges\":[[\"a\",\"zz9\"],", "model.merges[0]", "the token \"zz9\", which model.vocab lacks"},
      {"\"merges\":[", "\"merges\":[\"a b c\",", "model.merges[0]", "two parts"},
      {"\"merges\":[", "\"merges\":[[\"a\"],", "model.merges[0]", "has 1 parts"},
      {"\"merges\":[", "\"merges\":[[\"a\",7],", "model.merges[0][1]", "need a string"},
      // The result of a cycle would be one of its own parts, which takes an empty part.
      {"\"merges\":[", "\"merges\":[[\"\",\"a\"],", "model.merges[0]", "the token \"\""},
      {"\"vocab\":{", "\"vocab\":{\"\":1,", "model.vocab[\"\"]", "the empty token"},
      {"\"vocab\":{", "\"vocab\":{\"zz\":1,", "model.vocab[", "the id of another token"},
      {"\"vocab\":{", "\"vocab\":{\"zz\":16000000,", "model", "the id 16000000 in a vocabulary"},
      {"\"vocab\":{", "\"vocab\":{\"zz\":99999999999,", "model.vocab[\"zz\"]", "not an id"},
      {"\"vocab\":{", "\"vocab\":{\"zz\":1000000000000000019884624838656,", "model.vocab[\"zz\"]",
       "= 1e+30 is not an id"},
      {"\"vocab\":{", "\"vocab\":{\"zz\":1.5,", "model.vocab[\"zz\"]", "= 1.5 is not an id"},
      {"\"vocab\":{", "\"vocab\":{\"zz\":-1,", "model.vocab[\"zz\"]", "not an id"},
      {"\"vocab\":{", "\"vocab\":{\"zz\":\"1\",", "model.vocab[\"zz\"]", "need an integer"},
      {"\"model\":{", "\"mode\":{", "mode", "unknown key"},
  };
  for (const Row& row : rows) {
    INFO(row.from << " -> " << row.to);
    CHECK_REFUSED(DataError, parse(with(row.from, row.to)), row.path, row.need, "T");
  }
  for (const size_t size : {size_t{0}, size_t{1}, good.size() / 2, good.size() - 2})
    CHECK_REFUSED(DataError, parse(good.substr(0, size)), "T");
  CHECK_REFUSED(DataError, parse("[]"), "not a JSON object");
  CHECK_REFUSED(DataError, parse("{}"), "model", "missing");
}

TEST_CASE("tokenizer files: unk_token may be no token where no character is unknown", "[data]") {
  const auto named = [](const std::string& name, const std::string& lost) {
    Json file = Json::parse(bytes_in(path_of(name)));
    file["model"]["unk_token"] = "<none>";
    Json vocab = Json::object();
    for (const auto& [token, id] : file.at("model").at("vocab").as_object())
      if (token != lost) vocab[token] = id;
    file["model"]["vocab"] = vocab;
    return parse_tokenizer_json({.text = file.dump(), .where = "T"});
  };
  for (const std::string name : {"gpt2", "llama2"}) {
    INFO(name);
    const auto tokenizer = load_tokenizer_file(path_of(name));
    const auto other = named(name, "");
    for (const std::string& text : texts()) CHECK(other->encode(text) == tokenizer->encode(text));
  }
  // The library opens these and refuses a text with an unknown character.
  CHECK_REFUSED(DataError, named("gpt2", "~"), "model.unk_token", "\"<none>\", which model.vocab lacks");
  CHECK_REFUSED(DataError, named("llama2", "<0x00>"), "model.unk_token", "\"<none>\", which model.vocab lacks");
  CHECK_REFUSED(DataError, named("llama2_unknown", ""), "model.unk_token", "\"<none>\", which model.vocab lacks");
}

TEST_CASE("tokenizer files: numbers of transformers in tokenizer_config.json are read", "[data]") {
  const std::string text = bytes_in(path_of("llama3"));
  const auto with = [&](const std::string& length) {
    return parse_tokenizer_json({.text = text,
                                 .where = "T",
                                 .config_text = "{\n  \"model_max_length\": " + length +
                                                ",\n  \"eos_token\": {\"content\": \"<tool>\", \"special\": true}\n}"});
  };
  const int32_t tool = with("1024")->encode("<tool>").at(0);
  for (const std::string length : {"1000000000000000019884624838656", "Infinity", "NaN", "9223372036854775808"}) {
    INFO(length);
    CHECK(with(length)->special().end_of_text == tool);
    CHECK(has(with(length)->hugging_face_files().at(1).second, length));
  }
  CHECK_REFUSED(DataError, with("Infinite"), "tokenizer_config.json beside T:2:", "is not JSON");
}

TEST_CASE("tiktoken files: damaged ones are refused with the line", "[data]") {
  const TempFolder folder;
  const std::string good = bytes_in(path_of("cl100k_base_ranks")), about = bytes_in(kGolden + "cl100k_base_ranks.json");
  const auto refused = [&](const std::string& text, const std::string& beside,
                           std::initializer_list<std::string> parts) {
    put(folder / "x.tiktoken", text);
    put(folder / "x.json", beside);
    if (beside.empty()) std::filesystem::remove(folder / "x.json");
    const std::string message = sentence<DataError>([&] { load_tokenizer_file(folder / "x.tiktoken"); });
    INFO(message);
    for (const std::string& part : parts) CHECK(has(message, part));
  };
  put(folder / "x.tiktoken", good);
  put(folder / "x.json", about);
  CHECK(load_tokenizer_file(folder / "x.tiktoken")->vocab_size() == 806);
  refused(good, "", {"x.json", "pattern"});
  refused(good, "{\"pattern\":7}", {"pattern", "x.tiktoken"});
  refused(good, "{\"pattern\":\"a\",\"special_tokens\":{\"b\":-1}}", {"special_tokens"});
  refused(good, "{\"pattern\":\"a\",\"special_tokens\":{\"b\":5}}", {"id 5 twice"});
  refused(good, "{\"pattern\":\"a\",\"special_tokens\":{\"b\":9000000}}", {"id 9000000", "need at most"});
  refused(good, "{\"pattern\":\"\\\\p{N}{1,3}+\"}", {"{..}+ is not supported"});
  refused("", about, {"line 1", "no token"});
  refused("!!!! 0\n", about, {"line 1", "base64"});
  refused("YQ== 0\nYQ\n", about, {"line 2", "base64"});
  refused("YQ== x\n", about, {"line 1", "the rank \"x\""});
  refused("YQ== -1\n", about, {"the rank \"-1\""});
  refused("YQ== 99999999999\n", about, {"the rank \"99999999999\""});
  refused("YQ== 0\nYQ== 1\n", about, {"\"a\" twice"});
  refused("YQ== 0\nYg== 0\n", about, {"id 0 twice"});
  refused("YQ== 0\n", about, {"lacks the byte 0x00"});
  refused(" 0\n", about, {"line 1"});
}

TEST_CASE("tokenizer files: one word of a MB takes no square time, and broken UTF-8 is refused", "[data]") {
  for (const std::string& name : names()) {
    INFO(name);
    const auto tokenizer = load_tokenizer_file(path_of(name));
    for (const char c : {'a', ' ', '\n', '.', '1'}) {
      const std::string text(test_everything() ? 1 << 20 : 1 << 16, c);
      CHECK(tokenizer->encode(text).size() <= 2 * text.size() + 1);
    }
    CHECK_REFUSED(DataError, tokenizer->encode("ab\xff z"), "byte 2", "0xff");
    CHECK_REFUSED(DataError, tokenizer->encode("ab\xe2\x82"), "byte 2");
    CHECK_REFUSED(DataError, tokenizer->decode(std::vector<int32_t>{0, tokenizer->vocab_size()}), "at index 1");
    CHECK_REFUSED(DataError, tokenizer->decode(std::vector<int32_t>{-1}), "id -1");
  }
}

TEST_CASE("tokenizer files: exported tokenizers are read back with the same ids", "[data]") {
  const TempFolder folder;
  std::mt19937_64 random(34);
  const std::string text = long_text(random, 20000);
  for (const std::string& name :
       {std::string("cl100k_base_ranks"), std::string("qwen2"), std::string("bytes"), std::string("chars")}) {
    INFO(name);
    const auto tokenizer =
        name.size() == 5 && name != "qwen2" ? make_tokenizer(name, text) : load_tokenizer_file(path_of(name));
    for (const auto& [file, bytes] : tokenizer->hugging_face_files()) put(folder / file, bytes);
    const auto other = load_tokenizer_file(folder / "tokenizer.json");
    CHECK(other->encode(text) == tokenizer->encode(text));
    CHECK(other->vocab_size() == tokenizer->vocab_size());
    CHECK(other->special().end_of_text == tokenizer->special().end_of_text);
    CHECK(other->decode(other->encode(text)) == tokenizer->decode(tokenizer->encode(text)));
  }
}
