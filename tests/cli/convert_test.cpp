// SPDX-License-Identifier: Apache-2.0
// Models between folders: convert and model.init.

#include <cstring>

#include "tests/cli/program.h"
#include "tests/engine/checkpoint/pieces.h"

using namespace slipstream;
using namespace slipstream::program;

namespace {

/// Writes the tensors of a file as the pieces of three ranks: rows, columns, or whole on one of them.
void write_pieces(const std::string& file, const Folder& folder, const std::string& dir) {
  const std::string bytes = read(file);
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, bytes.data(), 8);
  const Json header = Json::parse(bytes.substr(8, header_bytes));
  tests::PieceFile ranks[3];
  size_t count = 0;
  for (const auto& [name, entry] : header.as_object()) {
    if (name == "__metadata__") continue;
    std::vector<int64_t> shape;
    for (const Json& dim : entry.at("shape").as_array()) shape.push_back(dim.as_int());
    const std::string whole =
        bytes.substr(8 + header_bytes + static_cast<size_t>(entry.at("data_offsets").as_array()[0].as_int()));
    const size_t axis = count % 3;
    for (int64_t rank = 0; rank < 3; ++rank) {
      tests::Box box{.offsets = std::vector<int64_t>(shape.size(), 0), .size = shape};
      if (axis < shape.size()) {
        box.offsets[axis] = shape[axis] * rank / 3;
        box.size[axis] = shape[axis] * (rank + 1) / 3 - box.offsets[axis];
      } else if (rank != static_cast<int64_t>(count % 2)) {
        continue;
      }
      ranks[rank].add(name, entry.at("dtype").as_string(), box, tests::cut(whole, shape, 4, box));
    }
    ++count;
  }
  fs::create_directories(folder.path(dir));
  for (int rank = 0; rank < 3; ++rank) folder.write(dir + "/" + tests::piece_file_name(rank + 1), ranks[rank].bytes());
}

}  // namespace

TEST_CASE("convert: another type and several files, and back to the same bytes", "[cli][convert]") {
  const Folder folder;
  for (const std::string family :
       {"gpt2", "llama", "llama --set model.rope_scaling=llama3 --set model.rope_original_context=8", "mistral",
        "qwen2", "qwen3 --set model.head_dim=6 --set model.tie_embeddings=true", "mixtral --set model.experts.count=3",
        "qwen3_moe --set model.experts.count=4 --set model.experts.ffn_width=24 --set model.experts.layers=[1]"}) {
    INFO(family);
    const std::string run = folder.path("run"), final = run + "/checkpoints/final";
    const Result trained = call("train " + run_file(folder) + " --set model.family=" + family);
    INFO(trained.text);
    REQUIRE(trained.code == 0);
    const std::string weights = read(final + "/model.safetensors");
    const Result split = call("convert " + run + " " + folder.path("split") + " --file-size 4KiB");
    INFO(split.text);
    REQUIRE(split.code == 0);
    CHECK(!fs::exists(folder.path("split") + "/model.safetensors"));
    const Json index = Json::parse(read(folder.path("split") + "/model.safetensors.index.json"));
    CHECK(index.at("weight_map").as_object().size() > 10);
    REQUIRE(call("convert " + folder.path("split") + " " + folder.path("joined")).code == 0);
    CHECK(read(folder.path("joined") + "/model.safetensors") == weights);
    for (const char* file : {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json",
                             "slipstream_tokenizer.json"})
      CHECK(read(folder.path("joined") + "/" + file) == read(final + "/" + file));
    const std::string generate = " --prompt the --tokens 20 --seed 3";
    CHECK(call("generate " + folder.path("split") + generate).text == call("generate " + run + generate).text);

    // A model in bfloat16 keeps its bytes, also through float32.
    const std::string to_half = " --dtype bfloat16", to_float = " --dtype float32";
    REQUIRE(call("convert " + run + " " + folder.path("half") + to_half).code == 0);
    CHECK(contains(read(folder.path("half") + "/config.json"), "bfloat16"));
    REQUIRE(call("convert " + folder.path("half") + " " + folder.path("float") + to_float).code == 0);
    REQUIRE(call("convert " + folder.path("float") + " " + folder.path("again") + to_half).code == 0);
    REQUIRE(call("convert " + folder.path("half") + " " + folder.path("kept")).code == 0);
    const std::string half = read(folder.path("half") + "/model.safetensors");
    CHECK(half.size() < weights.size() * 6 / 10);
    CHECK(read(folder.path("again") + "/model.safetensors") == half);
    CHECK(read(folder.path("kept") + "/model.safetensors") == half);
    fs::remove_all(run);
  }
}

TEST_CASE("convert: folders that are no model are refused with what is wrong", "[cli][convert]") {
  const Folder folder;
  REQUIRE(call("train " + run_file(folder)).code == 0);
  const std::string final = folder.path("run") + "/checkpoints/final", out = folder.path("out"),
                    broken = folder.path("broken");
  const auto refused = [&](const std::vector<std::string>& parts) {
    check_refused(call("convert " + broken + " " + out), 4, parts);
    CHECK(!fs::exists(out));
  };
  const auto copy = [&] {
    fs::remove_all(broken);
    fs::copy(final, broken);
  };
  check_refused(call("convert " + folder.path("none") + " " + out), 4, {"none", "model.safetensors.index.json"});
  check_refused(call("convert " + final + " " + final), 2, {"folder of the weights themselves"});
  check_refused(call("convert " + final + " " + out + " --file-size x"), 2, {"x"});
  const std::string config = final + "/config.json";
  const struct {
    const char* key;
    Json value;
    std::vector<std::string> parts;
  } rows[] = {
      {"model_type",
       "bert",
       {"model_type", "bert", "\"gpt2\", \"llama\", ", "\"qwen3\", \"mixtral\", \"qwen3_moe\" or"}},
      {"model_type", Json(), {"model_type", "llama"}},
      {"n_layer", 0, {"n_layer = 0", "need 1 to 65536"}},
      {"n_layer", "two", {"n_layer is a string"}},
      {"n_layer",
       3,
       {"transformer.h.2.ln_1.weight [16] is missing", "transformer.h.2.mlp.c_proj.bias [16] is missing"}},
      {"n_layer", 1, {"transformer.h.1.", "belongs to no parameter"}},
      {"n_embd", 32, {"transformer.wte.weight is [256, 16], but the model needs [256, 32]", "more"}},
      {"n_head", 3, {"a divisor of the width"}},
      {"vocab_size", 300, {"transformer.wte.weight is [256, 16], but the model needs [300, 16]"}},
      {"activation_function", "relu", {"activation_function", "relu", "gelu_new"}},
      {"scale_attn_by_inverse_layer_idx", true, {"scale_attn_by_inverse_layer_idx", "false"}},
  };
  for (const auto& row : rows) {
    INFO(row.key);
    copy();
    folder.write("broken/config.json", json_with(config, row.key, row.value));
    refused(row.parts);
  }
  const struct {
    const char* key;
    const char* value;
    std::vector<std::string> parts;
  } llama[] = {
      {"rope_scaling", R"({"rope_type": "yarn", "factor": 8.0})", {"rope_scaling", "yarn", "\"llama3\""}},
      {"rope_scaling", R"({"rope_type": "llama3", "factor": 8.0})", {"rope_scaling", "low_freq_factor above 0"}},
      {"rope_scaling",
       R"({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 4, "high_freq_factor": 4,
           "original_max_position_embeddings": 8192})",
       {"rope_scaling", "low_freq_factor below high_freq_factor"}},
      {"attention_bias", "true", {"attention_bias", "false"}},
      {"head_dim", "7", {"even head size", "7"}},
      {"hidden_act", "\"gelu\"", {"hidden_act", "silu"}},
      {"sliding_window", "0", {"sliding_window = 0", "need 1 to"}},
  };
  for (const auto& row : llama) {
    INFO(row.key);
    copy();
    Json sizes = Json::parse(R"({"model_type": "mistral", "hidden_size": 16, "num_attention_heads": 2,
      "num_hidden_layers": 1, "num_key_value_heads": 1, "max_position_embeddings": 16, "vocab_size": 256})");
    sizes[row.key] = Json::parse(row.value);
    if (std::string(row.key) == "attention_bias") sizes["model_type"] = "llama";  // the library ignores it in mistral
    folder.write("broken/config.json", sizes.dump());
    refused(row.parts);
  }
  REQUIRE(call("convert " + final + " " + folder.path("split") + " --file-size 4KiB").code == 0);
  fs::remove_all(broken);
  fs::copy(folder.path("split"), broken);
  for (const auto& entry : fs::directory_iterator(broken))
    if (entry.path().filename().string().starts_with("model-00002")) fs::remove(entry.path());
  refused({"lacks files", "model-00002-of-"});
  const std::string index = "broken/model.safetensors.index.json";
  folder.write(index, R"({"weight_map": {"a": "../model.safetensors"}})");
  refused({"a", "need the name of a file beside it"});
  folder.write(index, R"({"weight_map": 7})");
  refused({"no object \"weight_map\""});
  folder.write(index, R"({"weight_map": {"a": "model-00001-of-00002.safetensors"}})");
  fs::copy(final + "/model.safetensors", broken + "/model-00001-of-00002.safetensors");
  refused({"\"a\"", "does not contain it"});
}

TEST_CASE("a config.json with more layers than the files have tensors is refused before a model is built",
          "[cli][convert]") {
  const Folder folder;
  REQUIRE(call("train " + run_file(folder)).code == 0);
  const std::string final = folder.path("run") + "/checkpoints/final", out = folder.path("out"),
                    whole = folder.path("whole"), split = folder.path("split"), pieces = folder.path("pieces");
  fs::copy(final, whole);
  REQUIRE(call("convert " + final + " " + split + " --file-size 4KiB").code == 0);
  write_pieces(final + "/model.safetensors", folder, "pieces");
  const std::string config = json_with(final + "/config.json", "n_layer", 65536);
  for (const char* name : {"whole", "split", "pieces"}) {
    INFO(name);
    folder.write(std::string(name) + "/config.json", config);
    const std::string from = folder.path(name);
    folder.write("init.toml",
                 "[model]\ninit = \"" + from + "\"\n[data]\ntrain = \"" + folder.path("text.txt") + "\"\n");
    // A model of 65536 layers would take 2 GB and several seconds, and its plan minutes.
    for (const std::string& command : {"convert " + from + " " + out, "generate " + from + " --prompt the",
                                       "eval " + from + " --text " + folder.path("text.txt"),
                                       "train " + folder.path("init.toml"), "plan " + folder.path("init.toml")})
      check_refused(shell("ulimit -t 5; " + exe() + " " + command, 10), 4,
                    {name, "config.json", "has 65536 layers, but the files beside it have only 28 tensors"});
  }
  CHECK(!fs::exists(out));
  // A plan needs no file of weights beside the index.
  fs::copy_file(final + "/config.json", split + "/config.json", fs::copy_options::overwrite_existing);
  for (const auto& entry : fs::directory_iterator(split))
    if (entry.path().extension() == ".safetensors") fs::remove(entry.path());
  const Result planned = call("plan " + folder.path("init.toml") + " --set model.init=" + split);
  INFO(planned.text);
  CHECK(planned.code == 0);
}

TEST_CASE("model.init: every layout continues with the same weights", "[cli][convert]") {
  const Folder folder;
  for (const std::string family : {"gpt2", "llama"}) {
    INFO(family);
    const std::string run = run_file(folder) + " --set model.family=" + family + " --set model.heads=4";
    REQUIRE(call("train " + run).code == 0);
    const std::string hash = metrics(folder.path("run")).back().at("params_hash").as_string(),
                      source = folder.path("source");
    fs::remove_all(source);
    REQUIRE(call("convert " + folder.path("run") + " " + source + " --file-size 4KiB").code == 0);
    // Steps without a learning rate keep the weights.
    const std::string still =
        run + " --set model.init=" + source +
        " --set optimizer.learning_rate=0 --set optimizer.min_learning_rate=0 --set train.steps=2";
    const auto same = [&](const Result& result) {
      INFO(result.text);
      REQUIRE(result.code == 0);
      CHECK(contains(result.text, "weights:"));
      CHECK(metrics(folder.path("run")).back().at("params_hash").as_string() == hash);
    };
    same(call("train " + still));
    if (!has_mpirun()) continue;
    const std::vector<std::string> sample = {"zero.stage=3", "parallel.tensor=2"};
    const std::vector<std::string> all = {"zero.stage=0",      "zero.stage=1",      "zero.stage=2",
                                          "zero.stage=3",      "parallel.tensor=2", "parallel.pipeline=2",
                                          "parallel.context=2"};
    for (const std::string& layout : test_everything() ? all : sample) {
      INFO(layout);
      same(on_ranks(2, "train " + still + " --set train.micro_batch_size=1 --set " + layout));
    }
  }
}

TEST_CASE("convert and model.init: weights in pieces of ranks, and pickled checkpoints", "[cli][convert]") {
  const Folder folder;
  const std::string run = run_file(folder), out = folder.path("out"), pieces = folder.path("pieces"),
                    final = folder.path("run") + "/checkpoints/final";
  REQUIRE(call("train " + run).code == 0);
  const std::string hash = metrics(folder.path("run")).back().at("params_hash").as_string();
  const std::string weights = read(final + "/model.safetensors");
  write_pieces(final + "/model.safetensors", folder, "pieces");
  check_refused(call("convert " + pieces + " " + out), 4, {"no config.json", "Copy the file"});
  fs::copy(final + "/config.json", pieces);
  const Result joined = call("convert " + pieces + " " + out);
  INFO(joined.text);
  REQUIRE(joined.code == 0);
  CHECK(read(out + "/model.safetensors") == weights);
  const std::string still = "train " + run + " --set model.init=" + pieces +
                            " --set optimizer.learning_rate=0 --set optimizer.min_learning_rate=0 --set train.steps=1"
                            " --set output.dir=" +
                            folder.path("other") + " --set train.micro_batch_size=1";
  const auto same = [&](const Result& result) {
    INFO(result.text);
    REQUIRE(result.code == 0);
    CHECK(metrics(folder.path("other")).back().at("params_hash").as_string() == hash);
  };
  same(call(still));
  if (has_mpirun()) same(on_ranks(2, still + " --set parallel.tensor=2"));

  // The rows at the end of a table are missing; the vocabulary is not one that may grow.
  fs::rename(pieces + "/" + tests::piece_file_name(3), folder.path("away"));
  check_refused(call("convert " + pieces + " " + folder.path("none")), 4, {"Copy the files of all ranks"});
  check_refused(call(still), 4, {"but the model needs", "in pieces (2)", "Copy the files of all ranks"});
  fs::rename(folder.path("away"), pieces + "/" + tests::piece_file_name(3));
  fs::rename(pieces + "/" + tests::piece_file_name(2), folder.path("away"));
  check_refused(call(still), 4, {"values of its shape", "Copy the files of all ranks", tests::piece_file_name(3)});
  CHECK(!fs::exists(folder.path("none")));

  const std::string pickled = folder.path("pickled");
  fs::create_directories(pickled);
  folder.write("pickled/.metadata", "cos\nsystem\n.");
  for (const std::string& command : {"convert " + pickled + " " + out, "train " + run + " --set model.init=" + pickled})
    check_refused(call(command), 4, {"distributed checkpoint of PyTorch", "scripts/dcp_to_safetensors.py"});
  folder.write("pickled/metadata.json", "{}");
  check_refused(call("convert " + pickled + " " + out), 4,
                {"distributed checkpoint of Megatron-LM", "scripts/dcp_to_safetensors.py"});
  CHECK(read(out + "/model.safetensors") == weights);
}

TEST_CASE("model.init: the folder decides the keys of [model] that the run file lacks", "[cli][convert]") {
  const Folder folder;
  const std::string model =
      "qwen3 --set model.heads=4 --set model.kv_heads=2 --set model.head_dim=6"
      " --set model.rope_scaling=llama3 --set model.rope_original_context=8"
      " --set model.rope_theta=500 --set model.norm_eps=1e-6 --set model.tie_embeddings=true";
  REQUIRE(call("train " + run_file(folder) + " --set model.family=" + model).code == 0);
  const std::string hash = metrics(folder.path("run")).back().at("params_hash").as_string(),
                    source = folder.path("source"), other = folder.path("other");
  fs::copy(folder.path("run") + "/checkpoints/final", source);
  folder.write("short.toml", "[model]\ninit = \"" + source + "\"\n[data]\ntrain = \"" + folder.path("text.txt") +
                                 "\"\n[train]\nsteps = 1\nmicro_batch_size = 1\n[optimizer]\nlearning_rate = 0.0\n"
                                 "min_learning_rate = 0.0\n[output]\ndir = \"" +
                                 other + "\"\n");
  const Result run = call("train " + folder.path("short.toml"));
  INFO(run.text);
  REQUIRE(run.code == 0);
  CHECK(metrics(other).back().at("params_hash").as_string() == hash);
  const Json theirs = Json::parse(read(source + "/config.json")),
             ours = Json::parse(read(other + "/checkpoints/final/config.json"));
  CHECK(ours == theirs);
  // Keys in the run file must agree with the folder.
  check_refused(call("train " + folder.path("short.toml") + " --set model.layers=1"), 4,
                {"model.layers is 1, but the folder has 2"});
  check_refused(call("train " + folder.path("short.toml") + " --set model.rope_scaling_factor=2"), 4,
                {"model.rope_scaling is llama3 (factor 2,", "but the folder has llama3 (factor 8,"});
  check_refused(call("plan " + folder.path("short.toml") + " --set model.init=" + folder.path("none")), 4, {"none"});
}

TEST_CASE("model.init: weights that the new run would move are refused before anything moves", "[cli][convert]") {
  const Folder folder;
  const std::string dir = folder.path("run"), final = dir + "/checkpoints/final", elsewhere = folder.path("elsewhere"),
                    link = folder.path("link"), files = folder.path("files");
  const std::string train = "train " + run_file(folder) + " --set train.steps=1";
  REQUIRE(call(train).code == 0);
  const auto refused = [&](const std::string& sets, const std::string& key) {
    INFO(sets);
    check_refused(call(train + sets), 2, {"model.init = ", "older results in " + key + " = ", "Set " + key + " to"});
    CHECK(fs::exists(final + "/model.safetensors"));
    CHECK(!fs::exists(dir + ".old-1"));
  };
  fs::create_directory_symlink(dir, link);
  fs::create_directory(files);
  for (const auto& file : fs::directory_iterator(final))
    fs::create_symlink(file.path(), files + "/" + file.path().filename().string());
  for (const std::string& init :
       {final, dir, dir + "/../run//checkpoints/./final/", link + "/checkpoints/final", files})
    refused(" --set model.init=" + init, "output.dir");
  refused(" --set model.init=" + final + " --set output.dir=" + link, "output.dir");
  refused(" --resume --set model.init=" + final + " --set checkpoint.dir=" + elsewhere, "output.dir");
  refused(" --set model.init=" + dir + " --set checkpoint.dir=" + dir + "/checkpoints --set output.dir=" + elsewhere,
          "checkpoint.dir");

  // Now the weights are elsewhere, the new run has another folder, or the files stay.
  const auto trains = [&](const std::string& sets) {
    const Result result = call(train + sets);
    INFO(sets << "\n" << result.text);
    CHECK(result.code == 0);
  };
  trains(" --set model.init=" + final + " --set output.dir=" + folder.path("run2"));
  fs::copy(final, dir + "/mine");
  trains(" --set model.init=" + dir + "/mine");
  trains(" --set model.init=" + dir + ".old-1");
  CHECK(fs::exists(dir + "/mine/model.safetensors"));
  // A run that resumes moves nothing.
  const std::string third = folder.path("run3"), begin = third + "/checkpoints/begin";
  fs::create_directories(third + "/checkpoints");
  fs::copy(folder.path("run2/checkpoints/final"), begin);
  const std::string from_begin = " --set model.init=" + begin + " --set output.dir=" + third;
  trains(from_begin);
  trains(from_begin + " --resume --set train.steps=2");
  check_refused(call(train + from_begin), 2, {"model.init = ", "older results in output.dir = "});
  CHECK(fs::exists(begin));
}

TEST_CASE("model.init: another model is refused tensor by tensor, and a vocabulary may grow", "[cli][convert]") {
  const Folder folder;
  const std::string run = run_file(folder);
  REQUIRE(call("train " + run).code == 0);
  const std::string source = folder.path("source");
  fs::copy(folder.path("run") + "/checkpoints/final", source);
  const std::string init = "train " + run + " --set model.init=" + source;
  check_refused(call(init + " --set model.ffn_width=32"), 4,
                {"transformer.h.0.mlp.c_fc.weight is [16, 64], but the model needs [16, 32]",
                 "transformer.h.1.mlp.c_proj.weight is [64, 16], but the model needs [32, 16]"});
  check_refused(call(init + " --set model.heads=4"), 4, {"model.heads is 4, but the folder has 2"});
  check_refused(call(init + " --set model.norm_eps=1e-6"), 4, {"model.norm_eps is 1e-06, but the folder has 1e-05"});
  check_refused(call(init + " --set model.family=llama"), 4, {"model.family is llama, but the folder has gpt2"});
  check_refused(call("train " + run + " --set model.init=" + folder.path("none")), 4, {"none"});
  const Result grown = call(init + " --set model.vocab_size=300 --set train.steps=1");
  INFO(grown.text);
  CHECK(grown.code == 0);
  // The new rows are the same on every layout, and in pieces that begin among them.
  const std::string still = init +
                            " --set optimizer.learning_rate=0 --set optimizer.min_learning_rate=0 --set train.steps=1"
                            " --set train.micro_batch_size=1 --set model.vocab_size=";
  for (const std::string rows : {"311", "17000"}) {
    std::string hash;
    const auto same = [&](const Result& result) {
      INFO(result.text);
      REQUIRE(result.code == 0);
      const std::string found = metrics(folder.path("run")).back().at("params_hash").as_string();
      if (hash.empty()) hash = found;
      CHECK(found == hash);
    };
    same(call(still + rows));
    if (!has_mpirun()) continue;
    for (const std::string layout : {"parallel.tensor=2", "zero.stage=3"})
      same(on_ranks(2, still + rows + " --set " + layout));
  }
  // Rows that config.json promises are missing.
  folder.write("source/config.json", json_with(source + "/config.json", "vocab_size", 280));
  check_refused(call(init + " --set model.vocab_size=300"), 4,
                {"transformer.wte.weight is [256, 16], but the model needs [300, 16]"});
}
