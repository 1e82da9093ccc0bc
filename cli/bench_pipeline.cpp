// SPDX-License-Identifier: Apache-2.0
// slipstream bench pipeline: every schedule on stages that sleep for equal times, beside the closed form of its bubble
// and beside the rehearsal.

#include <cstdio>
#include <memory>

#include "cli/commands.h"
#include "cli/contestant.h"
#include "cli/csv_file.h"
#include "cli/equal_stages.h"

namespace slipstream::cli {
namespace {

constexpr Schedule kSchedules[] = {Schedule::gpipe, Schedule::one_f_one_b, Schedule::interleaved_1f1b, Schedule::zb_h1};
constexpr const char* kNames[] = {"gpipe", "1f1b", "interleaved_1f1b", "zb_h1"};

class PipelineBench {
 public:
  PipelineBench(const BenchCommand& command, World& world, const Place& place, const RunConfig& config)
      : command_(command),
        world_(world),
        place_(place),
        config_(config),
        machine_(bench_machine(world, place, config, 1)),
        forward_ns_(static_cast<int64_t>(command.forward_ms * 1e6)) {
    config_.device.threads = 1;
    config_.parallel.pipeline = world.size();
    config_.parallel.data = 1;
    config_.comm.emulate.latency_ns = 0;
    config_.model.tie_embeddings = Choice::no;  // the two ends of a shared table would exchange it behind the last
                                                // backward pass, which no closed form counts
  }

  void run() {
    if (world_.size() < 2)
      throw ConfigError(
          "[bench] pipeline needs at least 2 ranks, one for each stage, got {}. Start it with mpirun -np 2.",
          world_.size());
    if (world_.rank() == 0) print_header();
    for (size_t s = 0; s < std::size(kSchedules); ++s) {
      const double alone_ms = measure(kSchedules[s], kNames[s], 0, 0);
      for (double ratio : command_.ratios) measure(kSchedules[s], kNames[s], ratio, alone_ms);
    }
  }

 private:
  /// Bytes of one hop: the residual stream of a micro-batch.
  int64_t hop_bytes() const {
    return config_.train.micro_batch_size * config_.train.sequence_length * config_.model.width *
           size_of(config_.train.dtype);
  }

  double measure(Schedule schedule, const char* name, double ratio, double alone_ms) {
    RunConfig config = config_;
    config.pipeline.schedule = schedule;
    config.pipeline.virtual_stages = schedule == Schedule::interleaved_1f1b ? 2 : 1;
    config.overlap.p2p = ratio > 0;
    const auto hop_ns = static_cast<int64_t>(ratio * static_cast<double>(forward_ns_) /
                                             static_cast<double>(config.pipeline.virtual_stages));
    const double bytes_per_second =
        ratio > 0 ? static_cast<double>(hop_bytes()) / (static_cast<double>(hop_ns) * 1e-9) : 0;
    config.comm.emulate.bandwidth_bytes_per_second = static_cast<int64_t>(bytes_per_second);
    FinishedJob finished = build_bench_job(place_, machine_, config, world_.size(), world_.rank(),
                                           [this](const Job& job) { return equal_stage_ns(job, forward_ns_); });
    const Job& job = *finished.job;
    const PipelineSchedule& order = job.options.schedule;
    const double busy_ms = static_cast<double>(busy_ns(order, forward_ns_)) / 1e6,
                 rehearsed_ms = rehearsed_equal_step_ms(finished, forward_ns_, hop_ns);
    const std::vector<int64_t> paced = equal_stage_ns(job, forward_ns_);
    const FinishedJob kept = finished;
    Contestant contestant(name, world_, place_, config, std::move(finished), bytes_per_second, paced);
    for (int round = -1; round < command_.steps; ++round) {
      world_.barrier();
      contestant.run(2, round >= 0);
    }
    contestant.means = mean_over_ranks(world_, contestant.times, PlanItems(*contestant.job));
    const double step_ms = contestant.median_of(&StepMeans::step_ms);
    if (world_.rank() == 0)
      print_row(name, {.schedule = kept.job->options.schedule,
                       .ratio = ratio,
                       .step_ms = step_ms,
                       .alone_ms = alone_ms,
                       .busy_ms = busy_ms,
                       .rehearsed_ms = rehearsed_ms,
                       .exposed_ms = contestant.median_of(&StepMeans::exposed_ms),
                       .hop_ns = hop_ns,
                       .took = pass_ms(*kept.job, contestant.spine_ns())});
    return step_ms;
  }

  struct Measured {
    const PipelineSchedule& schedule;
    double ratio = 0, step_ms = 0, alone_ms = 0, busy_ms = 0, rehearsed_ms = 0;
    double exposed_ms = 0;  // compute waited for hops that were on their way, mean over stages
    int64_t hop_ns = 0;
    PassMs took;  // on the first stage
  };

  void print_header() {
    fmt::print(
        "{} stages that sleep: {:.1f} ms forward, {:.1f} ms backward; medians of {} steps\n"
        "bubble: (step - compute) / compute; hops: of the step, beyond the step without a link; exposed: of the step, "
        "waits for hops on their way;\n"
        "F, B, W: what forward, backward (with W: of inputs only) and weight gradients of a micro-batch took on the "
        "first stage\n"
        "{:<18}{:>6}{:>7}{:>10}{:>10}{:>13}{:>14}{:>13}{:>8}{:>16}{:>9}{:>22}\n",
        world_.size(), command_.forward_ms, 2 * command_.forward_ms, command_.steps, "schedule", "micro", "hop",
        "step ms", "bubble", "closed form", "rehearsed ms", "/ rehearsed", "hops", "of which ends", "exposed",
        "F + B + W ms");
    csv_.open(command_.csv,
              "schedule,stages,micro_batches,virtual_stages,forward_ms,hop_of_forward,step_ms,bubble,bubble_closed_"
              "form,rehearsed_step_ms,hops_"
              "share,fill_share,exposed_share,measured_forward_ms,measured_backward_ms,measured_weight_ms\n");
  }

  void print_row(const char* name, const Measured& m) {
    const ScheduleShape& shape = m.schedule.shape;
    const double bubble = (m.step_ms - m.busy_ms) / m.busy_ms, closed = closed_form_bubble(m.schedule);
    const double hops = m.ratio > 0 ? (m.step_ms - m.alone_ms) / m.step_ms : 0, exposed = m.exposed_ms / m.step_ms;
    // The first micro-batch on its way there and the last one on its way back: nothing can be computed meanwhile.
    const double fill = 2.0 * (m.schedule.parts() - 1) * static_cast<double>(m.hop_ns) / 1e6 / m.step_ms;
    fmt::print("{:<18}{:>6}{:>6.2f}x{:>10.2f}{:>9.2f}%{:>12.2f}%{:>14.2f}{:>13.3f}{:>7.2f}%{:>15.2f}%{:>8.2f}%{:>22}\n",
               name, shape.micro_batches, m.ratio, m.step_ms, 100 * bubble, 100 * closed, m.rehearsed_ms,
               m.step_ms / m.rehearsed_ms, 100 * hops, 100 * fill, 100 * exposed,
               fmt::format("{:.2f} + {:.2f} + {:.2f}", m.took.forward, m.took.backward, m.took.weight));
    csv_.row("{},{},{},{},{},{},{:.17g},{:.17g},{:.17g},{:.17g},{:.17g},{:.17g},{:.17g},{:.17g},{:.17g},{:.17g}\n",
             name, shape.stages, shape.micro_batches, shape.virtual_stages, command_.forward_ms, m.ratio, m.step_ms,
             bubble, closed, m.rehearsed_ms, hops, fill, exposed, m.took.forward, m.took.backward, m.took.weight);
    std::fflush(stdout);
  }

  const BenchCommand& command_;
  World& world_;
  Place place_;
  RunConfig config_;
  Machine machine_;
  int64_t forward_ns_;
  CsvFile csv_;
};

}  // namespace

int bench_pipeline(const BenchCommand& command) {
  return on_world(command, [&](World& world, const Place& place, const RunConfig& config) {
    world.together([&] {
      if (place.kind == DeviceKind::cuda)
        throw ConfigError(
            "[bench] pipeline makes a CPU's stream sleep, and device.kind is \"cuda\". Use --set device.kind=cpu.");
    });
    PipelineBench(command, world, place, config).run();
  });
}

}  // namespace slipstream::cli
