// SPDX-License-Identifier: Apache-2.0
// Folders of other programs: tensors and keys that the model does not use are right, or refused by name.

#include <cmath>
#include <cstring>

#include "tests/cli/program.h"

using namespace slipstream;
using namespace slipstream::program;

namespace {

/// The final weights of a small run, to be changed.
std::string trained(const Folder& folder, const std::string& model) {
  const Result run = call("train " + run_file(folder) + " --set train.steps=3 --set model.family=" + model);
  INFO(run.text);
  REQUIRE(run.code == 0);
  const std::string source = folder.path("source");
  fs::remove_all(source);
  fs::copy(folder.path("run") + "/checkpoints/final", source);
  fs::remove(source + "/hashes.xxh128");  // as in a folder of another program
  return source;
}

struct Weights {
  explicit Weights(const std::string& path) {
    const std::string bytes = read(path);
    uint64_t header_bytes = 0;
    std::memcpy(&header_bytes, bytes.data(), 8);
    header = Json::parse(bytes.substr(8, header_bytes));
    data = bytes.substr(8 + header_bytes);
  }
  std::string tensor(const std::string& name) const {
    const Json::Array& at = header.at(name).at("data_offsets").as_array();
    return data.substr(static_cast<size_t>(at[0].as_int()), static_cast<size_t>(at[1].as_int() - at[0].as_int()));
  }
  void add(const std::string& name, const char* dtype, const Json& shape, const std::string& bytes) {
    Json& entry = header[name];
    entry["dtype"] = dtype;
    entry["shape"] = shape;
    entry["data_offsets"] = Json(Json::Array{Json(data.size()), Json(data.size() + bytes.size())});
    data += bytes;
  }
  void write(const std::string& path) const {
    std::string head = header.dump();
    head.resize((head.size() + 7) / 8 * 8, ' ');
    const uint64_t size = head.size();
    std::string bytes(8, '\0');
    std::memcpy(bytes.data(), &size, 8);
    std::ofstream(path, std::ios::binary) << bytes << head << data;
  }

  Json header;
  std::string data;
};

std::string bytes_of(const std::vector<float>& values) {
  std::string bytes(4 * values.size(), '\0');
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

double loss_of(const std::string& text, const std::string& model) {
  const Result result = call("eval " + model + " --json --text " + text);
  INFO(result.text);
  REQUIRE(result.code == 0);
  return number_after(result.text, "\"nats_per_token\": ");
}
double loss_of(const Folder& folder, const std::string& model) {
  return loss_of(folder.write("short.txt", english().substr(0, 2000)), model);
}

}  // namespace

TEST_CASE("a head beside tie_word_embeddings is the table, or refused with the elements that differ",
          "[cli][convert]") {
  const Folder folder;
  const std::string source = trained(folder, "llama --set model.tie_embeddings=true"), out = folder.path("out");
  const double tied = loss_of(folder, source);
  const Weights before(source + "/model.safetensors");
  const std::string table = before.tensor("model.embed_tokens.weight");
  const Json shape = before.header.at("model.embed_tokens.weight").at("shape");
  const auto with_head = [&](const std::string& head) {
    Weights weights = before;
    weights.add("lm_head.weight", "F32", shape, head);
    weights.write(source + "/model.safetensors");
  };
  with_head(table);
  CHECK(loss_of(folder, source) == tied);
  REQUIRE(call("convert " + source + " " + out).code == 0);
  CHECK(Weights(out + "/model.safetensors").header == before.header);

  std::vector<float> head(table.size() / 4);
  std::memcpy(head.data(), table.data(), table.size());
  for (const size_t element : {size_t{0}, size_t{77}, head.size() - 1}) head[element] += 1;
  with_head(bytes_of(head));
  const std::string text = " --text " + folder.path("text.txt"), run = "train " + run_file(folder);
  for (const std::string& command :
       {"convert " + source + " " + out, "eval " + source + text, "generate " + source + " --prompt the",
        run + " --set model.family=llama --set model.tie_embeddings=true --set model.init=" + source})
    check_refused(call(command), 4,
                  {"lm_head.weight [256, 16] differs from model.embed_tokens.weight in 3 of 4096 elements",
                   "tie_word_embeddings is true", "set it to false"});
  // With the remedy of the message, both are used.
  folder.write("source/config.json", json_with(source + "/config.json", "tie_word_embeddings", false));
  CHECK(loss_of(folder, source) != tied);
}

TEST_CASE("masks and rotary frequencies of older versions have the values of the model", "[cli][convert]") {
  const Folder folder;
  const std::string out = folder.path("out");
  const auto convert = [&](const std::string& source, const Weights& weights) {
    weights.write(source + "/model.safetensors");
    return call("convert " + source + " " + out);
  };
  {
    const std::string source = trained(folder, "gpt2");
    const Weights before(source + "/model.safetensors");
    const auto mask = [](size_t wrong) {
      std::vector<float> values(256);
      for (size_t i = 0; i < 256; ++i) values[i] = i % 16 <= i / 16 ? 1.0f : 0.0f;
      if (wrong < 256) values[wrong] = 1 - values[wrong];
      return values;
    };
    const auto with_masks = [&](size_t wrong, float masked) {
      Weights weights = before;
      weights.add("transformer.h.0.attn.bias", "F32", Json::parse("[1, 1, 16, 16]"), bytes_of(mask(256)));
      std::string bytes;
      for (const float value : mask(wrong)) bytes += static_cast<char>(value);
      weights.add("transformer.h.1.attn.bias", "BOOL", Json::parse("[1, 1, 16, 16]"), bytes);
      weights.add("transformer.h.1.attn.masked_bias", "F32", Json::parse("[]"), bytes_of({masked}));
      return convert(source, weights);
    };
    CHECK(with_masks(256, -10000).code == 0);
    check_refused(
        with_masks(5, -10000), 4,
        {"transformer.h.1.attn.bias [1, 1, 16, 16] has 1 of 256 elements that are not those of a causal mask"});
    check_refused(with_masks(256, 0), 4, {"transformer.h.1.attn.masked_bias [] has 1 of 1 elements"});
    // Types of other arithmetic are not types of weights.
    Weights bytes = before;
    bytes.header["transformer.wpe.weight"]["dtype"] = "U8";
    const int64_t begin = bytes.header.at("transformer.wpe.weight").at("data_offsets").as_array()[0].as_int();
    bytes.header["transformer.wpe.weight"]["data_offsets"] = Json(Json::Array{Json(begin), Json(begin + 256)});
    const Result refused = convert(source, bytes);
    INFO(refused.text);
    CHECK(refused.code == 4);
  }
  const std::string source = trained(folder, "llama --set model.rope_theta=100");  // heads of 8 elements
  const Weights before(source + "/model.safetensors");
  const auto with_frequencies = [&](double theta) {
    std::vector<float> values;
    for (int j = 0; j < 4; ++j) values.push_back(static_cast<float>(std::pow(theta, -j / 4.0)));
    Weights weights = before;
    weights.add("model.layers.0.self_attn.rotary_emb.inv_freq", "F32", Json::parse("[4]"), bytes_of(values));
    return convert(source, weights);
  };
  const Result right = with_frequencies(100);
  INFO(right.text);
  CHECK(right.code == 0);
  check_refused(with_frequencies(10000), 4,
                {"rotary_emb.inv_freq [4] has 3 of 4 elements that are not those of rope_theta = 100"});
}

TEST_CASE("a folder with weights of another format names its file and what to do", "[cli][convert]") {
  const Folder folder;
  fs::create_directories(folder.path("other"));
  const std::string other = folder.path("other");
  folder.write("other/config.json", R"({"model_type": "llama"})");
  const struct {
    const char* file;
    std::vector<std::string> parts;
  } rows[] = {
      {"pytorch_model.bin", {"has pytorch_model.bin (PyTorch", "weights_only=True", "/other/model.safetensors"}},
      {"pytorch_model-00001-of-00002.bin", {"has pytorch_model-00001-of-00002.bin", "save_pretrained"}},
      {"model-q4.gguf", {"has model-q4.gguf (weights of llama.cpp)", "gguf_file = \"model-q4.gguf\""}},
      {"tf_model.h5", {"has tf_model.h5 (weights of TensorFlow)"}},
      {"consolidated.00.pth", {"has consolidated.00.pth"}},
  };
  folder.write("init.toml", "[model]\ninit = \"" + other + "\"\n[data]\ntrain = \"" + folder.path("text.txt") + "\"\n");
  folder.write("text.txt", english());
  for (const auto& row : rows) {
    INFO(row.file);
    folder.write(std::string("other/") + row.file, "x");
    for (const std::string& command :
         {"convert " + other + " " + folder.path("out"), "train " + folder.path("init.toml"),
          "plan " + folder.path("init.toml"), "generate " + other + " --prompt a"})
      check_refused(call(command), 4, row.parts);
    fs::remove(other + "/" + row.file);
  }
  const std::string field = source_dir() + "/../shared/data/field_inputs/hf-only-pytorch-bin";
  if (fs::exists(field)) check_refused(call("convert " + field + " " + folder.path("out")), 4, {"pytorch_model.bin"});
}

TEST_CASE("windows in some layers: a run, its folder, and runs and texts from it", "[cli][convert]") {
  const Folder folder;
  for (const std::string family : {"mistral", "qwen2", "qwen3"}) {
    INFO(family);
    const std::string source = trained(folder, family + " --set model.sliding_window=4 --set model.window_layers=[1]");
    const double trained_loss = metrics(folder.path("run")).back().at("val_loss").as_double();
    const std::string hash = metrics(folder.path("run")).back().at("params_hash").as_string();
    const Json config = Json::parse(read(source + "/config.json"));
    CHECK(config.at("sliding_window").as_int() == 4);
    CHECK(config.at("layer_types") == Json::parse(R"(["full_attention", "sliding_attention"])"));
    CHECK(config.at("model_type").as_string() == (family == "mistral" ? "ministral" : family));
    // The folder decides the windows, and a run that writes others is refused.
    folder.write("short.toml", "[model]\ninit = \"" + source + "\"\n[data]\ntrain = \"" + folder.path("text.txt") +
                                   "\"\n[train]\nsteps = 1\nmicro_batch_size = 4\neval_batches = 2\n[optimizer]\n"
                                   "learning_rate = 0.0\nmin_learning_rate = 0.0\n[output]\ndir = \"" +
                                   folder.path("other") + "\"\n");
    const std::string again = "train " + folder.path("short.toml");
    const Result run = call(again);
    INFO(run.text);
    REQUIRE(run.code == 0);
    CHECK(metrics(folder.path("other")).back().at("params_hash").as_string() == hash);
    CHECK(metrics(folder.path("other")).back().at("val_loss").as_double() == Approx(trained_loss).epsilon(1e-6));
    CHECK(Json::parse(read(folder.path("other") + "/checkpoints/final/config.json")) == config);
    check_refused(call(again + " --set model.window_layers=[0]"), 4,
                  {"model.sliding_window is 4 in layers 0, but the folder has 4 in layers 1"});
    // Other windows have other losses.
    const double right = loss_of(folder, source);
    for (const char* types :
         {R"(["sliding_attention", "full_attention"])", R"(["full_attention", "full_attention"])"}) {
      folder.write("source/config.json", json_with(source + "/config.json", "layer_types", Json::parse(types)));
      CHECK(std::abs(loss_of(folder, source) - right) > 1e-6);
    }
    fs::remove_all(folder.path("run"));
    fs::remove_all(folder.path("other"));
  }
}

TEST_CASE("experts: a run, its folder, and runs and texts from it", "[cli][convert]") {
  const Folder folder;
  const struct {
    const char *model, *type, *dense, *experts;
  } rows[] = {
      {"mixtral --set model.experts.count=3 --set model.experts.balance=auxiliary", "mixtral", nullptr,
       "2 of 3, 0 shared, by softmax normalized, scale 1"},
      {"qwen3_moe --set model.experts.count=4 --set model.experts.top_k=3 --set model.experts.ffn_width=24 --set "
       "model.experts.layers=[1] --set model.experts.normalize=false",
       "qwen3_moe", "[0]", "3 of 4 in layers 1, 0 shared, by softmax, scale 1"},
      {"qwen3_moe --set model.experts.count=4 --set model.experts.ffn_width=24 --set "
       "model.experts.router=sigmoid --set model.experts.groups=2 --set model.experts.scale=2.5",
       "slipstream_moe", "[]", "2 of 4 in 1 of 2 groups, 0 shared, by sigmoid normalized, scale 2.5"}};
  for (const auto& row : rows) {
    INFO(row.model);
    const std::string source = trained(folder, row.model);
    const Json last = metrics(folder.path("run")).back();
    const Json config = Json::parse(read(source + "/config.json"));
    CHECK(config.at("model_type").as_string() == row.type);
    if (row.dense != nullptr) CHECK(config.at("mlp_only_layers") == Json::parse(row.dense));
    // The folder decides the experts, and a run that chooses others is refused.
    folder.write("short.toml", "[model]\ninit = \"" + source + "\"\n[data]\ntrain = \"" + folder.path("text.txt") +
                                   "\"\n[train]\nsteps = 1\nmicro_batch_size = 4\neval_batches = 2\n[optimizer]\n"
                                   "learning_rate = 0.0\nmin_learning_rate = 0.0\n[output]\ndir = \"" +
                                   folder.path("other") + "\"\n");
    const std::string again = "train " + folder.path("short.toml");
    const Result run = call(again);
    INFO(run.text);
    REQUIRE(run.code == 0);
    CHECK(contains(run.text, "has no effect") == false);
    CHECK(metrics(folder.path("other")).back().at("params_hash") == last.at("params_hash"));
    CHECK(metrics(folder.path("other")).back().at("val_loss").as_double() ==
          Approx(last.at("val_loss").as_double()).epsilon(1e-6));
    CHECK(Json::parse(read(folder.path("other") + "/checkpoints/final/config.json")) == config);
    check_refused(call(again + " --set model.experts.top_k=1"), 4,
                  {"model.experts is 1 of ", std::string("but the folder has ") + row.experts});
    // A folder with the tensor of another expert in place of one is refused.
    Weights weights(source + "/model.safetensors");
    std::string expert, other;
    Json::Object tensors;
    for (Json::Member member : weights.header.as_object()) {
      if (const size_t at = member.first.find(".experts.2."); at != std::string::npos && expert.empty()) {
        expert = member.first;
        member.first.replace(at, 11, ".experts.9.");
        other = member.first;
      }
      tensors.push_back(std::move(member));
    }
    REQUIRE(!expert.empty());
    weights.header = Json(std::move(tensors));
    weights.write(source + "/model.safetensors");
    check_refused(call("eval " + source + " --text " + folder.path("text.txt")), 4,
                  {expert + " [", "is missing", other + " [", "belongs to no parameter"});
    fs::remove_all(folder.path("run"));
    fs::remove_all(folder.path("other"));
  }
}

TEST_CASE("model.init: rates of dropout, the type of weights and null ids stay", "[cli][convert]") {
  const Folder folder;
  const std::string tokenizer = source_dir() + "/tests/golden/tokenizers/gpt2.tokenizer.json";
  for (const std::string family : {"gpt2", "llama"}) {
    INFO(family);
    const std::string source = folder.path("half"), other = folder.path("other"), final = other + "/checkpoints/final";
    const std::string whole = trained(folder, family + " --set data.tokenizer=" + tokenizer);
    REQUIRE(call("convert " + whole + " " + source + " --dtype bfloat16").code == 0);
    const char* attention = family == "gpt2" ? "attn_pdrop" : "attention_dropout";
    Json config = Json::parse(json_with(source + "/config.json", attention, 0.25));
    config["bos_token_id"] = Json();
    if (family == "gpt2") config["resid_pdrop"] = 0.125;
    folder.write("half/config.json", config.dump(2));
    const std::string run = "train " + run_file(folder) + " --set model.family=" + family +
                            " --set train.steps=2 --set checkpoint.interval=1 --set data.tokenizer=" + source +
                            " --set output.dir=" + other + " --set model.init=" + source;
    const auto check = [&](const char* dtype) {
      const Json made = Json::parse(read(final + "/config.json"));
      CHECK(made.at(attention).as_double() == 0.25);
      if (family == "gpt2") CHECK(made.at("resid_pdrop").as_double() == 0.125);
      CHECK(made.at("bos_token_id").is_null());
      CHECK(made.at("dtype").as_string() == dtype);
      CHECK(made.find("torch_dtype") == nullptr);
      const Weights weights(final + "/model.safetensors");
      for (const auto& [name, entry] : weights.header.as_object())
        if (name != "__metadata__")
          CHECK(entry.at("dtype").as_string() == (std::string(dtype) == "bfloat16" ? "BF16" : "F32"));
    };
    REQUIRE(call(run).code == 0);
    CHECK(contains(read(other + "/config.resolved.toml"), "attn_pdrop = 0.25"));
    check("bfloat16");
    // A run that resumes need not have the folder, and may have other rates.
    const std::string weights = read(final + "/model.safetensors");
    fs::remove_all(final);
    fs::rename(source, folder.path("away"));
    fs::copy(folder.path("away"), source);
    fs::remove(source + "/model.safetensors");
    const Result resumed = call(run + " --resume");
    INFO(resumed.text);
    REQUIRE(resumed.code == 0);
    check("bfloat16");
    CHECK(read(final + "/model.safetensors") == weights);
    fs::remove_all(source);
    fs::rename(folder.path("away"), source);
    REQUIRE(call(run + " --set checkpoint.final_dtype=float32 --set model.attn_pdrop=0.25").code == 0);
    check("float32");
    REQUIRE(call(run + " --set model.attn_pdrop=0.5").code == 0);
    CHECK(Json::parse(read(final + "/config.json")).at(attention).as_double() == 0.5);
    // A copy keeps them, too.
    REQUIRE(call("convert " + source + " " + folder.path("copy")).code == 0);
    CHECK(Json::parse(read(folder.path("copy") + "/config.json")) == config);
    for (const char* name : {"half", "copy", "other", "run"}) fs::remove_all(folder.path(name));
  }
}

TEST_CASE("field inputs: folders of other programs have the losses of transformers", "[cli][convert]") {
  const std::string field = source_dir() + "/../shared/data/field_inputs/";
  if (!fs::exists(field)) return;
  const Folder folder;
  check_refused(call("eval " + field + "hf-llama-tied-other-head --text " + field + "sample.txt"), 4,
                {"lm_head.weight", "elements", "tie_word_embeddings"});
  CHECK(loss_of(field + "sample.txt", field + "hf-qwen3-layer-types") == Approx(7.8321).margin(1e-4));
}
