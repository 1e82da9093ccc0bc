// SPDX-License-Identifier: Apache-2.0
// The ranks compare the tables by hash before they use them, because different tables would cause hangs or different
// bits.

#include "trainer/runtime/rank/library_tables.h"

#include <cstdlib>
#include <filesystem>

#include <fmt/ranges.h>

#include "engine/base/check.h"
#include "engine/base/files.h"
#include "engine/base/hash.h"
#include "engine/base/log.h"
#include "kernels/cuda/algorithms.h"

namespace slipstream::runtime {
namespace {

constexpr int64_t kLimitBytes = int64_t{64} << 20;

// The variables that must be equal on all ranks of a communicator. Otherwise ranks run different algorithms, wait for
// blocks that are never launched, or read memory in place that one rank lacks. NCCL's other variables (interfaces,
// adapters, logs) may differ between hosts.
constexpr const char* kAgreed[] = {"NCCL_ALGO",
                                   "NCCL_PROTO",
                                   "NCCL_BUFFSIZE",
                                   "NCCL_LL_BUFFSIZE",
                                   "NCCL_LL128_BUFFSIZE",
                                   "NCCL_NTHREADS",
                                   "NCCL_MIN_NCHANNELS",
                                   "NCCL_MAX_NCHANNELS",
                                   "NCCL_MIN_CTAS",
                                   "NCCL_MAX_CTAS",
                                   "NCCL_CGA_CLUSTER_SIZE",
                                   "NCCL_NVLS_ENABLE",
                                   "NCCL_COLLNET_ENABLE",
                                   "NCCL_CUMEM_ENABLE",
                                   "NCCL_P2P_NET_CHUNKSIZE",
                                   "NCCL_TUNER_PLUGIN",
                                   "NCCL_LAUNCH_ORDER_IMPLICIT",
                                   "NCCL_GRAPH_MIXING_SUPPORT"};

std::string hash_of(const std::string& text) { return data::xxh3_128_hex(text.data(), std::ssize(text)); }

/// Returns "rank 3" or "ranks 1, 3".
std::string ranks_text(const std::vector<size_t>& ranks) {
  return fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", "));
}

/// Returns the hash of this rank's file at `path`; empty without a file, which means rank 0's table.
std::string hash_here(const std::string& path) {
  std::error_code error;
  if (path.empty() || !std::filesystem::exists(path, error)) return "";
  try {
    return hash_of(files::read_file(path, files::Owner::data, kLimitBytes));
  } catch (const Error&) {
    return "unreadable";
  }
}

/// Blocks. Collective.
void require_same_file(World& world, const std::string& key, const std::string& path) {
  const std::vector<std::string> hashes = world.all_gather(hash_here(path));
  world.together([&] {
    std::vector<size_t> other;
    for (size_t r = 1; r < hashes.size(); ++r)
      if (!hashes[r].empty() && hashes[r] != hashes[0]) other.push_back(r);
    if (other.empty()) return;
    throw ConfigError(
        "[tables] {} {} a different {} = {} than rank 0 (xxh3 {} and {}). Copy rank 0's file to every host, or remove "
        "the other files: a rank without the file uses rank 0's.",
        ranks_text(other), other.size() == 1 ? "finds" : "find", key, path, hashes[other[0]],
        hashes[0].empty() ? "none" : hashes[0]);
  });
}

/// Blocks. Collective. Compares the variables, because a launcher may pass a variable only to the ranks of its own
/// host.
void require_same_variables(World& world) {
  for (const char* name : kAgreed) {
    const char* own = std::getenv(name);
    const std::vector<std::string> values =
        world.all_gather(own ? fmt::format("{}={}", name, own) : fmt::format("{} not set", name));
    world.together([&] {
      std::vector<size_t> other;
      for (size_t r = 1; r < values.size(); ++r)
        if (values[r] != values[0]) other.push_back(r);
      if (other.empty()) return;
      throw ConfigError(
          "[tables] {} ha{} {}, but rank 0 has {}, so their collectives would not match. Set the same value on all "
          "ranks, for instance with mpirun -x {}.",
          ranks_text(other), other.size() == 1 ? "s" : "ve", values[other[0]], values[0], name);
    });
  }
}

void read_nccl(World& world, const RunConfig& config, LibraryTables& tables) {
  const std::string& path = config.comm.nccl;
  std::string text;
  world.together([&] {
    if (world.rank() == 0) text = comm::NcclTable::read_text(path);
  });
  require_same_file(world, "comm.nccl", path);
  text = world.all_gather(text)[0];
  world.together([&] { tables.nccl = comm::NcclTable::parse(text, path); });
  if (!path.empty()) tables.nccl_hash = hash_of(text);
}

void read_products(World& world, const RunConfig& config, LibraryTables& tables) {
  const kernels::GemmLibrary library = kernels::gemm_library();
  const bool named = config.device.algorithms != "auto";
  tables.algorithms = kernels::algorithms_path(config.device.algorithms, library);
  if (named) require_same_file(world, "device.algorithms", tables.algorithms);
  std::string warning, text;
  if (world.rank() == 0) text = kernels::read_algorithms(tables.algorithms, library, warning).text();
  if (!warning.empty()) log_warn("{}", warning);
  text = world.all_gather(text)[0];
  kernels::AlgorithmTable table(library);
  std::string refusal;
  try {
    table = kernels::AlgorithmTable::parse(text, "the table of rank 0", library);
  } catch (const Error& error) {
    refusal = error.what();
  }
  // An empty table suits every rank.
  const bool empty = world.all_gather(table.size() > 0 ? "" : "empty")[0] == "empty";
  const std::vector<std::string> refusals = world.all_gather(empty ? "" : refusal);
  std::vector<size_t> refusing;
  for (size_t r = 0; r < refusals.size(); ++r)
    if (!refusals[r].empty()) refusing.push_back(r);
  if (!refusing.empty()) {
    const std::string conflict = fmt::format("{} cannot use rank 0's device.algorithms = {}: {}", ranks_text(refusing),
                                             tables.algorithms, refusals[refusing[0]]);
    world.together([&] {
      if (named)
        throw ConfigError(
            "[tables] {} Products would differ between ranks. Set device.algorithms = \"\", or use one GPU model and "
            "one version of cuBLASLt on all ranks.",
            conflict);
    });
    if (world.rank() == 0) log_warn("[cuda] {} The products of all ranks use cuBLASLt's first choice.", conflict);
    table = kernels::AlgorithmTable(library);
  }
  tables.timed_products = table.size();
  if (tables.timed_products == 0)
    tables.algorithms.clear();
  else
    tables.algorithms_hash = hash_of(text);
  kernels::use_algorithms(std::move(table));
}

}  // namespace

void read_tables(World& world, const RunConfig& config, LibraryTables& tables) {
  require_same_variables(world);
  read_nccl(world, config, tables);
  read_products(world, config, tables);
}

}  // namespace slipstream::runtime
