// SPDX-License-Identifier: Apache-2.0
#pragma once
// A step under measurement: one way of doing it, with its own memory and communicators, fed with random tokens.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/config/resolve.h"
#include "engine/report/overlap.h"
#include "planner/finished_job.h"
#include "runtime/device_assignment.h"
#include "runtime/rank.h"
#include "runtime/step_means.h"
#include "runtime/world.h"

namespace slipstream::bench {

/// 0 for none. Pure.
double median(std::vector<double> values);

/// The batch of one rank, ids and targets as the plan holds them; what a step costs does not depend on the tokens. The
/// update is AdamW's of step 1 at a learning rate that changes little. Pure.
void load_random(const Job& job, int rank, const runtime::StagedBatch& staged);

/// The machine that benchmarks plan for, as train does. Blocks. Collective.
Machine bench_machine(runtime::World& world, const runtime::DeviceAssignment& assignment, const RunConfig& config,
                      int threads);

/// With the bytes tokenizer where the run file leaves the vocabulary open. Pure. Throws: ConfigError.
ResolvedConfig resolve_bench(const RunConfig& config, int world, bool on_gpus = false);

/// The job of the benchmarks: as train plans it at this place. `spine_ns` as in JobRequest. Pure.
planner::FinishedJob build_bench_job(const runtime::DeviceAssignment& assignment, const Machine& machine,
                                     const RunConfig& config, int world, int rank,
                                     std::function<std::vector<int64_t>(const Job&)> spine_ns = {});

struct Candidate {
  std::string name;
  std::shared_ptr<const Job> job;
  bool replayed = false;  // steps are launched as graphs
  std::unique_ptr<runtime::Rank> rank;
  std::unique_ptr<OverlapMeter> meter;
  uint32_t step = 0;                      // issued so far
  std::vector<StepTimes> times;           // of this rank
  std::vector<runtime::StepMeans> means;  // over ranks

  /// Blocks. Collective: weights of seed 1, first batch staged. `paced_item_ns` as in RankOptions.
  Candidate(std::string named, runtime::World& world, const runtime::DeviceAssignment& assignment,
            const RunConfig& config, planner::FinishedJob finished, double bytes_per_second,
            const std::vector<int64_t>& paced_item_ns = {});

  /// Blocks. `steps` back to back. The last but one is timed, so that what it leaves for the next one counts; with
  /// three, what the one before has left for it, too: gathers that travel under the next forward pass.
  void run(int steps, bool counted);

  double median_of(double runtime::StepMeans::*member) const;
  /// Median time of every spine item of this rank.
  std::vector<int64_t> spine_ns() const;
};

/// Times of items in these proportions that add up to the median step. Medians of items alone leave out what strikes
/// another item in every step: up to 3 % of it on a shared machine. Pure.
std::vector<int64_t> adding_up_to_a_step(std::vector<int64_t> items_ns, const std::vector<int64_t>& steps_ns);

/// Blocks. Collective. What every spine item takes: the largest median of any rank, adding up to what the slowest rank
/// takes for a step, because ranks that communicate wait for it.
std::vector<int64_t> spine_ns_of_slowest(runtime::World& world, const Candidate& candidate);

/// Blocks. Collective, one rank per stage. What every spine item of every stage takes, adding up to what the stage
/// takes for a step.
std::vector<std::vector<int64_t>> spine_ns_of_stages(runtime::World& world, const Candidate& candidate,
                                                     const std::vector<std::shared_ptr<const Job>>& stages);

/// What the items of a plan take, by measurements of another plan of the same model: pieces by their names, updates and
/// sums of squares, which are cut into other buckets, by their bytes.
class ItemTimes {
 public:
  ItemTimes(const Plan& measured, const std::vector<int64_t>& spine_ns);
  /// Of every spine item of `plan`; 0 for one that the measured plan does not have. Pure.
  std::vector<int64_t> of(const Plan& plan) const;

 private:
  std::map<std::string, int64_t> by_name_;
  double adamw_ns_per_byte_ = 0, sum_squares_ns_per_byte_ = 0;
};

}  // namespace slipstream::bench
