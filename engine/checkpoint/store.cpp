// SPDX-License-Identifier: Apache-2.0
// Finds, commits and removes folders of checkpoints.

#include "engine/checkpoint/store.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "engine/base/check.h"
#include "engine/base/disk.h"
#include "engine/base/fail_point.h"
#include "engine/base/files.h"
#include "engine/base/folder.h"

namespace slipstream::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "step-", kUnfinished = ".tmp", kRemoved = ".removed", kSkipped = ".skipped-";
constexpr int64_t kManifestBytesMax = int64_t{256} << 20;

/// Returns the step in "step-NUMBER", or none for other names.
std::optional<int64_t> step_of(std::string_view name) {
  if (!name.starts_with(kPrefix)) return {};
  name.remove_prefix(kPrefix.size());
  int64_t step = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), step);
  if (error != std::errc() || end != name.data() + name.size() || step < 0) return {};
  return step;
}

std::vector<fs::path> entries_of(const std::string& dir) {
  std::error_code error;
  std::vector<fs::path> paths;
  for (fs::directory_iterator it(dir, error), end; !error && it != end; it.increment(error))
    paths.push_back(it->path());
  std::sort(paths.begin(), paths.end());
  return paths;
}

[[noreturn]] void disk_failed(const std::string& path, int error) {
  throw ResourceError("[disk] the checkpoint {} cannot be written: {}. {}", files::shown(path), std::strerror(error),
                      files::disk_remedy(error, "set checkpoint.dir to another folder"));
}

/// Renames the folder before it removes it, so that a crash between the two leaves no half checkpoint. Returns an empty
/// text, or the reason of a failure.
std::string remove_folder(const std::string& path) {
  std::error_code error;
  const std::string removed = path + std::string(kRemoved);
  fs::remove_all(removed, error);
  fs::rename(path, removed, error);
  fail_point("remove.renamed");
  if (!error) fs::remove_all(removed, error);
  return error ? error.message() : std::string();
}

}  // namespace

std::string name_of_step(int64_t step) { return fmt::format("{}{:08}", kPrefix, step); }

std::vector<Found> find_checkpoints(const std::string& dir) {
  std::vector<Found> found;
  for (const fs::path& path : entries_of(dir)) {
    std::error_code error;
    const std::optional<int64_t> step = step_of(path.filename().string());
    if (!step || !fs::is_directory(path, error)) continue;
    Found& each = found.emplace_back(Found{.step = *step, .path = path.string(), .manifest = {}, .problem = {}});
    try {
      const std::string file = each.path + "/" + kManifestFile;
      if (!fs::exists(file, error)) {
        each.problem = "it has no manifest";
        continue;
      }
      each.manifest =
          parse_manifest(files::read_file(file, files::Owner::checkpoint, kManifestBytesMax), files::shown(file));
      if (each.manifest->step != *step) {
        each.problem = fmt::format("its manifest is that of step {}", each.manifest->step);
        each.manifest.reset();
      }
    } catch (const CheckpointError& failure) {
      each.problem = failure.what();
    }
  }
  std::sort(found.begin(), found.end(), [](const Found& a, const Found& b) { return a.step > b.step; });
  return found;
}

std::vector<std::string> unlisted_files(const std::string& path, const Manifest& manifest) {
  std::set<std::string> listed = {kManifestFile};
  for (const StateFile& file : manifest.files) listed.insert(file.name);
  std::vector<std::string> names;
  for (const fs::path& entry : entries_of(path))
    if (std::string name = entry.filename().string(); !listed.contains(name)) names.push_back(std::move(name));
  return names;
}

std::string unfinished_path(const std::string& dir, int64_t step) {
  return fmt::format("{}/{}{}", dir, name_of_step(step), kUnfinished);
}

std::string begin_checkpoint(const std::string& dir, int64_t step) {
  const std::string path = unfinished_path(dir, step);
  std::error_code error;
  fs::remove_all(path, error);
  if (!error) fs::create_directories(path, error);
  if (error) disk_failed(path, error.value());
  fail_point("save.begun");
  return path;
}

std::string commit_checkpoint(const std::string& dir, const Manifest& manifest) {
  const std::string path = dir + "/" + name_of_step(manifest.step), fresh = path + std::string(kUnfinished);
  files::write_file(fresh + "/" + kManifestFile, text_of(manifest));
  fail_point("save.manifest");
  // An older checkpoint of this step receives the temporary name in exchange and is removed below.
  if (::renameat2(AT_FDCWD, fresh.c_str(), AT_FDCWD, path.c_str(), RENAME_EXCHANGE) != 0) {
    if (errno == EINVAL || errno == ENOSYS) {  // the file system cannot exchange names
      std::error_code ignored;
      if (fs::exists(path, ignored)) remove_folder(path);
    } else if (errno != ENOENT) {
      disk_failed(path, errno);
    }
    if (::rename(fresh.c_str(), path.c_str()) != 0) disk_failed(path, errno);
  }
  fail_point("save.renamed");
  files::sync_folder(dir);
  fail_point("save.committed");
  std::error_code ignored;
  fs::remove_all(fresh, ignored);
  return path;
}

void drop_checkpoint(const std::string& dir, int64_t step) {
  std::error_code ignored;
  fs::remove_all(unfinished_path(dir, step), ignored);
}

std::string set_aside(const std::string& path) {
  std::error_code error;
  std::string name;
  for (int number = 1;; ++number) {
    name = fmt::format("{}{}{}", path, kSkipped, number);
    if (!fs::exists(fs::symlink_status(name, error))) break;
  }
  if (::rename(path.c_str(), name.c_str()) != 0)
    throw ResourceError("[disk] the checkpoint {} cannot be renamed to {}: {}. Move it out of the folder.",
                        files::shown(path), files::shown(name), std::strerror(errno));
  files::sync_folder(files::folder_of(path));
  return name;
}

void clean_leftovers(const std::string& dir) {
  for (const fs::path& path : entries_of(dir)) {
    std::string name = path.filename().string();
    for (const std::string_view suffix : {kUnfinished, kRemoved})
      if (name.ends_with(suffix) && step_of(std::string_view(name).substr(0, name.size() - suffix.size()))) {
        std::error_code ignored;
        fs::remove_all(path, ignored);
      }
  }
}

std::vector<std::string> remove_old(const std::string& dir, int64_t keep, const KeptSteps& kept) {
  std::vector<std::string> failures;
  const auto remove = [&](const std::string& path) {
    if (const std::string reason = remove_folder(path); !reason.empty())
      failures.push_back(fmt::format("{} cannot be removed: {}", files::real_name(path), reason));
  };
  int64_t newer = 0;
  std::optional<int64_t> removed_step;
  for (const Found& found : find_checkpoints(dir)) {
    if (!found.manifest) continue;
    const bool stays = newer < keep || found.step == kept.resumed;
    if (!kept.damaged.contains(found.step)) ++newer;
    if (stays) continue;
    remove(found.path);
    if (!removed_step) removed_step = found.step;
  }
  for (const fs::path& path : entries_of(dir)) {
    const std::string name = path.filename().string();
    const size_t suffix = name.find(kSkipped);
    const std::optional<int64_t> step = suffix == std::string::npos ? std::nullopt : step_of(name.substr(0, suffix));
    if (step && removed_step && *step <= *removed_step) remove(path.string());
  }
  return failures;
}

}  // namespace slipstream::checkpoint
