// SPDX-License-Identifier: Apache-2.0
// Requests that are refused by their sizes alone are only those that no plan could fit.

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>

#include "engine/base/check.h"
#include "engine/config/load.h"
#include "engine/config/machine.h"
#include "tests/defaults.h"
#include "tests/paths.h"
#include "tests/test.hpp"
#include "trainer/planner/minimum_memory.h"
#include "trainer/planner/options/plan_options.h"
#include "trainer/planner/planner.h"

using namespace slipstream;
using namespace slipstream::planner;

namespace {

/// The share of a plan's memory that is known from sizes alone; if it were above 1, it would not be a lower bound.
double known_share(const JobRequest& request) {
  JobRequest asked = request;
  asked.machine.memory_bytes = int64_t{1} << 60;
  asked.proves = false;
  const FinishedJob finished = build_proved_job(asked);
  return static_cast<double>(minimum_bytes(model_options(asked), finished.job->options)) /
         static_cast<double>(largest_stage(finished).buffers.total_bytes());
}

std::string refusal(const JobRequest& request) {
  try {
    build_proved_job(request);
  } catch (const ResourceError& error) {
    return error.what();
  }
  return "accepted";
}

}  // namespace

TEST_CASE("the least memory of a model is never more than its plan takes: run files", "[least_memory]") {
  const Machine machine = load_machine(source_dir() + "/configs/machines/h100x8.toml");
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(source_dir() + "/configs/runs")) {
    RunConfig config = load_run_config(entry.path(), {});
    const int64_t model = config.parallel.tensor * config.parallel.pipeline * config.parallel.context;
    const auto data =
        static_cast<int>(std::max<int64_t>({1, config.parallel.data, config.zero.shard_size, config.parallel.expert}));
    config.train.global_batch_size =
        config.train.micro_batch_size * data * config.parallel.pipeline;  // a short plan of the same memory
    const RunFacts facts{.world = static_cast<int>(model) * data, .vocab = config.model.vocab_size > 0 ? 0 : 256};
    const double share = known_share({.config = resolve(config, facts), .machine = machine});
    std::printf("  %-28s %5.1f %% of the plan's memory\n", entry.path().filename().c_str(), 100 * share);
    CHECK(share <= 1);
    CHECK(share > 0.01);
    ++files;
  }
  CHECK(files >= 8);
}

TEST_CASE("the least memory of a model is never more than its plan takes: layouts", "[least_memory]") {
  struct Row {
    int world;
    std::vector<std::string> sets;
  };
  const std::vector<Row> layouts = {{1, {}},
                                    {4, {}},
                                    {4, {"parallel.context=2"}},
                                    {4, {"parallel.pipeline=2"}},
                                    {4, {"parallel.pipeline=2", "pipeline.layers=[1,3]"}},
                                    {2, {"parallel.tensor=2"}},
                                    {4, {"parallel.tensor=2"}},
                                    {8, {"parallel.tensor=2", "parallel.pipeline=2"}},
                                    {4, {"parallel.pipeline=4"}},
                                    {4, {"parallel.pipeline=2", "pipeline.schedule=zb_h1"}},
                                    {4, {"parallel.pipeline=2", "train.recompute=full"}}};
  double least = 1;
  for (const char* family : {"gpt2", "llama"})
    for (const char* dtype : {"float32", "bfloat16"})
      for (const char* tie : {"true", "false"})
        for (int zero = 0; zero <= 3; ++zero)
          for (const char* shard : {"0", "2"})
            for (const Row& row : layouts) {
              if (shard[0] == '2' && (zero == 0 || row.world != 4 || !row.sets.empty())) continue;
              std::vector<std::string> sets{"model.family=" + std::string(family),
                                            "model.layers=4",
                                            "model.heads=2",
                                            "model.width=64",
                                            "model.vocab_size=67",
                                            "model.context=16",
                                            "train.sequence_length=16",
                                            "train.micro_batch_size=1",
                                            "train.global_batch_size=4",
                                            "train.dtype=" + std::string(dtype),
                                            "model.tie_embeddings=" + std::string(tie),
                                            "zero.stage=" + std::to_string(zero)};
              if (shard[0] == '2') sets.push_back("zero.shard_size=2");
              sets.insert(sets.end(), row.sets.begin(), row.sets.end());
              CAPTURE(sets, row.world);
              const double share = known_share(
                  {.config = resolve(default_run_config(sets), {.world = row.world}), .machine = this_host(1)});
              CHECK(share <= 1);
              least = std::min(least, share);
            }
  std::printf("  at least %.1f %% of the plan's memory\n", 100 * least);
  CHECK(least > 0.05);
}

namespace {

/// Returns the bytes of parameters, gradients and states of optimizers in a plan.
int64_t state_bytes_of(const Job& job) {
  int64_t bytes = 0;
  for (BufferId b = 0; b < job.buffers.size(); ++b) {
    const BufferSpec& buffer = job.buffers[b];
    const bool is_state =
        buffer.owner == Owner::parameters || buffer.owner == Owner::gradients ||
        (buffer.owner == Owner::optimizer && !buffer.name.starts_with("norm") && !buffer.name.starts_with("scalars"));
    if (is_state && !buffer.is_view) bytes += buffer.size_bytes;
  }
  return bytes;
}

}  // namespace

// The sizes of this model are multiples of what a bucket is padded to.
TEST_CASE("the least memory of divided experts is exactly what the plan keeps of parameters, gradients and states",
          "[least_memory]") {
  int rows = 0;
  std::map<int64_t, int> sizes;
  for (const int expert : {1, 2, 4})
    for (const int zero : {0, 1, 2, 3})
      for (const int shard : {0, 2})
        for (const int pipeline : {1, 2})
          for (const char* dtype : {"float32", "bfloat16"}) {
            if (shard > 0 && zero == 0) continue;
            const std::vector<std::string> sets{"model.family=mixtral",
                                                "model.layers=4",
                                                "model.heads=2",
                                                "model.width=64",
                                                "model.ffn_width=64",
                                                "model.vocab_size=128",
                                                "model.context=16",
                                                "model.experts.count=4",
                                                "model.tie_embeddings=false",
                                                "train.sequence_length=16",
                                                "train.micro_batch_size=1",
                                                "train.global_batch_size=8",
                                                "zero.persistence_threshold=0B",
                                                "optimizer.double_buffer=false",
                                                "train.dtype=" + std::string(dtype),
                                                "zero.stage=" + std::to_string(zero),
                                                "zero.shard_size=" + std::to_string(shard),
                                                "parallel.expert=" + std::to_string(expert),
                                                "parallel.pipeline=" + std::to_string(pipeline)};
            CAPTURE(sets);
            JobRequest asked{.config = resolve(default_run_config(sets), {.world = 4 * pipeline}),
                             .machine = this_host(1),
                             .proves = false};
            asked.machine.memory_bytes = 0;  // gradients of stage 2 are then sharded for any memory
            const FinishedJob finished = build_proved_job(asked);
            int64_t bytes = 0;
            for (const auto& stage : finished.stages) bytes += state_bytes_of(*stage);
            const int64_t least = minimum_bytes(model_options(asked), finished.job->options);
            CHECK(bytes == least * pipeline);
            ++sizes[least], ++rows;
          }
  CHECK(sizes.size() > static_cast<size_t>(rows) / 3);  // the rows differ
  std::printf("  COUNTED %d layouts of divided experts\n", rows);
}

TEST_CASE("a model that cannot fit is refused before it is planned, with its numbers", "[least_memory]") {
  Machine machine = load_machine(source_dir() + "/configs/machines/h100x8.toml");
  const auto asked = [&](const std::vector<std::string>& more) {
    std::vector<std::string> sets{"model.layers=60000",       "model.heads=8",
                                  "model.width=512",          "model.vocab_size=256",
                                  "model.context=16",         "train.sequence_length=16",
                                  "train.micro_batch_size=1", "train.global_batch_size=2"};
    sets.insert(sets.end(), more.begin(), more.end());
    return JobRequest{.config = resolve(default_run_config(sets), {.world = 2}), .machine = machine};
  };
  const std::string refused = refusal(asked({}));
  INFO(refused);
  // A layer has 12 x 512^2 weights and 13 x 512 for biases and norms, with 16 bytes for each.
  CHECK(refused.find("[plan] 60000 layers of 3.2M parameters") == 0);
  CHECK(
      refused.find("at least 2818.45 GiB per rank with their gradients and optimizer states, 38 times the 74.51 GiB") !=
      std::string::npos);
  CHECK(refused.find("zero.stage = 3, ") != std::string::npos);
  CHECK(refusal(asked({"zero.stage=3"})).find("Use more ranks with parallel.pipeline") != std::string::npos);
  // A machine of unknown memory may have enough, and a request that misses by little is planned.
  const auto small = [&] { return asked({"model.layers=2"}); };
  const JobRequest probe = small();
  machine.memory_bytes = 0;
  CHECK(refusal(small()) == "accepted");
  machine.memory_bytes = build_proved_job(probe).job->buffers.total_bytes() / 4;
  CHECK(refusal(small()) == "accepted");
}
