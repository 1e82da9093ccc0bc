// SPDX-License-Identifier: Apache-2.0
// Chooses the state that a run continues.

#include "trainer/runtime/loop/start_point.h"

#include <filesystem>
#include <functional>
#include <string>
#include <utility>

#include "engine/base/check.h"
#include "engine/base/files.h"
#include "engine/base/log.h"
#include "engine/plan/saved_state.h"
#include "trainer/planner/options/initial_model.h"
#include "trainer/planner/options/plan_options.h"
#include "trainer/runtime/durability/resume_memory.h"
#include "trainer/runtime/run_folder/run_dir.h"
#include "trainer/runtime/weights/model_folder.h"

namespace slipstream::runtime {
namespace {

/// Blocks. Collective. Returns the newest state of the run, or the newest one before the step to replay.
std::optional<ResumePoint> newest_state(World& world, const TrainOptions& options, const PlannedRun& run,
                                        const RunName& name) {
  const RunConfig& config = *run.config;
  const std::string& dir = config.checkpoint.dir;
  if (options.replayed_step) return find_resume_point(world, dir, {.most_step = *options.replayed_step - 1});
  std::optional<ResumePoint> newest = find_newest_state(world, dir, name, {.verifies = false});
  // Nothing reads a checkpoint after the last step, so its hashes are compared here.
  if (newest && newest->manifest.step >= config.train.steps)
    newest = find_newest_state(world, dir, name, {.verifies = true});
  return newest;
}

/// Returns the sentence of the error that `stage` throws, or an empty text if it throws none.
std::string problem_in(const std::function<void()>& stage) {
  try {
    stage();
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

/// Blocks. Collective. Refuses a state of another run. If this start cannot continue a snapshot in memory, it continues
/// the newest checkpoint on disk instead. Throws: AgreedFailure.
void require_own_state(World& world, const TrainOptions& options, const PlannedRun& run, StartPoint& start) {
  std::optional<ResumePoint>& state = start.state;
  const auto require = [&] {
    require_resumable(*state, identity_of(run), logical_tensors(run.finished.stages), options.sets);
  };
  const std::string conflict = state && state->memory ? first_problem(world, problem_in(require)) : "";
  if (!conflict.empty()) {
    if (std::optional<ResumePoint> on_disk = find_resume_point(world, run.config->checkpoint.dir)) {
      log_warn("[checkpoint] the snapshot of step {} in memory is not used, because this start conflicts with it: {}",
               state->manifest.step, conflict);
      state = std::move(on_disk);
      start.name.formers.clear();
    }
  }
  const bool checked = state && state->memory && conflict.empty();
  if (state && !checked) world.together(require);
}

/// Blocks. Collective: rank 0 reads the folder.
bool has_final_weights(World& world, const RunConfig& config) {
  std::error_code error;
  const bool mine = world.rank() > 0 || std::filesystem::exists(config.checkpoint.dir + "/final", error);
  return world.all_agree(mine, "the final weights");
}

/// A run that continues nothing must not begin inside another one: output.dir then names a part of the run that was
/// meant, such as its checkpoints. Throws: ConfigError.
void require_outside_of_runs(const std::string& output) {
  std::error_code error;
  std::filesystem::path around = std::filesystem::absolute(output, error).lexically_normal().parent_path();
  for (; around.has_relative_path() && !error; around = around.parent_path())
    if (std::filesystem::exists(around / "run.json", error))
      throw ConfigError(
          "[train] output.dir = {} has no checkpoint and lies in the folder of the run {}. Set output.dir to that "
          "folder to resume it, or to one outside of it for another run.",
          files::shown(output), files::shown(around.string()));
}

/// Blocks. Collective. Requires that the folder of model.init suits the model, is the same on all hosts, and stays
/// where it is. Throws: AgreedFailure.
void require_initial_weights(World& world, const TrainOptions& options, const PlannedRun& run) {
  const RunConfig& config = *run.config;
  world.together([&] {
    // Each host compares all hashes, because hosts may have their own copies of the folder.
    const ModelFolder folder(config.model.init, {.index = world.rank_on_host(), .count = world.ranks_on_host()});
    if (world.rank() == 0 && !options.replayed_step)
      require_unmoved({.output = config.output.dir, .checkpoints = config.checkpoint.dir}, folder.dir());
    require_initial(folder, planner::model_options({.config = run.config, .machine = run.machine}),
                    run.finished.stages);
  });
}

}  // namespace

std::optional<StartPoint> find_start(World& world, const TrainOptions& options, const PlannedRun& run) {
  const RunConfig& config = *run.config;
  const bool keeps = config.checkpoint.peer_interval > 0;
  StartPoint start{.name = run_name_of(world, config.output.dir, options.resume)};
  if (options.ignore_memory) start.name.formers.clear();
  if (keeps) world.together([&] { Keeper::require_own(start.name.keeper); });
  if (options.resume) {
    start.state = newest_state(world, options, run, start.name);
    if (keeps && !options.ignore_memory && !(start.state && start.state->memory))
      log_info("note: the hosts of this run hold no complete snapshot in memory that is newer than its checkpoints");
    require_own_state(world, options, run, start);
    if (start.step() > config.train.steps || (start.step() == config.train.steps && has_final_weights(world, config))) {
      log_info("{} has step {} of {}: nothing is left to train", start.state->path, start.step(), config.train.steps);
      return {};
    }
    if (!start.state) {
      world.together([&] { require_outside_of_runs(config.output.dir); });
      log_info("--resume: {} has no checkpoint; the run begins at step 1", config.checkpoint.dir);
    }
  }
  if (!config.model.init.empty() && !start.state) require_initial_weights(world, options, run);
  return start;
}

}  // namespace slipstream::runtime
