// SPDX-License-Identifier: Apache-2.0
// slipstream bench overlap: the four ways of reducing gradients, interleaved, beside their bounds.

#include <algorithm>
#include <cstdio>
#include <memory>
#include <thread>

#include "cli/commands.h"
#include "cli/exchange.h"
#include "cli/job.h"
#include "cli/place.h"
#include "cli/rank.h"
#include "cli/world.h"
#include "comm/link.h"
#include "engine/base/philox.h"
#include "engine/base/units.h"
#include "engine/config/load.h"
#include "engine/config/validate.h"
#include "engine/device/clock.h"
#include "engine/report/bounds.h"
#include "kernels/adamw/adamw.h"

namespace slipstream::cli {
namespace {

constexpr GradReduce kWays[] = {GradReduce::naive, GradReduce::flat, GradReduce::per_parameter, GradReduce::bucketed};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return n == 0 ? 0 : n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

/// Random tokens: what a step costs does not depend on them.
void load_random(const Job& job, const StagedBatch& staged) {
  const int64_t rows = 2 * job.model.batch * job.model.tokens;
  const Philox random(1, "bench");
  for (int64_t m = 0; m < job.buffers.micro_batches; ++m) {
    auto* ids = reinterpret_cast<int32_t*>(staged.batch + m * staged.stride_bytes);
    for (int64_t i = 0; i < rows; ++i)
      ids[i] = static_cast<int32_t>(random.below(static_cast<uint64_t>(m * rows + i), static_cast<uint64_t>(job.model.vocab)));
  }
  *reinterpret_cast<kernels::AdamwScalars*>(staged.scalars) = {.learning_rate = 1e-5f, .inv_bias1 = 1, .inv_bias2 = 1, .clip = 1};
}

/// One way of doing the step, with its own memory and communicators, and what was measured of it.
struct Contestant {
  std::string name;
  const Job* job = nullptr;
  std::unique_ptr<Rank> rank;
  std::unique_ptr<OverlapMeter> meter;
  uint32_t step = 0;
  std::vector<StepTimes> times;
  std::vector<StepMeans> means;

  double median_of(double StepMeans::*member) const {
    std::vector<double> values;
    for (const StepMeans& m : means) values.push_back(m.*member);
    return median(values);
  }
  /// Median time of every spine item.
  std::vector<int64_t> spine_ns() const {
    std::vector<std::vector<double>> seen(job->train.spine.size());
    for (const StepTimes& t : times)
      for (const auto& [item, ns] : t.work_ns)
        if (item < seen.size()) seen[item].push_back(static_cast<double>(ns));
    std::vector<int64_t> result;
    for (const std::vector<double>& values : seen) result.push_back(static_cast<int64_t>(median(values)));
    return result;
  }
};

class OverlapBench {
 public:
  OverlapBench(const BenchCommand& command, World& world, const Place& place, const RunConfig& config)
      : command_(command), world_(world), place_(place), config_(config), threads_(threads_of(config, world.ranks_on_host())) {
    config_.device.threads = threads_;
  }

  void run() {
    if (world_.size() < 2)
      throw ConfigError("[bench] overlap needs at least 2 ranks to have something to overlap, got {}. Start it with mpirun -np 2.", world_.size());
    if (world_.rank() == 0) print_header();
    const bool paced = command_.compute == "paced";
    if (paced) measure_for_pacing();
    if (command_.ratios.empty()) return run_link(config_.comm.emulate.bandwidth_bytes_per_second, -1);
    // The link that makes communication / compute what was asked for.
    auto alone = make("no_communication", GradReduce::bucketed, 0, false);
    for (int i = 0; i < 8; ++i) step(*alone, i >= 3);
    alone->means = mean_over_ranks(world_, alone->times);
    const double compute_ms = alone->median_of(&StepMeans::compute_ms);
    alone.reset();
    for (double ratio : command_.ratios) {
      auto probe = build(GradReduce::bucketed, true);
      const IdealBound wire = ideal_bound(*probe.job, {.bytes_per_second = 1e9, .latency_ns = 0, .ranks = world_.size(),
                                                       .spine_ns = std::vector<int64_t>(probe.job->train.spine.size(), 1)});
      run_link(static_cast<double>(wire.wire_ns) / (ratio * compute_ms * 1e-3), ratio);
    }
  }

 private:
  FinishedJob build(GradReduce way, bool communicate) {
    RunConfig config = config_;
    config.overlap.grad_reduce = way;
    const slipstream::Batch batch = resolve_batch(config, world_.size());
    config.train.global_batch_size = batch.global_batch_size;
    if (!communicate) config.train.global_batch_size /= world_.size();
    return build_finished_job({.config = config, .world = communicate ? world_.size() : 1, .rank = communicate ? world_.rank() : 0,
                               .vocab = config.model.vocab_size > 0 ? 0 : 256, .machine = machine_of(config, "", threads_)});
  }

  std::unique_ptr<Contestant> make(const std::string& name, GradReduce way, double bytes_per_second, bool communicate) {
    FinishedJob finished = build(way, communicate);
    auto c = std::make_unique<Contestant>();
    c->name = name;
    const Job* job = c->job = finished.job.get();
    auto communicators = world_.communicators(*job, bytes_per_second, config_.comm.emulate.latency_ns, config_.comm.timeout_seconds,
                                             place_.kind);
    RankOptions options{.threads = threads_, .update = {.max_norm = static_cast<float>(std::max(config_.optimizer.grad_clip, 1e-3))},
                        .graph = config_.device.graph != Choice::no};
    if (!paced_by_name_.empty())
      for (const SpineItem& item : job->train.spine) {
        const auto found = paced_by_name_.find(item.name);
        options.paced_item_ns.push_back(found == paced_by_name_.end() ? paced_update(item) : found->second);
      }
    c->rank = std::make_unique<Rank>(std::move(finished.job), place_.make_device(), std::move(communicators), options,
                                     [job](const StagedBatch& staged) { load_random(*job, staged); });
    c->rank->initialise(1);
    c->rank->prime();
    c->meter = std::make_unique<OverlapMeter>(c->rank->channel_kinds());
    return c;
  }

  /// Two steps back to back; the first one is timed, so that what it leaves for the second counts.
  void step(Contestant& c, bool counted) {
    world_.barrier();
    c.rank->issue(++c.step);
    c.rank->issue(++c.step);
    c.rank->synchronize();
    const auto spans = c.rank->drain();
    for (ChannelId channel = 0; channel < spans.size(); ++channel) {
      std::vector<Span> of_steps;
      std::copy_if(spans[channel].begin(), spans[channel].end(), std::back_inserter(of_steps), [](const Span& s) { return s.step > 0; });
      c.meter->add(channel, of_steps);
    }
    StepTimes times = c.meter->take(c.step - 1, true);
    c.meter->take(c.step, false);
    if (counted) c.times.push_back(std::move(times));
  }

  /// Ranks measure one after the other, so that more ranks than cores do not disturb each other.
  void measure_for_pacing() {
    std::vector<int64_t> ns;
    auto alone = make("no_communication", GradReduce::bucketed, 0, false);
    for (int turn = 0; turn < world_.size(); ++turn) {
      if (turn == world_.rank())
        for (int i = 0; i < 5; ++i) {
          alone->rank->issue(++alone->step);
          alone->rank->synchronize();
          const auto spans = alone->rank->drain();
          for (ChannelId channel = 0; channel < spans.size(); ++channel) {
            std::vector<Span> of_steps;
            std::copy_if(spans[channel].begin(), spans[channel].end(), std::back_inserter(of_steps), [](const Span& s) { return s.step > 0; });
            alone->meter->add(channel, of_steps);
          }
          StepTimes times = alone->meter->take(alone->step, false);
          if (i >= 2) alone->times.push_back(std::move(times));
        }
      world_.barrier();
    }
    ns = largest_over_ranks(world_, alone->spine_ns());
    const Plan& plan = alone->job->train;
    int64_t adamw_elems = 0;
    for (size_t i = 0; i < ns.size(); ++i) {
      const SpineItem& item = plan.spine[i];
      paced_by_name_[item.name] = ns[i];
      if (item.op == Op::adamw) update_ns_ += ns[i], adamw_elems += item.writes[0].size_bytes;
      if (item.op == Op::sum_squares) sum_ns_ += ns[i];
    }
    update_bytes_ = std::max<int64_t>(1, adamw_elems);
    // Buckets differ between the ways: their items are paced by size.
    std::erase_if(paced_by_name_, [](const auto& row) { return row.first.rfind("adamw", 0) == 0 || row.first.rfind("sum_squares", 0) == 0; });
  }

  int64_t paced_update(const SpineItem& item) const {
    const double share = item.op == Op::adamw ? static_cast<double>(item.writes[0].size_bytes) / static_cast<double>(update_bytes_)
                                              : item.reads.empty() ? 0 : static_cast<double>(item.reads[0].size_bytes) / static_cast<double>(update_bytes_);
    return std::max<int64_t>(1000, static_cast<int64_t>(share * static_cast<double>(item.op == Op::adamw ? update_ns_ : sum_ns_)));
  }

  void run_link(double bytes_per_second, double ratio) {
    std::vector<std::unique_ptr<Contestant>> contestants;
    contestants.push_back(make("no_communication", GradReduce::bucketed, 0, false));
    contestants.push_back(make("no_communication_again", GradReduce::bucketed, 0, false));
    for (GradReduce way : kWays) contestants.push_back(make(name_of(static_cast<ReduceWay>(way)), way, bytes_per_second, true));
    for (auto& c : contestants) c->name = c->name.empty() ? "?" : c->name;
    for (int round = -3; round < command_.steps; ++round)
      for (auto& c : contestants) step(*c, round >= 0);
    for (auto& c : contestants) c->means = mean_over_ranks(world_, c->times);
    report(contestants, bytes_per_second, ratio);
  }

  void report(const std::vector<std::unique_ptr<Contestant>>& contestants, double bytes_per_second, double ratio) {
    // Op times come from the run without communication, never from the overlapped ones.
    const std::vector<int64_t> alone_ns = largest_over_ranks(world_, contestants[0]->spine_ns());
    const Plan& alone = contestants[0]->job->train;
    std::map<std::string, int64_t> by_name;
    int64_t adamw_ns = 0, adamw_bytes = 1, sum_ns = 0;
    for (size_t i = 0; i < alone_ns.size(); ++i) {
      by_name[alone.spine[i].name] = alone_ns[i];
      if (alone.spine[i].op == Op::adamw) adamw_ns += alone_ns[i], adamw_bytes += alone.spine[i].writes[0].size_bytes;
      if (alone.spine[i].op == Op::sum_squares) sum_ns += alone_ns[i];
    }
    const double naive_ms = contestants[2]->median_of(&StepMeans::step_ms);
    const comm::RooflinePrice link(comm::Rates{}, {bytes_per_second, config_.comm.emulate.latency_ns});
    const std::string link_name = bytes_per_second > 0 ? fmt::format("{:.3g} Gbit/s", bytes_per_second * 8e-9) : "real";
    IdealBound ideal;
    double bucketed_ms = 0;
    for (const auto& c : contestants) {
      const Job& job = *c->job;
      std::vector<int64_t> spine_ns;
      for (const SpineItem& item : job.train.spine) {
        const double bytes = item.op == Op::adamw ? static_cast<double>(item.writes[0].size_bytes)
                                                  : item.reads.empty() ? 0 : static_cast<double>(item.reads[0].size_bytes);
        spine_ns.push_back(item.op == Op::adamw         ? static_cast<int64_t>(bytes / static_cast<double>(adamw_bytes) * static_cast<double>(adamw_ns))
                           : item.op == Op::sum_squares ? static_cast<int64_t>(bytes / static_cast<double>(adamw_bytes) * static_cast<double>(sum_ns))
                           : by_name.count(item.name)   ? by_name[item.name]
                                                        : 0);
      }
      std::vector<int64_t> item_ns = spine_ns;
      item_ns.resize(job.train.size(), 0);
      const bool communicates = job.mesh.world() > 1;
      const double plan_bound_ms = communicates && bytes_per_second == 0 ? 0 : rehearsed_step_ms(job, item_ns, link);
      const IdealBound bound = ideal_bound(job, {.bytes_per_second = std::max(1.0, bytes_per_second), .latency_ns = config_.comm.emulate.latency_ns,
                                                 .ranks = job.mesh.world(), .spine_ns = spine_ns});
      const double ideal_ms = communicates && bytes_per_second == 0 ? 0 : static_cast<double>(bound.bound_ns) / 1e6;
      const double step_ms = c->median_of(&StepMeans::step_ms);
      if (c.get() == contestants.back().get()) ideal = bound, bucketed_ms = step_ms;
      print_row(*c, step_ms, naive_ms, plan_bound_ms, ideal_ms, link_name);
    }
    if (world_.rank() != 0) return;
    fmt::print("  noise floor: the run without communication against itself: {:.3f}\n",
               contestants[1]->median_of(&StepMeans::step_ms) / contestants[0]->median_of(&StepMeans::step_ms));
    if (ratio > 0 && ideal.bound_ns > 0) {
      const double compute = static_cast<double>(ideal.compute_ns), wire = static_cast<double>(ideal.wire_ns);
      fmt::print("  speed-up over doing one after the other at communication / compute = {:.2f}: promised {:.2f}x, limit of max(compute, "
                 "communication) {:.2f}x, limit with dependencies {:.2f}x, reached {:.2f}x\n",
                 ratio, 1 + ratio, (compute + wire) / std::max(compute, wire), (compute + wire) / static_cast<double>(ideal.bound_ns), naive_ms / bucketed_ms);
    }
    std::fflush(stdout);
  }

  void print_header() {
    fmt::print("{} ranks x {} thread(s), {} compute, medians of {} interleaved steps\n", world_.size(), threads_, command_.compute, command_.steps);
    fmt::print("{:<24}{:>6}{:>12}{:>9}{:>9}{:>9}{:>9}{:>9}{:>8}{:>9}{:>8}{:>9}{:>8}\n", "implementation", "tasks", "link", "step ms", "x naive",
               "compute", "comm", "exposed", "hidden", "plan bd", "/ plan", "ideal bd", "/ ideal");
    if (command_.csv.empty()) return;
    csv_.reset(std::fopen(command_.csv.c_str(), "w"));
    if (!csv_) throw ResourceError("[bench] {} cannot be written. Give --csv a path that can.", command_.csv);
    fmt::print(csv_.get(), "implementation,model_size,d_model,num_layers,world_size,bucket_bytes,link,avg_step_time_ms,speedup_vs_naive,compute_ms,comm_ms,"
                           "exposed_ms,hidden_fraction,bound_ms,share_of_bound,tasks,bytes_sent,plan_bound_ms,ideal_bound_ms,compute_kind\n");
  }

  void print_row(const Contestant& c, double step_ms, double naive_ms, double plan_ms, double ideal_ms, const std::string& link) {
    if (world_.rank() != 0) return;
    const Job& job = *c.job;
    int64_t tasks = 0, bytes = 0;
    for (const Task& task : job.train.tasks)
      if (is_communication(task.op)) {
        ++tasks;
        bytes += comm::wire_bytes(task.op, task.algorithm, world_.size(), task.elems, task.dtype);
      }
    const double comm_ms = c.median_of(&StepMeans::comm_ms), exposed_ms = c.median_of(&StepMeans::exposed_ms);
    const double compute_ms = c.median_of(&StepMeans::compute_ms);
    const double hidden = comm_ms > 0 ? 1 - exposed_ms / comm_ms : 0;
    fmt::print("{:<24}{:>6}{:>12}{:>9.2f}{:>9.2f}{:>9.2f}{:>9.2f}{:>9.2f}{:>7.0f}%{:>9.2f}{:>8.3f}{:>9.2f}{:>8.3f}\n", c.name, tasks,
               job.mesh.world() > 1 ? link : "none", step_ms, naive_ms / step_ms, compute_ms, comm_ms, exposed_ms, 100 * hidden, plan_ms,
               plan_ms > 0 ? step_ms / plan_ms : 0, ideal_ms, ideal_ms > 0 ? step_ms / ideal_ms : 0);
    if (csv_)
      fmt::print(csv_.get(), "{},{},{},{},{},{},{},{:.17g},{:.17g},{:.17g},{:.17g},{:.17g},{:.17g},{:.17g},{:.17g},{},{},{:.17g},{:.17g},{}\n", c.name,
                 job.model.parameter_elems(), config_.model.width, config_.model.layers, world_.size(), config_.overlap.bucket_size_bytes,
                 job.mesh.world() > 1 ? link : "none", step_ms, naive_ms / step_ms, compute_ms, comm_ms, exposed_ms, hidden, ideal_ms,
                 step_ms > 0 ? ideal_ms / step_ms : 0, tasks, bytes, plan_ms, ideal_ms, command_.compute);
  }

  const BenchCommand& command_;
  World& world_;
  Place place_;
  RunConfig config_;
  int threads_;
  std::map<std::string, int64_t> paced_by_name_;
  int64_t update_ns_ = 0, sum_ns_ = 0, update_bytes_ = 1;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> csv_{nullptr, std::fclose};
};

}  // namespace

int bench_overlap(const BenchCommand& command) {
  World world;
  try {
    RunConfig config;
    world.together([&] {
      config = load_run_config(command.run_file, command.sets);
      require_supported(config);
      if (command.steps < 1) throw ConfigError("[bench] --steps {} must be at least 1.", command.steps);
    });
    const Place place = choose_place(world, config);
    world.together([&] {
      if (place.kind == DeviceKind::cuda && command.compute == "paced")
        throw ConfigError("[bench] --compute paced makes a CPU's stream sleep, and device.kind is \"cuda\". Use --compute real.");
    });
    OverlapBench(command, world, place, config).run();
    return 0;
  } catch (const AgreedFailure& failure) {
    return static_cast<int>(failure.code());
  } catch (const Error& error) {
    if (world.size() == 1) throw;
    std::fprintf(stderr, "slipstream: on rank %d: %s\n", world.rank(), error.what());
    world.abort(error.code());
  }
}

}  // namespace slipstream::cli
