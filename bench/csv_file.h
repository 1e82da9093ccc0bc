// SPDX-License-Identifier: Apache-2.0
#pragma once
// The table of a benchmark as a file, for programs to read.

#include <fmt/core.h>

#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "engine/base/check.h"

namespace slipstream::bench {

class CsvFile {
 public:
  /// Begins the file with the line `header`. An empty path: no file, and rows are discarded. Throws: ResourceError.
  void open(const std::string& path, std::string_view header) {
    if (path.empty()) return;
    file_.reset(std::fopen(path.c_str(), "w"));
    if (!file_) throw ResourceError("[bench] {} cannot be written. Give --csv a path that can.", path);
    fmt::print(file_.get(), "{}", header);
  }
  template <typename... Args>
  void row(fmt::format_string<Args...> format, Args&&... args) {
    if (!file_) return;
    fmt::print(file_.get(), format, std::forward<Args>(args)...);
    std::fflush(file_.get());  // the next row may take minutes; an interrupted run keeps its rows
  }

 private:
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_{nullptr, std::fclose};
};

}  // namespace slipstream::bench
