// SPDX-License-Identifier: Apache-2.0
// Collects the facts that a reader needs to repeat a run.

#include "trainer/runtime/run_folder/run_json.h"

#include <unistd.h>

#include "comm/mpi/mpi_world.h"
#include "comm/nccl/launch_order.h"
#include "comm/nccl/nccl.h"
#include "engine/plan/memory.h"
#include "kernels/attention/attention.h"
#include "kernels/attention/attention_path.h"
#include "kernels/common/early_launch.h"
#include "kernels/common/isa.h"
#include "kernels/cuda/algorithms.h"
#include "trainer/planner/forecast/extra_memory.h"
#include "trainer/planner/forecast/plan_facts.h"
#include "trainer/planner/options/plan_options.h"
#include "trainer/runtime/run_folder/version.h"

namespace slipstream::runtime {

std::string driver_note(const RunConfig& config, const planner::FinishedJob& finished) {
  const int driver = finished.replay.serialised_by;
  if (driver == 0) return "";
  const auto version = [](int number) { return fmt::format("{}.{}", number / 1000, number % 1000 / 10); };
  const int needed = comm::nccl_serialises(driver, false) ? comm::kConcurrentLaunches : comm::kConcurrentCaptures;
  if (needed == comm::kConcurrentCaptures && config.device.graph == Choice::no) return "";
  const std::string text = fmt::format(
      "this driver supports CUDA {}; with drivers before {}, NCCL runs the collectives of different channels one by "
      "one in steps that are replayed as graphs",
      version(driver), version(comm::kConcurrentCaptures));
  if (needed == comm::kConcurrentLaunches)
    return text + fmt::format(", and with drivers before {} in all steps. Install a newer driver.", version(needed));
  return finished.replay.taken ? text + ". Install a newer driver, or set device.graph = false."
                               : text + ". Steps are launched task by task.";
}

Json run_json(const World& world, const DeviceAssignment& assignment, const ResolvedConfig& resolved,
              const planner::FinishedJob& finished, const Machine& machine, int threads) {
  const RunConfig& config = *resolved;
  const Job& job = *finished.job;
  Json run = Json::object();
  run["version"] = version();
  run["build"] = build_id();
  run["compiler"] = compiler();
  if (const std::string mpi = comm::mpi_version(); !mpi.empty()) run["mpi"] = mpi;
  run["products_library"] = products_library();
  char host[256] = "";
  if (::gethostname(host, sizeof host - 1) == 0) run["host"] = std::string(host);
  run["ranks"] = world.size();
  run["layout"] = planner::layout_json(job.mesh.sizes());
  run["ranks_per_node"] = machine.ranks_per_node;
  run["plan_hash"] = fmt::format("{:016x}", finished.proof.order_hash);
  if (assignment.kind == DeviceKind::cuda) {
    run["device"] = "cuda";
    run["gpu"] = assignment.name;
    run["attention"] = std::string(kernels::name_of(kernels::attention_path(assignment.capability)));
    run["attention_queries"] = kernels::attention_backward_queries();
    run["early_launch"] = kernels::early_launch(assignment.capability);
    run["nccl"] = comm::nccl_version();
    if (!assignment.nccl_hash.empty())
      run["nccl_table"] = fmt::format("{} (xxh3 {})", config.comm.nccl, assignment.nccl_hash);
    if (const planner::Engines& engines = finished.engines; !engines.channels.empty())
      run["engines"] = planner::engines_json(engines);
    run["cublaslt"] = kernels::gemm_library().version;
    run["graph"] = finished.replay.taken               ? "whole steps"
                   : config.device.graph == Choice::no ? "eager: device.graph = false"
                   : finished.replay.is_too_large() ? "eager: graphs of this many launches would take too much memory"
                                                    : "eager: a graph's barrier would cost more than the launches";
    run["timed_products"] = static_cast<int64_t>(assignment.timed_products);
  } else {
    run["device"] = "cpu";
    run["threads"] = threads;
    run["isa"] = std::string(kernels::name_of(kernels::isa()));
  }
  run["machine"] = machine.name;
  run["model"] = job.model.description;
  run["parameters"] = job.parameter_elems;
  run["memory_bytes"] = job.buffers.total_bytes();
  if (assignment.kind == DeviceKind::cuda)
    for (const ExtraMemory& row : planner::extra_memory_on_gpu(job, assignment.nccl, machine.ranks_per_node))
      run["beside_plan_bytes"][row.owner] = row.size_bytes;
  run["notes"] = Json::array();
  for (const std::string& remark : planner::remarks(resolved, machine, finished)) run["notes"].push_back(remark);
  if (const std::string note = driver_note(config, finished); !note.empty()) run["notes"].push_back(note);
  if (const std::string note = kernels::attention_remark(assignment.capability); !note.empty())
    run["notes"].push_back(note);
  if (const std::string note = planner::remark_on_threads(config); !note.empty()) run["notes"].push_back(note);
  return run;
}

Json with_choices(Json run, const DeviceAssignment& assignment, const Rank& rank) {
  Json& products = run["products"] = Json::object();
  products["table"] = assignment.algorithms;
  products["table_hash"] = assignment.algorithms_hash;
  Json& taken = products["taken"] = Json::object();
  for (const auto& [product, chosen] : kernels::chosen_algorithms()) {
    using From = kernels::ChosenAlgorithm::From;
    taken[kernels::text_of(product)] = chosen.from == From::table     ? "table"
                                       : chosen.from == From::library ? "first choice"
                                                                      : "kernel";
  }
  for (const std::string& reason : kernels::attention_fallbacks())
    run["notes"].push_back("attention does not use the instructions of sm_90a. " + reason);
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

}  // namespace slipstream::runtime
