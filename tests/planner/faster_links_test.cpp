// SPDX-License-Identifier: Apache-2.0
// A better machine never makes a longer rehearsed step: more bandwidth, less latency, more memory.

#include <algorithm>
#include <cstdio>
#include <random>

#include <fmt/ranges.h>

#include "engine/base/check.h"
#include "engine/config/machine.h"
#include "tests/defaults.h"
#include "tests/paths.h"
#include "tests/sample.h"
#include "tests/test.hpp"
#include "trainer/planner/planner.h"

using namespace slipstream;
using namespace slipstream::planner;

namespace {

struct Run {
  std::vector<std::string> sets;
  int world = 1;
};

/// A run whose transfers take about as long as its computation.
class Draw {
 public:
  explicit Draw(uint64_t seed) : random_(seed) {}

  Run run() {
    Run run;
    const auto set = [&](const std::string& key, const auto& value) {
      run.sets.push_back(fmt::format("{}={}", key, value));
    };
    const int pipeline = one_of({1, 2, 2, 3, 4}), data = one_of({1, 2, 3}), tensor = one_of({1, 1, 1, 2});
    run.world = pipeline * data * tensor;
    set("parallel.pipeline", pipeline), set("parallel.data", data), set("parallel.tensor", tensor);
    const std::string schedule = one_of({"gpipe", "1f1b", "1f1b", "1f1b", "interleaved_1f1b", "zb_h1", "zb_h1"});
    const int chunks = pipeline > 1 && schedule == "interleaved_1f1b" ? 2 : 1, parts = pipeline * chunks;
    if (pipeline > 1) set("pipeline.schedule", schedule), set("pipeline.virtual_stages", chunks);
    const int micro_batches = chunks > 1 ? pipeline * (1 + below(3)) : 1 + below(10);
    const int layers = chunks > 1 ? parts * (1 + below(2)) : parts + below(6);
    set("model.layers", layers);
    set("model.heads", 4), set("model.width", one_of({64, 128, 256}));
    set("model.vocab_size", one_of({256, 4096, 32768}));
    set("model.context", 256), set("train.sequence_length", one_of({128, 256}));
    set("model.tie_embeddings", truth());
    const int micro_batch = one_of({1, 2, 4});
    set("train.micro_batch_size", micro_batch);
    set("train.global_batch_size", micro_batch * micro_batches * data);
    set("train.recompute", one_of({"none", "none", "full"}));
    set("optimizer.grad_clip", one_of({"0", "1"}));
    const int stage = below(4);
    set("zero.stage", stage);
    if (stage < 2) set("overlap.grad_reduce", one_of({"bucketed", "bucketed", "per_parameter", "flat"}));
    set("overlap.bucket_size", one_of({"64KiB", "512KiB", "4MiB"})), set("overlap.first_bucket_size", "32KiB");
    return run;
  }

  int below(int n) { return static_cast<int>(random_() % static_cast<uint64_t>(n)); }
  template <typename T>
  T one_of(std::initializer_list<T> values) {
    return *(values.begin() + below(static_cast<int>(values.size())));
  }

 private:
  const char* truth() { return one_of({"true", "false"}); }

  std::mt19937_64 random_;
};

int64_t step_ns(const Run& run, Machine machine, const std::string& bandwidth, const std::string& latency,
                int64_t memory_bytes = int64_t{1} << 50) {
  std::vector<std::string> sets = run.sets;
  sets.push_back("comm.emulate.bandwidth=" + bandwidth);
  sets.push_back("comm.emulate.latency=" + latency);
  machine.memory_bytes = memory_bytes;
  const JobRequest request{
      .config = resolve(default_run_config(sets), {.world = run.world}), .machine = machine, .proves = false};
  return step_period_ns(request, build_finished_job(request), false);
}

const Machine& laptop() {
  static const Machine machine = load_machine(source_dir() + "/configs/machines/laptop.toml");
  return machine;
}

/// Each step is at most as long as the one before it. A thousandth of a step is left to transfers that share a port.
void check_never_longer(const std::vector<int64_t>& steps_ns) {
  CAPTURE(fmt::format("{}", fmt::join(steps_ns, " ")));
  for (size_t i = 1; i < steps_ns.size(); ++i) CHECK(steps_ns[i] <= steps_ns[i - 1] + steps_ns[i - 1] / 1000);
}

}  // namespace

TEST_CASE("a faster link never makes a longer rehearsed step, and neither does more memory", "[planner]") {
  const uint64_t first_seed = 2000, count = test_everything() ? 200 : 12;
  std::printf("  seeds from %llu\n", static_cast<unsigned long long>(first_seed));
  int piped = 0;
  // These are seeds whose steps were longer with a faster link because of the lags of ZB-H1.
  std::vector<uint64_t> seeds{2125};
  for (uint64_t i = 0; i < count; ++i) seeds.push_back(first_seed + i);
  for (const uint64_t seed : seeds) {
    const Run run = Draw(seed).run();
    piped += run.sets.front() != "parallel.pipeline=1";
    INFO("seed " << seed << ", " << run.world << " ranks: --set " << fmt::format("{}", fmt::join(run.sets, " --set ")));
    std::vector<int64_t> by_bandwidth, by_latency, by_memory;
    for (const char* bandwidth : {"100Mbit/s", "1Gbit/s", "5Gbit/s", "10Gbit/s", "100Gbit/s"})
      by_bandwidth.push_back(step_ns(run, laptop(), bandwidth, "50us"));
    for (const char* latency : {"5ms", "500us", "100us", "1us"})
      by_latency.push_back(step_ns(run, laptop(), "1Gbit/s", latency));
    for (const int64_t bytes : {int64_t{60} << 20, int64_t{120} << 20, int64_t{250} << 20, int64_t{1} << 50}) try {
        by_memory.push_back(step_ns(run, laptop(), "1Gbit/s", "50us", bytes));
      } catch (const ResourceError&) {  // the model alone does not fit
      }
    check_never_longer(by_bandwidth);
    check_never_longer(by_latency);
    check_never_longer(by_memory);
  }
  CHECK(piped > static_cast<int>(count) / 2);
}

TEST_CASE("micro-batches in flight are chosen by rehearsal: the quickstart on two stages", "[planner]") {
  // The first stage is the shorter one, so that one more micro-batch in flight shortens the step on any link.
  Run run{.sets = {"model.layers=5", "model.heads=5", "model.width=160", "model.context=128", "model.vocab_size=256",
                   "train.sequence_length=128", "train.micro_batch_size=4", "train.global_batch_size=16",
                   "parallel.pipeline=2"},
          .world = 2};
  check_never_longer({step_ns(run, laptop(), "1Gbit/s", "50us"), step_ns(run, laptop(), "10Gbit/s", "50us"),
                      step_ns(run, laptop(), "100Gbit/s", "50us")});
  // The published number of micro-batches gives no shorter step.
  const int64_t chosen = step_ns(run, laptop(), "100Gbit/s", "50us");
  run.sets.push_back("overlap.p2p=false");
  CHECK(chosen <= step_ns(run, laptop(), "100Gbit/s", "50us"));
}
