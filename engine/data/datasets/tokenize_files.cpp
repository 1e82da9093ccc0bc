// SPDX-License-Identifier: Apache-2.0
// Distinguishes the files of tokenize from others by their names.

#include "engine/data/datasets/tokenize_files.h"

#include <signal.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <optional>
#include <string_view>
#include <vector>

#include "engine/base/check.h"
#include "engine/base/files.h"
#include "engine/base/log.h"
#include "engine/data/sidecar.h"

namespace slipstream::data {
namespace {

constexpr int64_t kSidecarBytesMax = 64 << 20;
constexpr int64_t kOnlyShard = -1;  // OUT.bin, which a command without shard_tokens writes

/// Returns the number of the shard that a file belongs to by its name.
std::optional<int64_t> shard_of(std::string_view name, std::string_view out) {
  for (const std::string_view end : {".bin", ".json", ".documents"}) {
    if (!name.ends_with(end)) continue;
    name.remove_suffix(end.size());
    if (!name.starts_with(out)) return std::nullopt;
    name.remove_prefix(out.size());
    if (name.empty()) return kOnlyShard;
    int64_t number = -1;
    const auto [stop, failed] = std::from_chars(name.data() + 1, name.data() + name.size(), number);
    if (failed != std::errc() || number < 0 || fmt::format("-{:05}", number) != name) return std::nullopt;
    return number;
  }
  return std::nullopt;
}

/// Removes NAME.tmp-PID, if its writer has ended, for every NAME of the command.
template <typename IsOwn>
void remove_half_written(const std::string& folder, const IsOwn& is_own) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename();
    const size_t at = name.rfind(".tmp-");
    if (at == std::string::npos || !is_own(std::string_view(name).substr(0, at))) continue;
    pid_t writer = 0;
    const char *const from = name.data() + at + 5, *const end = name.data() + name.size();
    const auto [stop, failed] = std::from_chars(from, end, writer);
    if (failed != std::errc() || stop != end || writer <= 0) continue;
    const bool ended = ::kill(writer, 0) != 0 && errno == ESRCH;
    if (ended) std::filesystem::remove(entry.path(), error);
  }
}

bool is_sidecar(const std::string& path) {
  try {
    const std::string text = files::read_file(path, files::Owner::data, kSidecarBytesMax);
    parse_token_shard_info({.text = text, .where = files::shown(path)});
    return true;
  } catch (const DataError&) {
    return false;
  }
}

}  // namespace

std::string name_of_shard(const TokenizeOptions& options, int64_t number) {
  return options.shard_tokens > 0 ? fmt::format("{}-{:05}", options.out, number) : options.out;
}

std::string progress_path(const TokenizeOptions& options) { return options.out + ".progress.json"; }

std::string written_as(const TokenizeOptions& options, int64_t shards, const std::string& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return "";
  const std::filesystem::path file = std::filesystem::canonical(path, error);
  const std::string folder = files::folder_of(options.out), name = file.filename();
  if (error || !std::filesystem::equivalent(file.parent_path(), folder, error)) return "";
  const std::string out = std::filesystem::path(options.out).filename();
  const std::optional<int64_t> number = shard_of(name, out);
  const bool is_shard = options.shard_tokens > 0 ? number >= 0 && number < shards : number == kOnlyShard;
  return (number && is_shard) || name == out + ".progress.json" ? folder + "/" + name : "";
}

void remove_abandoned(const TokenizeOptions& options) {
  const std::string out = std::filesystem::path(options.out).filename();
  remove_half_written(files::folder_of(options.out), [&](std::string_view name) {
    return name == out + ".progress.json" || shard_of(name, out).has_value();
  });
  remove_half_written(options.out + ".tokenizer", [](std::string_view name) {
    return name == "tokenizer.json" || name == "tokenizer_config.json";
  });
}

int64_t remove_earlier_shards(const TokenizeOptions& options, int64_t written) {
  const std::string folder = files::folder_of(options.out), out = std::filesystem::path(options.out).filename();
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string file = entry.path().filename();
    const std::optional<int64_t> number = file.ends_with(".bin") ? shard_of(file, out) : std::nullopt;
    const bool of_this_command = options.shard_tokens > 0 ? number >= 0 && number < written : number == kOnlyShard;
    if (!number || of_this_command) continue;
    // A killed command leaves a shard without its sidecar. OUT.bin without a sidecar may be a file of another program.
    const std::string name = folder + "/" + file.substr(0, file.size() - 4), sidecar = name + ".json";
    const bool has_sidecar = std::filesystem::exists(sidecar, error);
    if (has_sidecar ? is_sidecar(sidecar) : number != kOnlyShard) names.push_back(name);
  }
  std::vector<std::string> inputs = options.texts;
  inputs.push_back(options.tokenizer);
  std::erase_if(names, [&](const std::string& name) {
    bool is_input = false;
    for (const char* end : {".documents", ".json", ".bin"})
      for (const std::string& input : inputs) is_input |= std::filesystem::equivalent(name + end, input, error);
    return is_input;
  });
  std::sort(names.begin(), names.end());
  for (const std::string& name : names) log_info("{}.bin of an earlier command is removed", name);
  for (const std::string& name : names)
    for (const char* end : {".documents", ".json", ".bin"}) std::filesystem::remove(name + end, error);
  return std::ssize(names);
}

}  // namespace slipstream::data
