// SPDX-License-Identifier: Apache-2.0
// Agrees on the inputs of a run, plans it, and prints the plan.

#include "trainer/runtime/loop/planned_run.h"

#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/mpi/launcher.h"
#include "engine/base/check.h"
#include "engine/base/delay_point.h"
#include "engine/base/files.h"
#include "engine/base/log.h"
#include "engine/base/plural.h"
#include "engine/base/print.h"
#include "engine/base/units.h"
#include "engine/config/validate.h"
#include "engine/device/cuda/cuda_choice.h"
#include "engine/plan/memory.h"
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
#include "trainer/runtime/rank/agreement.h"
#include "trainer/runtime/rank/memory_check.h"
#include "trainer/runtime/run_folder/run_json.h"
#include "trainer/runtime/run_folder/version.h"

namespace slipstream::runtime {
namespace {

/// Returns every setting on one line, and the flags that must be equal on all ranks.
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

comm::WaitLimits limits_of(const RunConfig& config) {
  return {.start_seconds = static_cast<double>(config.comm.start_timeout_seconds),
          .step_seconds = static_cast<double>(config.comm.timeout_seconds),
          .save_seconds = static_cast<double>(config.comm.save_timeout_seconds)};
}

/// Blocks. Reads the run file. Throws: ConfigError if no run can have this file, or if a run with these flags cannot.
RunConfig supported_config(const TrainOptions& options) {
  RunConfig config = planner::load_run(options.run_file, options.sets, options.resume);
  require_supported(config);
  delays_asked();  // refuses a request that cannot be read
  if (const auto step = options.replayed_step; step && (*step < 1 || *step > config.train.steps))
    throw ConfigError("[train] --replay {} is no step of this run. Use 1 to train.steps = {}.", *step,
                      config.train.steps);
  const bool saves = config.checkpoint.interval + config.checkpoint.interval_minutes > 0;
  if (options.paced &&
      (options.resume || saves || config.checkpoint.peer_interval > 0 || config.device.kind == DeviceChoice::cuda))
    throw ConfigError(
        "[train] --paced computes nothing, so that its weights are worth no checkpoint, and runs on CPUs. Leave out "
        "--resume, checkpoint.interval and checkpoint.peer_interval, and use device.kind = \"cpu\".");
  return config;
}

/// Throws: ConfigError if rows cannot travel by counts here, because nothing counts or reads them.
void require_rows_travel(const ResolvedConfig& config, const TrainOptions& options) {
  if (config->parallel.expert_exchange != ExpertExchange::exact || config.layout().expert == 1 || options.dry_run)
    return;
  if (config.on_gpus())
    throw ConfigError(
        "[parallel] parallel.expert_exchange = \"exact\" does not run on GPUs: the device counts the rows of the "
        "experts "
        "of {} ranks, but NCCL takes the sizes of messages from the host. Use \"gather\" or \"auto\".",
        config.layout().expert);
  if (options.paced)
    throw ConfigError(
        "[train] --paced computes nothing, and so no counts of the rows that {} ranks exchange. Use "
        "parallel.expert_exchange = \"gather\", or parallel.expert = 1.",
        config.layout().expert);
}

/// Blocks. Opens the data. For a dry run, only finds its vocabulary. Throws: DataError.
void open_data(const World& world, const TrainOptions& options, AgreedInputs& inputs) {
  if (options.dry_run) {
    inputs.vocab = planner::vocab_of(inputs.written);
    return;
  }
  const data::ShardCheck check = world.rank_on_host() == 0 ? data::ShardCheck::whole : data::ShardCheck::size;
  inputs.dataset = data::open_dataset(planner::dataset_options(inputs.written, check, inputs.threads));
  inputs.vocab = inputs.dataset.tokenizer->vocab_size();
}

/// Blocks. Collective. Requires that the memory of the ranks is free: that of the GPU, which is returned, or that of
/// the host.
int64_t require_memory(World& world, const PlannedRun& run) {
  const Job& job = *run.finished.job;
  if (run.on_gpus()) {
    require_gpu_memory(world, run.assignment, job, run.machine.ranks_per_node);
    return describe_cuda_device(run.assignment.gpu).free_bytes;
  }
  require_host_memory(world, *run.config, job, run.own_machine, run.dataset.resident_bytes);
  return 0;
}

/// Blocks. Writes plan.json of a run that does not begin. A folder that holds a run keeps the plan.json of that run.
void write_planned(const PlannedRun& run) {
  const std::string& dir = run.config->output.dir;
  std::error_code error;
  if (std::filesystem::exists(dir + "/run.json", error)) {
    print_result(
        "note: {} holds an earlier run and the plan.json of that run. Set output.dir to another folder to write this "
        "plan.\n",
        dir);
    return;
  }
  std::filesystem::create_directories(dir, error);
  if (error)
    throw ResourceError("[output] {} cannot be made: {}. Set output.dir to another folder.", dir, error.message());
  files::write_file(dir + "/plan.json", planner::plan_record(*run.config, run.machine, run.finished));
  print_result("{}/plan.json has the plan with its rehearsed times\n", dir);
}

void print_memory(const PlannedRun& run) {
  const Job& largest = planner::largest_stage(run.finished);
  const int64_t index_bytes = run.dataset.resident_bytes;
  std::string beside;
  if (run.on_gpus())
    for (const ExtraMemory& row :
         planner::extra_memory_on_gpu(largest, run.assignment.nccl, run.machine.ranks_per_node))
      beside += fmt::format(", {} {}", row.owner, format_bytes(row.size_bytes));
  log_info("memory of a rank{}: {}{}{}",
           run.finished.stages.size() > 1 ? fmt::format(" (stage {}, which needs most)", largest.stage()) : "",
           format_bytes(largest.buffers.total_bytes()),
           index_bytes > 0 ? fmt::format(" and {} of positions in the text", format_bytes(index_bytes)) : "",
           beside.empty() ? "" : "; beside it on the GPU" + beside.substr(1));
}

}  // namespace

comm::WaitLimits limits_before_mpi(const TrainOptions& options) {
  try {
    return limits_of(planner::load_run(options.run_file, options.sets, options.resume));
  } catch (const Error&) {
    return {};
  }
}

AgreedInputs agree_on_inputs(World& world, const TrainOptions& options) {
  AgreedInputs inputs;
  // Every command exchanges failures first: a rank whose command line is wrong takes part in no other exchange.
  world.together([] { comm::require_no_foreign_launcher("train"); });
  // This comes before all other exchanges, because other builds may exchange other values.
  require_same(world, "build", build_id(), "Install the same build on all hosts; slipstream --version prints it.");
  world.together([&] {
    inputs.written = supported_config(options);
    planner::require_layout(inputs.written, world.size());
    kernels::isa();  // refuses an unusable SLIPSTREAM_ISA before an older run is renamed
    inputs.threads = planner::threads_of(inputs.written, world.ranks_on_host());
    world.limit(limits_of(inputs.written));
  });
  require_same(world, "configuration", lines_of(inputs.written, options));
  if (!options.dry_run) inputs.assignment = assign_device(world, inputs.written);
  if (inputs.assignment.kind == DeviceKind::cpu)  // otherwise the ranks' copies of the weights would diverge
    require_same(world, "instruction set", std::string(kernels::name_of(kernels::isa())),
                 "Set SLIPSTREAM_ISA to the lower one on all hosts.");
  world.together([&] {
    inputs.own_machine = machine_at(inputs.assignment, inputs.written, inputs.threads, world.ranks_on_host());
    open_data(world, options, inputs);
  });
  require_same(world, "data", inputs.dataset.hash, "Give all hosts the same files.");
  for (const std::string& note : inputs.dataset.notes) log_info("note: {}", note);
  inputs.machine = agreed_machine(world, inputs.own_machine);
  return inputs;
}

PlannedRun plan_run(World& world, const TrainOptions& options, AgreedInputs inputs) {
  std::optional<ResolvedConfig> config;
  planner::FinishedJob finished;
  comm::NcclTable written_nccl;
  world.together([&] {
    DeviceAssignment& assignment = inputs.assignment;
    const RunConfig& written = inputs.written;
    if (options.dry_run && planner::computes_on_gpus(written, inputs.machine)) {  // a GPU that this host may lack
      assignment.kind = DeviceKind::cuda;
      assignment.nccl = comm::NcclTable::parse(comm::NcclTable::read_text(written.comm.nccl), written.comm.nccl);
    }
    config = resolve(written,
                     {.world = world.size(), .on_gpus = assignment.kind == DeviceKind::cuda, .vocab = inputs.vocab});
    require_rows_travel(*config, options);
    finished = planner::build_finished_job(request_at(assignment, *config, inputs.machine, world.rank()));
    written_nccl = std::exchange(assignment.nccl, finished.engines.nccl);
  });
  PlannedRun run{std::move(inputs), *std::move(config), std::move(finished), std::move(written_nccl)};
  if (!options.dry_run) run.free_at_start = require_memory(world, run);
  require_same_plan(world, run.finished);
  return run;
}

RunIdentity identity_of(const PlannedRun& run) {
  return {.data_hash = run.dataset.hash,
          .vocab = run.vocab,
          .global_batch_size = run.finished.global_batch,
          .config = config_lines(*run.config)};
}

void print_plan(const PlannedRun& run) {
  const planner::FinishedJob& finished = run.finished;
  const Job& job = *finished.job;
  const Job& largest = planner::largest_stage(finished);
  std::vector<ExtraMemory> extra;
  if (run.on_gpus()) extra = planner::extra_memory_on_gpu(largest, run.assignment.nccl, run.machine.ranks_per_node);
  print_result("{}\n{}: {} parameters\n{}", planner::plan_listing(job), job.model.description, job.parameter_elems,
               memory_table(largest, extra));
  if (const std::string line = planner::experts_line(run.config); !line.empty()) print_result("experts: {}\n", line);
  if (run.on_gpus() && !run.config->comm.nccl.empty())
    print_result("comm.nccl: {}\n", planner::nccl_table_name(run.config->comm.nccl));
  for (const std::string& line : planner::engine_lines(finished.engines, run.machine)) print_result("{}\n", line);
  for (const std::string& line : planner::nccl_choices(job, run.written_nccl)) print_result("  {}\n", line);
  for (const std::string& remark : planner::remarks(run.config, run.machine, finished))
    print_result("note: {}\n", remark);
  print_result("{} and {} in a step; {} in all plans ({} implied ones pruned), plan {:016x}\n",
               counted(std::ssize(job.train().tasks), "task"), counted(std::ssize(job.train().spine), "spine item"),
               counted(finished.proof.waits, "wait"), finished.proof.pruned_count, finished.proof.order_hash);
  write_planned(run);
}

void print_start(const World& world, const TrainOptions& options, const PlannedRun& run) {
  const RunConfig& config = *run.config;
  const planner::FinishedJob& finished = run.finished;
  const Job& job = *finished.job;
  log_info("{}: {} parameters", job.model.description, format_count(static_cast<double>(job.parameter_elems)));
  log_info("{} x {}, {} per step of {} x {}, {} in {}", counted(world.size(), "rank"),
           run.on_gpus() ? run.assignment.name : counted(run.threads, "thread"),
           counted(finished.micro_batches, "micro-batch"), counted(finished.global_batch, "sequence"),
           counted(config.train.sequence_length, "token"), name_of(job.options.reduce_mode),
           counted(std::ssize(job.layout.buckets), "bucket"));
  if (finished.stages.size() > 1)
    log_info("{}", planner::schedule_line(
                       config, finished.stages,
                       planner::played_schedule(finished.stages, planner::price_of(config, run.machine, job.mesh),
                                                finished.transfer_ns)));
  for (const std::string& remark : planner::remarks(run.config, run.machine, finished)) log_info("note: {}", remark);
  if (const std::string problem =
          planner::short_interval(config.checkpoint, planner::write_seconds(finished, config.checkpoint), 0);
      !problem.empty())
    log_info("note: {}", problem);
  if (const std::string note = driver_note(config, finished); !note.empty()) log_warn("[nccl] {}", note);
  if (const std::string note = planner::remark_on_threads(config); !note.empty()) log_warn("[device] {}", note);
  print_memory(run);
  if (world.rank() > 0) return;
  const planner::JobRequest request = request_at(run.assignment, run.config, run.machine, world.rank());
  for (const std::string& note : planner::sets_without_effect(options, request, finished)) log_info("note: {}", note);
}

}  // namespace slipstream::runtime
