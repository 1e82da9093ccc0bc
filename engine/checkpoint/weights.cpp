// SPDX-License-Identifier: Apache-2.0
// Writes and opens folders of weights. One rename replaces a folder.

#include "engine/checkpoint/weights.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "engine/base/check.h"
#include "engine/base/disk.h"
#include "engine/base/document.h"

namespace slipstream::checkpoint {

namespace {

namespace fs = std::filesystem;

constexpr int64_t kConfigBytesMax = 16 << 20;

[[noreturn]] void disk_failed(const std::string& dir, int error) {
  throw ResourceError("[disk] the folder {} cannot be written: {}. {}", files::shown(dir), std::strerror(error),
                      files::disk_remedy(error));
}

void rename_or_throw(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) disk_failed(to, errno);
}

/// A folder that the destructor removes unless it has received its final name.
class TemporaryFolder {
 public:
  explicit TemporaryFolder(std::string path) : path_(std::move(path)) {
    std::error_code error;
    fs::remove_all(path_, error);  // the remains of a killed process with the same id
    if (!error) fs::create_directories(path_, error);
    if (error) disk_failed(path_, error.value());
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// Renames `fresh` to `dir`. The old `dir` takes the name of `fresh`, and its destructor removes it.
void put_in_place(const TemporaryFolder& fresh, const std::string& dir) {
  if (::renameat2(AT_FDCWD, fresh.path().c_str(), AT_FDCWD, dir.c_str(), RENAME_EXCHANGE) == 0) return;
  if (errno == ENOENT) return rename_or_throw(fresh.path(), dir);  // nothing to replace
  if (errno != EINVAL && errno != ENOSYS) disk_failed(dir, errno);
  const std::string old = fmt::format("{}.old-{}", dir, ::getpid());
  rename_or_throw(dir, old);
  if (::rename(fresh.path().c_str(), dir.c_str()) != 0) {
    const int error = errno;
    rename_or_throw(old, dir);
    disk_failed(dir, error);
  }
  rename_or_throw(old, fresh.path());
}

}  // namespace

SavedFolder write_final(const std::string& dir, std::vector<TensorToSave> tensors, const std::string& config_json,
                        const std::vector<ExtraFile>& extra_files, int64_t file_bytes) {
  std::string target = dir;
  while (target.size() > 1 && target.ends_with('/')) target.pop_back();
  std::error_code error;
  if (fs::exists(target, error) && !fs::is_directory(target, error))
    throw ResourceError("[disk] the folder {} cannot be written: a file has this name. Choose another folder.",
                        files::shown(target));
  const TemporaryFolder fresh(fmt::format("{}.tmp-{}", target, ::getpid()));
  SavedFolder saved = write_weights(fresh.path(), std::move(tensors), file_bytes);
  saved.written.push_back(write_text(fresh.path(), kConfigFile, config_json));
  for (const auto& [name, bytes] : extra_files) {
    SLIP_ASSERT(!name.empty() && name.find('/') == std::string::npos && name != kWeightsFile && name != kConfigFile);
    saved.written.push_back(write_text(fresh.path(), name, bytes));
  }
  write_hashes(fresh.path(), saved.written);
  put_in_place(fresh, target);
  files::sync_folder(files::folder_of(target));
  return saved;
}

FinalWeights read_final(const std::string& dir) {
  std::error_code error;
  if (!fs::is_directory(dir, error))
    throw CheckpointError("[checkpoint] {} does not exist. Give the path of a folder with {} and {}.",
                          files::shown(dir), kWeightsFile, kConfigFile);
  const std::string path = dir + "/" + kConfigFile;
  const std::string text = files::read_file(path, files::Owner::checkpoint, kConfigBytesMax);
  return {.weights = SafetensorsFile(dir + "/" + kWeightsFile),
          .config = parse_object({.text = text, .where = files::shown(path), .owner = files::Owner::checkpoint})};
}

}  // namespace slipstream::checkpoint
