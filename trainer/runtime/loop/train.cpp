// SPDX-License-Identifier: Apache-2.0
// Runs slipstream train: all ranks agree on the inputs, plan the run, find its start, and train.

#include "trainer/runtime/loop/train.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/base/check.h"
#include "engine/base/fail_point.h"
#include "engine/base/folder.h"
#include "engine/base/json.h"
#include "engine/base/log.h"
#include "engine/base/units.h"
#include "engine/config/fields.h"
#include "engine/plan/saved_state.h"
#include "trainer/planner/forecast/plan_record.h"
#include "trainer/runtime/durability/resume_memory.h"
#include "trainer/runtime/durability/saved_state.h"
#include "trainer/runtime/loop/planned_run.h"
#include "trainer/runtime/loop/start_point.h"
#include "trainer/runtime/loop/stop_signals.h"
#include "trainer/runtime/loop/trainer.h"
#include "trainer/runtime/rank/memory_check.h"
#include "trainer/runtime/run_folder/run_json.h"

namespace slipstream::runtime {
namespace {

RunFolders folders_of(const PlannedRun& run, const StartPoint& start) {
  const RunConfig& config = *run.config;
  const Checkpoint& saving = config.checkpoint;
  const bool saves = saving.interval + saving.interval_minutes > 0;
  RunFolders folders{.output = config.output.dir,
                     .checkpoints = saving.dir,
                     .weights_bytes = run.finished.job->parameter_elems * size_of(DType::f32),
                     .checkpoint_bytes = saved_bytes(run.finished.stages),
                     .checkpoints_kept = saves && !start.state ? saving.keep + 1 : 1};
  if (!config.trace.steps.empty()) folders.last_traced_step = config.trace.steps[1];
  if (start.state) folders.resumed_step = start.step();
  if (start.state) folders.skipped = start.state->skipped;
  return folders;
}

/// A run from its start to its end, with the returns to earlier states in between.
class Training {
 public:
  Training(World& world, const TrainOptions& options, const PlannedRun& run, StartPoint start)
      : world_(world), options_(options), run_(run), config_(*run.config), start_(std::move(start)) {}

  /// Blocks. Collective. Locks the folders of the run and writes its first records. Throws: AgreedFailure.
  void open_folders();
  /// Blocks. Collective. Trains until the run ends. Skips a checkpoint that turns out to be damaged, and with
  /// train.on_nan = "rollback" goes back to an earlier one when the run diverges.
  /// Throws: CheckpointError, NumericsError.
  ExitCode run();

 private:
  void write_records();
  void write_run_json();
  ExitCode run_from_start(StopSignals& signals);
  void print_end(Trainer& trainer) const;
  void skip_damaged(const DamagedCheckpoint& damaged);
  void roll_back(const Diverged& diverged);
  void go_to(ResumePoint state);

  World& world_;
  const TrainOptions& options_;
  const PlannedRun& run_;
  const RunConfig& config_;
  StartPoint start_;
  std::unique_ptr<RunDir> run_dir_;
  std::unique_ptr<MetricSinks> sinks_;  // of rank 0
  Json record_;                         // run.json, of rank 0
  std::vector<std::string> damages_;    // sentences about the checkpoints that were skipped
  int64_t returns_ = 0;                 // to the same step, one after the other
};

void Training::open_folders() {
  const RunFolders folders = folders_of(run_, start_);
  if (start_.state) start_.state->skipped.clear();  // the folders give them another name
  world_.together([&] { run_dir_ = std::make_unique<RunDir>(folders, world_.rank() == 0); });
  world_.together([&] { run_dir_->open(); });
  start_.name.keeper = keeper_name_of(world_, start_.name.run_id, config_.output.dir);
  world_.together([&] {
    if (config_.checkpoint.peer_interval > 0) Keeper::require_own(start_.name.keeper);
    if (world_.rank() == 0) write_records();
  });
}

void Training::write_records() {
  run_dir_->write("config.resolved.toml", config_toml(config_));
  record_ = run_json(world_, run_.assignment, run_.config, run_.finished, run_.machine, run_.threads);
  record_["run_id"] = start_.name.run_id;
  record_["start"] = start_.name.start;
  record_["keeper"] = start_.name.keeper;
  write_run_json();
  run_dir_->write("plan.json", planner::plan_record(config_, run_.machine, run_.finished));
  sinks_ = std::make_unique<MetricSinks>(config_.output, start_.step());
}

/// Blocks. With the state that the run continues.
void Training::write_run_json() {
  if (start_.state) {
    record_["resumed_from"] = start_.state->path;
    record_["resumed_step"] = start_.step();
    // Until this start has snapshots of its own, the next one may continue those that it continues.
    Json& formers = record_["continues"] = Json::array();
    for (const RunName::Former& former : start_.name.formers) {
      if (!start_.state->memory) continue;
      Json each = Json::object();
      each["start"] = former.start;
      each["step"] = std::min(former.most_step, start_.step());
      formers.push_back(std::move(each));
    }
  }
  run_dir_->write("run.json", record_.dump(2) + "\n");
}

ExitCode Training::run() {
  if (options_.paced)
    log_info("--paced: works sleep for their planned times; losses mean nothing, and the weights stay untrained");
  if (options_.delay_seed)
    log_info("--inject-delays {}: random pauses before works; results must not depend on them", *options_.delay_seed);
  // Also while a run goes back to a checkpoint: the next step then ends it.
  StopSignals signals(world_.rank() == 0);
  for (;;) {
    try {
      return run_from_start(signals);
    } catch (const DamagedCheckpoint& damaged) {
      skip_damaged(damaged);
    } catch (const Diverged& diverged) {
      if (config_.train.on_nan != OnNan::rollback) throw;
      roll_back(diverged);
    }
  }
}

ExitCode Training::run_from_start(StopSignals& signals) {
  Trainer trainer(world_, options_, run_, start_);
  if (start_.state) start_.state->memory.reset();  // it has been read
  const ExitCode ended = trainer.run(*run_dir_, sinks_.get(), signals, [&] {
    if (world_.rank() == 0 && run_.on_gpus())
      run_dir_->write("run.json", with_choices(record_, run_.assignment, trainer.rank()).dump(2) + "\n");
  });
  print_end(trainer);
  return ended;
}

void Training::print_end(Trainer& trainer) const {
  const Job& job = trainer.rank().job();
  log_info("memory:   {} resident at most{}, {} planned", format_bytes(peak_resident_bytes()),
           job.mesh.stages() > 1 ? " on rank 0" : "", format_bytes(job.buffers.total_bytes()));
  if (run_.on_gpus())
    log_info("{}", gpu_memory_line(run_.assignment, job, run_.machine.ranks_per_node, run_.free_at_start));
  log_info("metrics:  {}/metrics.jsonl", config_.output.dir);
  if (!config_.trace.steps.empty()) log_info("timeline: {}/trace/rank0000.json", config_.output.dir);
}

/// Blocks. Collective. Continues the newest state before the damaged checkpoint.
void Training::skip_damaged(const DamagedCheckpoint& damaged) {
  damages_.push_back(fmt::format("{} is skipped: {}", start_.state->path, damaged.what()));
  std::optional<ResumePoint> older = find_newest_state(
      world_, config_.checkpoint.dir, start_.name,
      {.most_step = start_.step() - 1, .verifies = false, .reasons = damages_, .skipped = {start_.state->path}});
  log_warn("[checkpoint] {}", damages_.back());
  go_to(std::move(*older));
  if (world_.rank() == 0) write_run_json();
}

/// Blocks. Collective. Continues the newest checkpoint after the batches that led to the failure. Chowdhery et al. 2022
/// (PaLM, arXiv:2204.02311, section 5.1) left out the batches of a spike as well: those alone made no spike on other
/// weights. Without new batches, the same bits would fail again.
void Training::roll_back(const Diverged& diverged) {
  std::optional<ResumePoint> point =
      find_resume_point(world_, config_.checkpoint.dir, {.most_step = diverged.step - 1});
  if (!point) throw NumericsError("{} No earlier checkpoint exists.", diverged.what());
  const int64_t before = start_.step(), step = point->manifest.step;
  point->manifest.skipped_batches = (start_.state ? start_.state->manifest.skipped_batches : 0) + diverged.step - step;
  log_warn("{} The run goes back to step {} and leaves out the batches up to this one.", diverged.what(), step);
  returns_ = step == before ? returns_ + 1 : 1;
  if (returns_ > config_.train.max_skips)
    throw NumericsError("{} The run went back to step {} {} times, the limit of train.max_skips.", diverged.what(),
                        before, config_.train.max_skips);
  go_to(std::move(*point));
  if (fails_at("rollback.signal")) std::raise(SIGUSR1);
}

/// Blocks. Collective. Removes the lines of metrics after `state`, which the run continues now.
void Training::go_to(ResumePoint state) {
  world_.together([&] { run_dir_->require_in_place(); });
  set_aside(world_, std::exchange(state.skipped, {}));
  run_dir_->keep_metrics(state.manifest.step);
  if (sinks_) sinks_->keep(state.manifest.step);
  start_.state = std::move(state);
}

/// Flight records go into output.dir, by its open folder if this host has it.
void record_in_output(World& world, const std::string& output, std::optional<files::Folder>& records) {
  if (std::error_code error; std::filesystem::is_directory(output, error)) {
    records.emplace(output);
    world.record_in(records->at("flight"));
  } else {
    world.record_in(output + "/flight");
  }
}

/// The steps of the command. Collective. `records` must outlive `world`.
ExitCode run_steps(World& world, const TrainOptions& options, std::optional<files::Folder>& records) {
  const PlannedRun run = plan_run(world, options, agree_on_inputs(world, options));
  if (options.dry_run) {
    if (world.rank() == 0) print_plan(run);
    return ExitCode::ok;
  }
  std::optional<StartPoint> start = find_start(world, options, run);
  if (!start) return ExitCode::ok;
  print_start(world, options, run);
  if (options.replayed_step) {
    Trainer(world, options, run, *start).replay(*options.replayed_step);
    return ExitCode::ok;
  }
  Training training(world, options, run, std::move(*start));
  training.open_folders();
  record_in_output(world, run.config->output.dir, records);
  return training.run();
}

/// Prints the exception that is being handled and ends all ranks: the others may be inside a collective and cannot end
/// by themselves.
[[noreturn]] void end_all_ranks(World& world) {
  try {
    throw;
  } catch (const Error& error) {
    // Losses and norms are sums over ranks, so all ranks see the same error and the lowest rank prints it. The others
    // leave by themselves only if it does not.
    const bool shared = error.code() == ExitCode::numerics;
    if (shared && world.rank() > 0) std::this_thread::sleep_for(std::chrono::seconds(5));
    std::fprintf(stderr, "slipstream: %s: %s\n",
                 shared && world.rank() == 0 ? "on all ranks" : fmt::format("on rank {}", world.rank()).c_str(),
                 error.what());
    world.abort(error.code());
  } catch (const std::bad_alloc&) {
    std::fprintf(
        stderr, "slipstream: on rank %d: [host] out of memory. Use a smaller model, micro-batch or fewer ranks here.\n",
        world.rank());
    world.abort(ExitCode::resources);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "slipstream: on rank %d: [bug] %s. Please report it with the run file.\n", world.rank(),
                 error.what());
    world.abort(ExitCode::bug);
  }
}

}  // namespace

int train(const TrainOptions& options) {
  std::optional<files::Folder> records;  // the monitor writes into it until the end of the world
  fail_point("train.begun");
  World world(limits_before_mpi(options));
  log_setup(world.rank());
  try {
    return static_cast<int>(run_steps(world, options, records));
  } catch (const AgreedFailure& failure) {
    return static_cast<int>(failure.code());
  } catch (...) {
    if (world.size() == 1) throw;
    end_all_ranks(world);
  }
}

}  // namespace slipstream::runtime
