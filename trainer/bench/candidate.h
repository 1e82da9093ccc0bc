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

/// Returns 0 for no values. Pure.
double median(std::vector<double> values);

/// Loads the batch of one rank, ids and targets, in the plan's layout. Ids are as frequent as tokens of text
/// (Philox::zipf), because the gradient of the embedding takes longer where ids repeat. As in training, stages and
/// tensor ranks share a batch. The update is the optimizer's step 1 with a tiny learning rate. Pure.
void load_random(const Job& job, int rank, const runtime::StagedBatch& staged);

/// Returns the machine of the benchmark's plans, which is chosen as in train. Blocks. Collective.
Machine bench_machine(runtime::World& world, const runtime::DeviceAssignment& assignment, const RunConfig& config,
                      int threads);

/// Uses the bytes tokenizer if the run file sets no vocabulary. Pure. Throws: ConfigError.
ResolvedConfig resolve_bench(const RunConfig& config, int world, bool on_gpus = false);

/// Plans the benchmark's job as train does. `spine_ns` has the meaning that it has in JobRequest. Pure.
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
  uint32_t step = 0;                      // the steps issued so far
  std::vector<StepTimes> times;           // the times of this rank
  std::vector<runtime::StepMeans> means;  // the means over ranks

  /// Blocks. Collective: sets weights of seed 1 and stages the first batch. `paced_item_ns` has the meaning that it has
  /// in RankOptions. With `imitated`, the other ranks of the job are imitated, as they are in a world of one.
  Candidate(std::string named, runtime::World& world, const runtime::DeviceAssignment& assignment,
            const RunConfig& config, planner::FinishedJob finished, double bytes_per_second,
            const std::vector<int64_t>& paced_item_ns = {}, bool imitated = false);

  /// Blocks. Runs `steps` steps back to back and times the last but one, so that work left for the next step counts.
  /// With three steps, work left by the previous step counts, too, such as gathers that travel during the next forward
  /// pass.
  void run(int steps, bool counted);
  /// These are the halves of run(): the steps themselves, then the analysis of their times, which no step's clock
  /// includes.
  void compute(int steps);
  void measure(int steps, bool counted);

  double median_of(double runtime::StepMeans::*member) const;
  /// Returns the median time of every spine item of this rank.
  std::vector<int64_t> spine_ns() const;
};

/// Scales item times so that they sum to the median step. The sum of item medians misses disturbances that hit a
/// different item in each step, up to 3 % on a shared machine. Pure.
std::vector<int64_t> adding_up_to_a_step(std::vector<int64_t> items_ns, const std::vector<int64_t>& steps_ns);

/// Blocks. Collective. Returns the time of every spine item: the largest median of any rank, scaled to the slowest
/// rank's step, because communicating ranks wait for that rank.
std::vector<int64_t> spine_ns_of_slowest(runtime::World& world, const Candidate& candidate);

/// Blocks. Collective, with one rank per stage. Returns the time of every spine item of every stage, scaled to the
/// stage's step.
std::vector<std::vector<int64_t>> spine_ns_of_stages(runtime::World& world, const Candidate& candidate);

/// Times of a plan's items from measurements of another plan of the same model. Pieces are matched by name. Updates and
/// sums of squares, whose buckets differ, are matched by bytes.
class ItemTimes {
 public:
  ItemTimes(const Plan& measured, const std::vector<int64_t>& spine_ns);
  /// Returns the time of every spine item of `plan`, and 0 for items that the measured plan lacks. Pure.
  std::vector<int64_t> of(const Plan& plan) const;

 private:
  std::map<std::string, int64_t> by_name_;
  double update_ns_per_byte_ = 0, sum_squares_ns_per_byte_ = 0;
};

}  // namespace slipstream::bench
