// SPDX-License-Identifier: Apache-2.0
// Laws between keys, and between keys and ranks; every refusal is compared as text.

#include "engine/config/validate.h"
#include "engine/config/defaults.h"

#include <cstdio>
#include <map>
#include <sstream>

#include "engine/base/check.h"
#include "engine/config/fields.h"
#include "engine/config/load.h"
#include "tests/defaults.h"
#include "tests/test.hpp"

using namespace slipstream;

namespace {

template <typename F>
std::string refusal(F action) {
  try {
    action();
  } catch (const ConfigError& error) {
    CHECK(static_cast<int>(error.code()) == 2);
    return error.what();
  }
  return "accepted";
}

std::string load_refusal(const std::vector<std::string>& sets) {
  return refusal([&] { default_run_config(sets); });
}

RunConfig with(const std::vector<std::string>& sets) { return default_run_config(sets); }

}  // namespace

TEST_CASE("resolve: derived values are filled in, and resolving again changes nothing", "[config]") {
  const RunConfig gpt2 = with({"output.dir=runs/x", "train.steps=77"});
  CHECK(gpt2.model.kv_heads == 12);
  CHECK(gpt2.model.ffn_width == 3072);
  CHECK(gpt2.model.tie_embeddings == Choice::yes);
  CHECK(gpt2.train.sequence_length == 1024);
  CHECK(gpt2.optimizer.decay_steps == 77);
  CHECK(gpt2.zero.gather_dtype == DTypeChoice::float32);
  CHECK(gpt2.comm.grad_dtype == DTypeChoice::float32);
  CHECK(gpt2.checkpoint.dir == "runs/x/checkpoints");
  const RunConfig llama = with({"model.family=llama", "model.width=4096", "model.heads=32", "train.dtype=bfloat16"});
  CHECK(llama.model.ffn_width == 11008);  // Llama 2 7B
  CHECK(llama.model.tie_embeddings == Choice::no);
  CHECK(llama.zero.gather_dtype == DTypeChoice::bfloat16);
  CHECK(llama.comm.grad_dtype == DTypeChoice::bfloat16);
  CHECK(with({"train.dtype=bfloat16", "comm.grad_dtype=float32"}).comm.grad_dtype == DTypeChoice::float32);
  CHECK(with({"comm.grad_dtype=bfloat16"}).comm.grad_dtype == DTypeChoice::bfloat16);
  CHECK(with({"train.dtype=bfloat16", "comm.quantize=int8"}).comm.grad_dtype == DTypeChoice::float32);
  CHECK(config_toml(resolve_defaults(llama)) == config_toml(llama));
}

TEST_CASE("validate: sources of data that contradict each other are refused", "[config]") {
  CHECK(load_refusal({"data.sources=[\"a\", \"b\"]", "data.weights=[0.5, 0]"}) == "accepted");
  CHECK(load_refusal({"data.train=a", "data.sources=[\"a\"]"}) ==
        "data.train and data.sources are both set. Keep data.train for one source, or data.sources.");
  CHECK(load_refusal({"data.sources=[\"a\"]", "data.weights=[1, 2]"}) ==
        "data.weights has 2 numbers for 1 data.sources. Give one weight per source.");
  CHECK(load_refusal({"data.sources=[\"a\", \"b\"]", "data.formats=[\"nanogpt\", \"auto\"]"}) == "accepted");
  CHECK(load_refusal({"data.sources=[\"a\"]", "data.formats=[\"nanogpt\", \"auto\"]"}) ==
        "data.formats has 2 words for 1 data.sources. Give one format per source.");
  CHECK(load_refusal({"data.train=a", "data.formats=[\"nanogpt\"]"}) ==
        "data.formats has 1 words for 0 data.sources. Give one format per source.");
  CHECK_THAT(load_refusal({"data.sources=[\"a\"]", "data.formats=[\"nanogtp\"]"}),
             Catch::Contains("did you mean \"nanogpt\"?"));
  CHECK(load_refusal({"data.sources=[\"a\", \"b\"]", "data.weights=[0, 0]"}) ==
        "data.weights: all 2 are 0, need a sum above 0. Change them.");
  CHECK(load_refusal({"data.sources=[\"a\", \"b\"]", "data.weights=[1, -2]"}) ==
        "--set data.weights=[1, -2]: data.weights needs a number from 0 to 1000000, got -2.0.");
  CHECK(load_refusal({"data.sources=[1]"}) ==
        "--set data.sources=[1]: data.sources needs a list of texts in quotes, got a list of 1 integers.");
}

TEST_CASE("validate: every family takes a mask of documents", "[config]") {
  for (const char* family : {"gpt2", "llama", "mistral"})
    CHECK(load_refusal({"data.document_mask=true", std::string("model.family=") + family}) == "accepted");
}

TEST_CASE("validate: rows of optimizer.multipliers that cannot be read are refused", "[config]") {
  const auto refusal_of_row = [](const std::string& row) {
    return load_refusal({"optimizer.multipliers=[\"" + row + "\"]"});
  };
  const std::string remedy = ". Write \"PATTERN learning_rate=X weight_decay=Y\".";
  CHECK(refusal_of_row("*.bias learning_rate=0.5 weight_decay=0") == "accepted");
  CHECK(refusal_of_row("") == "optimizer.multipliers: the row \"\" has no pattern of a tensor's name" + remedy);
  CHECK(refusal_of_row("learning_rate=1") ==
        "optimizer.multipliers: the row \"learning_rate=1\" has no pattern of a tensor's name" + remedy);
  CHECK(refusal_of_row("*") == "optimizer.multipliers: the row \"*\" has no multiplier" + remedy);
  CHECK(refusal_of_row("* lr=1") ==
        "optimizer.multipliers: the row \"* lr=1\" has \"lr=1\", need learning_rate or weight_decay, each once" +
            remedy);
  CHECK(
      refusal_of_row("* weight_decay=-1") ==
      "optimizer.multipliers: the row \"* weight_decay=-1\" has \"weight_decay=-1\", need a number from 0 to 1000000" +
          remedy);
  CHECK_THAT(refusal_of_row("* learning_rate=nan"), Catch::Contains("need a number from 0"));
  CHECK_THAT(refusal_of_row("* weight_decay=1 weight_decay=1"), Catch::Contains("each once"));
}

TEST_CASE("validate: heads, widths, lengths, rates and steps that do not fit are refused with their numbers",
          "[config]") {
  CHECK(load_refusal({"model.heads=7"}) ==
        "model.width = 768 is not a multiple of model.heads = 7. Use heads that divide the width.");
  CHECK(load_refusal({"model.family=llama", "model.kv_heads=5"}) ==
        "model.heads = 12 is not a multiple of model.kv_heads = 5. Use kv_heads that divide heads.");
  CHECK(load_refusal({"model.kv_heads=4"}) ==
        "model.kv_heads = 4 differs from model.heads = 12, but family gpt2 needs one key and value head per head. "
        "Leave kv_heads out, or use family = \"llama\".");
  CHECK(load_refusal({"model.family=llama", "model.width=36"}) ==
        "model.width / model.heads = 36 / 12 = 3 is odd, but rotary positions need pairs of elements. Use an even "
        "width per head.");
  CHECK(load_refusal({"model.width=36"}) == "accepted");
  CHECK(load_refusal({"model.family=qwen2", "model.head_dim=63"}) ==
        "model.head_dim = 63 is odd, but rotary positions need pairs of elements. Use an even width per head.");
  CHECK(load_refusal({"model.family=qwen2", "model.heads=7", "model.head_dim=64"}) == "accepted");
  CHECK(load_refusal({"model.head_dim=32"}) ==
        "model.head_dim = 32 is not model.width / model.heads = 768 / 12, but family gpt2 needs that. Leave head_dim "
        "out, or use family = \"llama\".");
  CHECK(load_refusal({"model.rope_scaling=llama3"}) ==
        "model.rope_scaling = \"llama3\" needs rotary positions, which family gpt2 lacks. Use \"none\".");
  CHECK(load_refusal({"model.family=llama", "model.rope_scaling=llama3", "model.rope_low_freq_factor=4"}) ==
        "model.rope_low_freq_factor = 4 is not below model.rope_high_freq_factor = 4. Lower it.");
  CHECK(load_refusal({"model.family=llama", "model.sliding_window=8"}) ==
        "model.sliding_window = 8 needs family = \"mistral\", and the family is \"llama\". Use 0.");
  CHECK(load_refusal({"model.family=mistral", "model.sliding_window=8"}) == "accepted");
  for (const char* key : {"model.embd_pdrop", "model.resid_pdrop", "model.attn_pdrop"}) {
    CHECK_THAT(load_refusal({std::string(key) + "=1.0"}), Catch::Contains(key) && Catch::Contains("1"));
    CHECK_THAT(load_refusal({std::string(key) + "=-0.1"}), Catch::Contains(key) && Catch::Contains("-0.1"));
  }
  CHECK(load_refusal({"model.embd_pdrop=0", "model.resid_pdrop=0.999"}) == "accepted");
  CHECK(load_refusal({"model.family=mistral", "model.sliding_window=8", "parallel.context=2"}) == "accepted");
  CHECK(load_refusal({"model.layers=65536", "model.width=1048576", "model.heads=1"}) ==
        "[model] has about 8.6e+17 parameters, more than the limit of 1e15. Check layers, width, ffn_width and "
        "vocab_size.");
  CHECK(load_refusal({"train.sequence_length=1025"}) ==
        "train.sequence_length = 1025 is longer than model.context = 1024. Reduce it, or raise model.context.");
  CHECK(load_refusal({"train.global_batch_size=20"}) ==
        "train.global_batch_size = 20 is not a multiple of train.micro_batch_size = 8. Use 16 or 24.");
  CHECK(load_refusal({"train.global_batch_size=7"}) ==
        "train.global_batch_size = 7 is not a multiple of train.micro_batch_size = 8. Use 8.");
  CHECK(load_refusal({"train.micro_batch_size=16777216", "model.context=16777216"}) ==
        "train.micro_batch_size x train.sequence_length = 16777216 x 16777216 exceeds the limit of 1e12 tokens. Reduce "
        "one of them.");
  CHECK(load_refusal({"optimizer.min_learning_rate=1e-3"}) ==
        "optimizer.min_learning_rate = 0.001 is above optimizer.learning_rate = 0.0006. Use a smaller one.");
  CHECK(load_refusal({"optimizer.name=muon"}) == "accepted");
  CHECK(load_refusal({"optimizer.name=muon", "zero.stage=1", "parallel.pipeline=2", "parallel.context=2"}) ==
        "accepted");
  CHECK(
      load_refusal({"optimizer.name=muon", "parallel.tensor=2"}) ==
      "parallel.tensor = 2 with optimizer.name = \"muon\" is not supported: the update needs whole matrices, and every "
      "tensor rank holds a part of each. Use parallel.tensor = 1, or optimizer.name = \"adamw\".");
  for (const char* stage : {"2", "3"})
    CHECK(load_refusal({"optimizer.name=muon", std::string("zero.stage=") + stage}) ==
          std::string("zero.stage = ") + stage +
              " with optimizer.name = \"muon\" is not supported: the update needs whole matrices, and the gradients of "
              "a layer are divided into equal ranges. Use zero.stage = 0 or 1, or optimizer.name = \"adamw\".");
  CHECK(load_refusal({"optimizer.warmup_steps=100", "optimizer.decay_steps=50"}) ==
        "optimizer.decay_steps = 50 is smaller than optimizer.warmup_steps = 100. Use at least 100.");
  CHECK(load_refusal({"optimizer.warmup_steps=100", "train.steps=50"}) == "accepted");
  const std::string cools = "optimizer.schedule=warmup_stable_decay";
  CHECK(load_refusal({cools, "optimizer.warmup_steps=0", "optimizer.cooldown_steps=60", "train.steps=8"}) ==
        "optimizer.cooldown_steps = 60 and warmup_steps = 0 exceed decay_steps = 8 = train.steps. Use at most 8 for "
        "the cool-down, or at least 60 for decay_steps.");
  CHECK(load_refusal({cools, "optimizer.warmup_steps=5", "optimizer.cooldown_steps=7", "train.steps=8"}) ==
        "optimizer.cooldown_steps = 7 and warmup_steps = 5 exceed decay_steps = 8 = train.steps. Use at most 3 for the "
        "cool-down, or at least 12 for decay_steps.");
  CHECK(load_refusal({cools, "optimizer.warmup_steps=5", "optimizer.cooldown_steps=7", "optimizer.decay_steps=9"}) ==
        "optimizer.cooldown_steps = 7 and warmup_steps = 5 exceed decay_steps = 9. Use at most 4 for the cool-down, or "
        "at least 12 for decay_steps.");
  CHECK(load_refusal({cools, "optimizer.warmup_steps=8", "optimizer.cooldown_steps=1", "train.steps=8"}) ==
        "optimizer.cooldown_steps = 1 and warmup_steps = 8 exceed decay_steps = 8 = train.steps. Use at least 9 for "
        "decay_steps.");
  // A trial of the first steps of a longer schedule, a cool-down right behind the warm-up, and the default cool-down.
  CHECK(load_refusal({cools, "optimizer.warmup_steps=5", "optimizer.cooldown_steps=7", "train.steps=8",
                      "optimizer.decay_steps=12"}) == "accepted");
  CHECK(load_refusal({cools, "optimizer.warmup_steps=5", "optimizer.cooldown_steps=3", "train.steps=8"}) == "accepted");
  CHECK(load_refusal({cools, "optimizer.warmup_steps=100", "train.steps=50"}) == "accepted");
  CHECK(load_refusal({"device.kind=cuda", "comm.backend=mpi"}) ==
        "comm.backend = \"mpi\" moves host memory, but device.kind = \"cuda\". Use \"auto\" or \"nccl\".");
  CHECK(load_refusal({"device.kind=cpu", "comm.backend=nccl"}) ==
        "comm.backend = \"nccl\" moves GPU memory, but device.kind = \"cpu\". Use \"auto\" or \"mpi\".");
  CHECK(load_refusal({"trace.steps=[10]"}) ==
        "trace.steps has 1 entries. Give the first and the last step, such as [10, 12], or none.");
  CHECK(load_refusal({"trace.steps=[12, 10]"}) == "trace.steps = [12, 10] ends before it begins. Write [10, 12].");
  CHECK(load_refusal({"trace.steps=[10, 12]", "train.steps=9"}) ==
        "trace.steps = [10, 12] begins after the last step, train.steps = 9. Use earlier steps, or [].");
  for (const char* dir : {".", "..", "runs/.", "runs/..//", "/", "//"})
    CHECK(load_refusal({std::string("output.dir=") + dir}).find("has no folder name") != std::string::npos);
  CHECK(with({"output.dir=runs/x//"}).output.dir == "runs/x");
  CHECK(with({"output.dir=runs/x/"}).checkpoint.dir == "runs/x/checkpoints");
  for (const char* key : {"output.dir", "checkpoint.dir"})
    CHECK(load_refusal({std::string(key) + "=~/x"}) ==
          std::string(key) + " = \"~/x\" begins with ~, which only a shell replaces. Write the whole path.");
  CHECK(load_refusal({"output.dir="}) == "output.dir is empty. Name the run's folder, such as \"runs/first\".");
  CHECK(load_refusal({"parallel.data=0"}) ==
        "parallel.data = 0 leaves no rank to train. Use -1 (all remaining ranks) or at least 1.");
  CHECK(load_refusal({"zero.stage=1", "parallel.data=4", "zero.shard_size=3"}) ==
        "zero.shard_size = 3 does not divide parallel.data = 4. Use a divisor, or 0.");
  CHECK(load_refusal({"zero.stage=1", "parallel.data=2", "parallel.context=2", "zero.shard_size=3"}) ==
        "zero.shard_size = 3 does not divide parallel.data x parallel.context = 2 x 2 = 4. Use a divisor, or 0.");
  CHECK(load_refusal({"zero.stage=1", "parallel.data=1", "parallel.context=2", "zero.shard_size=2"}) == "accepted");
  CHECK(load_refusal({"zero.stage=1", "zero.shard_size=1"}) ==
        "zero.shard_size = 1 divides no state. Use at least 2, 0 for all data ranks, or zero.stage = 0.");
  CHECK(load_refusal({"model.context=64", "train.sequence_length=60", "parallel.context=4"}) ==
        "train.sequence_length = 60 is not a multiple of 2 x parallel.context = 8 because every rank holds two chunks "
        "of a sequence. Use 56 or 64.");
  CHECK(
      load_refusal({"model.context=64", "train.sequence_length=5", "parallel.context=4"}) ==
      "train.sequence_length = 5 is not a multiple of 2 x parallel.context = 8 because every rank holds two chunks of "
      "a sequence. Use 8.");
  CHECK(load_refusal({"model.context=64", "train.sequence_length=56", "parallel.context=4"}) == "accepted");
  CHECK(load_refusal({"zero.shard_size=2"}) ==
        "zero.shard_size = 2 has no effect with zero.stage = 0. Use stage 1, 2 or 3, or shard_size = 0.");
  CHECK(load_refusal({"overlap.align_grad_reduce=true", "parallel.pipeline=2", "zero.stage=3"}) ==
        "overlap.align_grad_reduce = true with zero.stage = 3 is not supported: the next layer needs the slot of a "
        "layer's gradients, so they cannot wait. Use false.");
  CHECK(load_refusal({"overlap.align_grad_reduce=true", "parallel.pipeline=2", "zero.stage=1"}) == "accepted");
  CHECK(load_refusal({"zero.stage=3", "zero.prefetch_depth=12"}) ==
        "zero.prefetch_depth = 12 exceeds the 11 layers behind the first of model.layers = 12. Use at most 11, or "
        "zero.reshard_after_forward = false to keep every layer.");
  CHECK(load_refusal({"zero.stage=3", "zero.prefetch_depth=11"}) == "accepted");
  CHECK(load_refusal({"zero.stage=4"}).find("zero.stage") != std::string::npos);  // the range of its row
  CHECK(load_refusal({"zero.stage=2", "overlap.grad_reduce=flat"}) ==
        "zero.stage = 2 does not support overlap.grad_reduce = \"flat\": it reduces a whole layer at once, because the "
        "next layer needs the slot of its gradients. Use \"bucketed\", or stage 0 or 1.");
  for (const char* reduce_mode : {"naive", "flat", "per_parameter"})
    CHECK(load_refusal({"zero.stage=1", std::string("overlap.grad_reduce=") + reduce_mode}) == "accepted");
  CHECK(load_refusal({"zero.stage=3", "train.dtype=bfloat16", "zero.gather_dtype=float32"}) ==
        "zero.gather_dtype = \"float32\" with train.dtype = \"bfloat16\" sends twice the bytes for the same rounded "
        "weights. Use \"auto\".");
  CHECK(
      load_refusal({"zero.gather_dtype=int8"}) ==
      "zero.gather_dtype = \"int8\" has no effect with zero.stage = 0 because no parameters travel. Use stage 1, 2 or "
      "3, or \"auto\".");
  for (const char* dtype : {"auto", "float32", "bfloat16", "int8"})
    CHECK(load_refusal({"zero.stage=1", std::string("zero.gather_dtype=") + dtype}) == "accepted");
  CHECK(
      load_refusal({"zero.stage=3", "optimizer.double_buffer=true"}) ==
      "optimizer.double_buffer = true with zero.stage = 3 has no benefit: layers pass through slots, so updates never "
      "wait for readers. Use false, or stage 0, 1 or 2.");
  CHECK(load_refusal({"comm.error_feedback=true"}) ==
        "comm.error_feedback = true has no effect with comm.quantize = \"none\" because uncompressed gradients have no "
        "rounding error. Use \"int8\", or false.");
  CHECK(load_refusal({"comm.quantize=int8", "comm.grad_dtype=bfloat16"}) ==
        "comm.quantize = \"int8\" needs float32 gradients, got comm.grad_dtype = \"bfloat16\". Leave grad_dtype out, "
        "or use quantize = \"none\".");
  CHECK(load_refusal({"comm.quantize=int8", "zero.stage=2", "zero.shard_size=2"}) ==
        "accepted");  // the sum of a group goes across in float
  CHECK(load_refusal({"overlap.bucket_size=1B", "overlap.first_bucket_size=1B"}) ==
        "accepted");  // a bucket for every parameter
  CHECK(load_refusal({"zero.stage=3", "zero.persistence_threshold=1KiB", "parallel.pipeline=2",
                      "pipeline.virtual_stages=2", "pipeline.schedule=interleaved_1f1b"}) ==
        "zero.persistence_threshold = 1.0 KiB with pipeline.virtual_stages = 2 is not supported: the parts of a stage "
        "would write the gradients of small parameters in turn. Use virtual_stages = 1, or leave persistence_threshold "
        "out.");
  CHECK(load_refusal({"pipeline.virtual_stages=2", "parallel.pipeline=2"}) ==
        "pipeline.virtual_stages = 2 needs pipeline.schedule = \"interleaved_1f1b\" or a pipeline.schedule_file. Set "
        "one of them, or use 1.");
  CHECK(load_refusal({"pipeline.virtual_stages=2", "parallel.pipeline=2", "pipeline.schedule_file=a.csv"}) ==
        "accepted");
  CHECK(load_refusal({"parallel.pipeline=3", "pipeline.layers=[6, 0, 6]"}) ==
        "pipeline.layers gives part 1 of 3 no layer. Only the first part (with the embedding) and the last (with the "
        "head) may be empty.");
  CHECK(load_refusal({"parallel.pipeline=3", "pipeline.layers=[0, 12, 0]"}) == "accepted");
  CHECK(load_refusal({"parallel.pipeline=5", "pipeline.virtual_stages=3", "pipeline.schedule=interleaved_1f1b"}) ==
        "parallel.pipeline x pipeline.virtual_stages = 5 x 3 = 15 stages exceeds model.layers = 12. Use at most one "
        "stage per layer.");
  CHECK(load_refusal({"parallel.pipeline=2", "pipeline.layers=[12]"}) ==
        "pipeline.layers has 1 entries for 2 stages (parallel.pipeline x pipeline.virtual_stages). Write one for each, "
        "or none.");
  CHECK(load_refusal({"parallel.pipeline=2", "pipeline.layers=[5, 6]"}) ==
        "pipeline.layers sums to 11, but model.layers = 12. Make them equal.");
}

TEST_CASE("layout: the product of the axes is the world size, or the error lists all axes", "[config]") {
  for (int world = 1; world <= 64; ++world) {
    CHECK(resolve_layout(with({}), world).data == world);
    const RunConfig mixed = with({"parallel.tensor=2", "parallel.pipeline=3"});
    if (world % 6 == 0) {
      const Layout layout = resolve_layout(mixed, world);
      CHECK(layout.data * layout.tensor * layout.pipeline * layout.context == world);
    } else {
      CHECK_THROWS_AS(resolve_layout(mixed, world), ConfigError);
    }
  }
  const auto layout_refusal = [](const std::vector<std::string>& sets, int world) {
    return refusal([&] { resolve_layout(with(sets), world); });
  };
  CHECK(layout_refusal({"parallel.data=4"}, 6) ==
        "[parallel] data 4 x tensor 1 x pipeline 1 x context 1 = 4 ranks, but 6 were started. Legal on 6, as data x "
        "tensor x pipeline x context: 6x1x1x1, 3x1x1x2, 3x1x2x1, 3x2x1x1, 2x1x3x1, 2x3x1x1, 1x1x6x1, 1x6x1x1, 1x1x3x2, "
        "1x2x3x1, 1x3x1x2, 1x3x2x1, or start 4 ranks.");
  // Over the axes in use first, of these the nearest first; all of them.
  CHECK(layout_refusal({"model.layers=2", "train.sequence_length=6", "parallel.data=4", "parallel.tensor=4"}, 6) ==
        "[parallel] data 4 x tensor 4 x pipeline 1 x context 1 = 16 ranks, but 6 were started. Legal on 6, as data x "
        "tensor x pipeline x context: 3x2x1x1, 2x3x1x1, 6x1x1x1, 1x6x1x1, 3x1x2x1, 1x3x2x1, 2x1x1x3, 1x2x1x3, 1x1x2x3, "
        "or start 16 ranks.");
  const std::string many = layout_refusal({"parallel.tensor=3", "parallel.pipeline=3"}, 16);
  CHECK(many.find("[parallel] tensor 3 x pipeline 3 x context 1 = 9 ranks do not divide the 16 started ranks. Legal "
                  "on 16, as data x tensor x pipeline x context: 1x4x4x1, 2x2x4x1, 2x4x2x1, 4x2x2x1, ") == 0);
  CHECK(many.find(", or start 9 or 18 ranks.") != std::string::npos);
  CHECK(layout_refusal({"parallel.tensor=3", "parallel.pipeline=5"}, 4096).find(" more, or start ") !=
        std::string::npos);
  CHECK(layout_refusal({"parallel.pipeline=12"}, 26).find("x13x") == std::string::npos);
  CHECK(layout_refusal({"model.heads=65536", "model.width=65536", "model.context=131072", "parallel.data=16777216",
                        "parallel.tensor=65536", "parallel.context=65536"},
                       6)
            .find("= 72057594037927936 ranks, but 6 were started.") != std::string::npos);
  CHECK(
      layout_refusal({"model.layers=5", "model.heads=5", "model.width=160", "parallel.pipeline=4",
                      "train.sequence_length=127", "train.micro_batch_size=2", "train.global_batch_size=16"},
                     7) ==
      "[parallel] tensor 1 x pipeline 4 x context 1 = 4 ranks do not divide the 7 started ranks. No layout of 7 ranks "
      "fits the rest of the run file (1x1x7x1, for instance: \"parallel.pipeline x pipeline.virtual_stages = 7 x 1 = 7 "
      "stages exceeds model.layers = 5. Use at most one stage per layer.\"). Change it, or start 4 or 8 ranks.");
  // Numbers of ranks are offered if they are legal: on 6 x 4 the batch does not divide, on 5 x 4 it does.
  CHECK(layout_refusal({"parallel.pipeline=4", "train.micro_batch_size=2", "train.global_batch_size=40"}, 23)
            .find(", or start 20 or 40 ranks.") != std::string::npos);
}

TEST_CASE("layout: errors offer only legal layouts, and list or count all of them", "[config]") {
  // Sizes that tensor, pipeline, context, data and the schedule each allow in part.
  constexpr int64_t kLayers = 12, kHeads = 6, kTokens = 48, kMicro = 2, kGlobal = 24;
  const std::vector<std::string> sizes{"model.layers=12",
                                       "model.heads=6",
                                       "model.width=96",
                                       "model.context=48",
                                       "train.sequence_length=48",
                                       "train.micro_batch_size=2",
                                       "train.global_batch_size=24"};
  // make_schedule()'s rule for interleaving, as this test states it.
  const auto goes_round = [](int64_t data, int64_t pipeline) { return kGlobal / kMicro / data % pipeline == 0; };
  const LayoutLaw law = [](const RunConfig& config, const Batch& batch) {
    if (config.pipeline.virtual_stages > 1 && batch.micro_batches % config.parallel.pipeline != 0)
      throw ConfigError("no rounds");
  };
  const auto may_be = [&](bool interleaved, int64_t data, int64_t tensor, int64_t pipeline, int64_t context) {
    return kHeads % tensor == 0 && (context == 1 || kTokens % (2 * context) == 0) && kGlobal % (kMicro * data) == 0 &&
           (interleaved && pipeline > 1 ? kLayers % (2 * pipeline) == 0 && goes_round(data, pipeline)
                                        : pipeline <= kLayers);
  };
  int checked = 0, counted = 0;
  for (bool interleaved : {false, true})
    for (const char* asked :
         {"parallel.tensor=6", "parallel.pipeline=2", "parallel.pipeline=5", "parallel.context=8", "parallel.data=12"})
      for (int world = 1; world <= 72; ++world) {
        std::vector<std::string> sets = sizes;
        if (interleaved) {
          if (std::string(asked) == "parallel.pipeline=5") continue;  // refused before ranks are counted
          sets.insert(sets.end(), {"pipeline.schedule=interleaved_1f1b", "pipeline.virtual_stages=2"});
        }
        sets.push_back(asked);
        const std::string sentence = refusal([&] { resolve_layout(with(sets), world, law); });
        if (sentence == "accepted") continue;
        INFO(sentence);
        int legal = 0;
        for (int data = 1; data <= world; ++data)
          for (int tensor = 1; tensor <= world / data; ++tensor)
            for (int pipeline = 1; pipeline <= world / data / tensor; ++pipeline) {
              const int context = world / data / tensor / pipeline;
              legal +=
                  data * tensor * pipeline * context == world && may_be(interleaved, data, tensor, pipeline, context);
            }
        // "Legal on 6, as data x tensor x pipeline x context: 2x1x3x1, 6x1x1x1 and 3 more, or start 4 or 8 ranks."
        int offered = 0;
        const std::string begin = "as data x tensor x pipeline x context: ";
        if (const size_t at = sentence.find(begin); at != std::string::npos) {
          std::istringstream words(sentence.substr(at + begin.size()));
          for (std::string word; words >> word && word != "or";) {
            int64_t data = 0, tensor = 0, pipeline = 0, context = 0;
            if (std::sscanf(word.c_str(), "%ldx%ldx%ldx%ld", &data, &tensor, &pipeline, &context) == 4) {
              CHECK(data * tensor * pipeline * context == world);
              CHECK(may_be(interleaved, data, tensor, pipeline, context));
              ++offered;
            } else if (word == "and") {
              CHECK(offered == 30);
              words >> word;
              offered += std::stoi(word);
              ++counted;
            }
          }
        } else {
          CHECK(sentence.find("No layout of ") != std::string::npos);
        }
        CHECK(offered == legal);
        if (const size_t at = sentence.find(", or start "); at != std::string::npos) {
          std::istringstream words(sentence.substr(at + 11));
          for (std::string word; words >> word && !word.starts_with("ranks");) {
            if (word == "or") continue;
            CHECK(refusal([&] {
                    const Layout layout = resolve_layout(with(sets), std::stoi(word), law);
                    const Batch batch = resolve_batch(with(sets), layout.data);
                    law(with(sets), batch);
                  }) == "accepted");
          }
        }
        ++checked;
      }
  CHECK(checked > 100);
  CHECK(counted > 0);
}

TEST_CASE("no effect: each setting of an axis of one rank is noted and left out", "[config]") {
  const std::vector<std::string> sets{"parallel.sequence_parallel=true",
                                      "overlap.p2p=false",
                                      "overlap.tensor_chunks=8",
                                      "overlap.align_grad_reduce=true",
                                      "pipeline.schedule=interleaved_1f1b",
                                      "pipeline.virtual_stages=3",
                                      "pipeline.layers=[1, 2, 2, 2, 2, 3]"};
  const auto also = [&](std::vector<std::string> more) {
    more.insert(more.end(), sets.begin(), sets.end());
    return with(more);
  };
  const std::vector<std::string> of_tensor{"parallel.sequence_parallel = true has no effect with parallel.tensor = 1",
                                           "overlap.tensor_chunks = 8 has no effect with parallel.tensor = 1"},
      of_pipeline{"overlap.p2p = false has no effect with parallel.pipeline = 1",
                  "overlap.align_grad_reduce = true has no effect with parallel.pipeline = 1",
                  "pipeline.schedule = \"interleaved_1f1b\" has no effect with parallel.pipeline = 1",
                  "pipeline.virtual_stages = 3 has no effect with parallel.pipeline = 1",
                  "pipeline.layers = [1, 2, 2, 2, 2, 3] has no effect with parallel.pipeline = 1"};
  // In the order of the fields.
  std::vector<std::string> both{of_tensor[0], of_pipeline[0], of_tensor[1]};
  both.insert(both.end(), of_pipeline.begin() + 1, of_pipeline.end());
  CHECK(without_effect(with({})).empty());
  CHECK(without_effect(also({"parallel.tensor=2", "parallel.pipeline=2"})).empty());
  CHECK(without_effect(also({"parallel.tensor=2"})) == of_pipeline);
  CHECK(without_effect(also({"parallel.pipeline=2"})) == of_tensor);
  CHECK(without_effect(also({})) == both);
  CHECK(without_effect(with({"pipeline.schedule_file=a.csv"})).size() == 1);
  const std::vector<std::string> third{"zero.stage=2", "zero.prefetch_depth=2", "zero.reshard_after_forward=false",
                                       "zero.persistence_threshold=64KiB"};
  CHECK(without_effect(with(third)) ==
        std::vector<std::string>{"zero.prefetch_depth = 2 has no effect with zero.stage = 2",
                                 "zero.reshard_after_forward = false has no effect with zero.stage = 2",
                                 "zero.persistence_threshold = \"64KiB\" has no effect with zero.stage = 2"});
  CHECK(config_toml(in_effect(with(third))) == config_toml(with({"zero.stage=2"})));
  const std::vector<std::string> of_muon{"optimizer.adamw_learning_rate=1e-3", "optimizer.momentum=0.9",
                                         "optimizer.muon_scaling=original"};
  CHECK(
      without_effect(with(of_muon)) ==
      std::vector<std::string>{"optimizer.adamw_learning_rate = 0.001 has no effect with optimizer.name = \"adamw\"",
                               "optimizer.momentum = 0.9 has no effect with optimizer.name = \"adamw\"",
                               "optimizer.muon_scaling = \"original\" has no effect with optimizer.name = \"adamw\""});
  CHECK(config_toml(in_effect(with(of_muon))) == config_toml(with({})));
  CHECK(without_effect(with({"train.recompute_layers=3"})) ==
        std::vector<std::string>{"train.recompute_layers = 3 has no effect with train.recompute = \"none\""});
  CHECK(without_effect(with({"train.recompute_layers=3", "train.recompute=full"})).empty());
  // The remaining settings are the file without them; settings with an effect stay.
  CHECK(config_toml(in_effect(also({}))) == config_toml(with({})));
  const RunConfig all = also({"parallel.tensor=2", "parallel.pipeline=2"});
  CHECK(config_toml(in_effect(all)) == config_toml(all));
  // Laws about settings without effect are not applied: three parts of one layer, or slots that gradients must leave.
  CHECK(load_refusal({"model.layers=1", "pipeline.schedule=interleaved_1f1b", "pipeline.virtual_stages=3"}) ==
        "accepted");
  CHECK(load_refusal({"overlap.align_grad_reduce=true", "zero.stage=3"}) == "accepted");
}

TEST_CASE("tensor parallelism: sizes that ranks cannot share are refused with the numbers", "[config]") {
  CHECK(load_refusal({"model.family=llama", "model.heads=12", "model.kv_heads=2", "parallel.tensor=4"}) == "accepted");
  CHECK(load_refusal({"model.family=llama", "model.heads=12", "model.kv_heads=6", "parallel.tensor=4"}) ==
        "parallel.tensor = 4 and model.kv_heads = 6: neither divides the other. Each rank computes whole heads and "
        "equal parts of the hidden units. Use one of 1, 2.");
  CHECK(load_refusal({"parallel.tensor=5"}).find("does not divide model.heads = 12") != std::string::npos);
  CHECK(load_refusal({"model.ffn_width=42", "parallel.tensor=4"}).find("does not divide model.ffn_width = 42") !=
        std::string::npos);
  CHECK(load_refusal({"parallel.tensor=4", "parallel.sequence_parallel=true", "train.micro_batch_size=1",
                      "train.sequence_length=7"}) ==
        "parallel.sequence_parallel needs the 1 x 7 = 7 tokens of a micro-batch to be a multiple of parallel.tensor = "
        "4. Change train.micro_batch_size or "
        "train.sequence_length.");
}

TEST_CASE("batch: micro-batch x data ranks divides the global batch, or the error names the nearest batch",
          "[config]") {
  CHECK(resolve_batch(with({}), 3).global_batch_size == 24);
  CHECK(resolve_batch(with({}), 3).micro_batches == 1);
  const RunConfig config = with({"train.global_batch_size=24", "train.micro_batch_size=3"});
  for (int ranks = 1; ranks <= 16; ++ranks) {
    if (24 % (3 * ranks) == 0) {
      const Batch batch = resolve_batch(config, ranks);
      CHECK(batch.micro_batches * 3 * ranks == 24);
      CHECK(batch.global_batch_size == 24);
    } else {
      CHECK_THROWS_AS(resolve_batch(config, ranks), ConfigError);
    }
  }
  CHECK(refusal([&] { resolve_batch(config, 3); }) ==
        "train.global_batch_size = 24 is not a multiple of train.micro_batch_size x data ranks = 3 x 3 = 9. Use 18 or "
        "27 (0 means 9), or change micro_batch_size or the ranks.");
  CHECK(refusal([&] { resolve_batch(config, 16); }) ==
        "train.global_batch_size = 24 is not a multiple of train.micro_batch_size x data ranks = 3 x 16 = 48. Use 48 "
        "(0 means 48), or change micro_batch_size or the ranks.");
  // A plan lists every layer of every micro-batch.
  const auto many = [](const std::string& global, const std::string& micro) {
    return with({"model.layers=8", "train.global_batch_size=" + global, "train.micro_batch_size=" + micro});
  };
  CHECK(resolve_batch(many("16384", "1"), 1).micro_batches == 16384);
  CHECK(resolve_batch(many("1073741824", "65536"), 1).micro_batches == 16384);
  CHECK(resolve_batch(many("32768", "1"), 2).micro_batches == 16384);
  CHECK(
      refusal([&] { resolve_batch(many("32768", "1"), 1); }) ==
      "train.global_batch_size = 32768 in micro-batches of 1 on 1 data rank is 32768 micro-batches per rank and step, "
      "each of model.layers = 8. A plan lists every layer of every micro-batch, at most 131072; these 262144 would "
      "take about 3.00 GiB of memory and 163 s on every rank. Use train.micro_batch_size = 2 or larger, or more data "
      "ranks.");
  CHECK(refusal([&] { resolve_batch(many("1073741824", "1"), 1); }).find("Use train.micro_batch_size = 65536") !=
        std::string::npos);
}

TEST_CASE("supported: the defaults pass, and each row refuses its key by name and value", "[config]") {
  require_supported(with({}));
  require_supported(RunConfig{});
  require_supported(with({"train.dtype=bfloat16"}));
  const std::map<std::string, std::string> unsupported = {{"data.tokenizer", "words"},
                                                          {"overlap.max_inflight_buckets", "1"},
                                                          {"comm.backend", "thread"},
                                                          {"checkpoint.async", "true"}};
  for (const SupportedRow& row : supported_rows()) {
    const std::string key(row.key);
    INFO(key);
    REQUIRE(unsupported.count(key) == 1);
    RunConfig config = with({key + "=" + unsupported.at(key)});
    config.zero.shard_size = 2;  // required by one of them
    CHECK(refusal([&] { require_supported(config); }) ==
          key + " = " + field_text(config, key) + " is not supported by this version: " + std::string(row.remedy) +
              ".");
  }
  for (const char* bound : {"1", "2", "100"})
    require_supported(with({std::string("overlap.max_inflight_buckets=") + bound}));
  RunConfig groups = with({"overlap.max_inflight_buckets=2"});
  groups.zero.shard_size = 2;
  require_supported(groups);
  CHECK(refusal([&] { require_supported(with({"comm.backend=thread"})); }) ==
        "comm.backend = \"thread\" is not supported by this version: use \"auto\", \"nccl\" or \"mpi\".");
}
