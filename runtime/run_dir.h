// SPDX-License-Identifier: Apache-2.0
#pragma once
// The folder of a run: its files, and the renaming of an older run.

#include <string>
#include <string_view>

namespace slipstream::runtime {

class RunDir {
 public:
  /// Blocks. `dir` becomes an empty folder; a folder with an older run is renamed to DIR.old-N first, with a message.
  /// Only rank 0 creates the folder. Throws: ResourceError if it cannot be written.
  RunDir(std::string dir, bool create);
  ~RunDir();
  RunDir(const RunDir&) = delete;
  RunDir& operator=(const RunDir&) = delete;

  std::string path(std::string_view name) const { return dir_ + "/" + std::string(name); }
  /// Blocks. Writes a complete file that survives a power failure, or throws; see files::write_file.
  void write(std::string_view name, std::string_view content) const;
  /// Appends a line to metrics.jsonl and flushes it.
  void append_metrics(std::string_view line);

 private:
  std::string dir_;
  int metrics_ = -1;
};

}  // namespace slipstream::runtime
