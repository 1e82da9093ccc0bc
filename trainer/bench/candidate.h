// SPDX-License-Identifier: Apache-2.0
#pragma once
// One measured variant of a step, with its own memory and communicators, on random tokens.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/config/resolve.h"
#include "engine/report/overlap.h"
#include "trainer/planner/finished_job.h"
#include "trainer/runtime/loop/step_means.h"
#include "trainer/runtime/rank/device_assignment.h"
#include "trainer/runtime/rank/rank.h"
#include "trainer/runtime/rank/world.h"

namespace slipstream::bench {

/// 0 for none. Pure.
double median(std::vector<double> values);

/// The batch of one rank, ids and targets in the plan's layout, as frequent as tokens of text (Philox::zipf): the
/// gradient of the embedding takes longer where ids repeat. As in training, stages and tensor ranks share a batch. The
/// update is the optimizer's step 1 with a tiny learning
/// rate. Pure.
void load_random(const Job& job, int rank, const runtime::StagedBatch& staged);

/// The machine of the benchmark's plans, chosen as in train. Blocks. Collective.
Machine bench_machine(runtime::World& world, const runtime::DeviceAssignment& assignment, const RunConfig& config,
                      int threads);

/// Uses the bytes tokenizer if the run file sets no vocabulary. Pure. Throws: ConfigError.
ResolvedConfig resolve_bench(const RunConfig& config, int world, bool on_gpus = false);

/// The benchmark's job, planned as in train. `spine_ns` as in JobRequest. Pure.
planner::FinishedJob build_bench_job(const runtime::DeviceAssignment& assignment, const Machine& machine,
                                     const RunConfig& config, int world, int rank,
                                     std::function<std::vector<int64_t>(const Job&)> spine_ns = {});

struct Candidate {
  std::string name;
  std::shared_ptr<const Job> job;
  bool replayed = false;      // steps are launched as graphs
  int64_t keep_interval = 0;  // checkpoint.peer_interval
  std::unique_ptr<runtime::Rank> rank;
  std::unique_ptr<OverlapMeter> meter;
  uint32_t step = 0;                      // issued so far
  std::vector<StepTimes> times;           // of this rank
  std::vector<runtime::StepMeans> means;  // over ranks

  /// Blocks. Collective: weights of seed 1, first batch staged. `paced_item_ns` as in RankOptions. `imitated`: so are
  /// the other ranks of the job, as they are in a world of one.
  Candidate(std::string named, runtime::World& world, const runtime::DeviceAssignment& assignment,
            const RunConfig& config, planner::FinishedJob finished, double bytes_per_second,
            const std::vector<int64_t>& paced_item_ns = {}, bool imitated = false);

  /// Blocks. Runs `steps` steps back to back and times the last but one, so that work left for the next step counts.
  /// With three steps, work left by the previous step counts, too: gathers that travel under the next forward pass.
  void run(int steps, bool counted);
  /// The halves of run(): the steps themselves, then the analysis of their times, which no clock of a step includes.
  void compute(int steps);
  void measure(int steps, bool counted);

  double median_of(double runtime::StepMeans::*member) const;
  /// Median time of every spine item of this rank.
  std::vector<int64_t> spine_ns() const;
};

/// Scales item times to sum to the median step. The sum of item medians misses disturbances that hit a different item
/// in each step, up to 3 % on a shared machine. Pure.
std::vector<int64_t> adding_up_to_a_step(std::vector<int64_t> items_ns, const std::vector<int64_t>& steps_ns);

/// Blocks. Collective. Time of every spine item: the largest median of any rank, scaled to the slowest rank's step,
/// because communicating ranks wait for it.
std::vector<int64_t> spine_ns_of_slowest(runtime::World& world, const Candidate& candidate);

/// Blocks. Collective, one rank per stage. Time of every spine item of every stage, scaled to the stage's step.
std::vector<std::vector<int64_t>> spine_ns_of_stages(runtime::World& world, const Candidate& candidate);

/// Times of a plan's items, from measurements of another plan of the same model: pieces by name; updates and sums of
/// squares, whose buckets differ, by bytes.
class ItemTimes {
 public:
  ItemTimes(const Plan& measured, const std::vector<int64_t>& spine_ns);
  /// Time of every spine item of `plan`; 0 for items that the measured plan lacks. Pure.
  std::vector<int64_t> of(const Plan& plan) const;

 private:
  std::map<std::string, int64_t> by_name_;
  double update_ns_per_byte_ = 0, sum_squares_ns_per_byte_ = 0;
};

}  // namespace slipstream::bench
