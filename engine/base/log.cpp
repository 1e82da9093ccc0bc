// SPDX-License-Identifier: Apache-2.0
// Hands lines to spdlog (the only file that includes it).

#include "engine/base/log.h"

#include <spdlog/logger.h>
#include <spdlog/sinks/stdout_sinks.h>

#include <atomic>
#include <memory>

namespace slipstream {
namespace {

std::atomic<int> g_rank{0};

spdlog::logger& logger() {
  // Never destroyed: a stream's thread may speak while the process leaves.
  static spdlog::logger* const instance = [] {
    auto* made = new spdlog::logger("slipstream", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made->set_pattern("%v");
    made->flush_on(spdlog::level::trace);
    return made;
  }();
  return *instance;
}

}  // namespace

void log_setup(int rank) { g_rank = rank; }

namespace detail {

bool log_enabled() { return g_rank == 0; }

void log_line(bool warning, const std::string& text) {
  const std::string line = fmt::format("{}{}", warning ? "warning: " : "", text);
  logger().log(warning ? spdlog::level::warn : spdlog::level::info, spdlog::string_view_t(line));
}

}  // namespace detail
}  // namespace slipstream
