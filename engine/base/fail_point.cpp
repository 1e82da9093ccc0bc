// SPDX-License-Identifier: Apache-2.0
// Without a request, passing a place costs one look into the environment.

#include "engine/base/fail_point.h"

#include <atomic>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#include "engine/base/log.h"

namespace slipstream {
namespace {

const char* request() { return std::getenv("SLIPSTREAM_FAIL_POINT"); }

/// Removes "MARK REST" from the end of `text` and returns REST, or an empty text if `text` has no such end.
std::string take_after(std::string& text, char mark) {
  const size_t at = text.find(mark);
  if (at == std::string::npos) return {};
  std::string rest = text.substr(at + 1);
  text.resize(at);
  return rest;
}

int64_t number(const std::string& text, int64_t otherwise) {
  std::from_chars(text.data(), text.data() + text.size(), otherwise);
  return otherwise;
}

}  // namespace

bool has_fail_point() { return request() != nullptr; }

bool fails_at(std::string_view place, std::string_view task) {
  if (!has_fail_point()) return false;
  std::string wanted = request();
  take_after(wanted, '=');
  const int64_t passages = number(take_after(wanted, '#'), 0), rank = number(take_after(wanted, '@'), -1);
  const std::string prefix = take_after(wanted, ':');
  if (rank >= 0 && rank != log_rank()) return false;
  static std::atomic<int64_t> passed{0};
  const bool matches = prefix.empty() || task == prefix || task.starts_with(prefix + ".");
  return wanted == place && matches && passed++ == passages;
}

void fail_point(std::string_view place, std::string_view task) {
  if (!fails_at(place, task)) return;
  std::string wanted = request();
  const std::string fault = take_after(wanted, '=');
  std::fprintf(stderr, "[fail point] %s\n", request());
  if (const int64_t ms = number(fault, -1); ms >= 0)
    std::this_thread::sleep_for(std::chrono::milliseconds(ms));
  else
    std::raise(fault == "stop" ? SIGSTOP : SIGKILL);
}

}  // namespace slipstream
