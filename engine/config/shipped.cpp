// SPDX-License-Identifier: Apache-2.0
// Finds shipped files relative to the executable.

#include "engine/config/shipped.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include <fmt/ranges.h>

#include "engine/base/check.h"
#include "engine/base/files.h"
#include "engine/config/nearest.h"
#include "install_paths.h"  // made by engine/meson.build

namespace slipstream {
namespace {

namespace fs = std::filesystem;

bool has_configs(const fs::path& folder) {
  std::error_code ignored;
  return fs::is_directory(folder / "configs" / "machines", ignored);
}

std::string find_folder() {
  if (const char* chosen = std::getenv("SLIPSTREAM_DATA"); chosen && *chosen) return chosen;
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error).parent_path();
  const fs::path configured = SLIP_DATA_FOLDER;
  // A moved installation keeps its relative paths, and a build folder lies in the checkout.
  for (const fs::path& folder :
       {program / configured.lexically_relative(SLIP_PROGRAM_FOLDER), program / "..", configured})
    if (has_configs(folder)) return folder.lexically_normal().string();
  return "";
}

}  // namespace

const std::string& shipped_folder() {
  static const std::string folder = find_folder();
  return folder;
}

std::vector<std::string> shipped_names(std::string_view kind) {
  std::vector<std::string> names;
  std::error_code error;
  if (shipped_folder().empty()) return names;
  for (const fs::directory_entry& entry : fs::directory_iterator(fs::path(shipped_folder()) / "configs" / kind, error))
    if (entry.path().extension() == ".toml") names.push_back(entry.path().stem().string());
  std::sort(names.begin(), names.end());
  return names;
}

std::string path_or_shipped(const std::string& text, std::string_view kind, std::string_view wanted) {
  std::error_code ignored;
  if (text.empty() || text.find_first_of("/.") != std::string::npos || fs::exists(text, ignored)) return text;
  const std::vector<std::string> names = shipped_names(kind);
  if (std::binary_search(names.begin(), names.end(), text))
    return (fs::path(shipped_folder()) / "configs" / kind / (text + ".toml")).string();
  const std::string near = nearest(text, {names.begin(), names.end()});
  throw ConfigError("{} is neither a file nor a shipped name{} Give the path of {}{}", files::printable(text, 200),
                    near.empty() ? "." : fmt::format("; did you mean '{}'?", near), wanted,
                    names.empty() ? "." : fmt::format(", or a shipped name: {}.", fmt::join(names, ", ")));
}

}  // namespace slipstream
