// SPDX-License-Identifier: Apache-2.0
// Runs paced steps of ZeRO's stages on an emulated link. The times of layers are given, so that ranks may share cores
// and results are comparable across machines.

#include "trainer/bench/zero.h"

#include <algorithm>
#include <map>
#include <memory>

#include "comm/link.h"
#include "comm/rehearse/rehearse.h"
#include "engine/base/format.h"
#include "engine/base/print.h"
#include "engine/base/units.h"
#include "engine/report/bounds.h"
#include "trainer/bench/csv_file.h"
#include "trainer/bench/harness.h"
#include "trainer/planner/options/plan_options.h"
#include "trainer/planner/planner.h"

namespace slipstream::bench {
namespace {

/// For updates, sums and clipping, which stay negligible beside the layers.
constexpr int64_t kRestNs = 10 * kMicrosecond;

class ZeroBench : WorldBench {
 public:
  ZeroBench(const OverlapOptions& options, const Setting& setting)
      : WorldBench(setting, 1), options_(options), layer_ns_(static_cast<int64_t>(options.layer_ms * 1e6)) {}

  void run() {
    world_.together([&] {
      if (world_.size() < 2)
        throw ConfigError("[bench] --zero needs at least 2 ranks to divide states, got {}. Start it with mpirun -np 4.",
                          world_.size());
      if (config_.parallel.pipeline > 1 || config_.zero.shard_size > 0)
        throw ConfigError(
            "[bench] --zero measures one group of data ranks: parallel.pipeline = {} and zero.shard_size = {}. Use 1 "
            "and "
            "0.",
            config_.parallel.pipeline, config_.zero.shard_size);
    });
    if (world_.rank() == 0) print_header();
    std::vector<double> ratios = options_.ratios;
    if (ratios.empty()) ratios = {0.2, 0.4, 0.6, 0.8, 1.0};
    for (double ratio : ratios) run_ratio(ratio);
  }

 private:
  struct Row {
    std::string name;
    RunConfig config;
    std::unique_ptr<Candidate> candidate;
    bool again = false;  // repeats the first row; the difference is noise
  };

  planner::FinishedJob build(const RunConfig& config) {
    return planner::build_finished_job({.config = resolve_bench(config, world_.size()),
                                        .rank = world_.rank(),
                                        .machine = planner::machine_of(config, "", 1),
                                        .spine_ns = [this](const Job& job) { return even_spine_ns(job, layer_ns_); }});
  }

  void run_ratio(double ratio) {
    std::vector<Row> rows;
    const auto add = [&](int stage, int depth, bool param_gather) {
      Row row{.name = stage == 3 ? fmt::format("zero-3, prefetch {}", depth) : fmt::format("zero-{}", stage),
              .config = config_,
              .candidate = {}};
      if (!param_gather) row.name += ", gathers exposed";
      row.config.zero.stage = stage;
      row.config.zero.prefetch_depth = depth;
      row.config.overlap.param_gather = param_gather;
      rows.push_back(std::move(row));
    };
    for (int stage : options_.zero) {
      for (int depth : stage == 3 ? options_.prefetch : std::vector<int>{1}) add(stage, depth, true);
      if (stage > 0) add(stage, 1, false);
    }
    rows.push_back({.name = rows[0].name, .config = rows[0].config, .candidate = {}, .again = true});
    const double bandwidth = static_cast<double>(layer_gather_bytes(*build(rows[0].config).job)) /
                             (ratio * static_cast<double>(layer_ns_) * 1e-9);
    for (Row& row : rows) {
      row.config.comm.emulate.bandwidth_bytes_per_second = static_cast<int64_t>(bandwidth);
      planner::FinishedJob finished = build(row.config);
      const std::vector<int64_t> spine_ns = even_spine_ns(*finished.job, layer_ns_);
      row.candidate = std::make_unique<Candidate>(row.name, world_, assignment_, row.config, std::move(finished),
                                                  bandwidth, spine_ns);
    }
    std::vector<Candidate*> candidates;
    for (Row& row : rows) candidates.push_back(row.candidate.get());
    take_turns(world_, candidates, {.warm_up = 2, .counted = options_.steps, .steps = 3});
    for (Row& row : rows)
      if (world_.rank() == 0 && !row.again) print_row(*row.candidate, bandwidth, ratio);
    if (world_.rank() == 0)
      print_result("  noise floor: {} against itself: {:.3f}\n", rows[0].name,
                   rows.back().candidate->median_of(&runtime::StepMeans::step_ms) /
                       rows[0].candidate->median_of(&runtime::StepMeans::step_ms));
  }

  /// Returns the step period in virtual time.
  double rehearsed_ms(const Candidate& c, double bandwidth) const {
    const comm::RooflinePrice link(comm::Rates{}, {bandwidth, config_.comm.emulate.latency_ns});
    std::vector<int64_t> item_ns = even_spine_ns(*c.job, layer_ns_);
    item_ns.resize(c.job->train().size(), -1);
    comm::MeasuredPrice price(link);
    price.set(c.job->train(), item_ns);
    const comm::Rehearsal played = comm::rehearse(c.job->mesh, c.job->channels, planner::runs_of({c.job}, 4), price);
    return played.finished ? static_cast<double>(played.ranks[0].step_period_ns(2)) / 1e6 : 0;
  }

  void print_header() {
    print_result(
        "{} ranks, {} paced layers of {:.3g} ms forward and twice that backward; medians of {} interleaved steps\n",
        world_.size(), config_.model.layers, options_.layer_ms, options_.steps);
    print_result("{:<36}{:>7}{:>10}{:>10}{:>9}{:>9}{:>8}{:>10}{:>8}{:>10}{:>8}{:>12}{:>9}\n", "implementation", "ratio",
                 "step ms", "compute", "comm", "exposed", "hidden", "plan bd", "/ plan", "ideal bd", "/ ideal",
                 "gather exp.", "waited");
    csv_.open(options_.csv,
              "implementation,ratio,layers,layer_ms,world_size,step_ms,compute_ms,comm_ms,exposed_ms,hidden,plan_bound_"
              "ms,ideal_bound_ms,gather_ms,gather_exposed,gather_waits_ms\n");
  }

  void print_row(const Candidate& c, double bandwidth, double ratio) {
    const double step_ms = c.median_of(&runtime::StepMeans::step_ms),
                 compute_ms = c.median_of(&runtime::StepMeans::compute_ms);
    const double comm_ms = c.median_of(&runtime::StepMeans::comm_ms),
                 exposed_ms = c.median_of(&runtime::StepMeans::exposed_ms);
    const double plan_ms = rehearsed_ms(c, bandwidth);
    const IdealBound ideal = ideal_bound(*c.job, {.bytes_per_second = bandwidth,
                                                  .latency_ns = config_.comm.emulate.latency_ns,
                                                  .ranks = world_.size(),
                                                  .spine_ns = even_spine_ns(*c.job, layer_ns_)});
    const double ideal_ms = static_cast<double>(ideal.bound_ns) / 1e6,
                 hidden = share_of(c.median_of(&runtime::StepMeans::hidden_ms), comm_ms);
    double gather_ms = 0;
    for (const Task& task : c.job->train().tasks)
      if (task.op == Op::all_gather)
        gather_ms +=
            static_cast<double>(comm::wire_bytes(task.op, task.algorithm, world_.size(), task.elems, task.dtype)) /
            bandwidth * 1e3;
    // In the plan, this is the excess over the ideal bound, which no schedule can hide. As measured, it is compute's
    // waits for gathers by name, including the first gather, which cannot be hidden.
    const double gather_exposed = gather_ms > 0 ? std::max(0.0, plan_ms - ideal_ms) / gather_ms : 0;
    std::vector<double> waits_ms;
    for (const runtime::StepMeans& step : c.means) {
      waits_ms.push_back(0);
      for (const auto& [task, ms] : step.exposed_by)
        if (task.starts_with("all_gather.")) waits_ms.back() += ms;
    }
    const double gather_waits_ms = median(waits_ms), waited = gather_ms > 0 ? gather_waits_ms / gather_ms : 0;
    print_result(
        "{:<36}{:>7.2f}{:>10.2f}{:>10.2f}{:>9.2f}{:>9.2f}{:>7.0f}%{:>10.2f}{:>8.3f}{:>10.2f}{:>8.3f}{:>11.1f}%{:>8.1f}%"
        "\n",
        c.name, ratio, step_ms, compute_ms, comm_ms, exposed_ms, 100 * hidden, plan_ms, step_ms / plan_ms, ideal_ms,
        step_ms / ideal_ms, 100 * gather_exposed, 100 * waited);
    csv_.row("\"{}\",{},{},{},{},{:.17g},{:.17g},{:.17g},{:.17g},{:.17g},{:.17g},{:.17g},{:.17g},{:.17g},{:.17g}\n",
             c.name, ratio, config_.model.layers, options_.layer_ms, world_.size(), step_ms, compute_ms, comm_ms,
             exposed_ms, hidden, plan_ms, ideal_ms, gather_ms, gather_exposed, gather_waits_ms);
    flush_printed();
  }

  const OverlapOptions& options_;
  int64_t layer_ns_;
  CsvFile csv_;
};

}  // namespace

std::vector<int64_t> even_spine_ns(const Job& job, int64_t layer_ns) {
  const auto pieces_beside = [&](const std::vector<uint32_t>& list, int layer) {
    return std::max<int64_t>(
        1, std::count_if(list.begin(), list.end(), [&](uint32_t p) { return job.model.pieces[p].layer == layer; }));
  };
  std::vector<int64_t> ns;
  for (const SpineItem& item : job.train().spine) {
    if (item.op != Op::compute) {
      ns.push_back(kRestNs);
      continue;
    }
    const int layer = job.model.pieces[item.piece].layer;
    const bool backward =
        std::find(job.model.backward.begin(), job.model.backward.end(), item.piece) != job.model.backward.end();
    const int64_t pass_ns = (backward ? 2 : 1) * (layer >= 0 && layer < job.model.layers ? layer_ns : layer_ns / 2);
    ns.push_back(pass_ns / pieces_beside(backward ? job.model.backward : job.model.forward, layer));
  }
  return ns;
}

int64_t layer_gather_bytes(const Job& job) {
  std::vector<int64_t> bytes(static_cast<size_t>(job.model.layers), 0);
  for (const ParameterGroup& group : job.groups) {
    std::map<int, int64_t> elems;  // by layer
    for (uint32_t p : group.parameters) elems[job.model.parameters[p].layer] += job.model.parameters[p].elems;
    const int ranks = job.mesh.group_size(group.placement.reduces_over());
    for (size_t layer = 0; layer < bytes.size(); ++layer)
      bytes[layer] += encoded_bytes(elems[static_cast<int>(layer)], group.placement.gather_wire) * (ranks - 1) / ranks;
  }
  return *std::max_element(bytes.begin(), bytes.end());
}

void bench_zero(const OverlapOptions& options, const Setting& setting) { ZeroBench(options, setting).run(); }

}  // namespace slipstream::bench
