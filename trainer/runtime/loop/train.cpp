// SPDX-License-Identifier: Apache-2.0
// Runs slipstream train: sets up in agreement with all ranks, then runs the training loop.

#include "trainer/runtime/loop/train.h"

#include <chrono>
#include <csignal>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <new>
#include <optional>
#include <sstream>
#include <thread>
#include <utility>

#include "comm/mpi/launcher.h"
#include "engine/base/check.h"
#include "engine/base/delay_point.h"
#include "engine/base/fail_point.h"
#include "engine/base/files.h"
#include "engine/base/folder.h"
#include "engine/base/json.h"
#include "engine/base/log.h"
#include "engine/base/plural.h"
#include "engine/base/print.h"
#include "engine/base/units.h"
#include "engine/config/fields.h"
#include "engine/config/resolve.h"
#include "engine/config/validate.h"
#include "engine/device/cuda/cuda_choice.h"
#include "engine/plan/memory.h"
#include "engine/plan/saved_state.h"
#include "kernels/common/isa.h"
#include "trainer/planner/forecast/checkpoint_costs.h"
#include "trainer/planner/forecast/extra_memory.h"
#include "trainer/planner/forecast/nccl_report.h"
#include "trainer/planner/forecast/plan_facts.h"
#include "trainer/planner/forecast/plan_record.h"
#include "trainer/planner/forecast/unchanged_sets.h"
#include "trainer/planner/options/initial_model.h"
#include "trainer/planner/options/plan_options.h"
#include "trainer/planner/planner.h"
#include "trainer/runtime/durability/peer_memory.h"
#include "trainer/runtime/durability/resume.h"
#include "trainer/runtime/durability/resume_memory.h"
#include "trainer/runtime/durability/saved_state.h"
#include "trainer/runtime/loop/stop_signals.h"
#include "trainer/runtime/loop/trainer.h"
#include "trainer/runtime/rank/agreement.h"
#include "trainer/runtime/rank/library_tables.h"
#include "trainer/runtime/rank/memory_check.h"
#include "trainer/runtime/run_folder/run_json.h"
#include "trainer/runtime/run_folder/version.h"
#include "trainer/runtime/weights/model_folder.h"

namespace slipstream::runtime {
namespace {

/// Every setting on one line, and the flags that must be equal on all ranks.
std::string lines_of(const RunConfig& config, const TrainOptions& options) {
  std::string lines;
  for (const auto& [key, value] : config_lines(config)) lines += fmt::format("{} = {}\n", key, value);
  return lines + fmt::format(
                     "--dry-run {}\n--resume {}\n--ignore-memory {}\n--replay {}\n--check-hazards {}\n--inject-delays "
                     "{}\n--paced {}\n",
                     options.dry_run, options.resume, options.ignore_memory, options.replayed_step.value_or(0),
                     options.check_hazards, options.delay_seed ? fmt::format("{}", *options.delay_seed) : "none",
                     options.paced);
}

/// The sentence of the error that `stage` throws; empty if it throws none.
std::string problem_in(const std::function<void()>& stage) {
  try {
    stage();
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

/// Blocks. Writes plan.json of a run that does not begin. A folder that holds a run keeps that run's.
void write_planned(const RunConfig& config, const Machine& machine, const planner::FinishedJob& finished) {
  const std::string& dir = config.output.dir;
  std::error_code error;
  if (std::filesystem::exists(dir + "/run.json", error)) {
    print_result("note: {} holds a run, which keeps its plan.json; for the one of this plan, set output.dir\n", dir);
    return;
  }
  std::filesystem::create_directories(dir, error);
  if (error)
    throw ResourceError("[output] {} cannot be made: {}. Set output.dir to another folder.", dir, error.message());
  files::write_file(dir + "/plan.json", planner::plan_record(config, machine, finished));
  print_result("{}/plan.json has the plan with its rehearsed times\n", dir);
}

/// Collective: rank 0 looks.
bool has_final_weights(World& world, const RunConfig& config) {
  std::error_code error;
  const bool mine = world.rank() > 0 || std::filesystem::exists(config.checkpoint.dir + "/final", error);
  return world.all_agree(mine, "the final weights");
}

/// Blocks. Collective. The newest checkpoint, to go on from it behind the batches that led to the failure. Chowdhery et
/// al. 2022 (PaLM, arXiv:2204.02311, section 5.1) left out the batches of a spike as well: those alone made no spike on
/// other weights. Without new batches, the same bits would fail again.
ResumePoint go_back(World& world, const RunConfig& config, const Diverged& diverged,
                    const std::optional<ResumePoint>& begun_at) {
  std::optional<ResumePoint> point = find_resume_point(world, config.checkpoint.dir, {.most_step = diverged.step - 1});
  if (!point) throw NumericsError("{} No earlier checkpoint exists.", diverged.what());
  const int64_t step = point->manifest.step;
  point->manifest.skipped_batches = (begun_at ? begun_at->manifest.skipped_batches : 0) + diverged.step - step;
  log_warn("{} The run goes back to step {} and leaves out the batches up to this one.", diverged.what(), step);
  return std::move(*point);
}

void print_start(const World& world, const DeviceAssignment& assignment, const ResolvedConfig& resolved,
                 const planner::FinishedJob& finished, const Machine& machine, int threads, int64_t index_bytes) {
  const RunConfig& config = *resolved;
  const Job& job = *finished.job;
  log_info("{}: {} parameters", job.model.description, format_count(static_cast<double>(job.parameter_elems)));
  const std::string of_a_rank = assignment.kind == DeviceKind::cuda ? assignment.name : counted(threads, "thread");
  log_info("{} x {}, {} per step of {} x {}, {} in {}", counted(world.size(), "rank"), of_a_rank,
           counted(finished.micro_batches, "micro-batch"), counted(finished.global_batch, "sequence"),
           counted(config.train.sequence_length, "token"), name_of(job.options.reduce_mode),
           counted(std::ssize(job.layout.buckets), "bucket"));
  if (finished.stages.size() > 1)
    log_info("{}", planner::schedule_line(
                       config, finished.stages,
                       planner::played_schedule(finished.stages, planner::price_of(config, machine, job.mesh),
                                                finished.transfer_ns)));
  for (const std::string& remark : planner::remarks(resolved, machine, finished)) log_info("note: {}", remark);
  if (const std::string problem =
          planner::short_interval(config.checkpoint, planner::write_seconds(finished, config.checkpoint), 0);
      !problem.empty())
    log_info("note: {}", problem);
  if (const std::string note = driver_note(config, finished); !note.empty()) log_warn("[nccl] {}", note);
  if (const std::string note = planner::remark_on_threads(config); !note.empty()) log_warn("[device] {}", note);
  const Job& largest = planner::largest_stage(finished);
  std::string beside;
  if (assignment.kind == DeviceKind::cuda)
    for (const ExtraMemory& row : planner::extra_memory_on_gpu(largest, assignment.nccl, machine.ranks_per_node))
      beside += fmt::format(", {} {}", row.owner, format_bytes(row.size_bytes));
  log_info("memory of a rank{}: {}{}{}",
           finished.stages.size() > 1 ? fmt::format(" (stage {}, which needs most)", largest.stage()) : "",
           format_bytes(largest.buffers.total_bytes()),
           index_bytes > 0 ? fmt::format(" and {} of positions in the text", format_bytes(index_bytes)) : "",
           beside.empty() ? "" : "; beside it on the GPU" + beside.substr(1));
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

comm::WaitLimits limits_of(const RunConfig& config) {
  return {.start_seconds = static_cast<double>(config.comm.start_timeout_seconds),
          .step_seconds = static_cast<double>(config.comm.timeout_seconds),
          .save_seconds = static_cast<double>(config.comm.save_timeout_seconds)};
}

/// Those of the run file, for the start of MPI. The defaults if it cannot be read, which ranks report together later.
comm::WaitLimits limits_before_mpi(const TrainOptions& options) {
  try {
    return limits_of(planner::load_run(options.run_file, options.sets, options.resume));
  } catch (const Error&) {
    return {};
  }
}

}  // namespace

int train(const TrainOptions& options) {
  std::optional<files::Folder> records;  // the monitor writes into it until the end of the world
  fail_point("train.begun");
  World world(limits_before_mpi(options));
  log_setup(world.rank());
  RunConfig written;
  std::optional<ResolvedConfig> resolved;
  Machine machine;
  planner::FinishedJob finished;
  data::Dataset dataset;
  int threads = 1;
  DeviceAssignment assignment;
  comm::NcclTable written_nccl;  // before the planner completed it
  try {
    // The first exchange of every command is that of failures: a rank whose command line is wrong takes part in no
    // other.
    world.together([] { comm::require_no_foreign_launcher("train"); });
    // Before all else, because other builds may exchange other values.
    require_same(world, "build", build_id(), "Install the same build on all hosts; slipstream --version prints it.");
    world.together([&] {
      written = planner::load_run(options.run_file, options.sets, options.resume);
      require_supported(written);
      delays_asked();  // refuses a request that cannot be read
      if (const auto step = options.replayed_step; step && (*step < 1 || *step > written.train.steps))
        throw ConfigError("[train] --replay {} is no step of this run. Use 1 to train.steps = {}.", *step,
                          written.train.steps);
      if (options.paced && (options.resume || written.checkpoint.interval + written.checkpoint.interval_minutes > 0 ||
                            written.checkpoint.peer_interval > 0 || written.device.kind == DeviceChoice::cuda))
        throw ConfigError(
            "[train] --paced computes nothing, so that its weights are worth no checkpoint, and runs on CPUs. Leave "
            "out "
            "--resume, checkpoint.interval and checkpoint.peer_interval, and use device.kind = \"cpu\".");
      planner::require_layout(written, world.size());
      kernels::isa();  // refuses an unusable SLIPSTREAM_ISA before an older run is renamed
      threads = planner::threads_of(written, world.ranks_on_host());
      world.limit(limits_of(written));
    });
    require_same(world, "configuration", lines_of(written, options));
    if (!options.dry_run) assignment = assign_device(world, written);
    if (assignment.kind == DeviceKind::cpu)  // otherwise the ranks' copies of the weights would diverge
      require_same(world, "instruction set", std::string(kernels::name_of(kernels::isa())),
                   "Set SLIPSTREAM_ISA to the lower one on all hosts.");
    int64_t vocab = 0;
    world.together([&] {
      machine = machine_at(assignment, written, threads, world.ranks_on_host());
      if (options.dry_run) {
        vocab = planner::vocab_of(written);
      } else {
        dataset = data::open_dataset(planner::dataset_options(
            written, world.rank_on_host() == 0 ? data::ShardCheck::whole : data::ShardCheck::size, threads));
        vocab = dataset.tokenizer->vocab_size();
      }
    });
    require_same(world, "data", dataset.hash, "Give all hosts the same files.");
    for (const std::string& note : dataset.notes) log_info("note: {}", note);
    const Machine agreed = agreed_machine(world, machine);
    world.together([&] {
      if (options.dry_run && planner::computes_on_gpus(written, agreed)) {  // plans for a GPU that this host lacks
        assignment.kind = DeviceKind::cuda;
        assignment.nccl = comm::NcclTable::parse(comm::NcclTable::read_text(written.comm.nccl), written.comm.nccl);
      }
      resolved =
          resolve(written, {.world = world.size(), .on_gpus = assignment.kind == DeviceKind::cuda, .vocab = vocab});
      finished = planner::build_finished_job(request_at(assignment, *resolved, agreed, world.rank()));
      written_nccl = std::exchange(assignment.nccl, finished.engines.nccl);
    });
    const RunConfig& config = **resolved;
    const bool on_gpus = assignment.kind == DeviceKind::cuda;
    if (!on_gpus && !options.dry_run)
      require_host_memory(world, config, *finished.job, machine, dataset.resident_bytes);
    int64_t free_at_start = 0;  // of the GPU
    if (on_gpus && !options.dry_run) {
      require_gpu_memory(world, assignment, *finished.job, agreed.ranks_per_node);
      free_at_start = describe_cuda_device(assignment.gpu).free_bytes;
    }
    require_same_plan(world, finished);
    if (options.dry_run) {
      if (world.rank() == 0) {
        const Job& largest = planner::largest_stage(finished);
        print_result("{}\n{}: {} parameters\n{}", planner::plan_listing(*finished.job), finished.job->model.description,
                     finished.job->parameter_elems,
                     memory_table(largest, on_gpus ? planner::extra_memory_on_gpu(largest, assignment.nccl,
                                                                                  agreed.ranks_per_node)
                                                   : std::vector<ExtraMemory>{}));
        if (on_gpus && !config.comm.nccl.empty())
          print_result("comm.nccl: {}\n", planner::nccl_table_name(config.comm.nccl));
        for (const std::string& line : planner::engine_lines(finished.engines, agreed)) print_result("{}\n", line);
        for (const std::string& line : planner::nccl_choices(*finished.job, written_nccl)) print_result("  {}\n", line);
        for (const std::string& remark : planner::remarks(*resolved, agreed, finished))
          print_result("note: {}\n", remark);
        print_result("{} and {} in a step; {} in all plans ({} implied ones pruned), plan {:016x}\n",
                     counted(std::ssize(finished.job->train().tasks), "task"),
                     counted(std::ssize(finished.job->train().spine), "spine item"),
                     counted(finished.proof.waits, "wait"), finished.proof.pruned_count, finished.proof.order_hash);
        write_planned(config, agreed, finished);
      }
      return 0;
    }
    const RunIdentity identity{.data_hash = dataset.hash,
                               .vocab = vocab,
                               .global_batch_size = finished.global_batch,
                               .config = config_lines(config)};
    std::optional<ResumePoint> resume;
    RunName name = run_name_of(world, config.output.dir, options.resume);
    if (options.ignore_memory) name.formers.clear();
    if (config.checkpoint.peer_interval > 0) world.together([&] { Keeper::require_own(name.keeper); });
    if (options.resume) {
      const auto newest = [&](bool verifies) {
        return find_newest_state(world, config.checkpoint.dir, name, {.verifies = verifies});
      };
      resume = options.replayed_step
                   ? find_resume_point(world, config.checkpoint.dir, {.most_step = *options.replayed_step - 1})
                   : newest(false);
      if (resume && resume->manifest.step >= config.train.steps) resume = newest(true);  // nothing may read it later
      if (config.checkpoint.peer_interval > 0 && !options.ignore_memory && !(resume && resume->memory))
        log_info("note: no complete snapshot of this run in the memory of its hosts is newer than its checkpoints");
      const auto require = [&] {
        require_resumable(*resume, identity, logical_tensors(finished.stages), options.sets);
      };
      std::optional<ResumePoint> on_disk;
      const std::string conflict = resume && resume->memory ? first_problem(world, problem_in(require)) : "";
      if (!conflict.empty()) on_disk = find_resume_point(world, config.checkpoint.dir);
      if (on_disk) {
        log_warn("[checkpoint] the snapshot of step {} in memory is not used, because this start conflicts with it: {}",
                 resume->manifest.step, conflict);
        resume = std::move(on_disk);
        name.formers.clear();
      }
      if (resume && !(resume->memory && conflict.empty())) world.together(require);
      if (resume && (resume->manifest.step > config.train.steps ||
                     (resume->manifest.step == config.train.steps && has_final_weights(world, config)))) {
        log_info("{} has step {} of {}: nothing is left to train", resume->path, resume->manifest.step,
                 config.train.steps);
        return 0;
      }
      if (!resume) world.together([&] { require_outside_of_runs(config.output.dir); });
      if (!resume) log_info("--resume: {} has no checkpoint; the run begins at step 1", config.checkpoint.dir);
    }
    if (!config.model.init.empty() && !resume)
      world.together([&] {
        // Each host compares all hashes, because hosts may have their own copies of the folder.
        const ModelFolder folder(config.model.init, {.index = world.rank_on_host(), .count = world.ranks_on_host()});
        if (world.rank() == 0 && !options.replayed_step)
          require_unmoved({.output = config.output.dir, .checkpoints = config.checkpoint.dir}, folder.dir());
        require_initial(folder, planner::model_options({.config = *resolved, .machine = agreed}), finished.stages);
      });
    print_start(world, assignment, *resolved, finished, agreed, threads, dataset.resident_bytes);
    if (world.rank() == 0)
      for (const std::string& note :
           planner::sets_without_effect(options, request_at(assignment, *resolved, agreed, world.rank()), finished))
        log_info("note: {}", note);
    if (options.replayed_step) {
      Trainer(world, assignment, *resolved, dataset, finished, agreed, identity, resume, std::nullopt,
              options.delay_seed, options.check_hazards)
          .replay(*options.replayed_step);
      return 0;
    }
    std::unique_ptr<RunDir> run_dir;
    std::unique_ptr<MetricSinks> sinks;  // of rank 0
    RunFolders folders{
        .output = config.output.dir,
        .checkpoints = config.checkpoint.dir,
        .weights_bytes = finished.job->parameter_elems * size_of(DType::f32),
        .checkpoint_bytes = saved_bytes(finished.stages),
        .checkpoints_kept = config.checkpoint.interval + config.checkpoint.interval_minutes == 0 || resume
                                ? 1
                                : config.checkpoint.keep + 1};
    if (!config.trace.steps.empty()) folders.last_traced_step = config.trace.steps[1];
    if (resume) folders.resumed_step = resume->manifest.step;
    if (resume) folders.skipped = std::exchange(resume->skipped, {});
    Json record;
    const auto record_resumed = [&] {
      record["resumed_from"] = resume->path;
      record["resumed_step"] = resume->manifest.step;
      // Until this start has snapshots of its own, the next one may continue those that it continues.
      Json& formers = record["continues"] = Json::array();
      for (const RunName::Former& former : name.formers) {
        if (!resume->memory) continue;
        Json each = Json::object();
        each["start"] = former.start;
        each["step"] = std::min(former.most_step, resume->manifest.step);
        formers.push_back(std::move(each));
      }
      run_dir->write("run.json", record.dump(2) + "\n");
    };
    world.together([&] { run_dir = std::make_unique<RunDir>(folders, world.rank() == 0); });
    world.together([&] { run_dir->open(); });
    name.keeper = keeper_name_of(world, name.run_id, config.output.dir);
    world.together([&] {
      if (config.checkpoint.peer_interval > 0) Keeper::require_own(name.keeper);
      if (world.rank() != 0) return;
      run_dir->write("config.resolved.toml", config_toml(config));
      record = run_json(world, assignment, *resolved, finished, agreed, threads);
      record["run_id"] = name.run_id;
      record["start"] = name.start;
      record["keeper"] = name.keeper;
      if (resume)
        record_resumed();
      else
        run_dir->write("run.json", record.dump(2) + "\n");
      run_dir->write("plan.json", planner::plan_record(config, agreed, finished));
      sinks = std::make_unique<MetricSinks>(config.output, folders.resumed_step.value_or(0));
    });
    if (std::error_code error; std::filesystem::is_directory(config.output.dir, error)) {
      records.emplace(config.output.dir);
      world.record_in(records->at("flight"));
    } else {
      world.record_in(config.output.dir + "/flight");
    }
    if (options.paced)
      log_info("--paced: works sleep for their planned times; losses mean nothing, and the weights stay untrained");
    if (options.delay_seed)
      log_info("--inject-delays {}: random pauses before works; results must not depend on them", *options.delay_seed);
    // Also while a run goes back to a checkpoint: the next step then ends it.
    StopSignals signals(world.rank() == 0);
    const auto run = [&] {
      Trainer trainer(world, assignment, *resolved, dataset, finished, agreed, identity, resume, name,
                      options.delay_seed, options.check_hazards, options.paced);
      if (resume) resume->memory.reset();  // it has been read
      const ExitCode ended = trainer.run(*run_dir, sinks.get(), signals, [&] {
        if (world.rank() == 0 && assignment.kind == DeviceKind::cuda)
          run_dir->write("run.json", with_choices(record, assignment, trainer.rank()).dump(2) + "\n");
      });
      log_info("memory:   {} resident at most{}, {} planned", format_bytes(peak_resident_bytes()),
               trainer.rank().job().mesh.sizes().pipeline > 1 ? " on rank 0" : "",
               format_bytes(trainer.rank().job().buffers.total_bytes()));
      if (on_gpus)
        log_info("{}", gpu_memory_line(assignment, trainer.rank().job(), agreed.ranks_per_node, free_at_start));
      log_info("metrics:  {}/metrics.jsonl", config.output.dir);
      if (!config.trace.steps.empty()) log_info("timeline: {}/trace/rank0000.json", config.output.dir);
      return static_cast<int>(ended);
    };
    const auto go_to = [&](ResumePoint point) {
      world.together([&] { run_dir->require_in_place(); });
      set_aside(world, std::exchange(point.skipped, {}));
      run_dir->keep_metrics(point.manifest.step);
      if (sinks) sinks->keep(point.manifest.step);
      resume = std::move(point);
    };
    std::vector<std::string> damages;
    for (int64_t returns = 0;;) {
      try {
        return run();
      } catch (const DamagedCheckpoint& damaged) {
        damages.push_back(fmt::format("{} is skipped: {}", resume->path, damaged.what()));
        std::optional<ResumePoint> older = find_newest_state(
            world, config.checkpoint.dir, name,
            {.most_step = resume->manifest.step - 1, .verifies = false, .reasons = damages, .skipped = {resume->path}});
        log_warn("[checkpoint] {}", damages.back());
        go_to(std::move(*older));
        if (world.rank() == 0) record_resumed();
      } catch (const Diverged& diverged) {
        if (config.train.on_nan != OnNan::rollback) throw;
        const int64_t before = resume ? resume->manifest.step : 0;
        ResumePoint point = go_back(world, config, diverged, resume);
        returns = point.manifest.step == before ? returns + 1 : 1;
        if (returns > config.train.max_skips)
          throw NumericsError("{} The run went back to step {} {} times, the limit of train.max_skips.",
                              diverged.what(), before, config.train.max_skips);
        go_to(std::move(point));
        if (fails_at("rollback.signal")) std::raise(SIGUSR1);
      }
    }
  } catch (const AgreedFailure& failure) {
    return static_cast<int>(failure.code());
  } catch (const Error& error) {
    // The other ranks may be inside a collective and cannot end by themselves.
    if (world.size() == 1) throw;
    // Losses and norms are sums over ranks, so all ranks see the same error and the lowest rank prints it. The others
    // leave by themselves only if it does not.
    const bool shared = error.code() == ExitCode::numerics;
    if (shared && world.rank() > 0) std::this_thread::sleep_for(std::chrono::seconds(5));
    std::fprintf(stderr, "slipstream: %s: %s\n",
                 shared && world.rank() == 0 ? "on all ranks" : fmt::format("on rank {}", world.rank()).c_str(),
                 error.what());
    world.abort(error.code());
  } catch (const std::bad_alloc&) {
    if (world.size() == 1) throw;
    std::fprintf(
        stderr, "slipstream: on rank %d: [host] out of memory. Use a smaller model, micro-batch or fewer ranks here.\n",
        world.rank());
    world.abort(ExitCode::resources);
  } catch (const std::exception& error) {
    if (world.size() == 1) throw;
    std::fprintf(stderr, "slipstream: on rank %d: [bug] %s. Please report it with the run file.\n", world.rank(),
                 error.what());
    world.abort(ExitCode::bug);
  }
}

}  // namespace slipstream::runtime
