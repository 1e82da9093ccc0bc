// SPDX-License-Identifier: Apache-2.0
// Writes the imported run file where the planner can read it, and prints its forecast.

#include "cli/plan_import.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "engine/base/check.h"
#include "engine/base/files.h"
#include "engine/base/json.h"
#include "engine/base/print.h"
#include "engine/base/units.h"
#include "planner/forecast.h"
#include "planner/imports/options.h"

namespace slipstream::cli {
namespace {

/// A file in a new folder, removed with it.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& text) {
    std::string pattern = (std::filesystem::temp_directory_path() / "slipstream-import-XXXXXX").string();
    if (!mkdtemp(pattern.data()))
      throw ResourceError("[import] no folder can be made in {}. Set TMPDIR to a writable folder.", pattern);
    folder_ = pattern;
    files::write_file(path(), text);
  }
  ~TemporaryFile() {
    std::error_code error;
    std::filesystem::remove_all(folder_, error);
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  std::string path() const { return folder_ + "/run.toml"; }

 private:
  std::string folder_;
};

}  // namespace

int plan_import(const ImportOptions& options, planner::PlanRequest request) {
  const planner::Imported imported = planner::import_run(options.format, options.path);
  if (!options.write.empty()) files::write_file(options.write, imported.run_file);
  const TemporaryFile file(imported.run_file);
  request.run_file = file.path();
  if (request.ranks == 0) request.ranks = imported.ranks;
  if (request.as.empty()) request.as = imported.as;
  if (!options.json) {
    print_result("{}\n", imported.run_file);
    for (const std::string& note : imported.notes) print_result("note: {}\n", note);
  }
  if (request.machine.empty()) {
    if (!options.json) print_result("A forecast needs --machine, such as configs/machines/h100x8.toml.\n");
    return 0;
  }
  if (request.ranks == 0)
    throw ConfigError("[import] {} does not tell the number of GPUs. Give --ranks.", files::shown(options.path));
  const planner::Forecast made = planner::forecast(request);
  const double rate = static_cast<double>(made.tokens) / made.step_ms * 1e3 / request.ranks;
  if (options.json) {
    Json result = Json::object();
    result["ranks"] = request.ranks;
    result["as"] = request.as;
    result["step_ms"] = made.step_ms;
    result["tokens_per_s_per_rank"] = rate;
    result["memory_bytes"] = made.memory_bytes;
    print_result("{}\n", result.dump(2));
    return 0;
  }
  print_result("{} ranks as {}: {:.1f} ms a step ({:.1f} to {:.1f}), {:.0f} tokens/s per rank, {} of memory\n",
               request.ranks, request.as, made.step_ms, made.low_ms, made.high_ms, rate,
               format_bytes(made.memory_bytes));
  return 0;
}

}  // namespace slipstream::cli
