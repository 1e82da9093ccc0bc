// SPDX-License-Identifier: Apache-2.0
// Compares the unchanged run file with the run file after one changed setting. The paced layers and the link are the
// same, and the steps are interleaved.

#include "trainer/bench/ablation.h"

#include <memory>

#include "engine/base/print.h"
#include "engine/base/units.h"
#include "engine/config/fields.h"
#include "engine/config/load.h"
#include "engine/config/validate.h"
#include "trainer/bench/csv_file.h"
#include "trainer/bench/harness.h"
#include "trainer/bench/zero.h"
#include "trainer/planner/options/plan_options.h"
#include "trainer/planner/planner.h"

namespace slipstream::bench {
namespace {

using R = const RunConfig&;

bool shares_layers(R c) { return c.parallel.tensor > 1; }
bool has_stages(R c) { return c.parallel.pipeline > 1; }

class AblationBench : WorldBench {
 public:
  AblationBench(const OverlapOptions& options, const Setting& setting)
      : WorldBench(setting, 1), options_(options), layer_ns_(static_cast<int64_t>(options.layer_ms * 1e6)) {}

  void run() {
    if (world_.size() < 2)
      throw ConfigError(
          "[bench] --ablate needs at least 2 ranks, because one rank has no communication, got {}. Start it with "
          "mpirun -np 2.",
          world_.size());
    world_.together([&] {
      if (options_.ratios.empty() && config_.comm.emulate.bandwidth_bytes_per_second == 0)
        throw ConfigError(
            "[bench] --ablate needs a link: comm.emulate.bandwidth is 0 and there are no --ratios. Set one of them.");
    });
    print_header();
    if (options_.ratios.empty())
      return run_link(static_cast<double>(config_.comm.emulate.bandwidth_bytes_per_second), 0);
    const int64_t gather_bytes = layer_gather_bytes(*build({}).job);
    world_.together([&] {
      if (gather_bytes == 0)
        throw ConfigError(
            "[bench] --ratios needs at least 2 data ranks, because a ratio is a layer's gather / its forward pass. "
            "Leave --ratios out and set comm.emulate.bandwidth.");
    });
    for (double ratio : options_.ratios)
      run_link(static_cast<double>(gather_bytes) / (ratio * static_cast<double>(layer_ns_) * 1e-9), ratio);
  }

 private:
  struct Row {
    std::string name;
    std::vector<std::shared_ptr<const Job>> stages;
    std::unique_ptr<Candidate> candidate;
  };

  RunConfig with(const std::vector<std::string>& changes) const {
    std::vector<std::string> sets = options_.sets;
    sets.insert(sets.end(), changes.begin(), changes.end());
    sets.push_back("device.threads=1");
    return load_run_config(options_.run_file, sets);
  }

  planner::FinishedJob build(const std::vector<std::string>& changes) const {
    const RunConfig config = with(changes);
    return planner::build_finished_job({.config = resolve_bench(config, world_.size()),
                                        .rank = world_.rank(),
                                        .machine = planner::machine_of(config, "", 1),
                                        .spine_ns = [this](const Job& job) { return even_spine_ns(job, layer_ns_); }});
  }

  void run_link(double bytes_per_second, double ratio) {
    const std::string link = fmt::format("comm.emulate.bandwidth={}B/s", static_cast<int64_t>(bytes_per_second));
    std::vector<Row> rows;
    const auto add = [&](const std::string& name, std::vector<std::string> changes) {
      changes.push_back(link);
      planner::FinishedJob finished = build(changes);
      Row row{.name = name, .stages = finished.stages, .candidate = {}};
      const std::vector<int64_t> spine_ns = even_spine_ns(*finished.job, layer_ns_);
      row.candidate = std::make_unique<Candidate>(name, world_, assignment_, with(changes), std::move(finished),
                                                  bytes_per_second, spine_ns);
      rows.push_back(std::move(row));
    };
    add("as it is", {});
    add("as it is, again", {});
    const std::string as_it_is = config_toml(with({}));
    for (const Ablation& knob : ablations()) {
      const std::string turned = knob.key + "=" + knob.value;
      if (knob.has_effect(config_) && config_toml(with({turned})) != as_it_is)
        add(knob.key + " = " + knob.value, {turned});
    }
    std::vector<Candidate*> candidates;
    for (Row& row : rows) candidates.push_back(row.candidate.get());
    take_turns(world_, candidates, {.warm_up = 2, .counted = options_.steps, .steps = 3});
    for (Row& row : rows) print_row(row, rows[0], bytes_per_second, ratio);
  }

  double rehearsed_ms(const Row& row, double bytes_per_second) const {
    std::vector<std::vector<int64_t>> item_ns;
    for (const auto& stage : row.stages) {
      item_ns.push_back(even_spine_ns(*stage, layer_ns_));
      item_ns.back().resize(stage->train().size(), -1);
    }
    return planner::rehearsed_step_ms(row.stages, item_ns,
                                      comm::RooflinePrice({}, {bytes_per_second, config_.comm.emulate.latency_ns}));
  }

  void print_header() {
    if (world_.rank() != 0) return;
    print_result(
        "{} ranks, {} paced layers of {:.3g} ms forward and twice that backward; medians of {} interleaved steps\n",
        world_.size(), config_.model.layers, options_.layer_ms, options_.steps);
    print_result("{:<44}{:>7}{:>10}{:>11}{:>10}{:>9}{:>9}{:>8}{:>10}{:>8}\n", "run file", "ratio", "step ms", "of it",
                 "compute", "comm", "exposed", "hidden", "plan bd", "/ plan");
    csv_.open(options_.csv,
              "run_file,ratio,layers,layer_ms,world_size,step_ms,of_as_it_is,compute_ms,comm_ms,exposed_ms,hidden,plan_"
              "bound_ms\n");
  }

  void print_row(const Row& row, const Row& as_it_is, double bytes_per_second, double ratio) {
    if (world_.rank() != 0) return;
    const Candidate& c = *row.candidate;
    const double step_ms = c.median_of(&runtime::StepMeans::step_ms),
                 change = step_ms / as_it_is.candidate->median_of(&runtime::StepMeans::step_ms);
    const double compute_ms = c.median_of(&runtime::StepMeans::compute_ms),
                 comm_ms = c.median_of(&runtime::StepMeans::comm_ms),
                 exposed_ms = c.median_of(&runtime::StepMeans::exposed_ms);
    const double plan_ms = rehearsed_ms(row, bytes_per_second),
                 hidden = share_of(c.median_of(&runtime::StepMeans::hidden_ms), comm_ms);
    print_result("{:<44}{:>7.2f}{:>10.2f}{:>+10.1f}%{:>10.2f}{:>9.2f}{:>9.2f}{:>7.0f}%{:>10.2f}{:>8.3f}\n", row.name,
                 ratio, step_ms, 100 * (change - 1), compute_ms, comm_ms, exposed_ms, 100 * hidden, plan_ms,
                 step_ms / plan_ms);
    csv_.row("\"{}\",{},{},{},{},{:.17g},{:.17g},{:.17g},{:.17g},{:.17g},{:.17g},{:.17g}\n", row.name, ratio,
             config_.model.layers, options_.layer_ms, world_.size(), step_ms, change, compute_ms, comm_ms, exposed_ms,
             hidden, plan_ms);
    flush_printed();
  }

  const OverlapOptions& options_;
  int64_t layer_ns_;
  CsvFile csv_;
};

}  // namespace

const std::vector<Ablation>& ablations() {
  const auto always = [](R) { return true; };
  // Stages 2 and 3 reduce each layer in one bucket.
  const auto any_way = [](R c) { return !c.zero.sharding().gradients; };
  static const std::vector<Ablation> list = {
      {"overlap.grad_reduce", "naive", any_way},
      {"overlap.grad_reduce", "flat", any_way},
      {"overlap.grad_reduce", "per_parameter", any_way},
      {"overlap.bucket_size", "1GiB", always},
      {"overlap.first_bucket_size", "1GiB", any_way},  // the size of the other buckets
      // Only sums inside and across groups of shards are under way at the same time.
      {"overlap.max_inflight_buckets", "1", [](R c) { return c.zero.sharding().states && c.zero.shard_size > 0; }},
      {"overlap.param_gather", "false", [](R c) { return c.zero.sharding().states; }},
      {"overlap.optimizer_per_bucket", "false", always},
      {"overlap.p2p", "false", has_stages},
      {"overlap.align_grad_reduce", "true", has_stages},
      {"overlap.tensor_chunks", "1", shares_layers},
      {"overlap.split_tied_embedding", "false",
       [](R c) {
         return !c.zero.sharding().states && c.model.tie_embeddings == Choice::yes && !shares_layers(c) &&
                !has_stages(c);
       }},
      {"zero.prefetch_depth", "0", [](R c) { return c.zero.sharding().parameters && c.zero.reshard_after_forward; }},
      {"zero.reshard_after_forward", "false", [](R c) { return c.zero.sharding().parameters; }},
      {"zero.persistence_threshold", "0B", [](R c) { return c.zero.sharding().parameters; }},
      {"zero.shard_size", "0", [](R c) { return c.zero.sharding().states; }},
      {"optimizer.double_buffer", "true", [](R c) { return !c.zero.sharding().parameters; }},
      {"checkpoint.peer_interval", "0", [](R c) { return c.checkpoint.peer_interval > 0; }},
  };
  return list;
}

void bench_ablation(const OverlapOptions& options, const Setting& setting) { AblationBench(options, setting).run(); }

}  // namespace slipstream::bench
