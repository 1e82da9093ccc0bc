// SPDX-License-Identifier: Apache-2.0
// Laws of the log: rank 0 speaks, the others only when all are asked, each line says whose it is.

#include "engine/base/log.h"

#include <cstdio>
#include <unistd.h>

#include "tests/test.hpp"

using namespace slipstream;

namespace {

/// What `speak` wrote to stderr.
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

TEST_CASE("log: rank 0 speaks, others are silent unless all are asked", "[base]") {
  const auto speak = [] {
    log_info("loss {:.2f}", 2.314);
    log_warn("{{}} {}", "%d");
  };
  CHECK(stderr_of(speak) == "loss 2.31\nwarning: {} %d\n");
  log_setup({.rank = 0, .ranks = 2});
  CHECK(stderr_of(speak) == "[rank 0] loss 2.31\n[rank 0] warning: {} %d\n");
  log_setup({.rank = 1, .ranks = 2});
  CHECK(stderr_of(speak).empty());
  log_setup({.rank = 1, .ranks = 2, .all_ranks = true});
  CHECK(stderr_of(speak) == "[rank 1] loss 2.31\n[rank 1] warning: {} %d\n");
  log_setup({});
}
