// SPDX-License-Identifier: Apache-2.0
// Tasks of the passes: residuals of encoded gradients, and the channel of every gradient.

#include <algorithm>
#include <map>
#include <numeric>

#include "engine/plan/build_job.h"
#include "models/model.h"
#include "tests/test.hpp"

using namespace slipstream;

namespace {

constexpr int kRanks = 2;

Job job_of(int64_t vocab, const PlanOptions& options) {
  Buffers buffers;
  ModelSpec model = models::build_model({.layers = 2,
                                         .heads = 2,
                                         .kv_heads = 2,
                                         .width = 16,
                                         .ffn_width = 64,
                                         .context = 8,
                                         .vocab = vocab,
                                         .batch = 1,
                                         .tokens = 8,
                                         .global_tokens = 8 * kRanks,
                                         .ranks = kRanks,
                                         .split_tied_embedding = !options.sharding.states},
                                        buffers);
  return build_job(std::move(model), std::move(buffers), options);
}

/// Returns how often tasks of `plan` read or write each byte of a buffer.
std::vector<int> touches(const Job& job, const std::string& name, std::vector<Slice> Item::*accesses) {
  BufferId id = 0;
  while (id < job.buffers.size() && job.buffers[id].name != name) ++id;
  if (id == job.buffers.size()) return {};
  std::vector<int> counts(static_cast<size_t>(job.buffers[id].size_bytes), 0);
  for (const Task& task : job.train().tasks)
    for (const Slice& slice : task.*accesses)
      if (slice.buffer == id)
        for (int64_t byte = slice.begin_bytes; byte < slice.end_bytes(); ++byte) ++counts[static_cast<size_t>(byte)];
  return counts;
}

}  // namespace

TEST_CASE("error feedback: a step reads and writes every byte of the residuals once") {
  // Whole gradients are encoded twice, each time with a residual of its own; shards are encoded once.
  for (const int stage : {0, 1})
    for (const std::string name : {"gradients.residual", "gradients.sum_residual"}) {
      CAPTURE(stage, name);
      const Job job = job_of(64, {.sizes = {.data = kRanks},
                                  .reduce_wire = kInt8,
                                  .error_feedback = true,
                                  .sharding = sharding_of_stage(stage)});
      const std::vector<int> read = touches(job, name, &Item::reads), written = touches(job, name, &Item::writes);
      CHECK(read.empty() == (stage == 1 && name == "gradients.sum_residual"));
      CHECK(read == std::vector<int>(read.size(), 1));
      CHECK(written == read);
    }
}

TEST_CASE("gradients travel on channel reduce, sums of a few numbers on channel scalars") {
  // The rows of a tied table travel where they are fewer bytes than the table, which is the case from some size of the
  // vocabulary on.
  for (const int64_t vocab : {int64_t{8}, int64_t{4000}}) {
    CAPTURE(vocab);
    const Job job = job_of(vocab, {.sizes = {.data = kRanks}});
    REQUIRE(job.model.tied.split);
    CHECK(job.model.tied.as_rows == (vocab == 4000));
    std::map<std::string, int64_t> bytes;  // that a rank contributes, by channel
    for (const Task& task : job.train().tasks)
      if (is_communication(task.op)) bytes[job.channels[task.channel].name] += task.elems * size_of(task.dtype);
    int64_t gradients = 0;
    for (const Bucket& bucket : job.layout.buckets) gradients += 4 * bucket.elems;
    const int64_t rows = 8, width = 16, held = 128;  // a table has a multiple of 128 rows
    const int64_t tied = job.model.tied.as_rows ? rows * (4 * width + 4) : 4 * held * width;
    CHECK(bytes == std::map<std::string, int64_t>{{"reduce", gradients + tied}, {"scalars", 8}});
  }
}
