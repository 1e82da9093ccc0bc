// SPDX-License-Identifier: Apache-2.0
// The experiment of the plan's order on GPUs: three pipeline stages, 1F1B and interleaved, issued in the one global
// order and as reached, through NCCL. The rehearsal predicts the result for channels that launch in host order; this
// test observes it.
//
// The global order must end: that is a test. The order as reached is a finding, "deadlock" or not; either is printed
// and passes.

#include <condition_variable>
#include <mutex>
#include <thread>

#include "comm/rehearse/rehearse.h"
#include "tests/equivalence/trained.h"
#include "tests/gpu/cuda/nccl_ranks.h"

using namespace slipstream;
using namespace slipstream::equivalence;

namespace {

constexpr int kStages = 3, kSteps = 2;
// The order as reached may stand still: both experiments must end within the limits of scripts/gpu_check.sh.
constexpr double kPatienceSeconds = 40, kAsReachedSeconds = 10;

struct Experiment {
  const char* name;
  ScheduleKind schedule;
  bool as_reached;
};
constexpr Experiment kExperiments[] = {{"1f1b-global", ScheduleKind::one_f_one_b, false},
                                       {"1f1b-as-reached", ScheduleKind::one_f_one_b, true},
                                       {"interleaved-global", ScheduleKind::interleaved_1f1b, false},
                                       {"interleaved-as-reached", ScheduleKind::interleaved_1f1b, true}};

Layout layout_of(const Experiment& experiment) {
  Layout layout{.name = experiment.name,
                .model = tiny_gpt2(),
                .micro_batch = 2,
                .stages = kStages,
                .schedule = experiment.schedule,
                .micro_batches = 6};
  layout.model.layers = 6;
  layout.model.vocab = 61;
  layout.model.split_tied_embedding = false;
  layout.virtual_stages = experiment.schedule == ScheduleKind::interleaved_1f1b ? 2 : 1;
  layout.check_hazards = layout.graph = false;
  layout.as_reached = experiment.as_reached;
  return layout;
}

/// "ends", or "deadlock: " and the chain of waits.
std::string rehearsed(const Layout& layout, comm::Gate gate) {
  const auto jobs = make_jobs(layout, 0);
  std::vector<comm::RankRuns> runs;
  for (const auto& job : jobs)
    runs.push_back({.rank = jobs[0]->mesh.rank({.pipeline = static_cast<int>(runs.size())}),
                    .runs = {&job->train()},
                    .seams = {}});
  const comm::RooflinePrice price({.flops_per_second = 5e9, .bytes_per_second = 1e10, .launch_ns = 1000}, {1e9, 20000});
  const comm::Rehearsal rehearsal = comm::rehearse(jobs[0]->mesh, jobs[0]->channels, runs, price, {.gate = gate});
  return rehearsal.finished ? "ends" : "deadlock: " + rehearsal.deadlock;
}

/// Calls `give_up` unless it is destroyed within `seconds`.
class Watchdog {
 public:
  Watchdog(double seconds, std::function<void()> give_up)
      : thread_([this, seconds, give_up = std::move(give_up)] {
          std::unique_lock lock(mutex_);
          if (!ended_.wait_for(lock, std::chrono::duration<double>(seconds), [this] { return over_; })) give_up();
        }) {}
  ~Watchdog() {
    {
      std::lock_guard lock(mutex_);
      over_ = true;
    }
    ended_.notify_all();
    thread_.join();
  }
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable ended_;
  bool over_ = false;
  std::thread thread_;
};

/// Collective. "ends", or the items that hung until the rank gave up.
std::string trained(runtime::World& world, int card, const Layout& layout) {
  std::unique_ptr<Job> job = make_job(layout, world.rank());
  std::unique_ptr<Device> device = make_cuda_device(card, comm::nccl_device_memory());
  auto communicators = world.communicators(*job, 0, 0, 120, DeviceKind::cuda);
  int64_t staged = 0;
  std::atomic<bool> gave_up{false};
  runtime::Rank rank(std::move(job), std::move(device), std::move(communicators),
                     equivalence::detail::rank_options(layout, static_cast<size_t>(world.rank())),
                     equivalence::detail::loader(layout, 0, staged));
  const double patience_seconds = layout.as_reached ? kAsReachedSeconds : kPatienceSeconds;
  // NCCL's abort may itself wait: then the process prints the finding and exits.
  const Watchdog harder(2 * patience_seconds, [&] {
    std::printf("%s: stands still on rank %d, and abort did not end it within %.0f s\n", layout.name.c_str(),
                world.rank(), patience_seconds);
    std::fflush(stdout);
    world.abort(layout.as_reached ? ExitCode::ok : ExitCode::communication);
  });
  const Watchdog watchdog(patience_seconds, [&] {
    gave_up = true;
    rank.abort("[test] nothing has moved for too long.");
  });
  try {
    equivalence::detail::run_steps(rank, layout, {}, kSteps);
  } catch (const CommError&) {
    if (!gave_up) throw;
  }
  return gave_up ? fmt::format("stands still, given up after {:.0f} s", patience_seconds) : "ends";
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> names;
  for (const Experiment& experiment : kExperiments) names.push_back(experiment.name);
  if (test::lists(argc, argv, names)) return 0;
  const std::string chosen = argc > 1 ? argv[1] : "";
  test::require_card();
  runtime::World world;
  std::string failures;
  try {
    if (world.size() != kStages)
      throw ConfigError("[test] {} ranks, need {}: mpirun -np {}.", world.size(), kStages, kStages);
    const int card = test::card_of(world);
    for (const Experiment& experiment : kExperiments) {
      if (!chosen.empty() && experiment.name != chosen) continue;
      const Layout layout = layout_of(experiment);
      const std::string expected = world.rank() == 0 ? rehearsed(layout, comm::Gate::launch_order) : "";
      const std::string seen = trained(world, card, layout);
      if (world.rank() == 0) {
        std::printf("%s: NCCL %s; rehearsed with independent channels: %.8s, in launch order: %.300s\n",
                    experiment.name, seen.c_str(), rehearsed(layout, comm::Gate::none).c_str(), expected.c_str());
        std::fflush(stdout);
      }
      if (!experiment.as_reached && (seen != "ends" || (world.rank() == 0 && expected != "ends")))
        failures += fmt::format("rank {}: {}: the global order did not end\n", world.rank(), experiment.name);
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rank %d: %s\n", world.rank(), error.what());
    world.abort(ExitCode::communication);
  }
  return test::report(world, failures, "what must end has ended");
}
