// SPDX-License-Identifier: Apache-2.0
// A passage without a request costs one look into the environment.

#include "engine/base/fail_point.h"

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <string>

#include "engine/base/log.h"

namespace slipstream {

void fail_point(const char* name) {
  const char* const request = std::getenv("SLIPSTREAM_FAIL_POINT");
  if (request == nullptr) return;
  std::string wanted = request;
  int64_t passages = 0;
  if (const size_t at = wanted.find('#'); at != std::string::npos) {
    passages = std::atoll(wanted.c_str() + at + 1);
    wanted.resize(at);
  }
  if (const size_t at = wanted.find('@'); at != std::string::npos) {
    if (std::atoi(wanted.c_str() + at + 1) != log_rank()) return;
    wanted.resize(at);
  }
  static std::atomic<int64_t> passed{0};
  if (wanted == name && passed++ == passages) std::raise(SIGKILL);
}

}  // namespace slipstream
