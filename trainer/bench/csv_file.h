// SPDX-License-Identifier: Apache-2.0
#pragma once
// The table of a benchmark as a file for other programs.

#include <fmt/core.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "engine/base/check.h"

namespace slipstream::bench {

class CsvFile {
 public:
  /// Begins the file with the line `header`. With an empty path there is no file, and rows are discarded. Throws:
  /// ResourceError.
  void open(const std::string& path, std::string_view header) {
    if (path.empty()) return;
    file_.reset(std::fopen(path.c_str(), "w"));
    path_ = path;
    write(header);
  }
  /// Throws: ResourceError.
  template <typename... Args>
  void row(fmt::format_string<Args...> format, Args&&... args) {
    if (file_) write(fmt::format(format, std::forward<Args>(args)...));
  }

 private:
  // Each row is flushed at once: minutes may pass until the next one, and an interrupted benchmark keeps its rows.
  void write(std::string_view text) {
    if (!file_ || std::fwrite(text.data(), 1, text.size(), file_.get()) != text.size() || std::fflush(file_.get()) != 0)
      throw ResourceError("[bench] {} cannot be written: {}. Give --csv a path that can be written.", path_,
                          std::strerror(errno));
  }

  std::string path_;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_{nullptr, std::fclose};
};

}  // namespace slipstream::bench
