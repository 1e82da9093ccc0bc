// SPDX-License-Identifier: Apache-2.0
// Texts and token shards as training data: those that are trained on, and those that are refused.

#include "engine/base/hash.h"
#include "engine/checkpoint/weights.h"
#include "tests/cli/program.h"

using namespace slipstream;
using namespace slipstream::program;

TEST_CASE("unusable training data exits with code 3", "[cli]") {
  Folder folder;
  const std::string run = run_file(folder);
  const auto train = [&](const std::string& sets) { return call("train " + run + " " + sets); };
  check_refused(train("--set data.train=" + folder.path("none.txt")), 3, {"none.txt"});
  check_refused(train("--set data.train="), 3, {"data.train is empty"});
  check_refused(train("--set data.validation_fraction=0.000001"), 3, {"validation split", "data.validation_fraction"});
  check_refused(train("--set data.train=" + folder.path("")), 3, {});
  check_refused(train("--set data.train=" + folder.write("empty.txt", "")), 3, {"empty.txt", "empty"});
  check_refused(train("--set data.train=" + folder.write("short.txt", "too short")), 3, {"17"});
  const std::string latin = folder.write("latin.txt", english() + "caf\xe9\n");
  check_refused(train("--set data.tokenizer=chars --set data.train=" + latin), 3, {"latin.txt", "UTF-8"});
  CHECK(call("train " + run + " --dry-run --set data.train=" + latin).code == 0);  // bytes take anything

  // The shards are cut short, changed, without their description, or of another tokenizer.
  const Result made = call("tokenize " + folder.path("text.txt") + " " + folder.path("tokens"));
  INFO(made.text);
  REQUIRE(made.code == 0);
  CHECK(contains(made.text, "xxh3"));
  const std::string shard = folder.path("tokens.bin"), good = read(shard), about = read(folder.path("tokens.json"));
  CHECK(good.size() == 2 * english().size());
  CHECK(train("--set train.steps=2 --set output.dir=" + folder.path("shards") + " --set data.train=" + shard).code ==
        0);
  const std::string from_shard = "--set data.train=" + shard;
  folder.write("tokens.bin", good.substr(0, good.size() / 2));
  check_refused(train(from_shard), 3, {"tokens.bin"});
  folder.write("tokens.bin", good.substr(0, good.size() - 1));
  check_refused(train(from_shard), 3, {"tokens.bin"});
  std::string flipped = good;
  flipped[100] = static_cast<char>(flipped[100] ^ 1);
  folder.write("tokens.bin", flipped);
  check_refused(train(from_shard), 3, {"tokens.bin"});
  folder.write("tokens.bin", good);
  fs::remove(folder.path("tokens.json"));
  check_refused(train(from_shard), 3, {"tokens.json", "sidecar", "docs/how-to/token-shards.md"});
  folder.write("tokens.json", "{}");
  check_refused(train(from_shard), 3, {"tokens.json"});
  folder.write("tokens.json", about);
  check_refused(train(from_shard + " --set data.tokenizer=chars"), 3, {"chars", "bytes"});
  check_refused(call("tokenize " + folder.path("none.txt") + " " + folder.path("x")), 3, {"none.txt"});
  check_refused(call("tokenize " + latin + " " + folder.path("x") + " --tokenizer chars"), 3, {"UTF-8"});
  check_refused(call("tokenize " + folder.path("text.txt") + " " + folder.path("x") + " --tokenizer words"), 2,
                {"words"});
  check_refused(call("tokenize " + folder.path("text.txt") + " " + folder.path("text.txt") + "/x"), 7, {});
}

TEST_CASE("token shards made elsewhere are trained on, and continued as ids", "[cli]") {
  Folder folder;
  std::string ids;  // of 1000, as docs/how-to/token-shards.md writes them
  for (uint32_t i = 0, state = 1; i < 400; ++i, state = state * 1664525u + 1013904223u)
    for (const uint32_t byte : {(state >> 16) % 1000 & 255, (state >> 16) % 1000 >> 8}) ids += static_cast<char>(byte);
  const std::string shard = folder.write("tokens.bin", ids);
  folder.write("tokens.json", R"({"dtype": "uint16", "vocab_size": 1000, "count": 400, "hash": ")" +
                                  data::xxh3_128_hex(ids.data(), static_cast<int64_t>(ids.size())) +
                                  R"(", "tokenizer": "gpt2"})");
  const std::string run = run_file(folder) + " --set data.train=" + shard;
  const Result plan = call("plan --json " + run);
  INFO(plan.text);
  REQUIRE(plan.code == 0);
  const Result trained = call("train " + run);
  INFO(trained.text);
  REQUIRE(trained.code == 0);
  check_complete(folder.path("run"), 6);
  CHECK(Json::parse(read(folder.path("run") + "/checkpoints/final/config.json")).at("vocab_size").as_int() == 1000);
  // The run held 1024 rows of the table.
  CHECK(checkpoint::read_final(folder.path("run") + "/checkpoints/final").weights.get("transformer.wte.weight").shape ==
        std::vector<int64_t>{1000, 16});
  // The plan uses the shards' vocabulary, too: it is the plan of the run.
  CHECK(Json::parse(plan.text).at("plan_hash").as_string() ==
        Json::parse(read(folder.path("run") + "/run.json")).at("plan_hash").as_string());
  const std::string generate = "generate " + folder.path("run") + " --tokens 3 --device cpu";
  check_refused(call(generate + " --prompt a"), 2, {"gpt2", "--prompt-ids"});
  check_refused(call(generate + " --prompt-ids 7,1000"), 2, {"1000", "999"});
  const Result more = call(generate + " --prompt-ids 7,999");
  INFO(more.text);
  CHECK(more.code == 0);
  CHECK(more.text.rfind("7,999,", 0) == 0);
  CHECK(count(more.text, ",") == 5);
}

TEST_CASE("ids outside the vocabulary are found before training", "[cli]") {
  Folder folder;
  const std::string run = run_file(folder);
  REQUIRE(call("tokenize " + folder.path("text.txt") + " " + folder.path("tokens")).code == 0);
  check_refused(call("train " + run + " --set model.vocab_size=100 --set data.train=" + folder.path("tokens.bin")), 2,
                {"100", "256"});
  // A larger vocabulary than the tokenizer's is legal; generation must not leave the tokenizer's.
  const Result padded = call("train " + run + " --set model.vocab_size=320 --set train.steps=2");
  INFO(padded.text);
  REQUIRE(padded.code == 0);
  const Result text = call("generate " + folder.path("run") + " --prompt a --tokens 60 --temperature 10 --seed 4");
  INFO(text.text);
  CHECK(text.code == 0);
}
