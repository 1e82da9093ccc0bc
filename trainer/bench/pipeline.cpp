// SPDX-License-Identifier: Apache-2.0
// Runs slipstream bench pipeline. On stages that sleep for equal times, it compares every schedule with the closed form
// of its bubble and with the rehearsal. On stages that compute, it compares with the rehearsal of their measured times.

#include "trainer/bench/bench.h"

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <thread>

#include "engine/base/print.h"
#include "trainer/bench/csv_file.h"
#include "trainer/bench/equal_stages.h"
#include "trainer/bench/harness.h"
#include "trainer/planner/options/plan_options.h"
#include "trainer/planner/planner.h"

namespace slipstream::bench {
namespace {

class PipelineBench : WorldBench {
 public:
  PipelineBench(const PipelineOptions& options, const Setting& setting)
      : WorldBench(setting, options.compute == "paced" ? 1 : 0),
        options_(options),
        paced_(options.compute == "paced"),
        machine_(bench_machine(world_, assignment_, config_, threads_)),
        forward_ns_(paced_ ? static_cast<int64_t>(options.forward_ms * 1e6) : 0) {
    config_.parallel.pipeline = world_.size();
    config_.parallel.data = 1;
    config_.comm.emulate.latency_ns = 0;
    // The ends of a tied table would exchange it after the last backward pass, which the closed forms leave out.
    config_.model.tie_embeddings = Choice::no;
  }

  void run() {
    if (world_.size() < 2)
      throw ConfigError("[bench] pipeline needs at least 2 ranks, one per stage, got {}. Start it with mpirun -np 2.",
                        world_.size());
    if (world_.rank() == 0) print_header();
    run_ratio(0);
    for (double ratio : options_.ratios) run_ratio(ratio);
  }

 private:
  struct Row {
    std::string name;
    std::vector<std::shared_ptr<const Job>> stages;
    int64_t transfer_ns = 0;
    std::unique_ptr<Candidate> candidate;

    const PipelineSchedule& schedule() const { return stages[0]->schedule; }
    double step_ms() const { return candidate->median_of(&runtime::StepMeans::step_ms); }
  };

  /// Returns the bytes of one hop: the residual stream of a micro-batch.
  int64_t hop_bytes() const {
    return config_.train.micro_batch_size * config_.train.sequence_length * config_.model.width *
           size_of(config_.train.dtype);
  }

  Row make(ScheduleKind schedule, double ratio) {
    const std::string name = name_of(schedule);
    RunConfig config = config_;
    config.pipeline.schedule = schedule;
    const int chunks = chunks_of(schedule);
    config.pipeline.virtual_stages = chunks > 0 ? chunks : 2;
    config.overlap.p2p = ratio > 0;
    const auto transfer_ns = static_cast<int64_t>(ratio * static_cast<double>(forward_ns_) /
                                                  static_cast<double>(config.pipeline.virtual_stages));
    const double bytes_per_second =
        ratio > 0 ? static_cast<double>(hop_bytes()) / (static_cast<double>(transfer_ns) * 1e-9) : 0;
    config.comm.emulate.bandwidth_bytes_per_second = static_cast<int64_t>(bytes_per_second);
    std::function<std::vector<int64_t>(const Job&)>
        measured_ns;  // for stages that compute, which are planned as in train
    if (paced_) measured_ns = [this](const Job& job) { return equal_stage_ns(job, forward_ns_); };
    planner::FinishedJob finished =
        build_bench_job(assignment_, machine_, config, world_.size(), world_.rank(), measured_ns);
    const std::vector<int64_t> paced = paced_ ? equal_stage_ns(*finished.job, forward_ns_) : std::vector<int64_t>{};
    Row row{.name = name, .stages = finished.stages, .transfer_ns = transfer_ns, .candidate = {}};
    row.candidate =
        std::make_unique<Candidate>(name, world_, assignment_, config, std::move(finished), bytes_per_second, paced);
    return row;
  }

  void run_ratio(double ratio) {
    std::vector<Row> rows;
    for (size_t s = 0; s < kWords<ScheduleKind>.size(); ++s) rows.push_back(make(static_cast<ScheduleKind>(s), ratio));
    rows.push_back(make(ScheduleKind{}, ratio));  // the first row again, for the noise floor
    std::vector<Candidate*> candidates;
    for (Row& row : rows) candidates.push_back(row.candidate.get());
    take_turns(world_, candidates, {.warm_up = paced_ ? 1 : 3, .counted = options_.steps, .steps = 2});
    const double noise_floor = rows.back().step_ms() / rows.front().step_ms();
    rows.pop_back();
    for (const Row& row : rows) report(row, ratio, noise_floor);
    if (world_.rank() == 0) print_result("  noise floor: {} against itself: {:.3f}\n", rows.front().name, noise_floor);
    flush_printed();
  }

  struct Measured {
    double ratio = 0, step_ms = 0, alone_ms = 0, busy_ms = 0, rehearsed_ms = 0, ideal_ms = 0, noise_floor = 0;
    double exposed_ms = 0;  // compute waited for hops in transit: the mean over stages
    PassMs took;            // on the first stage
  };

  void report(const Row& row, double ratio, double noise_floor) {
    const Candidate& c = *row.candidate;
    std::vector<std::vector<int64_t>> spine_ns;
    if (paced_)
      for (const auto& stage : row.stages) spine_ns.push_back(equal_stage_ns(*stage, forward_ns_));
    else
      spine_ns = spine_ns_of_stages(world_, c);
    if (ratio == 0) alone_ms_[row.name] = row.step_ms();
    int64_t busy_ns = 0;  // for the stage with the longest compute
    for (size_t s = 0; s < row.stages.size(); ++s) {
      busy_ns = std::max(busy_ns, std::accumulate(spine_ns[s].begin(), spine_ns[s].end(), int64_t{0}));
      if (!paced_ && ratio == 0)  // the base of later ratios
        forward_ns_ = std::max(forward_ns_, static_cast<int64_t>(1e6 * pass_ms(*row.stages[s], spine_ns[s]).forward));
    }
    if (world_.rank() != 0) return;
    print_row(row, {.ratio = ratio,
                    .step_ms = row.step_ms(),
                    .alone_ms = alone_ms_[row.name],
                    .busy_ms = static_cast<double>(busy_ns) / 1e6,
                    .rehearsed_ms = rehearsed_stages_ms(row.stages, spine_ns, row.transfer_ns),
                    .ideal_ms = ideal_step_ms(row.stages, spine_ns),
                    .noise_floor = noise_floor,
                    .exposed_ms = c.median_of(&runtime::StepMeans::exposed_ms),
                    .took = pass_ms(*c.job, c.spine_ns())});
  }

  void print_header() {
    print_result("{} stages that {}; medians of {} interleaved steps\n", world_.size(),
                 paced_ ? fmt::format("sleep: {:.1f} ms forward, {:.1f} ms backward", options_.forward_ms,
                                      2 * options_.forward_ms)
                        : fmt::format("compute, {} thread{} each", threads_, threads_ == 1 ? "" : "s"),
                 options_.steps);
    const int cores = static_cast<int>(std::thread::hardware_concurrency());
    if (!paced_ && world_.ranks_on_host() * threads_ > cores)
      print_result(
          "{} ranks x {} threads share {} cores: this measures their sharing. --compute paced measures the schedule.\n",
          world_.ranks_on_host(), threads_, cores);
    print_result(
        "bubble: (step - compute) / compute{}; hops: excess over the step without a link / step; exposed: waits for "
        "hops in transit / step;\n"
        "rehearsed: the plan{}; ideal: the schedule alone, without exposed hops; F, B, W: forward, backward (with W: "
        "of inputs only) and weight-gradient times of a micro-batch on the first stage\n",
        paced_ ? "" : " of the stage with the longest compute",
        paced_ ? "" : ", with the work times measured in these steps");
    print_result("{:<18}{:>6}{:>7}{:>10}{:>10}{:>13}{:>14}{:>13}{:>8}{:>16}{:>9}{:>10}{:>9}{:>26}\n", "schedule",
                 "micro", "hop", "step ms", "bubble", paced_ ? "closed form" : "ideal", "rehearsed ms", "/ rehearsed",
                 "hops", "of which ends", "exposed", "ideal bd", "/ ideal", "F + B + W ms");
    csv_.open(options_.csv,
              "schedule,stages,micro_batches,virtual_stages,forward_ms,hop_of_forward,step_ms,bubble,bubble_closed_"
              "form,rehearsed_step_ms,hops_"
              "share,fill_share,exposed_share,measured_forward_ms,measured_backward_ms,measured_weight_ms,ideal_bound_"
              "ms,noise_floor,compute_kind\n");
  }

  void print_row(const Row& row, const Measured& m) {
    const ScheduleShape& shape = row.schedule().shape;
    const double bubble = m.step_ms / m.busy_ms - 1,
                 ideal = paced_ ? closed_form_bubble(row.schedule()) : m.ideal_ms / m.busy_ms - 1;
    const double hops = m.ratio > 0 ? (m.step_ms - m.alone_ms) / m.step_ms : 0, exposed = m.exposed_ms / m.step_ms;
    // The hops of the first micro-batch forward and of the last one backward cannot overlap with compute.
    const double fill = 2.0 * row.schedule().placement.hops() * static_cast<double>(row.transfer_ns) / 1e6 / m.step_ms;
    print_result(
        "{:<18}{:>6}{:>6.2f}x{:>10.2f}{:>9.2f}%{:>12.2f}%{:>14.2f}{:>13.3f}{:>7.2f}%{:>15.2f}%{:>8.2f}%{:>10.2f}{:>9."
        "3f}{:>26}\n",
        row.name, shape.micro_batches, m.ratio, m.step_ms, 100 * bubble, 100 * ideal, m.rehearsed_ms,
        m.step_ms / m.rehearsed_ms, 100 * hops, 100 * fill, 100 * exposed, m.ideal_ms, m.step_ms / m.ideal_ms,
        fmt::format("{:.2f} + {:.2f} + {:.2f}", m.took.forward, m.took.backward, m.took.weight));
    csv_.row(
        "{},{},{},{},{:.17g},{},{:.17g},{:.17g},{:.17g},{:.17g},{:.17g},{:.17g},{:.17g},{:.17g},{:.17g},{:.17g},{:."
        "17g},{:.17g},{}\n",
        row.name, shape.stages, shape.micro_batches, shape.virtual_stages, static_cast<double>(forward_ns_) / 1e6,
        m.ratio, m.step_ms, bubble, ideal, m.rehearsed_ms, hops, fill, exposed, m.took.forward, m.took.backward,
        m.took.weight, m.ideal_ms, m.noise_floor, options_.compute);
  }

  const PipelineOptions& options_;
  bool paced_;
  Machine machine_;
  /// Of a stage and micro-batch: the base of the ratios; with real compute the slowest measured one.
  int64_t forward_ns_;
  std::map<std::string, double> alone_ms_;  // by schedule: the step without a link
  CsvFile csv_;
};

}  // namespace

int bench_pipeline(const PipelineOptions& options) {
  return on_world(options, [&](const Setting& setting) {
    setting.world.together([&] {
      if (setting.assignment.kind == DeviceKind::cuda)
        throw ConfigError(
            "[bench] pipeline runs on a CPU only, but device.kind is \"cuda\". Use --set device.kind=cpu.");
    });
    PipelineBench(options, setting).run();
  });
}

}  // namespace slipstream::bench
