// SPDX-License-Identifier: Apache-2.0
// Runs slipstream bench overlap: the four gradient reduce modes, interleaved, with their bounds.

#include "trainer/bench/bench.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <thread>

#include "comm/link.h"
#include "engine/base/print.h"
#include "engine/base/units.h"
#include "engine/config/validate.h"
#include "engine/report/bounds.h"
#include "trainer/bench/ablation.h"
#include "trainer/bench/csv_file.h"
#include "trainer/bench/harness.h"
#include "trainer/bench/zero.h"
#include "trainer/planner/options/plan_options.h"
#include "trainer/planner/planner.h"

namespace slipstream::bench {
namespace {

constexpr ReduceMode kReduceModes[] = {ReduceMode::naive, ReduceMode::flat, ReduceMode::per_parameter,
                                       ReduceMode::bucketed};

class OverlapBench : WorldBench {
 public:
  OverlapBench(const OverlapOptions& options, const Setting& setting)
      : WorldBench(setting),
        options_(options),
        machine_(bench_machine(world_, assignment_, config_, threads_)),
        ranks_(options.ranks > 0 ? options.ranks : world_.size()) {}

  void run() {
    world_.together([&] {
      if (options_.ranks > 0 && world_.size() > 1)
        throw ConfigError(
            "[bench] --ranks {} imitates ranks in one process, but {} were started. Start one, or leave --ranks out.",
            options_.ranks, world_.size());
      if (ranks_ < 2)
        throw ConfigError(
            "[bench] overlap needs at least 2 ranks, because one rank has no communication, got {}. Start it "
            "with mpirun -np 2, or imitate ranks on an emulated link with --ranks 2.",
            ranks_);
      if (options_.ranks > 0 && options_.ratios.empty() && config_.comm.emulate.bandwidth_bytes_per_second == 0)
        throw ConfigError(
            "[bench] imitated ranks move no bytes and need an emulated link. Set comm.emulate.bandwidth, or give "
            "--ratios.");
      if (config_.parallel.pipeline > 1)
        throw ConfigError(
            "[bench] overlap compares gradient reduce modes among equal ranks, but the stages of "
            "parallel.pipeline = {} also idle for each other. Use 1, or slipstream bench pipeline.",
            config_.parallel.pipeline);
      if (config_.parallel.tensor > 1 || config_.parallel.context > 1)
        throw ConfigError(
            "[bench] overlap compares gradient reduce modes with one rank alone, but parallel.tensor x "
            "parallel.context = {} x {} ranks share sequences. Use 1 and 1, or slipstream bench layers.",
            config_.parallel.tensor, config_.parallel.context);
      if (config_.parallel.expert > 1)
        throw ConfigError(
            "[bench] overlap compares gradient reduce modes with one rank alone, but parallel.expert = {} ranks divide "
            "the experts. Use 1, or slipstream plan, which rehearses the exchange of experts.",
            config_.parallel.expert);
    });
    if (world_.rank() == 0) print_header();
    const bool paced = options_.compute == "paced";
    if (paced) measure_for_pacing();
    if (options_.ratios.empty())
      return run_link(static_cast<double>(config_.comm.emulate.bandwidth_bytes_per_second), 0);
    // Computes the rate of the link for the requested communication / compute.
    auto alone = make("no_communication", ReduceMode::bucketed, 0, false);
    take_turns(world_, {alone.get()}, {.warm_up = 3, .counted = 5, .steps = 2});
    const double compute_ms = alone->median_of(&runtime::StepMeans::compute_ms);
    const double share = options_.ratio_of == "backward" ? backward_ms(*alone) / compute_ms : 1;
    alone.reset();
    for (double given : options_.ratios) {
      const double ratio = share * given;
      auto probe = build(ReduceMode::bucketed, 0, true);
      const IdealBound wire =
          ideal_bound(*probe.job, {.bytes_per_second = 1e9,
                                   .latency_ns = 0,
                                   .ranks = ranks_,
                                   .spine_ns = std::vector<int64_t>(probe.job->train().spine.size(), 1)});
      run_link(static_cast<double>(wire.wire_ns) / (ratio * compute_ms * 1e-3), ratio);
    }
    print_speed_ups();
  }

 private:
  planner::FinishedJob build(ReduceMode reduce_mode, double bytes_per_second, bool communicate) {
    RunConfig config = config_;
    config.comm.emulate.bandwidth_bytes_per_second = static_cast<int64_t>(bytes_per_second);
    config.overlap.grad_reduce = reduce_mode;
    const slipstream::Batch batch = resolve_batch(config, ranks_);
    config.train.global_batch_size = communicate ? batch.global_batch_size : batch.global_batch_size / ranks_;
    return build_bench_job(assignment_, machine_, config, communicate ? ranks_ : 1, communicate ? world_.rank() : 0);
  }

  std::unique_ptr<Candidate> make(const std::string& name, ReduceMode reduce_mode, double bytes_per_second,
                                  bool communicate) {
    planner::FinishedJob finished = build(reduce_mode, bytes_per_second, communicate);
    const std::vector<int64_t> paced = paced_ ? paced_->of(finished.job->train()) : std::vector<int64_t>{};
    return std::make_unique<Candidate>(name, world_, assignment_, config_, std::move(finished), bytes_per_second,
                                       paced);
  }

  /// Blocks. Collective. Returns the time of all pieces of the backward pass in a step.
  double backward_ms(const Candidate& candidate) {
    const Job& job = *candidate.job;
    const std::vector<int64_t> spine_ns = spine_ns_of_slowest(world_, candidate);
    const std::set<uint32_t> backward(job.model.backward.begin(), job.model.backward.end());
    int64_t sum_ns = 0;
    for (size_t i = 0; i < spine_ns.size(); ++i)
      if (const SpineItem& item = job.train().spine[i]; item.op == Op::compute && backward.contains(item.piece))
        sum_ns += spine_ns[i];
    return static_cast<double>(sum_ns) / 1e6;
  }

  /// Ranks measure in turn, so that more ranks than cores do not disturb each other.
  void measure_for_pacing() {
    auto alone = make("no_communication", ReduceMode::bucketed, 0, false);
    for (int turn = 0; turn < world_.size(); ++turn) {
      if (turn == world_.rank())
        for (int i = 0; i < 5; ++i) alone->run(1, i >= 2);
      world_.barrier();
    }
    paced_.emplace(alone->job->train(), runtime::largest_over_ranks(world_, alone->spine_ns()));
  }

  void run_link(double bytes_per_second, double ratio) {
    const EmulateForm asked = config_.comm.emulate.form;
    for (const std::string& form : options_.forms.empty() ? std::vector<std::string>{""} : options_.forms) {
      if (!form.empty())
        config_.comm.emulate.form = form == "gate"     ? EmulateForm::gate
                                    : form == "copies" ? EmulateForm::copies
                                                       : EmulateForm::blocks;
      run_form(bytes_per_second, ratio, form);
    }
    config_.comm.emulate.form = asked;
  }

  void run_form(double bytes_per_second, double ratio, const std::string& form) {
    std::vector<std::unique_ptr<Candidate>> candidates;
    candidates.push_back(make("no_communication", ReduceMode::bucketed, 0, false));
    candidates.push_back(make("no_communication_again", ReduceMode::bucketed, 0, false));
    for (ReduceMode reduce_mode : kReduceModes)
      candidates.push_back(make(name_of(reduce_mode), reduce_mode, bytes_per_second, true));
    std::vector<Candidate*> in_turn;
    for (const auto& c : candidates) in_turn.push_back(c.get());
    take_turns(world_, in_turn, {.warm_up = 3, .counted = options_.steps, .steps = 2});
    report(candidates, bytes_per_second, ratio, form);
  }

  void report(const std::vector<std::unique_ptr<Candidate>>& candidates, double bytes_per_second, double ratio,
              const std::string& form) {
    // Op times come from the run without communication, and never from the overlapped ones.
    const ItemTimes alone(candidates[0]->job->train(), spine_ns_of_slowest(world_, *candidates[0]));
    const double naive_ms = candidates[2]->median_of(&runtime::StepMeans::step_ms);
    const comm::RooflinePrice link(comm::Rates{}, {bytes_per_second, config_.comm.emulate.latency_ns});
    const std::string rate = bytes_per_second > 0 ? fmt::format("{:.3g} Gbit/s", bytes_per_second * 8e-9) : "real";
    const std::string link_name = form.empty() ? rate : rate + " " + form;
    IdealBound ideal;
    double bucketed_ms = 0;
    for (const auto& c : candidates) {
      const Job& job = *c->job;
      const std::vector<int64_t> spine_ns = alone.of(job.train());
      std::vector<int64_t> item_ns = spine_ns;
      item_ns.resize(job.train().size(), 0);
      const bool communicates = job.mesh.world() > 1;
      // The rate of a real link is unknown, so it has no bounds.
      const bool bounded = !communicates || bytes_per_second > 0;
      const std::optional<double> plan_bound_ms =
          bounded ? std::optional<double>(planner::rehearsed_step_ms({c->job}, {item_ns}, link, c->replayed))
                  : std::nullopt;
      const IdealBound bound = ideal_bound(job, {.bytes_per_second = std::max(1.0, bytes_per_second),
                                                 .latency_ns = config_.comm.emulate.latency_ns,
                                                 .ranks = job.mesh.world(),
                                                 .spine_ns = spine_ns});
      const std::optional<double> ideal_ms =
          bounded ? std::optional(static_cast<double>(bound.bound_ns) / 1e6) : std::nullopt;
      const double step_ms = c->median_of(&runtime::StepMeans::step_ms);
      if (c.get() == candidates.back().get()) ideal = bound, bucketed_ms = step_ms;
      print_row(*c, step_ms, naive_ms, plan_bound_ms, ideal_ms, link_name, ratio);
    }
    if (world_.rank() != 0) return;
    print_result("  noise floor: the run without communication against itself: {:.3f}\n",
                 candidates[1]->median_of(&runtime::StepMeans::step_ms) /
                     candidates[0]->median_of(&runtime::StepMeans::step_ms));
    if (ratio > 0) {
      const double compute = static_cast<double>(ideal.compute_ns), wire = static_cast<double>(ideal.wire_ns),
                   both = compute + wire;
      speed_ups_.push_back({ratio, 1 + ratio, both / std::max(compute, wire),
                            both / static_cast<double>(ideal.bound_ns), naive_ms / bucketed_ms});
    }
    flush_printed();
  }

  /// docs/notes/0007 explains why no run reaches the second column, and usually none the third.
  void print_speed_ups() {
    if (world_.rank() != 0 || speed_ups_.empty()) return;
    print_result("speed-up over compute followed by communication\n{:>8}{:>24}{:>24}{:>24}{:>20}\n", "ratio",
                 "all hidden (promised)", "max(compute, wire)", "with dependencies", "bucketed / naive");
    for (const SpeedUp& s : speed_ups_)
      print_result("{:>8.2f}{:>23.2f}x{:>23.2f}x{:>23.2f}x{:>19.2f}x\n", s.ratio, s.promised, s.larger_of_both,
                   s.with_dependencies, s.reached);
  }

  void print_header() {
    print_result("{}\n{} ranks x {} thread{}, {} compute, medians of {} interleaved steps\n",
                 build(ReduceMode::bucketed, 0, true).job->model.description, ranks_, threads_,
                 threads_ == 1 ? "" : "s", options_.compute, options_.steps);
    const int cores = static_cast<int>(std::thread::hardware_concurrency());
    if (options_.compute == "real" && world_.ranks_on_host() * threads_ > cores)
      print_result(
          "{} ranks x {} threads share {} cores, so times include their contention. --compute paced measures the "
          "schedule alone.\n",
          world_.ranks_on_host(), threads_, cores);
    print_result("{:<24}{:>6}{:>24}{:>19}{:>9}{:>9}{:>9}{:>9}{:>9}{:>8}{:>9}{:>8}{:>9}{:>8}\n", "implementation",
                 "tasks", "MB sent (largest task)", "link", "step ms", "x naive", "compute", "comm", "exposed",
                 "hidden", "plan bd", "/ plan", "ideal bd", "/ ideal");
    csv_.open(options_.csv,
              "implementation,model_size,d_model,num_layers,world_size,bucket_bytes,link,avg_step_time_ms,speedup_vs_"
              "naive,compute_ms,comm_ms,"
              "exposed_ms,hidden_fraction,bound_ms,share_of_bound,tasks,bytes_sent,plan_bound_ms,ideal_bound_ms,"
              "compute_kind,ratio\n");
  }

  void print_row(const Candidate& c, double step_ms, double naive_ms, std::optional<double> plan_ms,
                 std::optional<double> ideal_ms, const std::string& link, double ratio) {
    if (world_.rank() != 0) return;
    const Job& job = *c.job;
    int64_t tasks = 0, bytes = 0, largest = 0;
    for (const Task& task : job.train().tasks)
      if (is_communication(task.op)) {
        ++tasks;
        const int64_t sent = comm::wire_bytes(task.op, task.algorithm, ranks_, task.elems, task.dtype);
        bytes += sent;
        largest = std::max(largest, sent);
      }
    const double comm_ms = c.median_of(&runtime::StepMeans::comm_ms),
                 exposed_ms = c.median_of(&runtime::StepMeans::exposed_ms);
    const double compute_ms = c.median_of(&runtime::StepMeans::compute_ms);
    const double hidden = share_of(c.median_of(&runtime::StepMeans::hidden_ms), comm_ms);
    const auto shown = [](const std::optional<double>& value, int digits) {
      return value ? fmt::format("{:.{}f}", *value, digits) : std::string("-");
    };
    const auto times = [&](const std::optional<double>& bound) {
      return bound ? std::optional(step_ms / *bound) : std::nullopt;
    };
    print_result(
        "{:<24}{:>6}{:>24}{:>19}{:>9.2f}{:>9.2f}{:>9.2f}{:>9.2f}{:>9.2f}{:>7.0f}%{:>9}{:>8}{:>9}{:>8}\n", c.name, tasks,
        fmt::format("{:.2f} ({:.2f})", static_cast<double>(bytes) / 1e6, static_cast<double>(largest) / 1e6),
        job.mesh.world() > 1 ? link : "none", step_ms, naive_ms / step_ms, compute_ms, comm_ms, exposed_ms,
        100 * hidden, shown(plan_ms, 2), shown(times(plan_ms), 3), shown(ideal_ms, 2), shown(times(ideal_ms), 3));
    const auto field = [](const std::optional<double>& value) {
      return value ? fmt::format("{:.17g}", *value) : std::string();
    };
    csv_.row("{},{},{},{},{},{},{},{:.17g},{:.17g},{:.17g},{:.17g},{:.17g},{:.17g},{},{},{},{},{},{},{},{}\n", c.name,
             job.model.parameter_elems(), config_.model.width, config_.model.layers, ranks_,
             config_.overlap.bucket_size_bytes, job.mesh.world() > 1 ? link : "none", step_ms, naive_ms / step_ms,
             compute_ms, comm_ms, exposed_ms, hidden, field(ideal_ms),
             field(ideal_ms ? std::optional(*ideal_ms / step_ms) : std::nullopt), tasks, bytes, field(plan_ms),
             field(ideal_ms), options_.compute, ratio);
  }

  const OverlapOptions& options_;
  Machine machine_;
  int ranks_;  // the ranks of the plan; with --ranks only this rank exists
  std::optional<ItemTimes> paced_;
  struct SpeedUp {
    double ratio, promised, larger_of_both, with_dependencies, reached;
  };
  std::vector<SpeedUp> speed_ups_;
  CsvFile csv_;
};

}  // namespace

int bench_overlap(const OverlapOptions& options) {
  return on_world(options, [&](const Setting& setting) {
    setting.world.together([&] {
      if (setting.assignment.kind == DeviceKind::cuda &&
          (options.compute == "paced" || !options.zero.empty() || options.ablate))
        throw ConfigError("[bench] paced compute runs on a CPU only, but device.kind is \"cuda\". Use --compute real.");
    });
    setting.world.together([&] {
      if (setting.assignment.kind != DeviceKind::cuda &&
          std::any_of(options.forms.begin(), options.forms.end(),
                      [](const std::string& form) { return form != "gate"; }))
        throw ConfigError("[bench] --forms other than gate need a GPU, but this run is on the CPU. Use --forms gate.");
    });
    if (options.ablate) return bench_ablation(options, setting);
    if (!options.zero.empty()) return bench_zero(options, setting);
    OverlapBench(options, setting).run();
  });
}

}  // namespace slipstream::bench
