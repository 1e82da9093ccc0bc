// SPDX-License-Identifier: Apache-2.0
// The table of software profiles, and files with other constants.

#include "trainer/planner/forecast/software.h"

#include <algorithm>

#include <fmt/ranges.h>

#include "engine/base/check.h"
#include "engine/base/units.h"
#include "engine/config/shipped.h"
#include "engine/config/toml.h"

namespace slipstream::planner {
namespace {

const std::vector<Field<Software>>& software_fields() {
  using F = FieldKinds<Software>;
  const auto& at = [](auto member) { return F::at(member); };
  static const std::vector<Field<Software>> fields = {
      F::word("base", at(&Software::base), {"slipstream", "megatron", "fsdp", "llmq"}, "Profile that this changes."),
      F::real("moved_bytes_factor", at(&Software::moved_bytes_factor), {0, 100, true},
              "Bytes of memory-bound kernels, relative to this program."),
      F::real("attention_factor", at(&Software::attention_factor), {0, 10, true},
              "Speed of attention, relative to the machine's."),
      F::quantity("host", at(&Software::host_ns), detail::duration_quantity(), {0, kSecond},
                  "Time of the host to launch one kernel."),
      F::integer("comm_multiprocessors", at(&Software::comm_multiprocessors), {0, 1024},
                 "Multiprocessors that a transfer takes from compute."),
      F::quantity("bucket_per_rank", at(&Software::bucket_bytes_per_rank), detail::size_quantity(),
                  {0, int64_t{1} << 40}, "Least bucket size, per data and context rank."),
      F::boolean("overlaps", at(&Software::overlaps), "Gradients and messages between stages travel beside compute."),
      F::word("memory", at(&Software::memory), {"plan", "fsdp", "fsdp_compiled_loss"},
              "What a rank keeps: as this program's plan, or as PyTorch's FSDP "
              "(trainer/planner/forecast/software_memory.h)."),
      F::boolean("stores_scores", at(&Software::stores_scores), "Attention as products with stored scores."),
  };
  return fields;
}

/// Returns settings under which gradients travel as float32, one update follows the last reduction, and no step is one
/// graph.
std::vector<std::string> overlap_of(std::vector<std::string> own) {
  std::vector<std::string> sets = {"comm.grad_dtype=float32",
                                   "optimizer.double_buffer=false",
                                   "overlap.optimizer_per_bucket=false",
                                   "overlap.split_tied_embedding=false",
                                   "train.head_tokens=0",
                                   "device.graph=false"};
  sets.insert(sets.end(), own.begin(), own.end());
  return sets;
}

SoftwareProfile built_in(SoftwareBase base) {
  switch (base) {
    case SoftwareBase::slipstream:
      return {};
    case SoftwareBase::megatron:
      return {{.name = "megatron",
               .base = base,
               .moved_bytes_factor = 2.4,
               .attention_factor = 1,
               .host_ns = 0,
               .comm_multiprocessors = 16,
               // Megatron-Core, DistributedDataParallel: max(40M, 1M x ranks) float32 elements
               .bucket_bytes_per_rank = 4'000'000},
              overlap_of({"overlap.tensor_chunks=1", "overlap.bucket_size=160MiB"})};
    case SoftwareBase::fsdp:
      return {{.name = "fsdp",
               .base = base,
               .moved_bytes_factor = 4.7,
               .attention_factor = 0.54,  // FlashAttention 2 compared with 3 on H100: 335 and 616 TFLOP/s
               .host_ns = 0,
               .comm_multiprocessors = 24,
               .memory = SoftwareMemory::fsdp},
              overlap_of({"overlap.tensor_chunks=1"})};
    case SoftwareBase::llmq:
      return {{.name = "llmq",
               .base = base,
               .moved_bytes_factor = 1,
               .attention_factor = 1,
               .host_ns = 0,
               .comm_multiprocessors = 24},
              overlap_of({"comm.grad_dtype=bfloat16"})};
  }
  return {};
}

}  // namespace

SoftwareProfile software_profile(const std::string& name) {
  constexpr std::string_view kFp8 = "+fp8";
  if (name.ends_with(kFp8)) {
    SoftwareProfile profile = software_profile(name.substr(0, name.size() - kFp8.size()));
    profile.software.fp8 = true;
    return profile;
  }
  const std::vector<std::string> names = {"slipstream", "megatron", "fsdp", "llmq"};
  if (name.empty()) return {};
  if (const auto found = std::find(names.begin(), names.end(), name); found != names.end())
    return built_in(static_cast<SoftwareBase>(found - names.begin()));
  const std::vector<std::string> shipped = shipped_names("software");
  if (!name.ends_with(".toml") && !std::binary_search(shipped.begin(), shipped.end(), name))
    throw ConfigError("[plan] unknown software '{}'. Use {}{}{}, or the path of a profile that ends in .toml.", name,
                      fmt::join(names, ", "), shipped.empty() ? "" : ", ", fmt::join(shipped, ", "));
  const char* const wanted = "a software profile with the key 'base'";
  const std::vector<TomlEntry> entries = read_toml(path_or_shipped(name, "software", wanted), wanted);
  Software chosen;
  set_fields(software_fields(), chosen, entries);
  SoftwareProfile profile = built_in(chosen.base);
  set_fields(software_fields(), profile.software, entries);
  profile.software.name = name;
  if (!profile.software.overlaps)
    profile.sets.insert(profile.sets.end(), {"overlap.grad_reduce=flat", "overlap.p2p=false"});
  return profile;
}

}  // namespace slipstream::planner
