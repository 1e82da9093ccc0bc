// SPDX-License-Identifier: Apache-2.0
// Laws of the log: rank 0 prints progress on stdout and warnings on stderr, the others print nothing.

#include "engine/base/log.h"

#include <unistd.h>

#include <cstdio>

#include "tests/test.hpp"

using namespace slipstream;

namespace {

/// The text that `speak` wrote to `stream`, stdout or stderr.
template <typename F>
std::string written_to(std::FILE* stream, F speak) {
  std::fflush(stream);
  std::FILE* file = std::tmpfile();
  const int descriptor = fileno(stream), kept = dup(descriptor);
  dup2(fileno(file), descriptor);
  speak();
  std::fflush(stream);
  dup2(kept, descriptor);
  close(kept);
  std::rewind(file);
  std::string text;
  for (int c = std::fgetc(file); c != EOF; c = std::fgetc(file)) text += static_cast<char>(c);
  std::fclose(file);
  return text;
}

}  // namespace

TEST_CASE("log: rank 0 prints progress on stdout and warnings on stderr, others nothing", "[base]") {
  const auto speak = [] {
    log_info("loss {:.2f}", 2.314);
    log_warn("{{}} {}", "%d");
  };
  CHECK(written_to(stdout, speak) == "loss 2.31\n");
  CHECK(written_to(stderr, speak) == "warning: {} %d\n");
  log_setup(1);
  CHECK(written_to(stdout, speak).empty());
  CHECK(written_to(stderr, speak).empty());
  log_setup(0);
  CHECK(written_to(stdout, speak) == "loss 2.31\n");
}
