// SPDX-License-Identifier: Apache-2.0
// slipstream train: sets up in agreement with all ranks, then hands over to the training loop.

#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <new>
#include <sstream>
#include <thread>

#include "cli/commands.h"
#include "cli/gpu_memory.h"
#include "cli/plan_facts.h"
#include "cli/tables.h"
#include "cli/trainer.h"
#include "cli/version.h"
#include "comm/mpi/mpi_world.h"
#include "comm/nccl/launch_order.h"
#include "comm/nccl/nccl.h"
#include "engine/base/json.h"
#include "engine/base/log.h"
#include "engine/base/units.h"
#include "engine/config/fields.h"
#include "engine/config/load.h"
#include "engine/config/validate.h"
#include "engine/data/hash.h"
#include "engine/device/cuda/cuda_choice.h"
#include "engine/plan/memory.h"
#include "kernels/common/isa.h"
#include "kernels/cuda/algorithms.h"

namespace slipstream::cli {
namespace {

/// The first lines in which two texts differ; empty where one ends.
std::pair<std::string, std::string> first_difference(const std::string& a, const std::string& b) {
  std::istringstream lines_a(a), lines_b(b);
  while (true) {
    std::string of_a, of_b;
    const bool more = static_cast<bool>(std::getline(lines_a, of_a)) | static_cast<bool>(std::getline(lines_b, of_b));
    if (of_a != of_b || !more) return {of_a, of_b};
  }
}

/// Every setting in a line, and the flags of train that all ranks must have.
std::string lines_of(const RunConfig& config, const TrainCommand& command) {
  std::string lines;
  for (const Field<RunConfig>& field : run_fields())
    lines += fmt::format("{} = {}\n", field.key, field_text(config, field.key));
  return lines + fmt::format("--dry-run {}\n--check-hazards {}\n--inject-delays {}\n", command.dry_run,
                             command.check_hazards,
                             command.delay_seed ? fmt::format("{}", *command.delay_seed) : "none");
}

/// Refuses to start when ranks disagree about what to run.
void require_same(World& world, const std::string& what, const std::string& value,
                  const std::string& remedy = "Start all ranks with the same run file, flags and build.") {
  const std::vector<std::string> values = world.all_gather(value);
  world.together([&] {
    for (size_t r = 1; r < values.size(); ++r)
      if (values[r] != values[0]) {
        const auto [theirs, ours] = first_difference(values[r], values[0]);
        throw ConfigError("[train] rank {} has another {} than rank 0 ({} against {}). {}", r, what, theirs, ours,
                          remedy);
      }
  });
}

/// What an old driver costs: NCCL's operations of different channels do not overlap each other in replayed steps, or in
/// none. Empty: nothing.
std::string driver_note(const RunConfig& config, const FinishedJob& finished) {
  const int driver = finished.replay.serialised_by;
  if (driver == 0) return "";
  const auto version = [](int number) { return fmt::format("{}.{}", number / 1000, number % 1000 / 10); };
  const int needed = comm::nccl_serialises(driver, false) ? comm::kConcurrentLaunches : comm::kConcurrentCaptures;
  if (needed == comm::kConcurrentCaptures && config.device.graph == Choice::no) return "";
  const std::string text = fmt::format(
      "this driver serves CUDA {}; before {} NCCL ends the collectives of one channel before it begins those of "
      "another in steps that are "
      "replayed as graphs",
      version(driver), version(comm::kConcurrentCaptures));
  if (needed == comm::kConcurrentLaunches)
    return text + fmt::format(", and before {} in all steps. Install a newer driver.", version(needed));
  return finished.replay.taken ? text + ". Install a newer driver, or set device.graph = false."
                               : text + ". Steps are launched task by task.";
}

Json run_json(const World& world, const Place& place, const RunConfig& config, const FinishedJob& finished,
              const Machine& machine, int threads) {
  const Job& job = *finished.job;
  const MeshSizes& sizes = job.mesh.sizes();
  Json run = Json::object();
  run["version"] = version();
  run["compiler"] = compiler();
  if (const std::string mpi = comm::mpi_version(); !mpi.empty()) run["mpi"] = mpi;
  run["products_library"] = products_library();
  char host[256] = "";
  if (::gethostname(host, sizeof host - 1) == 0) run["host"] = std::string(host);
  run["ranks"] = world.size();
  run["layout"]["data"] = sizes.data;
  run["layout"]["tensor"] = sizes.tensor;
  run["layout"]["pipeline"] = sizes.pipeline;
  run["layout"]["context"] = sizes.context;
  run["ranks_per_node"] = machine.ranks_per_node;
  run["plan_hash"] = fmt::format("{:016x}", finished.proof.order_hash);
  if (place.kind == DeviceKind::cuda) {
    run["device"] = "cuda";
    run["gpu"] = place.name;
    run["nccl"] = comm::nccl_version();
    if (!place.nccl_hash.empty()) run["nccl_table"] = fmt::format("{} (xxh3 {})", config.comm.nccl, place.nccl_hash);
    run["cublaslt"] = kernels::gemm_library().version;
    run["graph"] = finished.replay.taken               ? "whole steps"
                   : config.device.graph == Choice::no ? "eager: device.graph = false"
                   : finished.replay.is_too_large()    ? "eager: graphs of so many launches would take too much memory"
                                                       : "eager: a graph's barrier would cost more than the launches";
    run["timed_products"] = static_cast<int64_t>(place.timed_products);
  } else {
    run["device"] = "cpu";
    run["threads"] = threads;
    run["isa"] = std::string(kernels::name_of(kernels::isa()));
  }
  run["machine"] = machine.name;
  run["model"] = job.model.description;
  run["parameters"] = job.parameter_elems;
  run["memory_bytes"] = job.buffers.total_bytes();
  if (place.kind == DeviceKind::cuda)
    for (const Beside& row : beside_plan_on_gpu(job, place.nccl, machine.ranks_per_node))
      run["beside_plan_bytes"][row.owner] = row.size_bytes;
  run["notes"] = Json::array();
  for (const std::string& remark : remarks(config, machine, finished)) run["notes"].push_back(remark);
  if (const std::string note = driver_note(config, finished); !note.empty()) run["notes"].push_back(note);
  if (const std::string note = remark_on_threads(config); !note.empty()) run["notes"].push_back(note);
  return run;
}

/// run.json with what the GPU's libraries chose: functions of the tables, the libraries and the card.
Json with_choices(Json run, const Place& place, const Rank& rank) {
  Json& products = run["products"] = Json::object();
  products["table"] = place.algorithms;
  products["table_hash"] = place.algorithms_hash;
  Json& taken = products["taken"] = Json::object();
  for (const auto& [product, chosen] : kernels::chosen_algorithms()) {
    using From = kernels::ChosenAlgorithm::From;
    taken[kernels::text_of(product)] = chosen.from == From::table     ? "table"
                                       : chosen.from == From::library ? "first choice"
                                                                      : "kernel";
  }
  Json& channels = run["channels"] = Json::object();
  for (const auto& [name, reason] : rank.unregistered())
    channels[name]["registered"] = reason.empty() ? std::string("yes") : "no: " + reason;
  for (const comm::NcclUse& use : comm::nccl_uses()) {
    Json entry = Json::object();
    entry["verb"] = name_of(use.op);
    entry["up_to_bytes"] = use.up_to_bytes;
    entry["algorithm"] = comm::name_of(use.algorithm);
    entry["protocol"] = comm::name_of(use.protocol);
    entry["from"] = use.from_table ? "table" : "NCCL";
    channels[use.channel]["collectives"].push_back(std::move(entry));
  }
  return run;
}

/// On CPUs. A machine file speaks of one rank; this host is shared by as many ranks as were started on it.
/// `text_bytes`: of texts, which every rank keeps in the memory of its host.
void require_memory(World& world, const RunConfig& config, const Job& job, const Machine& machine, int64_t text_bytes) {
  const int64_t need = job.buffers.total_bytes() + text_bytes;
  // Stages of a pipeline need different amounts, and ranks of one host share its memory.
  const std::vector<std::string> needs = world.all_gather(fmt::format("{} {}", world.host(), need));
  world.together([&] {
    if (!config.device.machine.empty()) {
      if (machine.memory_bytes > 0 && need > machine.memory_bytes)
        throw ResourceError(
            "[plan] a rank needs {} but {} has {}. {}Use more ranks, a smaller train.micro_batch_size or a smaller "
            "model.\n{}",
            format_bytes(need), machine.name, format_bytes(machine.memory_bytes),
            slots_remedy(job, need - machine.memory_bytes), memory_table(job));
      return;
    }
    const int ranks = world.ranks_on_host();
    const int64_t host_bytes = machine.memory_bytes * ranks;
    int64_t all = 0;
    for (const std::string& told : needs) {
      int host = 0;
      int64_t bytes = 0;
      std::istringstream(told) >> host >> bytes;
      if (host == world.host()) all += bytes;
    }
    if (host_bytes > 0 && all > host_bytes)
      throw ResourceError(
          "[plan] {} on this host need{} {} but it has {}. {}Use a smaller train.micro_batch_size, or fewer ranks "
          "here.\n{}",
          ranks == 1 ? "1 rank" : fmt::format("{} ranks", ranks), ranks == 1 ? "s" : "", format_bytes(all),
          format_bytes(host_bytes), slots_remedy(job, (all - host_bytes + ranks - 1) / ranks), memory_table(job));
  });
}

/// The most memory that this process has had in RAM, as the kernel counts it; 0 where it does not say.
int64_t peak_resident_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string key; status >> key; status.ignore(4096, '\n')) {
    int64_t kib = 0;
    if (key == "VmHWM:" && status >> kib) return kib * kKiB;
  }
  return 0;
}

/// The weights are written last: a folder that cannot be is found out before the first step.
void require_folder(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error || ::access(path.c_str(), W_OK) != 0)
    throw ResourceError("[checkpoint] {} cannot be written: {}. Set checkpoint.dir to a folder that you may write to.",
                        path, error ? error.message() : std::strerror(errno));
}

void print_start(const World& world, const Place& place, const RunConfig& config, const FinishedJob& finished,
                 const Machine& machine, int threads, int64_t text_bytes) {
  const Job& job = *finished.job;
  log_info("{}: {} parameters", job.model.description, format_count(static_cast<double>(job.parameter_elems)));
  const std::string of_a_rank =
      place.kind == DeviceKind::cuda ? place.name : fmt::format("{} thread{}", threads, threads == 1 ? "" : "s");
  log_info("{} rank{} x {}, {} per step of {} sequences x {} tokens, {} in {} bucket{}", world.size(),
           world.size() == 1 ? "" : "s", of_a_rank,
           finished.micro_batches == 1 ? "one micro-batch" : fmt::format("{} micro-batches", finished.micro_batches),
           finished.global_batch, config.train.sequence_length, name_of(job.options.way), job.layout.buckets.size(),
           job.layout.buckets.size() == 1 ? "" : "s");
  if (finished.stages.size() > 1)
    log_info("{}",
             schedule_line(config, finished.stages,
                           played_schedule(finished.stages, price_of(config, machine, job.mesh), finished.hop_ns)));
  for (const std::string& remark : remarks(config, machine, finished)) log_info("note: {}", remark);
  if (const std::string note = driver_note(config, finished); !note.empty()) log_warn("[nccl] {}", note);
  if (const std::string note = remark_on_threads(config); !note.empty()) log_warn("[device] {}", note);
  const Job& largest = largest_stage(finished);
  std::string beside;
  if (place.kind == DeviceKind::cuda)
    for (const Beside& row : beside_plan_on_gpu(largest, place.nccl, machine.ranks_per_node))
      beside += fmt::format(", {} {}", row.owner, format_bytes(row.size_bytes));
  log_info("memory of a rank{}: {}{}{}",
           finished.stages.size() > 1 ? fmt::format(" (stage {}, which needs most)", largest.stage()) : "",
           format_bytes(largest.buffers.total_bytes()),
           text_bytes > 0 ? fmt::format(" and {} of text", format_bytes(text_bytes)) : "",
           beside.empty() ? "" : "; beside it on the GPU" + beside.substr(1));
}

}  // namespace

int train(const TrainCommand& command) {
  World world;
  log_setup(world.rank());
  RunConfig config;
  Machine machine;
  FinishedJob finished;
  data::Dataset dataset;
  int threads = 1;
  Place place;
  try {
    world.together([&] {
      if (command.resume)
        throw ConfigError(
            "[train] --resume is not supported by this version: it keeps final weights only. Start without it.");
      config = load_run_config(command.run_file, command.sets);
      require_supported(config);
      require_layout(config, world.size());
      kernels::isa();  // a set asked for that cannot run here is refused before an older run is moved aside
      threads = threads_of(config, world.ranks_on_host());
    });
    require_same(world, "configuration", lines_of(config, command));
    if (!command.dry_run) place = choose_place(world, config);
    if (place.kind == DeviceKind::cpu)  // the copies that ranks have of the weights would drift apart
      require_same(world, "instruction set", std::string(kernels::name_of(kernels::isa())),
                   "Set SLIPSTREAM_ISA to the lower one on all hosts.");
    int64_t vocab = 0;
    world.together([&] {
      machine = machine_at(place, config, threads, world.ranks_on_host());
      if (command.dry_run) {
        vocab = vocab_of(config);
      } else {
        dataset =
            data::open_dataset({.train = config.data.train,
                                .validation = config.data.validation,
                                .validation_fraction = config.data.validation_fraction,
                                .tokenizer = config.data.tokenizer,
                                .sequence_length = config.train.sequence_length,
                                .check = world.rank_on_host() == 0 ? data::ShardCheck::whole : data::ShardCheck::size});
        vocab = dataset.tokenizer->vocab_size();
      }
    });
    require_same(world, "data", dataset.hash, "Give all hosts the same files.");
    const Machine agreed = agreed_machine(world, machine);
    world.together([&] {
      if (command.dry_run && config.device.kind == DeviceChoice::cuda) {  // as on a GPU that is not here
        place.kind = DeviceKind::cuda;
        place.nccl = comm::NcclTable::parse(comm::NcclTable::read_text(config.comm.nccl), config.comm.nccl);
      }
      finished = build_finished_job(request_at(place, config, agreed, world.size(), world.rank(), vocab));
    });
    const bool on_gpus = place.kind == DeviceKind::cuda;
    if (!on_gpus && !command.dry_run) require_memory(world, config, *finished.job, machine, dataset.resident_bytes);
    int64_t free_at_start = 0;  // of the GPU
    if (on_gpus && !command.dry_run) {
      require_gpu_memory(world, place, *finished.job, agreed.ranks_per_node);
      free_at_start = describe_cuda_device(place.gpu).free_bytes;
    }
    require_same(world, "plan", fmt::format("{:016x}", finished.proof.order_hash));
    if (command.dry_run) {
      if (world.rank() == 0) {
        const Job& largest = largest_stage(finished);
        fmt::print("{}\n{}: {} parameters\n{}", plan_listing(*finished.job), finished.job->model.description,
                   finished.job->parameter_elems,
                   memory_table(largest, on_gpus ? beside_plan_on_gpu(largest, place.nccl, agreed.ranks_per_node)
                                                 : std::vector<Beside>{}));
        if (on_gpus && !config.comm.nccl.empty()) fmt::print("comm.nccl: {}\n", nccl_table_name(config.comm.nccl));
        for (const std::string& line : nccl_choices(*finished.job, place.nccl)) fmt::print("  {}\n", line);
        for (const std::string& remark : remarks(config, agreed, finished)) fmt::print("note: {}\n", remark);
        fmt::print(
            "{} tasks and {} spine items in a step; {} waits in all plans ({} implied ones pruned), plan {:016x}\n",
            finished.job->train.tasks.size(), finished.job->train.spine.size(), finished.proof.waits,
            finished.proof.pruned_count, finished.proof.order_hash);
      }
      return 0;
    }
    print_start(world, place, config, finished, agreed, threads, dataset.resident_bytes);
    std::unique_ptr<RunDir> run_dir;
    Json written;
    world.together([&] {
      // Refused before an older run is moved aside; a folder inside it would be moved, too.
      if (world.rank() == 0 && !config.checkpoint.dir.starts_with(config.output.dir + "/"))
        require_folder(config.checkpoint.dir);
      run_dir = std::make_unique<RunDir>(config.output.dir, world.rank() == 0);
      if (world.rank() != 0) return;
      require_folder(config.checkpoint.dir);
      run_dir->write("config.resolved.toml", config_toml(config));
      written = run_json(world, place, config, finished, agreed, threads);
      run_dir->write("run.json", written.dump(2) + "\n");
    });
    if (command.delay_seed)
      log_info("--inject-delays {}: random pauses before works; results must not depend on them", *command.delay_seed);
    Trainer trainer(world, place, config, dataset, std::move(finished), agreed, command.delay_seed,
                    command.check_hazards);
    trainer.run(*run_dir, [&] {
      if (world.rank() == 0 && place.kind == DeviceKind::cuda)
        run_dir->write("run.json", with_choices(written, place, trainer.rank()).dump(2) + "\n");
    });
    log_info("memory{}: at most {} resident, {} of them planned",
             trainer.rank().job().mesh.sizes().pipeline > 1 ? " of rank 0" : "", format_bytes(peak_resident_bytes()),
             format_bytes(trainer.rank().job().buffers.total_bytes()));
    if (on_gpus) log_info("{}", gpu_memory_line(place, trainer.rank().job(), agreed.ranks_per_node, free_at_start));
    log_info("metrics: {}/metrics.jsonl{}", config.output.dir,
             config.trace.steps.empty() ? "" : fmt::format("; timeline: {}/trace/rank0000.json", config.output.dir));
    return 0;
  } catch (const AgreedFailure& failure) {
    return static_cast<int>(failure.code());
  } catch (const Error& error) {
    // The others may be inside a collective: nobody else will end them.
    if (world.size() == 1) throw;
    // Losses and norms are sums over ranks: what one rank sees of them all see, and the lowest speaks for all. The
    // others leave by themselves only if it does not.
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

}  // namespace slipstream::cli
