// SPDX-License-Identifier: Apache-2.0
// slipstream eval and generate on a model whose probabilities are chosen by hand: each depends on one byte before it.

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>

#include "engine/checkpoint/weights.h"
#include "tests/cli/program.h"

using namespace slipstream;
using namespace slipstream::program;

namespace {

constexpr int64_t kWidth = 16, kVocab = 256, kFfn = 16;

/// P(next | before) of three bytes; after every other byte all are equally likely.
const std::map<char, std::map<char, double>>& chances() {
  static const std::map<char, std::map<char, double>> all{
      {'a', {{'a', 0.5}, {'b', 0.25}, {' ', 0.25}}},
      {'b', {{'a', 0.125}, {'b', 0.5}, {' ', 0.375}}},
      {' ', {{'a', 0.75}, {'b', 0.25}}},
  };
  return all;
}

/// A folder of Llama with one layer that adds nothing: the embedding of a byte is one large element, which the last
/// norm makes sqrt(width), and its column of the head has the logarithms.
std::string hand_made(const Folder& folder) {
  const Result trained = call("train " + run_file(folder) +
                              " --set model.family=llama --set model.layers=1"
                              " --set model.ffn_width=16 --set train.steps=1");
  INFO(trained.text);
  REQUIRE(trained.code == 0);
  const std::string final = folder.path("run") + "/checkpoints/final", dir = folder.path("model");
  std::vector<float> table(kVocab * kWidth), head(kVocab * kWidth);
  size_t column = 0;
  for (const auto& [before, next] : chances()) {
    table[static_cast<size_t>(before) * kWidth + column] = 1000;
    for (size_t id = 0; id < kVocab; ++id) head[id * kWidth + column] = -20;
    for (const auto& [id, chance] : next)
      head[static_cast<size_t>(id) * kWidth + column] = static_cast<float>(std::log(chance) / std::sqrt(kWidth));
    ++column;
  }
  const std::vector<float> ones(kWidth, 1), zeros(kWidth * kFfn);
  std::vector<checkpoint::TensorToSave> tensors;
  const auto add = [&](const std::string& name, std::vector<int64_t> shape, const std::vector<float>& values) {
    tensors.push_back({.name = name,
                       .dtype = DType::f32,
                       .shape = std::move(shape),
                       .write = [&values](const checkpoint::TensorSink& sink) {
                         sink(values.data(), static_cast<int64_t>(4 * values.size()));
                       }});
  };
  add("model.embed_tokens.weight", {kVocab, kWidth}, table);
  for (const char* norm : {"input_layernorm", "post_attention_layernorm"})
    add(std::string("model.layers.0.") + norm + ".weight", {kWidth}, ones);
  for (const char* matrix : {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
                             "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"})
    add(std::string("model.layers.0.") + matrix + ".weight", {kWidth, kFfn}, zeros);
  add("model.norm.weight", {kWidth}, ones);
  add("lm_head.weight", {kVocab, kWidth}, head);
  checkpoint::write_final(dir, std::move(tensors), read(final + "/config.json"),
                          {{"slipstream_tokenizer.json", read(final + "/slipstream_tokenizer.json")}});
  return dir;
}

Json evaluated(const std::string& command) {
  const Result result = call("eval " + command + " --json");
  INFO(result.text);
  REQUIRE(result.code == 0);
  return Json::parse(result.text);
}

}  // namespace

TEST_CASE("eval: the perplexity of a text is that of the chosen probabilities", "[cli]") {
  const Folder folder;
  const std::string model = hand_made(folder);
  folder.write("short.txt", "abab a");
  // a to b, b to a, a to b, b to space, space to a
  const double chance = 0.25 * 0.125 * 0.25 * 0.375 * 0.75;
  for (const char* flags : {"", " --context 3", " --context 4 --stride 1", " --context 2 --batch 1", " --batch 9"}) {
    INFO(flags);
    const Json result = evaluated(model + " --text " + folder.path("short.txt") + flags);
    CHECK(result.at("tokens").as_int() == 5);
    CHECK(result.at("perplexity").as_double() == Approx(std::pow(chance, -1.0 / 5)).epsilon(1e-5));
    CHECK(result.at("nats_per_token").as_double() == Approx(-std::log(chance) / 5).epsilon(1e-5));
    CHECK(result.at("bits_per_byte").as_double() == Approx(-std::log2(chance) / 6).epsilon(1e-5));
  }
  // After another byte all 256 are equally likely.
  folder.write("other.txt", "xyz");
  CHECK(evaluated(model + " --text " + folder.path("other.txt")).at("perplexity").as_double() ==
        Approx(256).epsilon(1e-5));
}

TEST_CASE("eval: HellaSwag and ARC count the likeliest endings", "[cli]") {
  const Folder folder;
  const std::string model = hand_made(folder);
  // After "a", " a" has 0.25 x 0.75, " aa" half of it, and " bb" 0.25 x 0.25 x 0.5. So " a" is the likeliest, and " aa"
  // is per byte: 2.37 nats of 2 bytes against 1.67 of 1.
  folder.write(
      "hellaswag.jsonl",
      R"({"ind": 1, "activity_label": "x", "ctx_a": "a", "ctx_b": "", "ctx": "a", "split": "val", "label": 0, )"
      R"("endings": ["a", "bb", "aa"], "source_id": "s"})"
      "\n"
      R"({"ctx": "a", "label": 2, "endings": ["a", "bb", "aa"]})"
      "\n\n"
      R"({"ctx": "a", "label": "1", "endings": ["bb", "a"]})"
      "\n"
      R"({"ctx": "a", "label": 1, "endings": ["a", "aa"]})"
      "\n");
  for (const char* flags : {"", " --batch 1", " --context 3"}) {
    const Json result = evaluated(model + " --choices " + folder.path("hellaswag.jsonl") + flags);
    CHECK(result.at("questions").as_int() == 4);
    CHECK(result.at("acc").as_double() == 0.5);        // questions 1 and 3
    CHECK(result.at("acc_norm").as_double() == 0.75);  // questions 2, 3 and 4
  }
  // The space after "Answer:" is as likely for all endings; then a has 0.75 and b 0.25.
  folder.write("arc.jsonl", R"({"id": "q1", "question": {"stem": "b?", "choices": [{"text": "b", "label": "A"}, )"
                            R"({"text": "a", "label": "B"}]}, "answerKey": "B"})"
                            "\n"
                            R"({"id": "q2", "question": {"stem": "a?", "choices": [{"text": "b", "label": "1"},)"
                            R"({"text": "a", "label": "2"}, )"
                            R"({"text": "ab", "label": "3"}, {"text": "bbbb", "label": "4"}]}, "answerKey": "1"})"
                            "\n");
  const Json arc = evaluated(model + " --choices " + folder.path("arc.jsonl"));
  CHECK(arc.at("questions").as_int() == 2);
  CHECK(arc.at("acc").as_double() == 0.5);
}

TEST_CASE("eval: wrong files and flags are refused in one sentence", "[cli]") {
  const Folder folder;
  const std::string model = hand_made(folder);
  const auto refused = [&](const std::string& line, const std::vector<std::string>& parts) {
    folder.write("bad.jsonl", line + "\n");
    check_refused(call("eval " + model + " --choices " + folder.path("bad.jsonl")), 3, parts);
  };
  refused("{", {"bad.jsonl", "line 1"});
  refused("[]", {"line 1", "neither \"endings\" nor \"answerKey\""});
  refused("", {"no question"});
  refused(R"({"endings": ["a", "b"], "label": 0})", {"line 1", "no \"ctx\""});
  refused(R"({"ctx": 5, "endings": ["a", "b"], "label": 0})", {"\"ctx\" is an integer, need a string"});
  refused(R"({"ctx": "a", "endings": ["a"], "label": 0})", {"\"endings\" is no list of two or more"});
  refused(R"({"ctx": "a", "endings": ["a", "b"], "label": 2})", {"\"label\" is 2, need 0 to 1"});
  refused(R"({"question": {"stem": "a", "choices": [{"text": "b", "label": "A"}, )"
          R"({"text": "a", "label": "B"}]}, "answerKey": "C"})",
          {"no choice has the label \"C\""});
  check_refused(call("eval " + model), 2, {"one of --text and --choices"});
  check_refused(call("eval " + model + " --choices x --stride 2"), 2, {"--stride 2 needs --text"});
  check_refused(call("eval " + model + " --text " + folder.path("text.txt") + " --context 17"), 2,
                {"--context 17 exceeds the model's context of 16"});
  check_refused(call("eval " + model + " --text " + folder.path("none")), 3, {"none"});
  folder.write("one.txt", "a");
  check_refused(call("eval " + model + " --text " + folder.path("one.txt")), 3, {"has 1 tokens, need at least 2"});
}

TEST_CASE("generate: the likeliest bytes, alone, in a batch and on ranks that share the model", "[cli]") {
  const Folder folder;
  const std::string model = hand_made(folder), greedy = " --temperature 0 --tokens 4";
  const auto text = [&](const std::string& prompt) {
    return call("generate " + model + " --prompt " + prompt + greedy).text;
  };
  CHECK(contains(text("a"), "aaaaa\n"));
  CHECK(contains(text("ab"), "abbbbb\n"));
  folder.write("prompts.txt", "a\nab\nb \n");
  const std::string many = "generate " + model + " --prompts " + folder.path("prompts.txt") + greedy;
  const std::string lines =
      "{\"prompt\": \"a\", \"continuation\": \"aaaa\"}\n{\"prompt\": \"ab\", \"continuation\": \"bbbb\"}\n"
      "{\"prompt\": \"b \", \"continuation\": \"aaaa\"}\n";
  for (const char* flags : {"", " --batch 1", " --batch 2", " --dtype bfloat16"}) {
    INFO(flags);
    const Result result = call(many + flags);
    INFO(result.text);
    CHECK(result.code == 0);
    CHECK(contains(result.text, lines));
  }
  CHECK(contains(call("generate " + model + " --prompt a --bound" + greedy).text, "% of it"));
  folder.write("prompts.txt",
               "\xef\xbb\xbf"
               "a\r\nab\r\nb \r\n");
  CHECK(contains(call(many).text, lines));
  // Ids end where texts end.
  const std::string ids = "generate " + model + " --prompt-ids 98" + greedy;
  CHECK(contains(call(ids).text, "98,98,98,98,98,\n"));
  std::ofstream(model + "/generation_config.json") << R"({"eos_token_id": [7, 98]})";
  CHECK(contains(call(ids).text, "98,\n"));
  CHECK(!contains(call(ids).text, "98,98"));
  CHECK(contains(text("ab"), "ab\n"));
  fs::remove(model + "/generation_config.json");
  check_refused(call(ids + " --stop a"), 2, {"--stop", "--prompt-ids"});
  check_refused(call("generate " + model + " --prompts " + folder.path("none")), 3, {"none"});
  folder.write("empty.txt", "");
  check_refused(call("generate " + model + " --prompts " + folder.path("empty.txt")), 3, {"is empty"});
  if (!has_mpirun()) return;
  const Result shared = on_ranks(2, "generate " + model + " --prompts " + folder.path("prompts.txt") + greedy);
  INFO(shared.text);
  CHECK(shared.code == 0);
  CHECK(contains(shared.text, lines));
  check_refused(on_ranks(3, "generate " + model + " --prompt a"), 2,
                {"3 ranks cannot share the model equally", "one of 1, 2 ranks"});
}

TEST_CASE("generate: more ranks than key-value heads print the ids of one", "[cli]") {
  if (!has_mpirun()) return;
  const Folder folder;
  // Two heads of keys and values; the second rank of each pair uses the same as the first.
  for (const char* family : {"llama", "qwen2", "qwen3"}) {
    INFO(family);
    const Result trained = call("train " + run_file(folder) + " --set model.family=" + family +
                                " --set model.heads=4 --set model.kv_heads=2 --set model.ffn_width=32");
    INFO(trained.text);
    REQUIRE(trained.code == 0);
    const std::string generate = "generate " + folder.path("run") + " --prompt-ids 104,101 --tokens 9";
    for (const char* flags : {" --temperature 0", " --seed 4"}) {
      const std::string one = call(generate + flags).text;
      CHECK(std::count(one.begin(), one.end(), ',') == 11);
      for (int ranks : {2, 4}) CHECK(on_ranks(ranks, generate + flags).text == one);
    }
  }
  const Result refused = on_ranks(3, "generate " + folder.path("run") + " --prompt a");
  check_refused(refused, 2, {"3 ranks cannot share the model equally", "2 key-value heads", "one of 1, 2, 4 ranks"});
}

TEST_CASE("generate: sampled texts do not depend on the batch, and go on after a full context", "[cli]") {
  const Folder folder;
  REQUIRE(call("train " + run_file(folder) + " --set data.tokenizer=chars").code == 0);
  const std::string run = folder.path("run"), flags = " --tokens 30 --seed 5";  // the context is 16
  folder.write("prompts.txt", "the\nthe\nand he\n");
  const std::string many = "generate " + run + " --prompts " + folder.path("prompts.txt") + flags;
  const Result together = call(many);
  INFO(together.text);
  REQUIRE(together.code == 0);
  CHECK(call(many + " --batch 2").text == together.text);
  CHECK(call(many + " --batch 1").text == together.text);
  std::istringstream lines(together.text);
  std::string first, second;
  std::getline(lines, first);
  std::getline(lines, second);
  CHECK(first != second);  // samples of one prompt
  CHECK(contains(call("generate " + run + " --prompt the" + flags).text,
                 "the" + Json::parse(first).at("continuation").as_string() + "\n"));
}
