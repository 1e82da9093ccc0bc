// SPDX-License-Identifier: Apache-2.0
// Memory of a run on GPUs outside its plan, and the effect of an old driver on its steps: arithmetic on plans, without
// a GPU.

#include <cstdlib>

#include "comm/nccl/launch_order.h"
#include "comm/nccl/nccl_memory.h"
#include "engine/base/units.h"
#include "engine/config/load.h"
#include "engine/config/machine.h"
#include "engine/plan/memory.h"
#include "kernels/cuda/workspace.h"
#include "tests/defaults.h"
#include "tests/paths.h"
#include "tests/test.hpp"
#include "trainer/planner/forecast/extra_memory.h"
#include "trainer/planner/forecast/nccl_report.h"
#include "trainer/planner/planner.h"
#include "trainer/runtime/rank/library_tables.h"
#include "trainer/runtime/rank/memory_check.h"

using namespace slipstream;
using namespace slipstream::planner;
using namespace slipstream::runtime;

namespace {

/// Sets a variable while an object exists.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~Variable() { unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
};

JobRequest request(const std::vector<std::string>& more, int ranks = 8) {
  std::vector<std::string> sets{"model.layers=12",
                                "model.heads=12",
                                "model.width=768",
                                "model.vocab_size=50257",
                                "train.dtype=bfloat16",
                                "train.micro_batch_size=4",
                                "train.global_batch_size=64",
                                "device.kind=cuda"};
  sets.insert(sets.end(), more.begin(), more.end());
  return {.config = resolve(default_run_config(sets), {.world = ranks, .on_gpus = true}),
          .machine = load_machine(source_dir() + "/configs/machines/h100x8.toml")};
}

int64_t bytes_of(const std::vector<ExtraMemory>& beside, const std::string& owner) {
  for (const ExtraMemory& row : beside)
    if (row.owner == owner) return row.size_bytes;
  return 0;
}

}  // namespace

TEST_CASE("gpu_memory: NCCL's buffers are blocks x connections x the buffers of three protocols", "[cli]") {
  const int64_t connection = 10 * kMiB;  // 4 MiB + 512 KiB + 4800 KiB, in pieces of 2 MiB
  CHECK(comm::nccl_buffer_bytes({.max_ctas = 3}, false) == 3 * connection);
  CHECK(comm::nccl_buffer_bytes({.max_ctas = 3}, true) == 6 * connection);
  CHECK(comm::nccl_buffer_bytes({}, false) == 24 * connection);
  CHECK(comm::nccl_buffer_bytes({.min_ctas = 32}, false) == 32 * connection);
  {
    // The user's settings take precedence over the table.
    const Variable blocks("NCCL_MAX_CTAS", "2"), size("NCCL_BUFFSIZE", "1048576");
    CHECK(comm::nccl_buffer_bytes({.max_ctas = 3}, false) == 2 * 8 * kMiB);
  }
  const Variable channels("NCCL_MAX_NCHANNELS", "1"), nonsense("NCCL_BUFFSIZE", "large");
  CHECK(comm::nccl_buffer_bytes({}, false) == connection);
}

TEST_CASE("gpu_memory: kernels, cuBLASLt and NCCL have a line each in the table, and the total has them all", "[cli]") {
  const JobRequest asked = request({"zero.stage=2"});
  const FinishedJob finished = build_finished_job(asked);
  const Job& job = *finished.job;
  int64_t streams = 0;
  for (const Channel& channel : job.channels) streams += channel.axis == Axis::self;
  const comm::NcclTable table = comm::NcclTable::parse(R"({"channels": {"*": {"max_ctas": 4}}})", "table");
  const std::vector<ExtraMemory> beside = extra_memory_on_gpu(job, table, 8);
  CHECK(bytes_of(beside, "kernels' scratch") == streams * kernels::kScratchBytes);
  CHECK(bytes_of(beside, "cuBLASLt workspaces") == streams * kernels::kWorkspaceBytes);
  const int64_t nccl = bytes_of(beside, "NCCL buffers (estimate)");
  CHECK(nccl > 0);
  CHECK(nccl % (4 * 10 * kMiB) == 0);
  int64_t arenas = 0;
  for (int owner = 0; owner < kOwners; ++owner) arenas += job.buffers.bytes(static_cast<Owner>(owner)) > 0;
  CHECK(bytes_of(beside, "rounding of arenas (estimate)") == arenas * 2 * kMiB);
  // Across nodes both ends of a connection are on the GPU.
  CHECK(bytes_of(extra_memory_on_gpu(job, table, 4), "NCCL buffers (estimate)") > nccl);
  const std::string printed = memory_table(job, beside);
  CHECK_THAT(printed, Catch::Contains("  cuBLASLt workspaces") && Catch::Contains("  NCCL buffers (estimate)") &&
                          Catch::Contains(format_bytes(job.buffers.total_bytes() + sum_of(beside)) + "\n"));
  CHECK(memory_table(job).find("cuBLASLt") == std::string::npos);
  // One rank has no peer.
  CHECK(extra_memory_on_gpu(*build_finished_job(request({}, 1)).job, table, 8).size() == 2);
}

TEST_CASE(
    "gpu_memory: the planner does not choose two copies of the weights where only the libraries' memory is in the way",
    "[cli]") {
  // The late readers of the weights are one layer and a large head.
  const auto with = [](const std::string& choice) {
    return request({"model.family=llama", "model.layers=1", "model.vocab_size=200000", "optimizer.grad_clip=0",
                    "zero.stage=1", "overlap.bucket_size=8MiB", "optimizer.double_buffer=" + choice},
                   2);
  };
  const int64_t twice = build_finished_job(with("true")).job->buffers.total_bytes();
  JobRequest asked = with("auto");
  asked.machine.memory_bytes = twice + kMiB;
  asked.machine.attention_efficiency = 0;  // priced by shape, launches hide the late readers of a model of this size
  const bool alone = build_finished_job(asked).job->options.double_buffer;
  asked.extra_bytes = [](const Job&) { return 2 * kMiB; };
  CHECK(!build_finished_job(asked).job->options.double_buffer);
  INFO("without libraries " << alone);
  CHECK(alone);
}

TEST_CASE("launch_order: NCCL serialises captures before CUDA 12.9 and all launches before 12.3", "[nccl]") {
  CHECK(comm::nccl_serialises(12080, true));
  CHECK(!comm::nccl_serialises(12080, false));
  CHECK(comm::nccl_serialises(12020, false));
  CHECK(!comm::nccl_serialises(12090, true));
  CHECK(!comm::nccl_serialises(0, true));
  const Variable order("NCCL_LAUNCH_ORDER_IMPLICIT", "0");
  CHECK(!comm::nccl_serialises(12020, true));
}

TEST_CASE(
    "launch_order: a replayed step of several channels is rehearsed one operation at a time with an old driver, and "
    "auto weighs it",
    "[nccl]") {
  // Sums inside layers wait for whole buckets of gradients.
  JobRequest asked = request({"parallel.tensor=2", "overlap.bucket_size=200MiB", "overlap.first_bucket_size=200MiB",
                              "comm.emulate.bandwidth=400Gbit/s"});
  const Replay now = build_finished_job(asked).replay;
  CHECK(now.serialised_by == 0);
  asked.driver = 13000;
  const Replay recent = build_finished_job(asked).replay;
  CHECK(recent.graph_ns == now.graph_ns);
  asked.driver = 12080;
  const Replay old = build_finished_job(asked).replay;
  CAPTURE(now.graph_ns, now.task_by_task_ns, now.launches_ns(), old.graph_ns, old.task_by_task_ns);
  CHECK(old.serialised_by == 12080);
  CHECK(old.graph_ns > now.graph_ns);
  CHECK(old.task_by_task_ns == now.task_by_task_ns);
  CHECK(old.taken == (old.graph_ns - old.task_by_task_ns <= old.launches_ns()));
  asked.driver = 12020;
  CHECK(build_finished_job(asked).replay.task_by_task_ns > now.task_by_task_ns);
  // One rank has no order to keep.
  JobRequest alone = request({}, 1);
  alone.driver = 12080;
  CHECK(build_finished_job(alone).replay.serialised_by == 0);
}

TEST_CASE("tables: the plan prints one line of NCCL's table per connection of a job", "[nccl]") {
  const FinishedJob finished = build_finished_job(request({"zero.stage=0"}));
  const comm::NcclTable table = comm::NcclTable::parse(
      R"({"channels": {"reduce": {"max_ctas": 4, "choices": [{"verb": "all_reduce", "up_to": "1MiB", )"
      R"("algorithm": "tree", "protocol": "ll"}]}}})",
      "table");
  const std::vector<std::string> lines = nccl_choices(*finished.job, table);
  REQUIRE(lines.size() == 1);
  CHECK(lines[0] == "reduce: at most 4 blocks, all_reduce up to 1.0 MiB tree ll");
  CHECK(nccl_choices(*finished.job, {}).empty());
}
