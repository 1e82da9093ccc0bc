// SPDX-License-Identifier: Apache-2.0
// Files beside weights, such as tokenizers and chat templates; and the weights of checkpoints.

#include <fstream>

#include "tests/cli/program.h"

using namespace slipstream;
using namespace slipstream::program;

TEST_CASE("convert: only a folder that a conversion wrote is replaced", "[cli][convert]") {
  const Folder folder;
  REQUIRE(call("train " + run_file(folder)).code == 0);
  const std::string run = folder.path("run"), out = folder.path("out");
  fs::create_directories(out);
  const std::string convert = "convert " + run + " ";
  for (int twice = 0; twice < 2; ++twice)
    REQUIRE(call(convert + out).code == 0);  // the folder is empty, and then a converted model
  // Every other folder stays as it is: the run, its parent, the folder of checkpoints, and folders with other files.
  fs::create_directories(folder.path("photos"));
  folder.write("photos/a.jpg", "x");
  folder.write("out/notes.txt", "x");
  for (const std::string& to : {run, folder.path(""), folder.path("photos"), run + "/checkpoints", out})
    check_refused(call(convert + to), 2, {"exists and is no converted model", "Give a new folder"});
  CHECK(fs::exists(folder.path("photos/a.jpg")));
  CHECK(fs::exists(folder.path("out/notes.txt")));
  CHECK(fs::exists(run + "/metrics.jsonl"));
  check_refused(call("convert " + folder.path("none.bin") + " " + folder.path("photos")), 2, {"a.jpg"});
}

TEST_CASE("convert and model.init: files that concern texts stay", "[cli][convert]") {
  const Folder folder;
  const std::string tokenizer = source_dir() + "/tests/golden/tokenizers/gpt2.tokenizer.json";
  const std::string run = run_file(folder) + " --set data.tokenizer=" + tokenizer;
  REQUIRE(call("train " + run).code == 0);
  const std::string source = folder.path("source"), out = folder.path("out"), other = folder.path("other");
  fs::copy(folder.path("run") + "/checkpoints/final", source);
  Json config = Json::parse(json_with(source + "/config.json", "eos_token_id", Json::parse("[2, 3, 4]")));
  config["pad_token_id"] = 5;
  config["attn_pdrop"] = 0.25;
  folder.write("source/config.json", config.dump(2));
  const std::string generation = R"({"eos_token_id": [3, 4, 7], "temperature": 0.6, "do_sample": true})";
  folder.write("source/generation_config.json", generation);
  folder.write("source/chat_template.jinja", "{{ messages }}");
  const auto same_texts = [&](const std::string& dir) {
    INFO(dir);
    CHECK(read(dir + "/generation_config.json") == generation);
    CHECK(read(dir + "/chat_template.jinja") == "{{ messages }}");
    CHECK(read(dir + "/tokenizer.json") == read(tokenizer));
    const Json made = Json::parse(read(dir + "/config.json"));
    CHECK(made.at("eos_token_id") == config.at("eos_token_id"));
    CHECK(made.at("pad_token_id") == config.at("pad_token_id"));
    CHECK(made.at("bos_token_id") == config.at("bos_token_id"));
    return made;
  };
  REQUIRE(call("convert " + source + " " + out).code == 0);
  CHECK(same_texts(out).at("attn_pdrop").as_double() == 0.25);
  const std::string init = " --set output.dir=" + other + " --set model.init=";
  REQUIRE(call("train " + run + init + source).code == 0);
  same_texts(other + "/checkpoints/final");
  // Texts end after the ids of both files.
  const std::string generate = "generate " + out + " --prompt the --tokens 400 --temperature 10 --seed ";
  for (int seed = 0; seed < 3; ++seed) {
    const Result text = call(generate + std::to_string(seed));
    INFO(text.text);
    CHECK(text.code == 0);
    // One of five ids in about 260 ends a text of 400 with near certainty.
    CHECK(text.text.size() < 1600);
  }

  // With another tokenizer the settings have no meaning.
  const std::string bytes =
      run_file(folder) + " --set model.vocab_size=" + std::to_string(config.at("vocab_size").as_int());
  const Result changed = call("train " + bytes + init + source);
  INFO(changed.text);
  REQUIRE(changed.code == 0);
  CHECK(!fs::exists(other + "/checkpoints/final/chat_template.jinja"));
  CHECK(Json::parse(read(other + "/checkpoints/final/config.json")).at("eos_token_id").is_null());

  // A tokenizer that this program does not read is copied, and ids need none.
  fs::remove(source + "/slipstream_tokenizer.json");
  folder.write("source/tokenizer.json", R"({"model": {"type": "Unigram"}})");
  folder.write("source/added_tokens.json", "{}");
  const Result copied = call("convert " + source + " " + out);
  INFO(copied.text);
  REQUIRE(copied.code == 0);
  CHECK(contains(copied.text, "does not read it"));
  CHECK(contains(copied.text, "model.type"));
  for (const char* file : {"tokenizer.json", "added_tokens.json", "chat_template.jinja"})
    CHECK(read(out + "/" + file) == read(source + "/" + file));
  check_refused(call("generate " + out + " --prompt a"), 3, {"Unigram"});
  CHECK(call("generate " + out + " --prompt-ids 5,6 --tokens 3").code == 0);
  fs::remove(out + "/tokenizer.json");
  check_refused(call("generate " + out + " --prompt a"), 3, {"has no tokenizer"});
  CHECK(call("generate " + out + " --prompt-ids 5,6 --tokens 3").code == 0);
}

TEST_CASE("checkpoints: their weights are converted, generate text, and begin other runs", "[cli][convert]") {
  const Folder folder;
  const std::string run = folder.path("run"), checkpoints = run + "/checkpoints", out = folder.path("out"),
                    step = checkpoints + "/step-00000002";
  for (const std::string family : {"gpt2", "llama"}) {
    const std::string train = "train " + run_file(folder) + " --set model.family=" + family +
                              " --set train.micro_batch_size=1 --set checkpoint.interval=1 --set train.steps=2 ";
    std::vector<std::string> layouts = {""};
    if (has_mpirun()) layouts = {"parallel.tensor=2", "zero.stage=3", "parallel.pipeline=2"};
    for (const std::string& layout : layouts) {
      INFO(family << " " << layout);
      const Result trained = layout.empty() ? call(train) : on_ranks(2, train + "--set " + layout);
      INFO(trained.text);
      REQUIRE(trained.code == 0);
      for (const std::string dtype : {"float32", "bfloat16"}) {
        const Result converted = call("convert " + step + " " + out + " --dtype " + dtype);
        INFO(converted.text);
        REQUIRE(converted.code == 0);
        REQUIRE(call("convert " + run + " " + folder.path("other") + " --dtype " + dtype).code == 0);
        for (const fs::directory_entry& entry : fs::directory_iterator(out)) {
          INFO(entry.path());
          CHECK(read(entry.path()) == read(folder.path("other") + "/" + entry.path().filename().string()));
        }
      }
    }
  }
  // An interrupted run has no final weights, so its latest checkpoint is read.
  const std::string prompt = " --prompt the --tokens 20 --seed 3";
  const auto text_of = [&](const std::string& from) {
    const Result result = call("generate " + from + prompt);
    INFO(result.text);
    CHECK(result.code == 0);
    return result.text.substr(result.text.rfind("\nthe") + 1);  // after a line about the checkpoint
  };
  const std::string hash = metrics(run).back().at("params_hash").as_string(), text = text_of(run),
                    score = call("eval " + run + " --text " + folder.path("text.txt")).text;
  fs::rename(checkpoints + "/final", folder.path("final"));
  CHECK(text_of(run) == text);
  CHECK(contains(call("generate " + run + prompt).text, "has no final weights; those of its checkpoint"));
  CHECK(text_of(step) == text);
  REQUIRE(call("convert " + checkpoints + "/step-00000001 " + out).code == 0);
  CHECK(read(out + "/model.safetensors") != read(folder.path("final") + "/model.safetensors"));
  const Result scored = call("eval " + run + " --text " + folder.path("text.txt"));
  CHECK(contains(scored.text, score));
  const std::string init = "train " + run_file(folder) +
                           " --set model.family=llama --set optimizer.learning_rate=0"
                           " --set optimizer.min_learning_rate=0 --set train.steps=1 --set output.dir=" +
                           folder.path("next") + " --set model.init=" + step;
  const Result begun = call(init);
  INFO(begun.text);
  REQUIRE(begun.code == 0);
  CHECK(metrics(folder.path("next")).back().at("params_hash").as_string() == hash);
  // A later run moves both.
  fs::rename(step, step + ".old-1");
  fs::rename(checkpoints + "/model", checkpoints + "/model.old-1");
  CHECK(text_of(step + ".old-1") == text);
  check_refused(call("generate " + checkpoints + "/step-00000001" + prompt), 4, {"needs", "/model", "resume the run"});
  fs::rename(checkpoints + "/model.old-1", checkpoints + "/model");
  // A damaged checkpoint is refused.
  const std::string other = checkpoints + "/step-00000001", manifest = read(other + "/manifest.json");
  const fs::path file = other + "/rank-0000.safetensors";
  fs::resize_file(file, fs::file_size(file) - 1);
  check_refused(call("generate " + other + prompt), 4, {"damaged", "rank-0000.safetensors"});
  std::string flipped = manifest;
  flipped[flipped.size() / 2] ^= 1;
  std::ofstream(other + "/manifest.json") << flipped;
  check_refused(call("generate " + other + prompt), 4, {"manifest.json"});
}

TEST_CASE("tokenizer files: train on a text, tokenize, and generate text", "[cli][convert]") {
  const Folder folder;
  const std::string tokenizer = source_dir() + "/tests/golden/tokenizers/qwen2.tokenizer.json";
  const std::string run = run_file(folder) + " --set train.steps=2 --set data.tokenizer=";
  const Result from_text = call("train " + run + tokenizer);
  INFO(from_text.text);
  REQUIRE(from_text.code == 0);
  const std::string hash = metrics(folder.path("run")).back().at("params_hash").as_string(),
                    final = folder.path("run") + "/checkpoints/final";
  CHECK(read(final + "/tokenizer.json") == read(tokenizer));
  const Json config = Json::parse(read(final + "/config.json"));
  CHECK(config.at("eos_token_id").as_int() == config.at("bos_token_id").as_int());
  CHECK(config.at("eos_token_id").as_int() < config.at("vocab_size").as_int());
  const Result text = call("generate " + folder.path("run") + " --prompt Größe --tokens 5");
  INFO(text.text);
  CHECK(text.code == 0);
  CHECK(contains(text.text, "Größe"));

  // Shards of the same text train the same weights, with the tokenizer beside them.
  const Result made =
      call("tokenize " + folder.path("text.txt") + " " + folder.path("text") + " --tokenizer " + tokenizer);
  INFO(made.text);
  REQUIRE(made.code == 0);
  const std::string shards = " --set data.train=" + folder.path("text.bin");
  REQUIRE(call("train " + run + tokenizer + shards).code == 0);
  CHECK(metrics(folder.path("run")).back().at("params_hash").as_string() == hash);
  REQUIRE(call("train " + run + "bytes" + shards).code == 0);
  CHECK(metrics(folder.path("run")).back().at("params_hash").as_string() == hash);
  CHECK(read(final + "/tokenizer.json") == read(tokenizer));
  // One of its 806 ids has no text: in 9600 draws it would come up.
  const std::string ranks = source_dir() + "/tests/golden/tokenizers/cl100k_base_ranks.tiktoken";
  REQUIRE(call("train " + run + ranks).code == 0);
  std::string prompts;
  for (int line = 0; line < 400; ++line) prompts += "The\n";
  folder.write("prompts.txt", prompts);
  const Result many = call("generate " + folder.path("run") + " --prompts " + folder.path("prompts.txt") +
                           " --batch 400 --tokens 24 --temperature 10");
  INFO(many.text);
  CHECK(many.code == 0);
  const std::string other = source_dir() + "/tests/golden/tokenizers/gpt2.tokenizer.json";
  check_refused(call("train " + run + other + shards), 3, {"was made with the tokenizer", "text.bin"});
  folder.write("broken.json", "{\"model\": {\"type\": \"Unigram\"}}");
  check_refused(call("train " + run + folder.path("broken.json")), 3, {"broken.json", "model.type", "Unigram"});
  check_refused(call("tokenize " + folder.path("text.txt") + " " + folder.path("x") + " --resume"), 2,
                {"--shard-tokens"});
}
