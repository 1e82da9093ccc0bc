// SPDX-License-Identifier: Apache-2.0
#pragma once
// The folder of a run: what is in it, and how a new run makes room for itself.

#include <string>
#include <string_view>

namespace slipstream::runtime {

class RunDir {
 public:
  /// Blocks. `dir` becomes an empty folder; one that holds a run is moved to DIR.old-N first, and said so. Only rank 0
  /// creates; the others just name it. Throws ResourceError if it cannot be written.
  RunDir(std::string dir, bool create);
  ~RunDir();
  RunDir(const RunDir&) = delete;
  RunDir& operator=(const RunDir&) = delete;

  std::string path(std::string_view name) const { return dir_ + "/" + std::string(name); }
  /// Blocks. A whole file that survives a power cut, or an error: see files::write_file.
  void write(std::string_view name, std::string_view content) const;
  /// Appends a line to metrics.jsonl and flushes it.
  void append_metrics(std::string_view line);

 private:
  std::string dir_;
  int metrics_ = -1;
};

}  // namespace slipstream::runtime
