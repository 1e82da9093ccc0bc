// SPDX-License-Identifier: Apache-2.0
// Reads the environment once. A passage of another place costs a comparison.

#include "engine/base/fail_point.h"

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <string>

#include "engine/base/log.h"

namespace slipstream {
namespace {

struct Request {
  std::string name;
  int rank = -1;  // -1: any
  std::atomic<int64_t> passages_left = 0;

  Request() {
    const char* const text = std::getenv("SLIPSTREAM_FAIL_POINT");
    if (text == nullptr) return;
    name = text;
    if (const size_t at = name.find('#'); at != std::string::npos) {
      passages_left = std::atoll(name.c_str() + at + 1);
      name.resize(at);
    }
    if (const size_t at = name.find('@'); at != std::string::npos) {
      rank = std::atoi(name.c_str() + at + 1);
      name.resize(at);
    }
  }
};

}  // namespace

void fail_point(const char* name) {
  static Request request;
  if (request.name.empty() || request.name != name || (request.rank >= 0 && request.rank != log_rank())) return;
  if (request.passages_left-- == 0) std::raise(SIGKILL);
}

}  // namespace slipstream
