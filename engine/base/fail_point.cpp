// SPDX-License-Identifier: Apache-2.0
// A passage without a request costs one look into the environment.

#include "engine/base/fail_point.h"

#include <atomic>
#include <charconv>
#include <csignal>
#include <cstdlib>
#include <string>

#include "engine/base/log.h"

namespace slipstream {
namespace {

/// Cuts "MARK NUMBER" from the end of `text`; `otherwise` if it has none.
int64_t take_number(std::string& text, char mark, int64_t otherwise) {
  const size_t at = text.find(mark);
  if (at == std::string::npos) return otherwise;
  std::from_chars(text.data() + at + 1, text.data() + text.size(), otherwise);
  text.resize(at);
  return otherwise;
}

}  // namespace

bool fails_at(const char* name) {
  const char* const request = std::getenv("SLIPSTREAM_FAIL_POINT");
  if (request == nullptr) return false;
  std::string wanted = request;
  const int64_t passages = take_number(wanted, '#', 0), rank = take_number(wanted, '@', -1);
  if (rank >= 0 && rank != log_rank()) return false;
  static std::atomic<int64_t> passed{0};
  return wanted == name && passed++ == passages;
}

void fail_point(const char* name) {
  if (fails_at(name)) std::raise(SIGKILL);
}

}  // namespace slipstream
