// SPDX-License-Identifier: Apache-2.0
// Text generation of the whole program on fake GPUs gives the text of the CPU. A host that reads the fake's device
// memory directly faults here, as on a GPU.

#include "tests/cli/program.h"

using namespace slipstream;
using namespace slipstream::program;

namespace {

const std::string& kFake = fake_gpu_program();

/// A short training run, so that the likeliest tokens differ from place to place.
void train(const Folder& folder, const std::string& sets) {
  run_file(folder);
  const Result trained = shell(kFake + " train " + folder.path("run.toml") + " --set train.steps=4 " + sets +
                               " --set optimizer.learning_rate=2e-2 --set device.kind=cpu");
  INFO(trained.text);
  REQUIRE(trained.code == 0);
}

Result generate(const Folder& folder, const std::string& more, int ranks = 1) {
  return shell((ranks > 1 ? mpirun() + "-np " + std::to_string(ranks) + " " : "") + kFake + " generate " +
                   folder.path("run") + " " + more,
               120);
}

/// The greedy continuation is the same on both devices; returns it.
std::string same_on_both(const Folder& folder, const std::string& more, int ranks = 1) {
  INFO(more << " on " << ranks);
  const Result on_cpu = generate(folder, more + " --temperature 0 --device cpu", ranks),
               on_gpu = generate(folder, more + " --temperature 0 --device cuda", ranks);
  INFO(on_gpu.text);
  CHECK(on_cpu.code == 0);
  CHECK(on_gpu.code == 0);
  CHECK(on_gpu.text == on_cpu.text);
  return on_gpu.text;
}

}  // namespace

TEST_CASE("every family generates the text of the CPU on a GPU, several prompts as each alone", "[cuda]") {
  struct Row {
    std::string family, sets;
  };
  const Row rows[] = {
      {"gpt2", ""},
      {"llama", " --set model.heads=4 --set model.kv_heads=2 --set model.width=32 --set model.ffn_width=40"},
      {"mistral", " --set model.heads=4 --set model.kv_heads=1 --set model.ffn_width=40 --set model.sliding_window=5"},
      {"qwen2", " --set model.heads=2 --set model.kv_heads=2 --set model.ffn_width=40"},
      {"qwen3", " --set model.heads=4 --set model.kv_heads=2 --set model.head_dim=10 --set model.ffn_width=40"},
  };
  for (const Row& row : rows) {
    INFO(row.family);
    Folder folder;
    train(folder, "--set model.family=" + row.family + row.sets);
    // The texts go past the context of 16 tokens, where all earlier keys change.
    const std::string one = same_on_both(folder, "--prompt \"the wind\" --tokens 14");
    CHECK(one.size() > 14);
    const std::string prompts = folder.write("prompts.txt", "the wind\na\nevery sail before \n");
    const std::string many = same_on_both(folder, "--prompts " + prompts + " --tokens 14 --batch 2");
    CHECK(count(many, "\n") == 3);
    CHECK(contains(many, Json(one.substr(8, one.size() - 9)).dump()));
    CHECK(generate(folder, "--prompts " + prompts + " --tokens 14 --temperature 0 --device cuda").text == many);
  }
}

TEST_CASE("a GPU keeps weights in bfloat16, and generates the CPU's text by them", "[cuda]") {
  Folder folder;
  train(folder, "--set model.family=llama --set model.heads=4 --set model.kv_heads=2 --set model.ffn_width=40");
  same_on_both(folder, "--prompt \"the wind\" --tokens 12 --dtype bfloat16");
  same_on_both(folder, "--prompt \"the wind carries\" --tokens 3 --dtype bfloat16");
}

TEST_CASE("sampling on a GPU is that of the CPU, and auto takes a GPU where there is one", "[cuda]") {
  Folder folder;
  train(folder, "");
  const std::string sampled = "--prompt \"the wind\" --tokens 12 --seed 5 --device ";
  const Result on_gpu = generate(folder, sampled + "cuda");
  CHECK(on_gpu.code == 0);
  CHECK(on_gpu.text == generate(folder, sampled + "cpu").text);
  CHECK(on_gpu.text == generate(folder, sampled + "auto").text);
  // The texts are drawn with every option; of several texts some end early.
  const std::string prompts = folder.write("prompts.txt", "the wind\na\nevery sail before \n"),
                    options = "--prompts " + prompts +
                              " --tokens 9 --batch 2 --temperature 1.3 --top-k 20 --top-p 0.9 "
                              "--min-p 0.01 --repetition-penalty 1.3 --stop e --seed 3 --device ";
  const Result many = generate(folder, options + "cuda");
  CHECK(many.code == 0);
  CHECK(many.text == generate(folder, options + "cpu").text);
  // A driver that refuses to record steps costs time of the host and changes no text.
  const std::string refusing =
      "env FAKE_GPU_CAPTURES=0 " + kFake + " generate " + folder.path("run") + " " + sampled + "cuda";
  CHECK(shell(refusing + " 2>/dev/null").text == on_gpu.text);
  CHECK(contains(shell(refusing).text, "could not be recorded as a graph"));
  CHECK(!contains(on_gpu.text, "could not be recorded"));
  const Result bound = generate(folder, sampled + "cuda --bound");
  CHECK(contains(bound.text, " tokens/s"));
  CHECK(!contains(bound.text, "bound:"));
  const std::string none = "env FAKE_GPU_DRIVER=0 " + kFake + " generate " + folder.path("run") + " " + sampled;
  CHECK(shell(none + "auto").text == on_gpu.text);
  check_refused(shell(none + "cuda"), 7, {"no NVIDIA driver"});
  check_refused(
      shell("env FAKE_GPU_MEMORY=20000 " + kFake + " generate " + folder.path("run") + " " + sampled + "cuda"), 7,
      {"[memory] "});
}

TEST_CASE("ranks share a model on GPUs", "[cuda]") {
  if (!has_mpirun()) return;
  Folder folder;
  train(folder, "--set model.family=llama --set model.heads=4 --set model.kv_heads=2 --set model.ffn_width=40");
  CHECK(same_on_both(folder, "--prompt \"the wind\" --tokens 12", 2) ==
        generate(folder, "--prompt \"the wind\" --tokens 12 --temperature 0 --device cuda").text);
}
