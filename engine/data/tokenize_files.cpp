// SPDX-License-Identifier: Apache-2.0
// Tells the files of tokenize from others by their names.

#include "engine/data/tokenize_files.h"

#include <signal.h>

#include <cerrno>
#include <charconv>
#include <filesystem>
#include <string_view>

#include "engine/base/check.h"
#include "engine/base/files.h"

namespace slipstream::data {
namespace {

/// Does the command write a file of this name?
bool writes(std::string_view name, std::string_view out) {
  for (const std::string_view end : {".progress.json", ".bin", ".json", ".documents"}) {
    if (!name.ends_with(end)) continue;
    name.remove_suffix(end.size());
    if (!name.starts_with(out)) return false;
    name.remove_prefix(out.size());
    return name.empty() || (name.starts_with('-') && name.find_first_not_of("0123456789", 1) == std::string_view::npos);
  }
  return false;
}

}  // namespace

std::string name_of_shard(const TokenizeOptions& options, int64_t number) {
  return options.shard_tokens > 0 ? fmt::format("{}-{:05}", options.out, number) : options.out;
}

std::string progress_path(const TokenizeOptions& options) { return options.out + ".progress.json"; }

void remove_abandoned(const TokenizeOptions& options) {
  const std::string out = std::filesystem::path(options.out).filename();
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(files::folder_of(options.out), error)) {
    const std::string name = entry.path().filename();
    const size_t at = name.rfind(".tmp-");
    if (at == std::string::npos || !writes(std::string_view(name).substr(0, at), out)) continue;
    pid_t writer = 0;
    const char *const from = name.data() + at + 5, *const end = name.data() + name.size();
    const auto [stop, failed] = std::from_chars(from, end, writer);
    if (failed != std::errc() || stop != end || writer <= 0) continue;
    const bool ended = ::kill(writer, 0) != 0 && errno == ESRCH;
    if (ended) std::filesystem::remove(entry.path(), error);
  }
}

}  // namespace slipstream::data
