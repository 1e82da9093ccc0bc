// SPDX-License-Identifier: Apache-2.0
// Writes each step into the sinks of the run file.

#include "trainer/runtime/loop/metric_sinks.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "engine/base/check.h"
#include "engine/base/files.h"
#include "engine/base/json.h"
#include "engine/base/log.h"
#include "engine/report/event_file.h"

namespace slipstream::runtime {
namespace {

namespace fs = std::filesystem;

double now_s() { return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(); }

/// Prints digits that read back exactly.
std::string number(double value) { return Json(value).dump(); }

std::string csv_header() {
  std::string header = "step";
  for (const auto& [name, value] : metric_values({})) header += fmt::format(",{}", name);
  return header + "\n";
}

void warn(const std::string& what) { log_warn("[output] {}. Training goes on without it.", what); }

std::string host_name() {
  char name[256] = "host";
  return ::gethostname(name, sizeof name - 1) == 0 ? name : "host";
}

}  // namespace

/// A file that grows by whole records.
class MetricSinks::AppendedFile {
 public:
  explicit AppendedFile(const std::string& path)
      : path_(path), file_(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644)) {
    if (file_ < 0) refuse(errno);
  }
  ~AppendedFile() {
    if (file_ >= 0) ::close(file_);
  }
  AppendedFile(const AppendedFile&) = delete;
  AppendedFile& operator=(const AppendedFile&) = delete;

  /// Throws: ResourceError. Then the record is not in the file, or, on a disk that fails, only its beginning is.
  void append(std::string_view record) {
    struct stat before;
    if (::fstat(file_, &before) != 0) refuse(errno);
    for (std::string_view rest = record; !rest.empty();) {
      const ssize_t count = ::write(file_, rest.data(), rest.size());
      if (count > 0) {
        rest.remove_prefix(static_cast<size_t>(count));
      } else if (errno != EINTR) {
        const int error = errno;
        if (rest.size() < record.size() && ::ftruncate(file_, before.st_size) != 0) refuse(errno);
        refuse(error);
      }
    }
  }

 private:
  [[noreturn]] void refuse(int error) const {
    throw ResourceError("{} cannot be written: {}", path_, std::strerror(error));
  }

  std::string path_;
  int file_;
};

MetricSinks::MetricSinks(const Output& output, int64_t resumed_step) : output_(output) {
  if (output_.csv) open_csv(resumed_step);
  if (output_.tensorboard) {
    open_events();
    if (resumed_step > 0) write_events(restart_record(now_s(), resumed_step + 1));
  }
  if (output_.prometheus_port == 0) return;
  try {
    endpoint_ = std::make_unique<MetricsEndpoint>(static_cast<int>(output_.prometheus_port));
    log_info("metrics at http://127.0.0.1:{}/metrics", output_.prometheus_port);
  } catch (const ResourceError& error) {
    log_warn("{} Training goes on without the endpoint.", error.what());
  }
}

MetricSinks::~MetricSinks() = default;

void MetricSinks::open_csv(int64_t step) {
  const std::string path = output_.dir + "/metrics.csv";
  try {
    const std::string header = csv_header();
    std::string kept = header;
    if (std::ifstream file(path); step > 0 && file) {
      std::string line;
      if (std::getline(file, line) && line + "\n" != header) {  // another version wrote the file
        fs::rename(path, path + ".old");
      } else {
        while (std::getline(file, line) && !file.eof())
          if (std::strtoll(line.c_str(), nullptr, 10) <= step) kept += line + "\n";
      }
    }
    csv_.reset();
    // If a device or a pipe has this name, it is written as it is.
    std::error_code error;
    if (!fs::exists(path, error) || fs::is_regular_file(path, error)) files::write_file(path, kept);
    csv_ = std::make_unique<AppendedFile>(path);
  } catch (const std::exception& error) {
    csv_.reset();
    warn(error.what());
  }
}

void MetricSinks::open_events() {
  const std::string folder = output_.dir + "/tensorboard";
  try {
    fs::create_directories(folder);
    events_ = std::make_unique<AppendedFile>(fmt::format("{}/events.out.tfevents.{:010}.{}.{}", folder,
                                                         static_cast<int64_t>(now_s()), host_name(), ::getpid()));
    events_->append(event_file_head(now_s()));
  } catch (const std::exception& error) {
    events_.reset();
    warn(fmt::format("{} has no event file: {}", folder, error.what()));
  }
}

void MetricSinks::write_events(const std::string& record) {
  if (!events_) return;
  try {
    events_->append(record);
  } catch (const ResourceError& error) {
    events_.reset();
    warn(error.what());
  }
}

void MetricSinks::add(const StepMetrics& metrics) {
  const auto values = metric_values(metrics);
  if (csv_) {
    std::string row = fmt::format("{}", metrics.step);
    for (const auto& [name, value] : values) row += value ? "," + number(*value) : ",";
    try {
      csv_->append(row + "\n");
    } catch (const ResourceError& error) {
      csv_.reset();
      warn(error.what());
    }
  }
  write_events(scalars_record(now_s(), metrics.step, values));
  if (endpoint_) endpoint_->set(prometheus_text(metrics, now_s()));
}

void MetricSinks::keep(int64_t step) {
  if (csv_) open_csv(step);
  write_events(restart_record(now_s(), step + 1));
}

std::string prometheus_text(const StepMetrics& metrics, double unix_s) {
  std::string text = fmt::format("# TYPE slipstream_step gauge\nslipstream_step {}\n", metrics.step);
  for (const auto& [name, value] : metric_values(metrics))
    if (value) text += fmt::format("# TYPE slipstream_{0} gauge\nslipstream_{0} {1}\n", name, number(*value));
  text += fmt::format("# TYPE slipstream_step_time_seconds gauge\nslipstream_step_time_seconds {:.3f}\n", unix_s);
  return text;
}

}  // namespace slipstream::runtime
