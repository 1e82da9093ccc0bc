// SPDX-License-Identifier: Apache-2.0
// The keys whose values wait for later versions. A value without effect is refused and never ignored.

#include <filesystem>
#include <system_error>

#include "engine/base/check.h"
#include "engine/config/fields.h"
#include "engine/config/validate.h"

namespace slipstream {
namespace {

using R = const RunConfig&;

}  // namespace

const std::vector<SupportedRow>& supported_rows() {
  static const std::vector<SupportedRow> rows = {
      {"data.tokenizer",
       [](R c) {
         const std::string& name = c.data.tokenizer;
         std::error_code no_folder;
         return name == "bytes" || name == "chars" || name.ends_with(".json") || name.ends_with(".tiktoken") ||
                std::filesystem::is_directory(name, no_folder);
       },
       "use \"bytes\", \"chars\" or the path of a folder with a tokenizer, a tokenizer.json or NAME.tiktoken; with any "
       "other tokenizer, train on "
       "token shards (docs/how-to/token-shards.md)"},
      // The parts of [model.experts] that no code computes yet.
      {"model.experts.balance", [](R c) { return c.model.experts.balance != ExpertBalance::bias; },
       "use \"auxiliary\" or \"none\""},
      {"model.experts.capacity", [](R c) { return c.model.experts.capacity == CapacityPolicy::repeat; },
       "use \"repeat\""},
      {"comm.backend", [](R c) { return c.comm.backend != Backend::thread; }, "use \"auto\", \"nccl\" or \"mpi\""},
  };
  return rows;
}

void require_supported(const RunConfig& config) {
  for (const SupportedRow& row : supported_rows()) {
    if (!row.supported(config))
      throw ConfigError("{} = {} is not supported by this version: {}.", row.key, field_text(config, row.key),
                        row.remedy);
  }
}

}  // namespace slipstream
