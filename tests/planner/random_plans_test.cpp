// SPDX-License-Identifier: Apache-2.0
// No legal run file is refused: random layouts, schedules and strategies pass validation and proof.

#include <cstdio>
#include <fstream>
#include <random>

#include <fmt/ranges.h>

#include "engine/base/check.h"
#include "engine/config/load.h"
#include "engine/config/machine.h"
#include "tests/defaults.h"
#include "tests/engine/plan/random_schedule.h"
#include "tests/paths.h"
#include "tests/sample.h"
#include "tests/test.hpp"
#include "trainer/planner/planner.h"

using namespace slipstream;
using namespace slipstream::planner;

namespace {

/// A run file that the reference page allows, for `world` ranks.
struct Drawn {
  std::vector<std::string> sets;
  int world = 1;
  bool on_gpus = false;
};

class Draw {
 public:
  explicit Draw(uint64_t seed) : random_(seed) {}

  /// `imports`: three of four pipelines take a random schedule from a file, which this writes; otherwise one of three.
  Drawn drawn(const std::string& schedule_file, bool imports) {
    Drawn drawn;
    const auto set = [&](const std::string& key, const auto& value) {
      drawn.sets.push_back(fmt::format("{}={}", key, value));
    };
    const bool muon = below(4) == 0;
    const int pipeline = one_of({1, 1, 2, 3, 4}), data = one_of({1, 2, 3, 4}), context = one_of({1, 1, 1, 2, 3}),
              tensor = muon ? 1 : one_of({1, 1, 2, 4});
    drawn.world = pipeline * data * context * tensor;
    drawn.on_gpus = below(4) == 0;
    for (const auto& [axis, ranks] :
         {std::pair{"data", data}, {"tensor", tensor}, {"pipeline", pipeline}, {"context", context}})
      set(fmt::format("parallel.{}", axis), ranks);
    set("parallel.order", one_of({"tp-cp-pp-dp", "dp-tp-cp-pp", "pp-dp-tp-cp"}));

    const bool from_file = pipeline > 1 && (imports ? below(4) > 0 : below(3) == 0);
    const bool interleaved = pipeline > 1 && !from_file && below(3) == 0;
    const bool folded = pipeline > 1 && !from_file && !interleaved && below(4) == 0;
    const int chunks = folded ? 2 : interleaved || (from_file && below(2) == 0) ? one_of({2, 3}) : 1;
    const int parts = pipeline * chunks;
    const int micro_batches = interleaved && chunks > 1 ? pipeline * (1 + below(3)) : 1 + below(6);
    // One layer or more for every part; a number that the parts do not divide needs a list.
    const int layers = parts + below(4);
    set("model.layers", layers);
    if (chunks > 1) set("pipeline.virtual_stages", chunks);
    if (parts > 1 && (layers % parts != 0 || below(3) == 0)) {
      std::vector<int> of(static_cast<size_t>(parts), 1);
      for (int extra = parts; extra < layers; ++extra) ++of[static_cast<size_t>(below(parts))];
      set("pipeline.layers", fmt::format("[{}]", fmt::join(of, ", ")));
    }
    if (from_file) {
      const ScheduleShape shape{.stages = pipeline, .micro_batches = micro_batches, .virtual_stages = chunks};
      std::ofstream(schedule_file) << schedule_csv(random_schedule(shape, below(2) == 0, random_));
      set("pipeline.schedule_file", schedule_file);
    } else if (pipeline > 1) {
      set("pipeline.schedule", interleaved ? "interleaved_1f1b" : folded ? "zb_v" : one_of({"gpipe", "1f1b", "zb_h1"}));
    }

    const bool llama = below(2) == 0;
    set("model.family", llama ? "llama" : "gpt2");
    set("model.heads", 4);
    if (llama) set("model.kv_heads", tensor > 2 ? 4 : one_of({2, 4}));
    set("model.width", 32);
    set("model.ffn_width", one_of({64, 96}));
    set("model.vocab_size", one_of({61, 64, 97}));
    set("model.context", 48);
    set("train.sequence_length", one_of({24, 48}));  // a multiple of two chunks for each context rank
    set("model.tie_embeddings", truth());
    const int micro_batch = 1 + below(2);
    set("train.micro_batch_size", micro_batch);
    set("train.global_batch_size", micro_batch * micro_batches * data);
    const bool bf16 = below(3) == 0;
    set("train.dtype", bf16 ? "bfloat16" : "float32");
    set("train.recompute", one_of({"none", "selective", "full"}));
    set("train.on_nan", one_of({"abort", "skip"}));
    set("optimizer.name", muon ? "muon" : "adamw");
    set("optimizer.grad_clip", one_of({"0", "1"}));

    const int stage = muon ? below(2) : below(4);
    set("zero.stage", stage);
    if (stage > 0) {
      std::vector<int> sizes{0};
      for (int size = 2; size <= data * context; ++size)
        if (data * context % size == 0) sizes.push_back(size);
      if (data * context > 1) set("zero.shard_size", sizes[static_cast<size_t>(below(static_cast<int>(sizes.size())))]);
      set("zero.gather_dtype", one_of({"auto", "int8"}));
      set("overlap.param_gather", truth());
    }
    if (stage == 3) {
      set("zero.prefetch_depth", below(std::min(3, layers)));
      set("zero.reshard_after_forward", truth());
      if (chunks == 1) set("zero.persistence_threshold", one_of({"0B", "1KiB", "64KiB"}));
    } else {
      set("optimizer.double_buffer", one_of({"auto", "true", "false"}));
    }
    if (stage < 2) {
      set("overlap.grad_reduce", one_of({"bucketed", "bucketed", "per_parameter", "flat", "naive"}));
      set("overlap.align_grad_reduce", truth());
    }
    const bool int8 = below(4) == 0;
    set("comm.quantize", int8 ? "int8" : "none");
    if (int8) set("comm.error_feedback", truth());
    set("overlap.bucket_size", one_of({"2KiB", "8KiB", "1MiB"}));
    set("overlap.first_bucket_size", one_of({"1KiB", "2KiB"}));
    set("overlap.optimizer_per_bucket", truth());
    set("overlap.p2p", truth());
    set("overlap.split_tied_embedding", truth());
    if (tensor > 1) {
      set("parallel.sequence_parallel", truth());
      set("overlap.tensor_chunks", 1 + below(4));
    }
    if (below(2) == 0) set("checkpoint.interval", 2);
    set("checkpoint.async", truth());
    if (drawn.world > 1) set("checkpoint.peer_interval", below(3));
    return drawn;
  }

 private:
  int below(int n) { return static_cast<int>(random_() % static_cast<uint64_t>(n)); }
  template <typename T>
  T one_of(std::initializer_list<T> values) {
    return *(values.begin() + below(static_cast<int>(values.size())));
  }
  const char* truth() { return one_of({"true", "false"}); }

  std::mt19937_64 random_;
};

}  // namespace

TEST_CASE("no legal random plan is refused", "[proof]") {
  const uint64_t first_seed = 5500, count = test_everything() ? 500 : 40, imported_seed = 100000,
                 imported_count = test_everything() ? 500 : 0;
  std::printf("  seeds from %llu and %llu\n", static_cast<unsigned long long>(first_seed),
              static_cast<unsigned long long>(imported_seed));
  // Seeds whose plans were refused: stages waited for each other's slots; a bucket travelled before the last weight
  // pass of its gradients; a layer left its slot before it was read; an update wrote what a weight pass still needed.
  std::vector<std::pair<uint64_t, bool>> seeds{{5912, false},  {5989, false},  {100595, true},
                                               {102615, true}, {103891, true}, {104979, true}};
  for (uint64_t i = 0; i < count; ++i) seeds.emplace_back(first_seed + i, false);
  for (uint64_t i = 0; i < imported_count; ++i) seeds.emplace_back(imported_seed + i, true);
  const std::string csv =
      (std::filesystem::temp_directory_path() / fmt::format("slipstream_schedule_{}.csv", ::getpid())).string();
  const Machine cpu = this_host(1), gpu = load_machine(source_dir() + "/configs/machines/h100x8.toml");
  int piped = 0, imported = 0;
  int64_t items = 0;
  for (const auto& [seed, imports] : seeds) {
    const Drawn drawn = Draw(seed).drawn(csv, imports);
    INFO("seed " << seed << ", " << drawn.world << " ranks" << (drawn.on_gpus ? " on GPUs" : "") << ": --set "
                 << fmt::format("{}", fmt::join(drawn.sets, " --set ")));
    std::string refusal;
    try {
      const JobRequest request{
          .config = resolve(default_run_config(drawn.sets), {.world = drawn.world, .on_gpus = drawn.on_gpus}),
          .rank = static_cast<int>(seed % static_cast<uint64_t>(drawn.world)),
          .machine = drawn.on_gpus ? gpu : cpu};
      const FinishedJob finished = build_finished_job(request);
      items += finished.proof.items;
      piped += request.config->parallel.pipeline > 1;
      imported += !request.config->pipeline.schedule_file.empty();
    } catch (const Error& error) {
      refusal = error.what();
    }
    CHECK(refusal == "");
  }
  std::filesystem::remove(csv);
  std::printf("  %llu plans, %d with a pipeline, %d of these with an imported schedule; %lld items proved\n",
              static_cast<unsigned long long>(seeds.size()), piped, imported, static_cast<long long>(items));
  CHECK(piped > static_cast<int>(count) / 3);
  CHECK(imported > 0);
}
