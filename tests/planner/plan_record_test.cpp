// SPDX-License-Identifier: Apache-2.0
// Compares plan.json and the memory in use with a backward scan over the bytes of every buffer.

#include <algorithm>

#include "engine/base/json.h"
#include "engine/config/load.h"
#include "engine/config/machine.h"
#include "tests/defaults.h"
#include "tests/paths.h"
#include "tests/test.hpp"
#include "trainer/planner/forecast/plan_record.h"
#include "trainer/planner/planner.h"

using namespace slipstream;
using namespace slipstream::planner;

namespace {

struct Row {
  int world;
  std::vector<std::string> sets;
};

const std::vector<Row>& rows() {
  static const std::vector<Row> all = {
      {1, {}},
      {2, {"zero.stage=3"}},
      {4, {"parallel.pipeline=2", "zero.stage=2", "overlap.optimizer_per_bucket=true"}},
      {2, {"parallel.tensor=2", "train.recompute=full"}},
  };
  return all;
}

const Machine& machine() {
  static const Machine h100 = load_machine(source_dir() + "/configs/machines/h100x8.toml");
  return h100;
}

RunConfig config_of(const Row& row) {
  std::vector<std::string> sets{"model.layers=2",          "model.heads=2",
                                "model.width=16",          "model.context=8",
                                "model.vocab_size=32",     "train.micro_batch_size=1",
                                "train.sequence_length=8", "train.global_batch_size=4"};
  sets.insert(sets.end(), row.sets.begin(), row.sets.end());
  return default_run_config(sets);
}

FinishedJob job_of(const Row& row) {
  return build_finished_job({.config = resolve(config_of(row), {.world = row.world}), .machine = machine()});
}

/// The memory in use, by position and owner. Every byte has a state: will its next access read it? There are two rounds
/// from the end of the step to its start, because the next access may be in the next step.
std::vector<std::array<int64_t, kOwners>> scanned(const Job& job) {
  const Plan& plan = job.train();
  std::vector<std::vector<char>> needed(job.buffers.size()), touched(job.buffers.size());
  for (BufferId b = 0; b < job.buffers.size(); ++b)
    if (!job.buffers[b].is_view) {
      needed[b].resize(static_cast<size_t>(job.buffers.instances(b) * job.buffers.stride_bytes(b)), 0);
      touched[b].resize(needed[b].size(), 0);
    }
  const auto set = [](std::vector<char>& bytes, const Slice& slice, char value) {
    std::fill(bytes.begin() + slice.begin_bytes, bytes.begin() + slice.end_bytes(), value);
  };
  std::vector<std::array<int64_t, kOwners>> in_use(plan.order.size());
  for (int round = 0; round < 2; ++round)
    for (size_t position = plan.order.size(); position-- > 0;) {
      const Item& item = plan[plan.order[position]];
      auto now = needed;
      for (const auto* slices : {&item.reads, &item.writes})
        for (const Slice& slice : *slices) {
          set(now[slice.buffer], slice, 1);
          set(touched[slice.buffer], slice, 1);
        }
      in_use[position] = {};
      for (BufferId b = 0; b < job.buffers.size(); ++b)
        in_use[position][static_cast<size_t>(job.buffers[b].owner)] += std::count(now[b].begin(), now[b].end(), 1);
      for (const Slice& slice : item.writes) set(needed[slice.buffer], slice, 0);
      for (const Slice& slice : item.reads) set(needed[slice.buffer], slice, 1);
    }
  // Untouched bytes count as in use.
  for (BufferId b = 0; b < job.buffers.size(); ++b)
    for (auto& owners : in_use)
      owners[static_cast<size_t>(job.buffers[b].owner)] += std::count(touched[b].begin(), touched[b].end(), 0);
  return in_use;
}

}  // namespace

TEST_CASE("memory in use: equals a scan over all bytes and never exceeds what is allocated", "[planner]") {
  for (const Row& row : rows()) {
    const FinishedJob finished = job_of(row);
    for (const auto& stage : finished.stages) {
      const auto in_use = memory_in_use(*stage);
      CHECK(in_use == scanned(*stage));
      for (int owner = 0; owner < kOwners; ++owner)
        for (const auto& owners : in_use)
          CHECK(owners[static_cast<size_t>(owner)] <= stage->buffers.bytes(static_cast<Owner>(owner)));
    }
  }
}

TEST_CASE("plan.json: has every item of every stage once, and its step is the rehearsed one", "[planner]") {
  for (const Row& row : rows()) {
    const FinishedJob finished = job_of(row);
    const Json record = Json::parse(plan_record(config_of(row), machine(), finished));
    const Json::Array& stages = record.at("stages").as_array();
    REQUIRE(stages.size() == finished.stages.size());
    CHECK(record.at("coordinates").as_array().size() == static_cast<size_t>(row.world));
    const int64_t step_ns = record.at("step_ns").as_int();
    CHECK(step_ns > 0);
    for (size_t s = 0; s < stages.size(); ++s) {
      const Job& job = *finished.stages[s];
      const Json::Array& items = stages[s].at("items").as_array();
      REQUIRE(items.size() == job.train().size());
      int64_t sent = 0, listed = 0, compute_ns = 0;
      for (ItemId i = 0; i < job.train().size(); ++i) {
        const Json::Array& item = items[i].as_array();
        CHECK(item[0].as_string() == job.train()[i].name);
        if (job.train()[i].op != Op::recv) sent += item[6].as_int();
        if (item[1].as_int() == 0) compute_ns += item[5].as_int();
      }
      for (const Json& channel : stages[s].at("channels").as_array()) listed += channel.at("sent_bytes").as_int();
      CHECK(sent == listed);
      CHECK(compute_ns <= step_ns);
    }
  }
}
