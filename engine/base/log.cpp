// SPDX-License-Identifier: Apache-2.0
// Hands lines to spdlog (the only file that includes it): progress to stdout, warnings to stderr.

#include "engine/base/log.h"

#include <spdlog/logger.h>
#include <spdlog/sinks/stdout_sinks.h>

#include <atomic>
#include <memory>
#include <utility>

namespace slipstream {
namespace {

std::atomic<int> g_rank{0};

spdlog::logger* make_logger(spdlog::sink_ptr sink) {
  auto* made = new spdlog::logger("slipstream", std::move(sink));
  made->set_pattern("%v");
  made->flush_on(spdlog::level::trace);
  return made;
}

// The logger is never destroyed, because the thread of a stream may print while the process exits.
spdlog::logger& progress() {
  static spdlog::logger* const instance = make_logger(std::make_shared<spdlog::sinks::stdout_sink_mt>());
  return *instance;
}
spdlog::logger& warnings() {
  static spdlog::logger* const instance = make_logger(std::make_shared<spdlog::sinks::stderr_sink_mt>());
  return *instance;
}

}  // namespace

void log_setup(int rank) { g_rank = rank; }
int log_rank() { return g_rank; }

namespace detail {

bool log_enabled() { return g_rank == 0; }

void log_line(bool warning, const std::string& text) {
  const std::string line = fmt::format("{}{}", warning ? "warning: " : "", text);
  (warning ? warnings() : progress()).info(spdlog::string_view_t(line));
}

}  // namespace detail
}  // namespace slipstream
