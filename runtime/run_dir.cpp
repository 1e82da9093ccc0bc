// SPDX-License-Identifier: Apache-2.0
// Creates the folders of a run and writes complete files into them.

#include "runtime/run_dir.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "engine/base/check.h"
#include "engine/base/files.h"
#include "engine/base/json.h"
#include "engine/base/log.h"
#include "engine/base/plural.h"
#include "engine/base/units.h"
#include "engine/checkpoint/store.h"

namespace slipstream::runtime {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void refuse_at(const std::string& path, int error) {
  if (error == ENOSPC || error == EDQUOT || error == EFBIG)
    throw ResourceError("[output] {} cannot be written: {}. Free space, or set output.dir to another folder.", path,
                        std::strerror(error));
  throw ResourceError("[output] {} cannot be written: {}. Set output.dir to a writable folder.", path,
                      std::strerror(error));
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

void require_folder(const std::string& path, std::string_view key) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error || ::access(path.c_str(), W_OK) != 0)
    throw ResourceError("[disk] {} cannot be written: {}. Set {} to a writable folder.", path,
                        error ? error.message() : std::strerror(errno), key);
}

void require_space(const std::string& path, const RunFolders& folders) {
  const int64_t need_bytes = folders.weights_bytes + folders.checkpoints_kept * folders.checkpoint_bytes;
  std::error_code error;
  const fs::space_info space = fs::space(path, error);
  if (error || space.available >= static_cast<uintmax_t>(need_bytes)) return;
  throw ResourceError(
      "[disk] the final weights need {} and {} {}, but {} has {} free. Free space, set checkpoint.dir to another disk, "
      "or lower checkpoint.keep.",
      format_bytes(folders.weights_bytes), counted(folders.checkpoints_kept, "checkpoint"),
      format_bytes(folders.checkpoints_kept * folders.checkpoint_bytes), path,
      format_bytes(static_cast<int64_t>(space.available)));
}

/// Keeps the lines of steps up to `step`. Half a line, of a run that was killed while it wrote, goes as well.
void keep_metrics_until(const std::string& path, int64_t step) {
  std::error_code error;
  if (!fs::exists(path, error)) return;
  std::ifstream in(path);
  std::string kept, line;
  while (std::getline(in, line)) {
    if (in.eof()) break;  // without its line feed
    try {
      const Json entry = Json::parse(line, path);
      const Json* const of = entry.find("step");
      if (of == nullptr || !of->is_int() || of->as_int() > step) break;
    } catch (const DataError&) {
      break;
    }
    kept += line + "\n";
  }
  files::write_file(path, kept);
}

/// Is `inner` the folder `outer` or below it by name? A link below it moves like a folder.
bool is_inside(const std::string& inner, const std::string& outer) {
  const auto normal = [](const std::string& path) { return fs::absolute(path).lexically_normal(); };
  const fs::path relative = normal(inner).lexically_relative(normal(outer));
  return !relative.empty() && *relative.begin() != "..";
}

/// PATH.old-N with the lowest N that is free.
std::string free_name(const std::string& path) {
  std::error_code error;
  int number = 1;
  while (fs::exists(fs::symlink_status(fmt::format("{}.old-{}", path, number), error))) ++number;
  return fmt::format("{}.old-{}", path, number);
}

void move(const std::string& from, const std::string& to) {
  std::error_code error;
  fs::rename(from, to, error);
  if (error)
    throw ResourceError("[disk] {} cannot be moved to {}: {}. Move it, or choose another folder.", from, to,
                        error.message());
}

/// Moves the files of a run in `dir`, and no others, to a folder beside it.
void move_run(const std::string& dir) {
  std::error_code error;
  const std::string old = free_name(fs::is_symlink(dir, error) ? fs::canonical(dir).string() : dir);
  require_folder(old, "output.dir");
  for (const char* name :
       {"config.resolved.toml", "metrics.jsonl", "flight", "trace", "checkpoints", "report.html", "run.json"})
    if (const std::string from = dir + "/" + name; fs::exists(fs::symlink_status(from, error)))
      move(from, old + "/" + name);
  log_info("{} held a run; it is now {}", dir, old);
}

}  // namespace

RunDir::RunDir(const RunFolders& folders, bool create) : dir_(folders.output) {
  if (!create) return;
  // Before an older run is moved. A folder inside the output folder may move with it.
  const bool inside = is_inside(folders.checkpoints, dir_);
  if (!inside) require_folder(folders.checkpoints, "checkpoint.dir");
  require_folder(dir_, "output.dir");
  output_lock_.emplace(dir_, "output.dir");
  if (!inside) checkpoints_lock_.emplace(folders.checkpoints, "checkpoint.dir");
  require_space(inside ? dir_ : folders.checkpoints, folders);
  if (folders.resumed_step)
    keep_metrics_until(path("metrics.jsonl"), *folders.resumed_step);
  else
    move_older(folders);
  require_folder(folders.checkpoints, "checkpoint.dir");
  require_folder(path("trace"), "output.dir");
  open_metrics();
}

void RunDir::open_metrics() {
  if (metrics_ >= 0) ::close(metrics_);
  const std::string metrics = path("metrics.jsonl");
  metrics_ = ::open(metrics.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (metrics_ < 0) refuse_at(metrics, errno);
}

void RunDir::keep_metrics(int64_t step) {
  if (metrics_ < 0) return;
  keep_metrics_until(path("metrics.jsonl"), step);
  open_metrics();
}

void RunDir::move_older(const RunFolders& folders) const {
  std::error_code error;
  if (fs::exists(path("run.json"), error) || fs::exists(path("metrics.jsonl"), error)) move_run(dir_);
  require_folder(folders.checkpoints, "checkpoint.dir");
  std::vector<std::string> older;
  if (const std::string weights = folders.checkpoints + "/final"; fs::exists(fs::symlink_status(weights, error)))
    older.push_back(weights);
  for (const checkpoint::Found& found : checkpoint::find_checkpoints(folders.checkpoints)) older.push_back(found.path);
  for (const std::string& from : older) {
    const std::string old = free_name(from);
    move(from, old);
    log_info("{} existed; it is now {}", from, old);
  }
}

RunDir::~RunDir() {
  if (metrics_ >= 0) ::close(metrics_);
}

void RunDir::write(std::string_view name, std::string_view content) const { files::write_file(path(name), content); }

int64_t RunDir::last_metrics_step() const {
  std::ifstream in(path("metrics.jsonl"));
  std::string last;
  for (std::string line; std::getline(in, line) && !in.eof();) last = std::move(line);
  return last.empty() ? 0 : Json::parse(last, path("metrics.jsonl")).at("step").as_int();
}

void RunDir::sync_metrics() const {
  if (metrics_ >= 0 && ::fdatasync(metrics_) != 0) refuse_at(path("metrics.jsonl"), errno);
}

void RunDir::append_metrics(std::string_view line) {
  append_all(metrics_, std::string(line) + "\n", path("metrics.jsonl"));
}

}  // namespace slipstream::runtime
