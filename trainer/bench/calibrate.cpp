// SPDX-License-Identifier: Apache-2.0
// Runs steps of a run in several layouts with imitated peers, and keeps the time of every work by its shape.

#include "trainer/bench/calibrate.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <map>
#include <memory>
#include <numeric>
#include <set>
#include <sstream>
#include <thread>

#include "engine/base/check.h"
#include "engine/base/files.h"
#include "engine/base/log.h"
#include "engine/base/parallel.h"
#include "engine/base/plural.h"
#include "engine/base/print.h"
#include "engine/base/progress.h"
#include "engine/device/clock.h"
#include "trainer/bench/harness.h"
#include "trainer/planner/options/plan_options.h"

namespace slipstream::bench {
namespace {

constexpr double kVerbShare = 0.4;   // the time of verbs / the time of works
constexpr double kBuildShare = 0.3;  // the time of building layouts / the time of works, if there are several rounds
constexpr int kMostRounds = 3;

std::vector<int> cores_of_process() {
  static const std::vector<int> cores = [] {
    cpu_set_t mask;
    CPU_ZERO(&mask);
    std::vector<int> found;
    if (sched_getaffinity(0, sizeof mask, &mask) == 0)
      for (int core = 0; core < CPU_SETSIZE; ++core)
        if (CPU_ISSET(core, &mask)) found.push_back(core);
    if (found.empty()) found.push_back(0);
    return found;
  }();
  return cores;
}

/// Returns the mean of the middle values, which excludes the pauses of other programs and lucky samples.
int64_t middle_mean(std::vector<int64_t> times) {
  if (times.empty()) return 0;
  std::sort(times.begin(), times.end());
  const size_t cut = times.size() / 8;
  const auto begin = times.begin() + static_cast<std::ptrdiff_t>(cut), end = times.end() - (begin - times.begin());
  return std::accumulate(begin, end, int64_t{0}) / (end - begin);
}

/// The samples of one number of threads.
struct Samples {
  struct Shape {
    std::vector<int64_t> times_ns;
    std::string name;
    KernelKind kind = KernelKind::moved;
    int64_t flops = 0, bytes = 0;
    bool single = false;  // the work is one kernel
  };
  std::map<uint64_t, Shape> works;
  std::map<std::pair<std::string, int64_t>, std::vector<int64_t>> locals;  // by op and bytes
  std::vector<int64_t> gaps_ns;                                            // between items, per item of a step

  void add(const Cost& cost, const std::string& name, int64_t time_ns) {
    Shape& shape = works[shape_of(cost)];
    shape.times_ns.push_back(time_ns);
    shape.name = name;
    shape.flops = cost.flops;
    shape.bytes = cost.bytes;
    shape.single = cost.kernels.size() <= 1;
    if (cost.kernels.size() == 1) shape.kind = cost.kernels[0].kind;
  }

  WorkTimes times() const {
    WorkTimes result;
    std::map<KernelKind, std::pair<double, double>> amounts;  // work and seconds
    for (const auto& [shape, samples] : works) {
      const int64_t ns = middle_mean(samples.times_ns);
      result.works[shape] = {ns, samples.name};
      if (!samples.single) continue;
      auto& [amount, seconds] = amounts[samples.kind];
      amount += static_cast<double>(samples.kind == KernelKind::moved ? samples.bytes : samples.flops);
      seconds += static_cast<double>(ns) * 1e-9;
    }
    const auto rate = [&](KernelKind kind, double otherwise) {
      const auto& [amount, seconds] = amounts[kind];
      return amount > 0 && seconds > 0 ? amount / seconds : otherwise;
    };
    result.products_per_second = rate(KernelKind::product, 1e10);
    result.scores_per_second = rate(KernelKind::scores, result.products_per_second);
    result.bytes_per_second = rate(KernelKind::moved, 1e9);
    for (const auto& [key, samples] : locals) result.local_ns[key.first][key.second] = middle_mean(samples);
    return result;
  }
};

/// One layout that runs as several copies at the same time, each on its own cores.
class Layout {
 public:
  Layout(const Setting& setting, RunConfig config, int ranks, int threads, int copies) {
    config.device.threads = threads;
    config.comm.emulate.bandwidth_bytes_per_second = 0;
    Machine machine = this_host(threads, copies);
    const bool pinned = threads == 1 && copies > 1;
    for (int copy = 0; copy < copies; ++copy) {
      if (pinned) pin_to_core(copy);
      copies_.push_back(std::make_unique<Candidate>("calibrate", setting.world, setting.assignment, config,
                                                    build_bench_job(setting.assignment, machine, config, ranks, 0), 0,
                                                    std::vector<int64_t>{}, true));
    }
    if (pinned) pin_to_core(-1);
  }

  /// Blocks. Runs steps until `seconds` have passed. The first step of a round does not count, because cores and caches
  /// are cold.
  void measure(double seconds, Samples& samples) {
    const int64_t begin_ns = monotonic_ns();
    step(1, nullptr);
    const int64_t end_ns = begin_ns + static_cast<int64_t>(seconds * 1e9), one_ns = monotonic_ns() - begin_ns;
    // If steps are long, one step counts, after a cold one.
    const int steps = std::clamp(static_cast<int>((end_ns - begin_ns) / std::max<int64_t>(1, one_ns)), 2, 6);
    for (int round = 0; round < 1 || (monotonic_ns() < end_ns && !Interrupt::asked()); ++round) step(steps, &samples);
  }

 private:
  void step(int steps, Samples* samples) {
    std::vector<std::thread> threads;
    std::vector<std::exception_ptr> errors(copies_.size());
    for (size_t i = 0; i < copies_.size(); ++i)
      threads.push_back(start_thread("calibrate", [&, i] {
        try {
          copies_[i]->compute(steps);
        } catch (...) {
          errors[i] = std::current_exception();
        }
      }));
    for (std::thread& thread : threads) thread.join();
    for (const std::exception_ptr& error : errors)
      if (error) std::rethrow_exception(error);
    for (const auto& copy : copies_) {
      const std::vector<std::vector<Span>> spans = copy->rank->drain();
      if (samples) collect(*copy, spans, copy->step - static_cast<uint32_t>(steps) + 1, *samples);
    }
  }

  static void collect(const Candidate& copy, const std::vector<std::vector<Span>>& spans, uint32_t cold_step,
                      Samples& samples) {
    const Plan& plan = copy.job->train();
    for (ChannelId channel = 0; channel < spans.size(); ++channel) {
      if (copy.job->channels[channel].axis != Axis::self) continue;
      struct Run {
        int64_t begin_ns, end_ns;
      };
      std::map<std::pair<uint32_t, uint32_t>, Run> items;  // by step and item
      for (const Span& span : spans[channel]) {
        if (span.kind != Span::Kind::work || span.item >= plan.size() || span.step <= cold_step) continue;
        const auto [found, is_new] = items.try_emplace({span.step, span.item}, Run{span.begin_ns, span.end_ns});
        if (!is_new) found->second.end_ns = span.end_ns;
        if (plan[span.item].op == Op::compute)
          samples.add(span.work->cost, span.work->name, span.end_ns - span.begin_ns);
      }
      int64_t last_end_ns = 0;
      for (const auto& [key, run] : items) {
        const Item& item = plan[key.second];
        if (item.op == Op::compute)
          samples.add(item.cost,
                      plan.is_spine(key.second) ? copy.job->model.pieces[plan.spine[key.second].piece].name : item.name,
                      run.end_ns - run.begin_ns);
        else
          samples.locals[{name_of(item.op), item.cost.bytes}].push_back(run.end_ns - run.begin_ns);
        if (channel == kComputeChannel && last_end_ns > 0 && run.begin_ns >= last_end_ns)
          samples.gaps_ns.push_back(run.begin_ns - last_end_ns);
        last_end_ns = run.end_ns;
      }
    }
  }

  std::vector<std::unique_ptr<Candidate>> copies_;
};

/// Returns those layouts of the run on up to `ranks` ranks that have shapes of their own.
std::vector<std::pair<RunConfig, int>> layouts_of(const CalibrateOptions& options, int ranks) {
  std::vector<std::pair<RunConfig, int>> layouts;
  const auto consider = [&](std::vector<std::string> sets, int world, int divided) {
    std::vector<std::string> all = options.sets;
    for (const std::string& set : planner::sets_of_plain_axes()) all.push_back(set);
    all.insert(all.end(), {"pipeline.schedule=1f1b", "pipeline.layers=[]", "pipeline.schedule_file="});
    all.insert(all.end(), sets.begin(), sets.end());
    try {
      RunConfig config = load_run_config(options.run_file, all);
      config.train.global_batch_size = config.train.micro_batch_size * (world / divided);
      planner::require_layout(config, world);
      resolve_bench(config, world);
      layouts.emplace_back(config, world);
    } catch (const ConfigError&) {
      if (world == 1) throw;  // other layouts need not be legal
    }
  };
  consider({}, 1, 1);
  if (ranks > 1) consider({"overlap.bucket_size=1MiB"}, 2, 1);
  for (int parts = 2; parts <= ranks; parts *= 2) {
    consider({fmt::format("parallel.tensor={}", parts)}, parts, parts);
    consider({fmt::format("parallel.context={}", parts)}, parts, parts);
  }
  if (ranks > 1) consider({"zero.stage=1", "overlap.bucket_size=4MiB"}, 2, 1);
  return layouts;
}

/// Blocks. Collective. Returns the number of cores on which ranks of this host may run.
int cores_of_host(runtime::World& world) {
  std::string mine = fmt::format("{}", world.host());
  for (const int core : cores_of_process()) mine += fmt::format(" {}", core);
  std::set<int> cores;
  for (const std::string& text : world.all_gather(mine, "their cores")) {
    std::istringstream words(text);
    int host = 0;
    words >> host;
    for (int core = 0; host == world.host() && words >> core;) cores.insert(core);
  }
  return static_cast<int>(cores.size());
}

/// Writes the machine file.
void write_machine(const CalibrateOptions& options, const HostTimes& host, int ranks_on_host, int threads,
                   const std::vector<int64_t>& gaps_ns, const runtime::World& world) {
  const bool alone = world.size() == 1;
  Machine machine = this_host(threads, ranks_on_host);
  const WorkTimes& works = host.at(threads);
  machine.name =
      fmt::format("{} ({}), calibrated", alone ? "this host" : "hosts of this kind", counted(host.cores, "core"));
  if (alone) machine.nodes = 1;
  machine.matmul_efficiency = std::min(1.0, works.products_per_second / machine.flops_per_second_f32);
  machine.bytes_per_second = static_cast<int64_t>(works.bytes_per_second);
  machine.launch_ns = middle_mean(gaps_ns);
  if (const VerbTimes* sum = host.verb("all_reduce", 2)) {
    const bool inside = world.ranks_on_host() == world.size();
    (inside ? machine.intra_bytes_per_second : machine.inter_bytes_per_second) = sum->bytes_per_second;
    // An all-reduce has two messages.
    (inside ? machine.intra_latency_ns : machine.inter_latency_ns) = sum->latency_ns / 2;
  }
  machine.measured = std::make_shared<HostTimes>(host);
  files::write_file(options.out, fmt::format("# slipstream calibrate {}{}: {}.\n{}", options.run_file,
                                             alone ? fmt::format(" --ranks {}", ranks_on_host)
                                                   : fmt::format(" by {} processes", world.size()),
                                             counted(host.cores, "core"), machine_toml(machine)));
  size_t shapes = 0;
  for (const auto& [t, times] : host.by_threads) shapes += times.works.size();
  print_result("{}: {} works, {} verbs; products {:.1f} GFLOP/s and memory {:.1f} GB/s of a rank with {}\n",
               options.out, shapes, host.verbs.size(), works.products_per_second * 1e-9, works.bytes_per_second * 1e-9,
               counted(threads, "thread"));
}

}  // namespace

void pin_to_core(int index) {
  const std::vector<int> cores = cores_of_process();
  cpu_set_t mask;
  CPU_ZERO(&mask);
  for (int i = 0; i < static_cast<int>(cores.size()); ++i)
    if (index < 0 || i == index % static_cast<int>(cores.size())) CPU_SET(cores[static_cast<size_t>(i)], &mask);
  sched_setaffinity(0, sizeof mask, &mask);
}

int calibrate(const CalibrateOptions& options) {
  return on_world({static_cast<const RunSource&>(options), 1, ""}, [&](const Setting& setting) {
    runtime::World& world = setting.world;
    const bool alone = world.size() == 1;
    world.together([&] {
      if (!alone && options.ranks > 0)
        throw ConfigError(
            "[calibrate] --ranks {} counts the ranks of one host, but a launcher started {} processes. Leave it out.",
            options.ranks, world.size());
      if (setting.assignment.kind != DeviceKind::cpu)
        throw ConfigError(
            "[calibrate] measures the cores of a host, but this run is on GPUs. Set device.kind = \"cpu\", or use a "
            "file of configs/machines.");
    });
    const int cores = static_cast<int>(cores_of_process().size());
    const int ranks = !alone ? world.size() : options.ranks > 0 ? options.ranks : cores;
    const int on_host = alone ? ranks : world.ranks_on_host();
    HostTimes host{.cores = cores_of_host(world)};
    std::vector<int> threads;
    for (int t = 1; t <= cores && alone; ++t)
      if (cores % t == 0 && cores / t <= ranks) threads.push_back(t);
    if (threads.empty()) threads.push_back(alone ? 1 : planner::threads_of(setting.config, on_host));
    const std::vector<std::pair<RunConfig, int>> layouts = layouts_of(options, ranks);
    std::vector<std::pair<int, size_t>> turns;  // the threads and the layout of each turn
    for (const int t : threads)
      for (size_t i = 0; i < layouts.size(); ++i)
        if (layouts[i].second <= ranks && (t == 1 || !alone || layouts[i].second * t <= cores))
          turns.emplace_back(t, i);
    std::map<int, Samples> samples;
    const int64_t begin_ns = monotonic_ns();
    const auto spent_s = [&] { return static_cast<double>(monotonic_ns() - begin_ns) * 1e-9; };
    size_t measured = 0;
    const Interrupt interrupt;  // after Ctrl-C the file gets what is measured
    Progress progress("calibrate");
    // There are several rounds because the speed of a shared machine drifts, and every layout should meet all of its
    // speeds.
    int rounds = 1;
    for (int round = 0; round < rounds; ++round)
      for (const auto& [t, i] : turns) {
        // Later rounds only make the means better. Ranks in several processes measure the same turns.
        if (alone && measured > 0 && (Interrupt::asked() || (round > 0 && spent_s() >= options.seconds))) break;
        const auto& [config, layout_ranks] = layouts[i];
        const int64_t built_ns = monotonic_ns();
        Layout layout(setting, config, layout_ranks, t, alone ? std::clamp(cores / t, 1, ranks) : 1);
        const double built_s = static_cast<double>(monotonic_ns() - built_ns) * 1e-9;
        const auto count = static_cast<double>(turns.size());
        if (alone && samples.empty())  // this is the first turn
          rounds = std::clamp(static_cast<int>(kBuildShare * options.seconds / (built_s * count)), 1, kMostRounds);
        world.barrier();
        layout.measure(options.seconds / (count * rounds), samples[t]);
        world.barrier();
        ++measured;
        if (world.rank() == 0)
          progress.show([&] {
            return fmt::format("{} of {}, {:.0f} s; products {:.1f} GFLOP/s with {}", measured,
                               counted(static_cast<int64_t>(count) * rounds, "turn"), spent_s(),
                               samples[t].times().products_per_second * 1e-9, counted(t, "thread"));
          });
      }
    if (Interrupt::asked())
      log_info("note: stopped early after {} of {}; works of the others have the rates of these", measured,
               counted(std::ssize(turns) * rounds, "turn"));
    std::vector<int64_t> gaps_ns;
    for (const auto& [t, of_threads] : samples) {
      host.by_threads[t] = of_threads.times();
      gaps_ns.insert(gaps_ns.end(), of_threads.gaps_ns.begin(), of_threads.gaps_ns.end());
    }
    if (!alone) {
      const auto by =
          world.communicator(0, 0, setting.config.comm.timeout_seconds, DeviceKind::cpu,
                             {.nccl = {}, .traffic = {}, .sockets = setting.config.comm.backend != Backend::mpi});
      measure_verbs(world, *by, kVerbShare * options.seconds, host);
    } else if (ranks > 1) {
      measure_verbs(ranks, cores, kVerbShare * options.seconds, host);
    }
    if (world.rank() == 0)
      write_machine(options, host, on_host, alone ? std::max(1, cores / ranks) : threads[0], gaps_ns, world);
  });
}

}  // namespace slipstream::bench
