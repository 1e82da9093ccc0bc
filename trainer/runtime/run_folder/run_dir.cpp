// SPDX-License-Identifier: Apache-2.0
// Creates the folders of a run and writes complete files into them.

#include "trainer/runtime/run_folder/run_dir.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <limits>
#include <sstream>
#include <thread>

#include "engine/base/check.h"
#include "engine/base/disk.h"
#include "engine/base/files.h"
#include "engine/base/json.h"
#include "engine/base/log.h"
#include "engine/base/plural.h"
#include "engine/base/units.h"
#include "engine/checkpoint/store.h"
#include "engine/checkpoint/weights_folder.h"
#include "engine/device/clock.h"

namespace slipstream::runtime {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kAllSteps = std::numeric_limits<int64_t>::max();
constexpr int64_t kWaitingBytesMax = 64 << 20;  // the lines of 100,000 steps
constexpr int64_t kLookNs = 200'000'000;

[[noreturn]] void refuse_at(const std::string& path, int error) {
  throw ResourceError("[output] {} cannot be written: {}. {}", path, std::strerror(error),
                      files::disk_remedy(error, "set output.dir to another folder"));
}

/// Returns the bytes of a file of the run; none if it does not exist. A file that cannot be read does not count as an
/// empty one.
/// Throws: CheckpointError.
std::optional<std::string> bytes_of(const std::string& path) {
  std::error_code error;
  if (fs::status(path, error).type() == fs::file_type::not_found) return {};
  return files::read_file(path, files::Owner::checkpoint, std::numeric_limits<int64_t>::max());
}

/// Appends all bytes or none.
void append_all(int file, std::string_view bytes, const std::string& path) {
  const off_t before = ::lseek(file, 0, SEEK_END);
  while (!bytes.empty()) {
    const ssize_t written = ::write(file, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      const int error = errno;
      if (before >= 0 && ::ftruncate(file, before) != 0) log_info("{} ends with an incomplete line", path);
      refuse_at(path, error);
    }
    bytes.remove_prefix(static_cast<size_t>(written));
  }
}

void require_folder(const std::string& path, std::string_view key) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error || ::access(path.c_str(), W_OK) != 0)
    files::disk_failed(files::shown(path), "written", error ? error.value() : errno,
                       fmt::format("set {} to another folder", key));
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

/// Returns the step of a line of metrics; none if the line is damaged.
std::optional<int64_t> step_of(const std::string& line) {
  try {
    const Json entry = Json::parse(line, "metrics.jsonl");
    const Json* const of = entry.find("step");
    if (of != nullptr && of->is_int()) return of->as_int();
  } catch (const DataError&) {
  }
  return {};
}

/// Returns the lines of steps up to `step`. Also drops half a line of a run that was killed while it wrote.
std::string lines_until(const std::string& path, std::istream& in, int64_t step) {
  std::string kept, line;
  int64_t first = 1, latest = 0, count = 0;
  while (std::getline(in, line)) {
    const std::optional<int64_t> of = in.eof() ? std::nullopt : step_of(line);
    if (!of || *of <= latest || *of > step) continue;
    if (count++ == 0) first = *of;
    latest = *of;
    kept += line + "\n";
  }
  const int64_t missing = (step == kAllSteps ? latest : step) + 1 - first - count;
  if (missing > 0)
    log_warn("[output] {} lacks {} up to step {}: it was damaged.", path, counted(missing, "line"),
             first + count + missing - 1);
  return kept;
}

/// Returns the lines of steps up to `step`, of which a step may have several or none.
std::string reports_until(std::istream& in, int64_t step) {
  std::string kept, line;
  while (std::getline(in, line) && !in.eof())
    if (const std::optional<int64_t> of = step_of(line); of && *of <= step) kept += line + "\n";
  return kept;
}

/// Returns true if `inner` is the folder `outer` or below it by name. A link below it moves like a folder.
bool is_inside(const std::string& inner, const std::string& outer) {
  const auto normal = [](const std::string& path) { return fs::absolute(path).lexically_normal(); };
  const fs::path relative = normal(inner).lexically_relative(normal(outer));
  return !relative.empty() && *relative.begin() != "..";
}

/// Returns PATH.old-N with the lowest N that is free.
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

/// Returns the names of the files of a run in `dir`; none if it holds no run.
std::vector<std::string> files_of_run(const std::string& dir) {
  std::error_code error;
  if (!fs::exists(dir + "/run.json", error) && !fs::exists(dir + "/metrics.jsonl", error)) return {};
  std::vector<std::string> names;
  for (const char* name : {"config.resolved.toml", "metrics.jsonl", "metrics.csv", "tensorboard", "stragglers.jsonl",
                           "flight", "trace", "checkpoints", "report.html", "plan.json", "run.json"})
    if (fs::exists(fs::symlink_status(dir + "/" + name, error))) names.emplace_back(name);
  return names;
}

/// Gives the timelines of an earlier start a folder of their own, because this start will write others.
void keep_timelines(const std::string& dir) {
  std::error_code error;
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(dir, error))
    if (std::string name = entry.path().filename(); name.starts_with("rank") && name.ends_with(".json"))
      names.push_back(std::move(name));
  if (names.empty()) return;
  int number = 1;
  while (fs::exists(fmt::format("{}/earlier-{}", dir, number), error)) ++number;
  const std::string to = fmt::format("{}/earlier-{}", dir, number);
  require_folder(to, "output.dir");
  for (const std::string& name : names) move(dir + "/" + name, to + "/" + name);
  log_info("note: the timelines of an earlier start are in {}", to);
}

/// Moves the files of a run in `dir`, and no others, to a folder beside it.
void move_run(const std::string& dir) {
  const std::vector<std::string> names = files_of_run(dir);
  if (names.empty()) return;
  std::error_code error;
  const std::string old = free_name(fs::is_symlink(dir, error) ? fs::canonical(dir).string() : dir);
  require_folder(old, "output.dir");
  for (const std::string& name : names) move(dir + "/" + name, old + "/" + name);
  log_info("{} held a run; it is now {}", dir, old);
}

/// Returns true if it is the temporary name of a file or a folder `base`, as files::write_file and
/// checkpoint::write_final choose it.
bool is_temporary(std::string_view name, std::string_view base) {
  constexpr std::string_view kMark = ".tmp-";
  const size_t mark = name.rfind(kMark);
  return mark != std::string_view::npos && (base.empty() || name.substr(0, mark) == base) &&
         name.size() > mark + kMark.size() &&
         name.find_first_not_of("0123456789", mark + kMark.size()) == std::string_view::npos;
}

/// Removes what killed jobs have left under temporary names. Only the owner of the locks writes under these names.
void remove_temporaries(const std::string& output, const std::string& checkpoints) {
  const auto remove = [](const std::string& dir, const std::vector<std::string_view>& bases) {
    std::error_code error;
    std::vector<fs::path> found;
    for (const auto& entry : fs::directory_iterator(dir, error)) {
      const std::string name = entry.path().filename().string();
      if (std::any_of(bases.begin(), bases.end(), [&](std::string_view base) { return is_temporary(name, base); }))
        found.push_back(entry.path());
    }
    for (const fs::path& path : found) fs::remove_all(path, error);
  };
  remove(output,
         {"config.resolved.toml", "metrics.jsonl", "metrics.csv", "stragglers.jsonl", "plan.json", "run.json", "lock"});
  remove(output + "/flight", {""});
  remove(checkpoints, {"final"});
  remove(checkpoints + "/" + checkpoint::kModelDir, {""});
}

/// Returns the final weights, the checkpoints and their model in a folder of checkpoints.
std::vector<std::string> results_in(const std::string& checkpoints) {
  std::error_code error;
  std::vector<std::string> paths;
  for (const std::string name : {"final", checkpoint::kModelDir})
    if (const std::string path = checkpoints + "/" + name; fs::exists(fs::symlink_status(path, error)))
      paths.push_back(path);
  for (const checkpoint::Found& found : checkpoint::find_checkpoints(checkpoints)) paths.push_back(found.path);
  return paths;
}

}  // namespace

void require_unmoved(const RunFolders& folders, const std::string& weights) {
  std::error_code error;
  std::vector<fs::path> needed{fs::canonical(weights, error)};
  for (const auto& file : fs::directory_iterator(weights, error)) needed.push_back(fs::canonical(file.path(), error));
  const auto require = [&](const std::string& moved, std::string_view key, const std::string& dir) {
    const std::string from = fs::canonical(moved, error).string();
    if (!from.empty() && std::any_of(needed.begin(), needed.end(),
                                     [&](const fs::path& path) { return !path.empty() && is_inside(path, from); }))
      throw ConfigError(
          "[output] model.init = {} is among the older results in {} = {}, which a new run moves. Set {} to another "
          "folder.",
          files::shown(weights), key, files::shown(dir), key);
  };
  for (const std::string& name : files_of_run(folders.output))
    require(folders.output + "/" + name, "output.dir", folders.output);
  const bool follows = folders.checkpoints == folders.output + "/checkpoints";
  for (const std::string& path : results_in(folders.checkpoints))
    require(path, follows ? "output.dir" : "checkpoint.dir", follows ? folders.output : folders.checkpoints);
}

RunDir::RunDir(const RunFolders& folders, bool create) : dir_(folders.output), checkpoints_dir_(folders.checkpoints) {
  if (!create) return;
  // This happens before an older run is moved, because a folder inside the output folder may move with it.
  const bool inside = is_inside(folders.checkpoints, dir_);
  if (!inside) require_folder(folders.checkpoints, "checkpoint.dir");
  require_folder(dir_, "output.dir");
  output_lock_.emplace(dir_, "output.dir");
  lock_checkpoints(folders.checkpoints);
  remove_temporaries(dir_, folders.checkpoints);
  require_space(inside ? dir_ : folders.checkpoints, folders);
  // This happens before their lines of metrics are removed: a start that reads one of them nevertheless would continue
  // without these lines.
  for (const std::string& path : folders.skipped) log_info("{} is now {}", path, checkpoint::set_aside(path));
  if (folders.resumed_step) {
    rewrite_lines(*folders.resumed_step);
    if (*folders.resumed_step < folders.last_traced_step) keep_timelines(path("trace"));
  } else {
    move_older(folders);
  }
  require_folder(folders.checkpoints, "checkpoint.dir");
  if (!checkpoints_lock_ || checkpoints_lock_->has_moved()) lock_checkpoints(folders.checkpoints);
  require_folder(path("trace"), "output.dir");
  open_metrics();
}

void RunDir::open() {
  const auto open_it = [](std::optional<files::Folder>& folder, const std::string& path) {
    std::error_code error;
    // A network file system may show a folder that another host has just made a little later.
    for (int tries = 0; tries < 100 && !fs::is_directory(path, error); ++tries)
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    folder.emplace(path);
  };
  open_it(checkpoints_, checkpoints_dir_);
  std::error_code error;
  if (output_lock_ || fs::is_directory(dir_, error)) open_it(output_, dir_);  // other hosts need not have the folder
  require_in_place();
}

void RunDir::require_in_place() const {
  const auto require = [](const auto& folder, const auto& lock, std::string_view key) {
    if (!folder) return;
    const std::string change = folder->change();
    if (!change.empty())
      throw CheckpointError(
          "[output] {} = {} {} while this run used it. The run ends and changes nothing at this path.{}", key,
          folder->path(), change,
          change.starts_with("was moved") ? fmt::format(" Continue it with --resume and --set {} of the new name.", key)
                                          : std::string());
    if (lock && lock->is_lost())
      throw CheckpointError(
          "[output] {} = {} belongs to another job, which has replaced the file lock of this run. The run ends and "
          "changes nothing there. Give each job a folder of its own.",
          key, folder->path());
  };
  require(output_, output_lock_, "output.dir");
  require(checkpoints_, checkpoints_lock_, "checkpoint.dir");
}

void RunDir::lock_checkpoints(const std::string& folder) {
  checkpoints_lock_.reset();
  // Runs with other output folders may use the same checkpoint.dir, which may also lie inside this output folder.
  std::error_code error;
  if (fs::is_directory(folder, error) && !fs::equivalent(folder, dir_, error))
    checkpoints_lock_.emplace(folder, "checkpoint.dir");
}

void RunDir::open_metrics() {
  if (metrics_ >= 0) ::close(metrics_);
  metrics_ = ::open(place("metrics.jsonl").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (metrics_ < 0) refuse_at(path("metrics.jsonl"), errno);
}

void RunDir::keep_metrics(int64_t step) {
  if (metrics_ < 0) return;
  require_in_place();
  rewrite_lines(step);
  open_metrics();
}

void RunDir::rewrite_lines(int64_t step) {
  if (const std::optional<std::string> reports = bytes_of(place("stragglers.jsonl"))) {
    std::istringstream lines(*reports);
    files::write_file(place("stragglers.jsonl"), reports_until(lines, step));
  }
  const std::string file = place("metrics.jsonl");
  const std::optional<std::string> written = bytes_of(file);
  if (!written) return;
  std::istringstream lines(*written + waiting_);
  files::write_file(file, lines_until(path("metrics.jsonl"), lines, step));
  waiting_.clear();
}

void RunDir::move_older(const RunFolders& folders) const {
  move_run(dir_);
  require_folder(folders.checkpoints, "checkpoint.dir");
  for (const std::string& from : results_in(folders.checkpoints)) {
    const std::string old = free_name(from);
    move(from, old);
    log_info("{} existed; it is now {}. Remove it when you no longer need it.", from, old);
  }
}

RunDir::~RunDir() {
  if (metrics_ >= 0) ::close(metrics_);
}

void RunDir::write(std::string_view name, std::string_view content) const {
  require_in_place();
  files::write_file(place(name), content);
}

void RunDir::write_waiting() {
  if (waiting_.empty()) return;
  append_all(metrics_, waiting_, path("metrics.jsonl"));
  waiting_.clear();
}

std::string RunDir::sync_metrics() {
  if (metrics_ < 0) return {};
  try {
    write_waiting();
    // The kernel reports a lost page only once, so another fdatasync would succeed. A new file has all lines.
    if (sync_failed_) keep_metrics(kAllSteps);
    sync_failed_ = ::fdatasync(metrics_) != 0;
    if (sync_failed_) refuse_at(path("metrics.jsonl"), errno);
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

int64_t RunDir::last_metrics_step() const {
  std::istringstream in(bytes_of(place("metrics.jsonl")).value_or(""));
  int64_t last = 0;
  for (std::string line; std::getline(in, line) && !in.eof();) last = step_of(line).value_or(last);
  return last;
}

void RunDir::append_report(std::string_view name, std::string_view line) const {
  require_in_place();
  const std::string to = path(name);
  const int file = ::open(place(name).c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  try {
    if (file < 0) refuse_at(to, errno);
    append_all(file, std::string(line) + "\n", to);
  } catch (const ResourceError& error) {
    log_warn("{} Training goes on without this line.", error.what());
  }
  if (file >= 0) ::close(file);
}

void RunDir::append_metrics(std::string_view line) {
  // A line goes into the open file even if its folder has moved, so that an occasional check is enough.
  if (const int64_t now_ns = monotonic_ns(); now_ns - looked_ns_ > kLookNs) {
    looked_ns_ = now_ns;
    require_in_place();
  }
  const bool first = waiting_.empty();
  waiting_ += std::string(line) + "\n";
  try {
    write_waiting();
  } catch (const ResourceError& error) {
    if (std::ssize(waiting_) > kWaitingBytesMax) throw;
    if (first) log_warn("{} Training goes on; the lines wait in memory.", error.what());
  }
}

}  // namespace slipstream::runtime
