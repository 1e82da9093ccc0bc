// SPDX-License-Identifier: Apache-2.0
// Laws of the log: rank 0 prints, the others do not.

#include "engine/base/log.h"

#include <unistd.h>

#include <cstdio>

#include "tests/test.hpp"

using namespace slipstream;

namespace {

/// The text that `speak` wrote to stderr.
template <typename F>
std::string stderr_of(F speak) {
  std::fflush(stderr);
  std::FILE* file = std::tmpfile();
  const int kept = dup(2);
  dup2(fileno(file), 2);
  speak();
  std::fflush(stderr);
  dup2(kept, 2);
  close(kept);
  std::rewind(file);
  std::string text;
  for (int c = std::fgetc(file); c != EOF; c = std::fgetc(file)) text += static_cast<char>(c);
  std::fclose(file);
  return text;
}

}  // namespace

TEST_CASE("log: only rank 0 prints", "[base]") {
  const auto speak = [] {
    log_info("loss {:.2f}", 2.314);
    log_warn("{{}} {}", "%d");
  };
  CHECK(stderr_of(speak) == "loss 2.31\nwarning: {} %d\n");
  log_setup(1);
  CHECK(stderr_of(speak).empty());
  log_setup(0);
  CHECK(stderr_of(speak) == "loss 2.31\nwarning: {} %d\n");
}
