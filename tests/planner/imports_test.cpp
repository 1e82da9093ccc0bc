// SPDX-License-Identifier: Apache-2.0
// Small configurations of other programs: the keys they become, and refusals that name the option and its line.

#include <cstdlib>
#include <filesystem>

#include "engine/base/check.h"
#include "engine/base/files.h"
#include "engine/config/load.h"
#include "planner/imports/options.h"
#include "tests/test.hpp"

using namespace slipstream;
using namespace slipstream::planner;

namespace {

constexpr const char* kMegatron = R"(#!/bin/bash
GPUS=8
NODES=${NODES:-4}
WORLD=$((GPUS*NODES))
TP=2   # tensor ranks
ARGS=(
    --num-layers 24 --hidden-size 1024
    --num-attention-heads 16
    --seq-length 2048
    --max-position-embeddings 2048
    --tensor-model-parallel-size $TP
    --micro-batch-size 2
    --global-batch-size $((WORLD * 4))
    --use-distributed-optimizer
    --overlap-grad-reduce
    --bf16
    --log-interval 10 # not of the model
)
torchrun --nproc_per_node $GPUS --nnodes ${NODES} pretrain_gpt.py ${ARGS[@]}
)";

constexpr const char* kNemo = R"(trainer:
  num_nodes: 2
  devices: 8
  precision: bf16
  max_steps: 100
model:
  # sizes
  num_layers: 4
  hidden_size: 512  # elements
  ffn_hidden_size: ${multiply:3, ${.hidden_size}}
  num_attention_heads: 8
  num_query_groups: 2
  encoder_seq_length: 1024
  max_position_embeddings: ${.encoder_seq_length}
  normalization: rmsnorm
  activation: fast-swiglu
  position_embedding_type: rope
  bias: false
  micro_batch_size: 1
  global_batch_size: 64
  tensor_model_parallel_size: 2
  share_embeddings_and_output_weights: false
  optim:
    name: distributed_fused_adam
    betas:
      - 0.9
      - 0.98
)";

constexpr const char* kTitan = R"([model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 1
seq_len = 4096
[parallelism]
data_parallel_shard_degree = 8
tensor_parallel_degree = 2
[activation_checkpoint]
mode = "full"
)";

struct Files {
  std::string folder = (std::filesystem::temp_directory_path() / "imports-XXXXXX").string();
  Files() { REQUIRE(mkdtemp(folder.data()) != nullptr); }
  ~Files() {
    std::error_code error;
    std::filesystem::remove_all(folder, error);
  }
  Files(const Files&) = delete;
  Files& operator=(const Files&) = delete;
  std::string path(const std::string& name) const { return folder + "/" + name; }
  void write(const std::string& name, const std::string& text) const { files::write_file(path(name), text); }

  Imported read(const std::string& format, const std::string& text) {
    write("config", text);
    return import_run(format, path("config"));
  }
  RunConfig run(const std::string& format, const std::string& text) {
    write("run.toml", read(format, text).run_file);
    return load_run_config(path("run.toml"), {});
  }
  std::string refusal(const std::string& format, const std::string& text) {
    try {
      read(format, text);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "";
  }
};

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

bool has(const std::string& text, const std::string& part) {
  INFO(text << " needs " << part);
  CHECK(text.find(part) != std::string::npos);
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("imports: a script of Megatron-LM becomes a run file, with its variables and arithmetic", "[planner]") {
  Files files;
  const RunConfig run = files.run("megatron", kMegatron);
  CHECK(run.model.family == Family::gpt2);
  CHECK(run.model.layers == 24);
  CHECK(run.model.width == 1024);
  CHECK(run.parallel.tensor == 2);
  CHECK(run.train.micro_batch_size == 2);
  CHECK(run.train.global_batch_size == 128);
  CHECK(run.train.dtype == DType::bf16);
  CHECK(run.zero.stage == 1);
  CHECK(!run.overlap.param_gather);
  const Imported imported = files.read("megatron", kMegatron);
  CHECK(imported.ranks == 32);
  CHECK(imported.as == "megatron");
  CHECK(files.read("megatron", replaced(kMegatron, "--bf16", "--bf16 --fp8-format hybrid")).as == "megatron+fp8");
}

TEST_CASE("imports: arguments of Megatron-LM in YAML", "[planner]") {
  Files files;
  const RunConfig run = files.run("megatron",
                                  "MODEL_ARGS:\n  --num-layers: 6\n  --hidden-size: 64\n  --num-attention-heads: 4\n"
                                  "  --seq-length: 32\n  --use-distributed-optimizer: true\n  --bf16: true\n");
  CHECK(run.model.layers == 6);
  CHECK(run.zero.stage == 1);
}

TEST_CASE("imports: NeMo's references are replaced", "[planner]") {
  Files files;
  const RunConfig run = files.run("nemo", kNemo);
  CHECK(run.model.family == Family::llama);
  CHECK(run.model.ffn_width == 1536);
  CHECK(run.model.kv_heads == 2);
  CHECK(run.model.context == 1024);
  CHECK(run.optimizer.beta2 == 0.98);
  CHECK(run.zero.stage == 1);
  CHECK(files.read("nemo", kNemo).ranks == 16);
}

TEST_CASE("imports: a file of torchtitan becomes the published sizes", "[planner]") {
  Files files;
  const RunConfig run = files.run("torchtitan", kTitan);
  CHECK(run.model.width == 4096);
  CHECK(run.model.kv_heads == 8);
  CHECK(run.model.vocab_size == 128256);
  CHECK(run.zero.stage == 3);
  CHECK(run.parallel.sequence_parallel);
  CHECK(run.train.recompute == Recomputation::full);
  CHECK(files.read("torchtitan", kTitan).ranks == 16);
  CHECK(
      files.read("torchtitan", replaced(kTitan, "flavor = \"8B\"", "flavor = \"8B\"\nconverters = [\"float8\"]")).as ==
      "fsdp+fp8");
}

TEST_CASE("imports: dropout and the layers that recompute", "[planner]") {
  Files files;
  const auto megatron = [&](const std::string& options) {
    return files.run("megatron", replaced(kMegatron, "--bf16", "--bf16 " + options));
  };
  const RunConfig usual = megatron("");
  CHECK(usual.model.resid_pdrop == 0.1);  // Megatron-Core's defaults
  CHECK(usual.model.attn_pdrop == 0.1);
  CHECK(usual.train.recompute == Recomputation::none);
  const RunConfig none = megatron("--hidden-dropout 0.0 --attention-dropout 0");
  CHECK(none.model.embd_pdrop == 0);
  CHECK(none.model.attn_pdrop == 0);
  const RunConfig block = megatron("--recompute-granularity full --recompute-method block --recompute-num-layers 5");
  CHECK(block.train.recompute == Recomputation::full);
  CHECK(block.train.recompute_layers == 5);
  const RunConfig every = megatron("--recompute-granularity full --recompute-method block --recompute-num-layers 24");
  CHECK(every.train.recompute_layers == 0);
  const RunConfig zero = megatron("--recompute-granularity full --recompute-method block --recompute-num-layers 0");
  CHECK(zero.train.recompute == Recomputation::none);
  const RunConfig uniform =
      megatron("--recompute-granularity full --recompute-method uniform --recompute-num-layers 5");
  CHECK(uniform.train.recompute == Recomputation::full);
  CHECK(uniform.train.recompute_layers == 0);
  CHECK(megatron("--recompute-activations").train.recompute == Recomputation::selective);
  CHECK(megatron("--activations-checkpoint-method uniform").train.recompute == Recomputation::full);
  const RunConfig nemo =
      files.run("nemo", replaced(kNemo, "  bias: false",
                                 "  bias: false\n  hidden_dropout: 0.2\n  attention_dropout: 0.0\n"
                                 "  activations_checkpoint_granularity: full\n  activations_checkpoint_method: block\n"
                                 "  activations_checkpoint_num_layers: 3"));
  CHECK(nemo.model.resid_pdrop == 0.2);
  CHECK(nemo.model.attn_pdrop == 0);
  CHECK(nemo.train.recompute_layers == 3);
}

TEST_CASE("imports: refusals name the option, its value and its line", "[planner]") {
  Files files;
  const auto megatron = [&](const std::string& option) {
    return files.refusal("megatron", replaced(kMegatron, "--bf16", "--bf16 " + option));
  };
  const std::string experts = megatron("--num-experts 8");
  has(experts, ":16: --num-experts = 8 is not supported");
  has(megatron("--some-new-option 3"), "--some-new-option");
  has(megatron("--swiglu"), "--normalization");
  has(megatron("--kv-channels 128"), "must be hidden-size / num-attention-heads = 64");
  has(files.refusal("megatron", replaced(kMegatron, "--num-layers 24", "--num-layers $LAYERS")),
      "--num-layers = $LAYERS");
  has(files.refusal("megatron", replaced(kMegatron, "pretrain_gpt.py", "pretrain_bert.py")),
      ":19: pretrain_bert.py is not supported");
  has(files.refusal("megatron", "echo nothing\n"), "--num-layers is missing");
  has(files.refusal("nemo", replaced(kNemo, "  bias: false", "  bias: false\n  num_moe_experts: 8")),
      ":19: model.num_moe_experts = 8 is not supported");
  has(files.refusal("nemo", replaced(kNemo, "fast-swiglu", "squared-relu")), "model.activation = squared-relu");
  has(files.refusal("nemo", replaced(kNemo, "  bias: false", "  bias: false\n  new_block: 3")), "model.new_block");
  has(files.refusal("torchtitan", replaced(kTitan, "\"llama3\"", "\"deepseek_v3\"")), ":2:1: model.name = deepseek_v3");
  has(files.refusal("torchtitan", replaced(kTitan, "mode = \"full\"", "mode = \"full\"\n[new]\nblock = 3")),
      "new.block");
  has(files.refusal("gguf", "x"), "unknown format 'gguf'");
}
