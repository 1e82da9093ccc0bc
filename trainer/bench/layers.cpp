// SPDX-License-Identifier: Apache-2.0
// Runs slipstream bench layers: measures communication inside layers (sums and gathers of tensor parallelism, the ring
// of context parallelism) and compares it with the plan.
//
// Compute sleeps in proportion to its operations, and the link is emulated. So ranks may share cores, and the benchmark
// measures the schedule.

#include "trainer/bench/bench.h"

#include <algorithm>
#include <memory>

#include "comm/link.h"
#include "comm/rehearse/rehearse.h"
#include "engine/base/print.h"
#include "engine/base/units.h"
#include "trainer/bench/csv_file.h"
#include "trainer/bench/harness.h"
#include "trainer/planner/options/plan_options.h"
#include "trainer/planner/planner.h"

namespace slipstream::bench {
namespace {

/// For updates, sums and clipping, which stay negligible beside the layers.
constexpr int64_t kRestNs = 10 * kMicrosecond;

class LayersBench : WorldBench {
 public:
  LayersBench(const LayersOptions& options, const Setting& setting) : WorldBench(setting, 1), options_(options) {
    if (config_.parallel.tensor == 1 && config_.parallel.context == 1) config_.parallel.tensor = world_.size();
  }

  void run() {
    world_.together([&] {
      if (world_.size() < 2)
        throw ConfigError(
            "[bench] layers needs at least 2 ranks that share layers, got {}. Start it with mpirun -np 2.",
            world_.size());
      if (config_.parallel.pipeline > 1)
        throw ConfigError(
            "[bench] layers measures communication inside layers, but parallel.pipeline = {} adds pipeline transfers. "
            "Use 1.",
            config_.parallel.pipeline);
    });
    std::vector<double> ratios = options_.ratios;
    if (ratios.empty()) ratios = is_ring() ? std::vector{0.25, 0.5, 0.9} : std::vector{0.3};
    print_header();
    for (double ratio : ratios) run_ratio(ratio);
  }

 private:
  struct Row {
    std::string name;
    int chunks = 1;
    RunConfig config;
    std::unique_ptr<Candidate> candidate;
  };

  bool is_ring() const { return config_.parallel.tensor == 1; }
  static bool is_inside(const Job& job, const Task& task) {
    const Axis axis = job.channels[task.channel].axis;
    return is_communication(task.op) && (axis == Axis::tensor || axis == Axis::context);
  }

  planner::FinishedJob build(const RunConfig& config) {
    return planner::build_finished_job({.config = resolve_bench(config, world_.size()),
                                        .rank = world_.rank(),
                                        .machine = planner::machine_of(config, "", 1),
                                        .spine_ns = [this](const Job& job) { return paced_ns(job); }});
  }

  /// Returns the times of items. An operation takes the same time in every row. In the plainest row, a layer takes its
  /// forward time, and twice that backward.
  std::vector<int64_t> paced_ns(const Job& job) {
    if (ns_per_flop_ == 0) {
      double flops = 0;
      for (const SpineItem& item : job.train().spine)
        if (item.op == Op::compute) flops += static_cast<double>(item.cost.flops);
      ns_per_flop_ = 3e6 * options_.layer_ms * static_cast<double>(job.model.layers) *
                     static_cast<double>(job.buffers.micro_batches) / flops;
    }
    std::vector<int64_t> ns;
    for (const SpineItem& item : job.train().spine)
      ns.push_back(item.op == Op::compute
                       ? std::max<int64_t>(1, static_cast<int64_t>(ns_per_flop_ * static_cast<double>(item.cost.flops)))
                       : kRestNs);
    return ns;
  }

  /// Returns the rate of the link for a ratio, defined in the plainest row. With tensor parallelism, all communication
  /// inside layers takes `ratio` of all compute. In a ring, a hop takes `ratio` of a block.
  double bytes_per_second(double ratio) {
    const planner::FinishedJob finished = build(config_);
    const Job& job = *finished.job;
    const std::vector<int64_t> ns = paced_ns(job);
    int64_t bytes = 0, compute_ns = 0;
    for (const Task& task : job.train().tasks) {
      if (!is_inside(job, task)) continue;
      const int64_t sent = comm::wire_bytes(
          task.op, task.algorithm, job.mesh.group_size(job.channels[task.channel].axis), task.elems, task.dtype);
      bytes = is_ring() ? (bytes == 0 ? sent : bytes) : bytes + sent;
    }
    for (size_t i = 0; i < ns.size(); ++i) {
      const SpineItem& item = job.train().spine[i];
      if (is_ring() ? item.name.starts_with("attention_block.1.") : item.op == Op::compute)
        compute_ns = is_ring() ? ns[i] : compute_ns + ns[i];
    }
    return static_cast<double>(bytes) * 1e9 / (ratio * static_cast<double>(compute_ns));
  }

  void run_ratio(double ratio) {
    const double bandwidth = bytes_per_second(ratio);
    std::vector<Row> rows;
    for (bool sequence : {false, true})
      for (int chunks : options_.chunks) {
        if (is_ring() && !rows.empty()) break;
        Row row{.name = is_ring() ? fmt::format("ring of {}", config_.parallel.context)
                                  : fmt::format("tensor {}{}{}", config_.parallel.tensor, sequence ? " sequence" : "",
                                                config_.parallel.context > 1
                                                    ? fmt::format(", ring of {}", config_.parallel.context)
                                                    : ""),
                .chunks = is_ring() ? 1 : chunks,
                .config = config_,
                .candidate = {}};
        row.config.parallel.sequence_parallel = sequence;
        row.config.overlap.tensor_chunks = row.chunks;
        row.config.comm.emulate.bandwidth_bytes_per_second = static_cast<int64_t>(bandwidth);
        rows.push_back(std::move(row));
      }
    rows.push_back({.name = rows[0].name, .chunks = rows[0].chunks, .config = rows[0].config, .candidate = {}});
    for (Row& row : rows) {
      planner::FinishedJob finished = build(row.config);
      const std::vector<int64_t> ns = paced_ns(*finished.job);
      row.candidate =
          std::make_unique<Candidate>(row.name, world_, assignment_, row.config, std::move(finished), bandwidth, ns);
    }
    std::vector<Candidate*> candidates;
    for (Row& row : rows) candidates.push_back(row.candidate.get());
    take_turns(world_, candidates, {.warm_up = 1, .counted = options_.steps, .steps = 2});
    const double noise_floor = step_ms(rows.back()) / step_ms(rows.front());  // compares the first row with itself
    rows.pop_back();
    for (const Row& row : rows) report(row, ratio, bandwidth, noise_floor);
    if (world_.rank() == 0)
      print_result("  noise floor: {}{} against itself: {:.3f}\n", rows[0].name,
                   is_ring() ? "" : fmt::format(" in {} chunk{}", rows[0].chunks, rows[0].chunks == 1 ? "" : "s"),
                   noise_floor);
    flush_printed();
  }

  /// Blocks. Collective. Returns the median step of the rank whose steps are longest.
  double step_ms(const Row& row) {
    std::vector<double> step_ns;
    for (const StepTimes& times : row.candidate->times) step_ns.push_back(static_cast<double>(times.step_ns));
    return static_cast<double>(runtime::largest_over_ranks(world_, {static_cast<int64_t>(median(step_ns))})[0]) / 1e6;
  }

  void report(const Row& row, double ratio, double bandwidth, double noise_floor) {
    const Candidate& c = *row.candidate;
    const Job& job = *c.job;
    std::vector<double> exposed_ns;
    for (const StepTimes& times : c.times) {
      double exposed = 0;
      for (const Exposure& e : times.exposures) {
        const auto axis = job.channels[static_cast<size_t>(e.awaited >> 32)].axis;
        if (axis == Axis::tensor || axis == Axis::context) exposed += static_cast<double>(e.exposed_ns());
      }
      exposed_ns.push_back(exposed);
    }
    const double step_ms = this->step_ms(row),
                 exposed_ms =  // the rank that waited longest
                 static_cast<double>(
                     runtime::largest_over_ranks(world_, {static_cast<int64_t>(median(exposed_ns))})[0]) /
                 1e6;
    if (world_.rank() != 0) return;
    const comm::Link link{bandwidth, config_.comm.emulate.latency_ns};
    double wire_ns = 0, compute_ns = 0;
    int64_t tasks = 0;
    for (const Task& task : job.train().tasks) {
      if (!is_inside(job, task)) continue;
      const comm::WireCost cost = comm::wire_cost(
          task.op, task.algorithm, job.mesh.group_size(job.channels[task.channel].axis), task.elems, task.dtype, link);
      wire_ns += static_cast<double>(cost.latency_ns + cost.wire_ns);
      ++tasks;
    }
    std::vector<int64_t> item_ns = paced_ns(job);
    for (int64_t ns : item_ns) compute_ns += static_cast<double>(ns);
    item_ns.resize(job.train().size(), -1);
    const comm::RooflinePrice otherwise(comm::Rates{}, link);
    comm::MeasuredPrice price(otherwise);
    price.set(job.train(), item_ns);
    constexpr size_t kRuns = 3;
    const comm::Rehearsal played = comm::rehearse(job.mesh, job.channels, planner::runs_of({c.job}, kRuns), price);
    if (!played.finished) throw PlanError("[bench] the rehearsal of {} does not end: {}", row.name, played.deadlock);
    double plan_exposed_ns = 0;
    for (const comm::Exposed& exposed : played.ranks[0].exposed)
      if (!job.train().is_spine(exposed.awaited) && is_inside(job, job.train().task(exposed.awaited)))
        plan_exposed_ns += static_cast<double>(exposed.time_ns) / kRuns;
    const double plan_ms = static_cast<double>(played.ranks[0].step_period_ns(1)) / 1e6;
    const double wire_ms = wire_ns / 1e6, compute_ms = compute_ns / 1e6, ideal_ms = std::max(wire_ms, compute_ms);
    const double hidden = hidden_share(wire_ms, exposed_ms), plan_hidden = hidden_share(wire_ns, plan_exposed_ns);
    print_result(
        "{:<28}{:>7}{:>7.2f}{:>7}{:>10.2f}{:>10.2f}{:>10.2f}{:>10.2f}{:>7.1f}%{:>10.2f}{:>8.3f}{:>9.1f}%{:>10.2f}{:>8."
        "3f}\n",
        row.name, row.chunks, ratio, tasks, step_ms, compute_ms, wire_ms, exposed_ms, 100 * hidden, plan_ms,
        step_ms / plan_ms, 100 * plan_hidden, ideal_ms, step_ms / ideal_ms);
    csv_.row("\"{}\",{},{},{},{},{},{:.17g},{:.17g},{:.17g},{:.17g},{:.17g},{:.17g},{:.17g},{:.17g},{:.17g}\n",
             row.name, row.chunks, ratio, world_.size(), options_.layer_ms, tasks, step_ms, compute_ms, wire_ms,
             exposed_ms, hidden, plan_ms, plan_hidden, ideal_ms, noise_floor);
  }

  void print_header() {
    if (world_.rank() != 0) return;
    print_result(
        "{} ranks, {} paced layers of {:.3g} ms forward and twice that backward; medians of {} interleaved steps on "
        "the rank that waited longest\n"
        "ratio: {}; comm: communication inside layers at line rate; ideal: the longer of compute and comm\n",
        world_.size(), config_.model.layers, options_.layer_ms, options_.steps,
        is_ring() ? "a hop of the ring / a block of attention"
                  : "communication inside layers / compute, without sequence parallelism");
    print_result("{:<28}{:>7}{:>7}{:>7}{:>10}{:>10}{:>10}{:>10}{:>8}{:>10}{:>8}{:>10}{:>10}{:>8}\n", "layout", "chunks",
                 "ratio", "tasks", "step ms", "compute", "comm", "exposed", "hidden", "plan bd", "/ plan", "plan hid.",
                 "ideal bd", "/ ideal");
    csv_.open(options_.csv,
              "layout,chunks,ratio,world_size,layer_ms,tasks,step_ms,compute_ms,comm_ms,exposed_ms,hidden,plan_bound_"
              "ms,plan_hidden,ideal_bound_ms,noise_floor\n");
  }

  const LayersOptions& options_;
  double ns_per_flop_ = 0;
  CsvFile csv_;
};

}  // namespace

int bench_layers(const LayersOptions& options) {
  return on_world(options, [&](const Setting& setting) {
    setting.world.together([&] {
      if (setting.assignment.kind == DeviceKind::cuda)
        throw ConfigError("[bench] layers runs on a CPU only, but device.kind is \"cuda\". Use --set device.kind=cpu.");
    });
    LayersBench(options, setting).run();
  });
}

}  // namespace slipstream::bench
