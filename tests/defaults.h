// SPDX-License-Identifier: Apache-2.0
#pragma once
// A configuration without a run file: that of an empty file, plus `--set`.

#include <unistd.h>

#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

#include "engine/config/load.h"

namespace slipstream {

/// load_run_config() of a file with an empty table.
inline RunConfig default_run_config(const std::vector<std::string>& sets = {}) {
  struct Empty {
    Empty() : path((std::filesystem::temp_directory_path() / "slipstream_empty_XXXXXX").string()) {
      const int descriptor = mkstemp(path.data());
      if (descriptor < 0) throw std::runtime_error(path + " cannot be made");
      const bool written = write(descriptor, "[model]\n", 8) == 8;
      close(descriptor);
      if (!written) throw std::runtime_error(path + " cannot be written");
    }
    ~Empty() { unlink(path.c_str()); }
    std::string path;
  };
  static const Empty empty;
  return load_run_config(empty.path, sets);
}

}  // namespace slipstream
