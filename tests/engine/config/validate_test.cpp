// SPDX-License-Identifier: Apache-2.0
// Laws between keys; every refusal is compared as text.

#include "engine/config/validate.h"
#include "engine/config/defaults.h"

#include <cstdio>
#include <map>
#include <sstream>

#include "engine/config/fields.h"
#include "engine/config/load.h"
#include "engine/config/resolve.h"
#include "tests/engine/config/refusals.h"

using namespace slipstream;
using namespace slipstream::tests;

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
  CHECK(load_refusal({"model.heads=2"}) ==
        "model.width / model.heads = 768 / 2 makes heads of 384 elements, more than 256. Use at least 3 heads.");
  CHECK(load_refusal({"model.family=llama", "model.width=521", "model.heads=1"}) ==
        "model.width / model.heads = 521 / 1 makes heads of 521 elements, more than 256. Use another width.");
  CHECK(load_refusal({"model.heads=3"}) == "accepted");
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
        "model.sliding_window = 8 needs family = \"mistral\", \"qwen2\", \"qwen3\", \"mixtral\" or \"qwen3_moe\", and "
        "the family is \"llama\". Use 0.");
  CHECK(load_refusal({"model.family=mistral", "model.sliding_window=8"}) == "accepted");
  CHECK(load_refusal({"model.family=qwen3", "model.sliding_window=8", "model.window_layers=[0, 11]"}) == "accepted");
  CHECK(load_refusal({"model.family=qwen3", "model.window_layers=[0]"}) ==
        "model.window_layers lists 1 layer, but model.sliding_window = 0 is no window. Set it, or use [].");
  CHECK(load_refusal({"model.family=qwen2", "model.sliding_window=8", "model.window_layers=[3, 3]"}) ==
        "model.window_layers has 3 after 3. List each layer once, ascending.");
  CHECK(load_refusal({"model.family=qwen2", "model.sliding_window=8", "model.window_layers=[3, 12]"}) ==
        "model.window_layers has 12, but the 12 layers of the model are 0 to 11. Use these.");
  for (const char* key : {"model.embd_pdrop", "model.resid_pdrop", "model.attn_pdrop"}) {
    CHECK_THAT(load_refusal({std::string(key) + "=1.0"}), Catch::Contains(key) && Catch::Contains("1"));
    CHECK_THAT(load_refusal({std::string(key) + "=-0.1"}), Catch::Contains(key) && Catch::Contains("-0.1"));
  }
  CHECK(load_refusal({"model.embd_pdrop=0", "model.resid_pdrop=0.999"}) == "accepted");
  CHECK(load_refusal({"model.family=mistral", "model.sliding_window=8", "parallel.context=2"}) == "accepted");
  CHECK(load_refusal({"model.layers=65536", "model.width=1048576", "model.heads=4096"}) ==
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
  const struct {
    std::vector<std::string> sets;
    const char* sentence;  // what follows "optimizer."
  } too_long[] = {
      {{"optimizer.warmup_steps=0", "optimizer.cooldown_steps=60", "train.steps=8"},
       "cooldown_steps = 60 and warmup_steps = 0 exceed decay_steps = 8 = train.steps. Use at most 8 for the "
       "cool-down, "
       "or at least 60 for decay_steps."},
      {{"optimizer.warmup_steps=5", "optimizer.cooldown_steps=7", "train.steps=8"},
       "cooldown_steps = 7 and warmup_steps = 5 exceed decay_steps = 8 = train.steps. Use at most 3 for the cool-down, "
       "or at least 12 for decay_steps."},
      {{"optimizer.warmup_steps=5", "optimizer.cooldown_steps=7", "optimizer.decay_steps=9"},
       "cooldown_steps = 7 and warmup_steps = 5 exceed decay_steps = 9. Use at most 4 for the cool-down, or at least "
       "12 "
       "for decay_steps."},
      {{"optimizer.warmup_steps=8", "optimizer.cooldown_steps=1", "train.steps=8"},
       "cooldown_steps = 1 and warmup_steps = 8 exceed decay_steps = 8 = train.steps. Use at least 9 for decay_steps."},
  };
  for (const auto& row : too_long) {
    std::vector<std::string> sets = row.sets;
    sets.push_back(cools);
    CHECK(load_refusal(sets) == std::string("optimizer.") + row.sentence);
  }
  // The rows are a trial of the first steps of a longer schedule, a cool-down right after the warm-up, and the default
  // cool-down.
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
  for (const auto& [steps, first] : {std::pair{9, 9}, {11, 10}}) {
    const ResolvedConfig shortened = resolve(with({"trace.steps=[10, 12]", fmt::format("train.steps={}", steps)}), {});
    CHECK(shortened->trace.steps == std::vector<int64_t>{first, steps});
    CHECK(shortened.without_effect() ==
          std::vector<std::string>{fmt::format(
              "trace.steps = [10, 12] is shortened to [{}, {}], because train.steps = {}", first, steps, steps)});
  }
  CHECK(resolve(with({"trace.steps=[10, 12]", "train.steps=12"}), {}).without_effect().empty());
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
        "zero.prefetch_depth = 12 exceeds the 11 layers after the first of model.layers = 12. Use at most 11, or "
        "zero.reshard_after_forward = false to keep every layer.");
  CHECK(load_refusal({"zero.stage=3", "zero.prefetch_depth=11"}) == "accepted");
  CHECK(load_refusal({"zero.stage=4"}).find("zero.stage") != std::string::npos);  // the range in its row of the table
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
        "accepted");  // the sum of a group crosses groups in float
  CHECK(load_refusal({"overlap.bucket_size=1B", "overlap.first_bucket_size=1B"}) ==
        "accepted");  // each parameter has a bucket
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
  // ZB-V has two parts on each stage, which need not be written.
  CHECK(load_refusal({"pipeline.schedule=zb_v", "parallel.pipeline=2"}) == "accepted");
  CHECK(load_refusal({"pipeline.schedule=zb_v", "parallel.pipeline=2", "pipeline.virtual_stages=2"}) == "accepted");
  CHECK(
      load_refusal({"pipeline.schedule=zb_v", "parallel.pipeline=2", "pipeline.virtual_stages=3"}) ==
      "pipeline.virtual_stages = 3 with pipeline.schedule = \"zb_v\", which has 2 parts on each stage. Use 2, or leave "
      "virtual_stages out.");
  CHECK(load_refusal({"pipeline.schedule=zb_v", "parallel.pipeline=5"}) ==
        "model.layers = 12 is not a multiple of parallel.pipeline x pipeline.virtual_stages = 5 x 2 = 10 parts. Use 10 "
        "or 20 layers, other stages, or list the layers of each part in pipeline.layers.");
  CHECK(load_refusal({"pipeline.schedule=zb_v", "parallel.pipeline=5",
                      "pipeline.layers=[1, 1, 1, 1, 2, 2, 1, 1, 1, 1]"}) == "accepted");
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

TEST_CASE("experts: their width follows the model, and keys without effect return to their defaults", "[config]") {
  const std::vector<std::string> llama = {"model.family=llama", "model.experts.top_k=4", "model.experts.scale=2"};
  const RunConfig mixtral = with({"model.family=mixtral", "model.experts.count=8", "model.ffn_width=512"});
  CHECK(mixtral.model.experts.ffn_width == 512);
  CHECK(with(llama).model.experts.ffn_width == 0);
  const RunConfig qwen3 = with({"model.family=qwen3_moe", "model.experts.count=8", "model.experts.ffn_width=96",
                                "model.experts.group_top_k=3", "model.experts.balance_rate=0.5"});
  CHECK(qwen3.model.experts.ffn_width == 96);
  CHECK(resolve(with(llama), {})->model.experts == ExpertOptions{});
  CHECK(resolve(with(llama), {}).without_effect() ==
        std::vector<std::string>{"model.experts.top_k = 4 has no effect with model.experts.count = 0",
                                 "model.experts.scale = 2.0 has no effect with model.experts.count = 0"});
  CHECK(
      resolve(qwen3, {}).without_effect() ==
      std::vector<std::string>{"model.experts.group_top_k = 3 has no effect with model.experts.groups = 1",
                               "model.experts.balance_rate = 0.5 has no effect with model.experts.balance = \"none\""});
}

TEST_CASE("experts: numbers that do not fit and families without experts are refused", "[config]") {
  const auto refusal_of = [](const std::string& family, std::vector<std::string> sets) {
    for (std::string& set : sets) set = "model.experts." + set;
    sets.push_back("model.family=" + family);
    return load_refusal(sets);
  };
  CHECK(refusal_of("mixtral", {"count=8"}) == "accepted");
  CHECK(refusal_of("mixtral", {"count=1", "top_k=1"}) == "accepted");
  CHECK(refusal_of("mixtral", {"count=8", "top_k=8", "layers=[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]"}) == "accepted");
  // The shape of DeepSeek-V3.
  const std::vector<std::string> large = {"count=256",    "top_k=8",           "shared=1",      "ffn_width=2048",
                                          "groups=8",     "scale=2.5",         "group_top_k=4", "router=sigmoid",
                                          "balance=bias", "layers=[3, 4, 11]", "capacity=drop", "z_loss=0.001"};
  CHECK(refusal_of("qwen3_moe", large) == "accepted");
  for (const char* family : {"gpt2", "llama", "mistral", "qwen2", "qwen3"})
    CHECK(refusal_of(family, {"count=8"}) ==
          std::string("model.experts.count = 8 needs family = \"mixtral\" or \"qwen3_moe\", and the family is \"") +
              family + "\". Use one of them, or 0.");
  for (const auto& [family, dense] : {std::pair{"mixtral", "mistral"}, {"qwen3_moe", "qwen3"}})
    CHECK(refusal_of(family, {"top_k=1"}) ==
          fmt::format("family = \"{}\" needs experts, and model.experts.count = 0. Set it, such as 8, or use family = "
                      "\"{}\", which has none.",
                      family, dense));
  CHECK(refusal_of("mixtral", {"count=8", "top_k=9"}) ==
        "model.experts.top_k = 9 is above model.experts.count = 8. Use at most 8.");
  CHECK(refusal_of("mixtral", {"count=8", "groups=2"}) ==
        "model.experts.groups = 2 has no effect with model.experts.router = \"softmax\". Use router = \"sigmoid\", or "
        "groups = 1.");
  CHECK(refusal_of("qwen3_moe", {"count=8", "router=sigmoid", "groups=3"}) ==
        "model.experts.groups = 3 does not divide model.experts.count = 8. Use a divisor of 8.");
  CHECK(refusal_of("qwen3_moe", {"count=8", "router=sigmoid", "groups=4", "group_top_k=5"}) ==
        "model.experts.group_top_k = 5 is above model.experts.groups = 4. Use at most 4.");
  CHECK(refusal_of("qwen3_moe", {"count=8", "router=sigmoid", "groups=4", "group_top_k=2", "top_k=5"}) ==
        "model.experts.top_k = 5 is above the 4 experts in model.experts.group_top_k = 2 of groups of 2. Use at most "
        "4, or group_top_k = 3.");
  CHECK(refusal_of("qwen3_moe", {"count=8", "router=sigmoid", "groups=4", "group_top_k=2", "top_k=4"}) == "accepted");
  CHECK(refusal_of("qwen3_moe", {"count=8", "layers=[2, 1]"}) ==
        "model.experts.layers has 1 after 2. List each layer once, ascending.");
  CHECK(refusal_of("qwen3_moe", {"count=8", "layers=[0, 12]"}) ==
        "model.experts.layers has 12, but the 12 layers of the model are 0 to 11. Use these.");
  CHECK(refusal_of("qwen3_moe", {"count=8", "capacity_factor=0.5"}) ==
        "--set model.experts.capacity_factor=0.5: model.experts.capacity_factor needs a number from 1 to 65536, got "
        "0.5.");
  CHECK(
      refusal_of("qwen3_moe", {"count=8", "router=tanh"}) ==
      "--set model.experts.router=tanh: model.experts.router needs \"softmax\" or \"sigmoid\", got the text \"tanh\".");
  CHECK(refusal_of("qwen3_moe", {"count=65536", "ffn_width=16777216"}) ==
        "[model] has about 3.0e+16 parameters, more than the limit of 1e15. Check layers, width, ffn_width, "
        "experts.count, experts.ffn_width and vocab_size.");
  // Mixtral's folders have no keys for these.
  const struct {
    const char *set, *sentence;  // the sentence follows "model.experts."
  } others[] = {{"shared=1", "shared = 1, but family mixtral needs 0."},
                {"ffn_width=512", "ffn_width = 512, but family mixtral needs model.ffn_width = 2048."},
                {"layers=[1]", "layers = [1], but family mixtral needs experts in all layers, []."},
                {"router=sigmoid", "router = \"sigmoid\", but family mixtral needs \"softmax\"."},
                {"normalize=false", "normalize = false, but family mixtral needs true."},
                {"scale=2", "scale = 2.0, but family mixtral needs 1."}};
  for (const auto& row : others)
    CHECK(refusal_of("mixtral", {"count=8", row.set}) ==
          std::string("model.experts.") + row.sentence + " Use it, or family = \"qwen3_moe\".");
  CHECK(load_refusal({"model.family=mixtral", "model.experts.count=8", "model.sliding_window=8"}) == "accepted");
  CHECK(load_refusal(
            {"model.family=qwen3_moe", "model.experts.count=8", "model.sliding_window=8", "model.window_layers=[0]"}) ==
        "model.window_layers lists 1 of 12 layers, but family qwen3_moe has a window in all layers or in none. Use [], "
        "or family = \"mistral\", \"qwen2\" or \"qwen3\".");
}

TEST_CASE("supported: the defaults pass, and each row refuses its key by name and value", "[config]") {
  require_supported(with({}));
  require_supported(RunConfig{});
  require_supported(with({"train.dtype=bfloat16"}));
  const std::map<std::string, std::string> unsupported = {
      {"data.tokenizer", "words"},   {"comm.backend", "thread"},        {"model.experts.count", "8"},
      {"model.experts.shared", "1"}, {"model.experts.balance", "bias"}, {"model.experts.capacity", "drop"}};
  for (const SupportedRow& row : supported_rows()) {
    const std::string key(row.key);
    INFO(key);
    REQUIRE(unsupported.count(key) == 1);
    std::vector<std::string> sets;
    if (key.starts_with("model.experts.")) sets = {"model.family=qwen3_moe", "model.experts.count=8"};
    sets.push_back(key + "=" + unsupported.at(key));
    const RunConfig config = with(sets);
    CHECK(refusal([&] { require_supported(config); }) ==
          key + " = " + field_text(config, key) + " is not supported by this version: " + std::string(row.remedy) +
              ".");
  }
  CHECK(refusal([&] { require_supported(with({"comm.backend=thread"})); }) ==
        "comm.backend = \"thread\" is not supported by this version: use \"auto\", \"nccl\" or \"mpi\".");
}
