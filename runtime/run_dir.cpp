// SPDX-License-Identifier: Apache-2.0
// Creates the run folder and writes complete files into it.

#include "runtime/run_dir.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "engine/base/check.h"
#include "engine/base/files.h"
#include "engine/base/log.h"

namespace slipstream::runtime {
namespace {

[[noreturn]] void refuse(const std::string& path, const std::string& reason) {
  throw ResourceError("[output] {} cannot be written: {}. Set output.dir to a writable folder.", path, reason);
}
[[noreturn]] void refuse_at(const std::string& path, int error) {
  if (error == ENOSPC || error == EDQUOT || error == EFBIG)
    throw ResourceError("[output] {} cannot be written: {}. Free space, or set output.dir to another folder.", path,
                        std::strerror(error));
  refuse(path, std::strerror(error));
}

/// Appends all bytes or none.
void append_all(int file, std::string_view bytes, const std::string& path) {
  const off_t before = ::lseek(file, 0, SEEK_END);
  while (!bytes.empty()) {
    const ssize_t written = ::write(file, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      const int error = errno;
      if (before >= 0 && ::ftruncate(file, before) != 0) log_info("{} ends in half a line", path);
      refuse_at(path, error);
    }
    bytes.remove_prefix(static_cast<size_t>(written));
  }
}

}  // namespace

RunDir::RunDir(std::string dir, bool create) : dir_(std::move(dir)) {
  if (!create) return;
  namespace fs = std::filesystem;
  std::error_code error;
  if (fs::exists(path("run.json"), error) || fs::exists(path("metrics.jsonl"), error)) {
    int number = 1;
    while (fs::exists(dir_ + ".old-" + std::to_string(number), error)) ++number;
    const std::string old = dir_ + ".old-" + std::to_string(number);
    fs::rename(dir_, old, error);
    if (error) refuse(dir_, "the run in it cannot be moved to " + old + ": " + error.message());
    log_info("{} held a run; it is now {}", dir_, old);
  }
  fs::create_directories(path("trace"), error);
  if (error) refuse(dir_, error.message());
  const std::string metrics = path("metrics.jsonl");
  metrics_ = ::open(metrics.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (metrics_ < 0) refuse(metrics, std::strerror(errno));
}

RunDir::~RunDir() {
  if (metrics_ >= 0) ::close(metrics_);
}

void RunDir::write(std::string_view name, std::string_view content) const { files::write_file(path(name), content); }

void RunDir::append_metrics(std::string_view line) {
  append_all(metrics_, std::string(line) + "\n", path("metrics.jsonl"));
}

}  // namespace slipstream::runtime
