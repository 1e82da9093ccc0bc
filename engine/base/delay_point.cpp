// SPDX-License-Identifier: Apache-2.0
// Reads the environment once. Without a request, passing a place costs one look at an empty list.

#include "engine/base/delay_point.h"

#include <time.h>

#include <atomic>
#include <cstdlib>
#include <deque>
#include <string>

#include "engine/base/check.h"
#include "engine/base/log.h"

namespace slipstream {
namespace {

struct Delay {
  std::string place;
  int rank = 0;
  int64_t first = 0, last = 0;  // training steps
  int64_t ns = 0;
  std::atomic<int64_t> taken{0};  // the last step that took it
};

int64_t number_of(const std::string& request, const std::string& text) {
  size_t used = 0;
  int64_t number = -1;
  try {
    number = std::stoll(text, &used);
  } catch (const std::exception&) {
    used = 0;
  }
  if (text.empty() || used != text.size() || number < 0)
    throw ConfigError(
        "SLIPSTREAM_DELAY: '{}' has no number where it has '{}'. Use PLACE@RANK#FIRST[-LAST]:MILLISECONDS.", request,
        text);
  return number;
}

void parse(const std::string& request, Delay& delay) {
  const size_t at = request.rfind('@'), hash = request.rfind('#'), colon = request.rfind(':');
  if (at == std::string::npos || hash == std::string::npos || colon == std::string::npos || at > hash || hash > colon)
    throw ConfigError("SLIPSTREAM_DELAY: '{}' is not PLACE@RANK#FIRST[-LAST]:MILLISECONDS.", request);
  const std::string steps = request.substr(hash + 1, colon - hash - 1);
  const size_t dash = steps.find('-');
  delay.place = request.substr(0, at);
  delay.rank = static_cast<int>(number_of(request, request.substr(at + 1, hash - at - 1)));
  delay.first = number_of(request, steps.substr(0, dash));
  delay.last = dash == std::string::npos ? delay.first : number_of(request, steps.substr(dash + 1));
  delay.ns = number_of(request, request.substr(colon + 1)) * 1'000'000;
}

std::deque<Delay>& delays() {
  static std::deque<Delay> all = [] {
    std::deque<Delay> parsed;
    const char* const asked = std::getenv("SLIPSTREAM_DELAY");
    std::string left = asked == nullptr ? "" : asked;
    while (!left.empty()) {
      const size_t comma = left.find(',');
      parse(left.substr(0, comma), parsed.emplace_back());
      left = comma == std::string::npos ? "" : left.substr(comma + 1);
    }
    return parsed;
  }();
  return all;
}

int64_t thread_ns() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

}  // namespace

bool delays_asked() {
  static const bool asked = !delays().empty();
  return asked;
}

int64_t take_delay_ns(std::string_view place, int64_t step) {
  if (!delays_asked()) return 0;
  for (Delay& delay : delays())
    if (delay.place == place && delay.rank == log_rank() && step >= delay.first && step <= delay.last &&
        delay.taken.exchange(step) != step)
      return delay.ns;
  return 0;
}

void delay_point(std::string_view place, int64_t step) {
  const int64_t ns = take_delay_ns(place, step);
  const timespec pause{static_cast<time_t>(ns / 1'000'000'000), static_cast<long>(ns % 1'000'000'000)};
  if (ns > 0) clock_nanosleep(CLOCK_MONOTONIC, 0, &pause, nullptr);
}

void busy_delay_point(std::string_view place, int64_t step) {
  const int64_t ns = take_delay_ns(place, step);
  if (ns == 0) return;
  for (const int64_t end_ns = thread_ns() + ns; thread_ns() < end_ns;) {
  }
}

}  // namespace slipstream
