// SPDX-License-Identifier: Apache-2.0
// What all ranks of a run on GPUs must have in common, what fits on the GPUs, and that nobody waits for ever for a rank that is gone: the whole program on
// fake GPUs.

#include <chrono>

#include "tests/cli/program.h"

using namespace slipstream;
using namespace slipstream::program;

namespace {

const std::string kFake = FAKE_GPU_EXE;

std::string train(const Folder& folder, const std::string& more = "") {
  return kFake + " train " + folder.path("run.toml") + " --set device.kind=cuda " + more;
}
double seconds_of(const std::function<void()>& what) {
  const auto begin = std::chrono::steady_clock::now();
  what();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

TEST_CASE("a rank that stands still while the others agree ends the run with what they waited for", "[cuda]") {
  if (!has_mpirun()) return;
  Folder folder;
  run_file(folder);
  const std::string each = train(folder, "--set train.steps=20 --set device.graph=true --set comm.timeout_seconds=5");
  Result stuck;
  const double seconds = seconds_of([&] { stuck = shell(mpirun() + "-np 1 " + each + " : -np 1 -x FAKE_GPU_STUCK_AFTER=1 " + each, 120); });
  check_refused(stuck, 6, {"not all ranks have come within 5 s to exchange whether step 4 was recorded as a graph", "comm.timeout_seconds"});
  CHECK(seconds < 60);
}

TEST_CASE("a rank that fails while the others wait for its word ends them within seconds", "[cuda]") {
  if (!has_mpirun()) return;
  Folder folder;
  run_file(folder);
  const std::string each = train(folder, "--set train.steps=20 --set device.graph=true --set comm.timeout_seconds=600");
  Result failed;
  const double seconds = seconds_of([&] { failed = shell(mpirun() + "-np 1 " + each + " : -np 1 -x FAKE_GPU_LOST_AT_CAPTURE=1 " + each, 120); });
  check_refused(failed, 7, {"on rank 1", "The GPU may be lost"});
  CHECK(seconds < 30);
}
