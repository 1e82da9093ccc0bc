// SPDX-License-Identifier: Apache-2.0
// A kernel that may begin before earlier kernels have ended: it must wait before it accesses global memory.

#include <launch.h>
#include <ptx.h>
#include <shared.h>

#include "tests/emulation/emulator.h"
#include "tests/emulation/error_of.h"
#include "tests/test.hpp"

using namespace slipstream;
using namespace slipstream::kernels;
using emulation::DeviceMemory;
using test::as;
using test::error_of;
using test::has;

namespace {

constexpr int kThreads = 64;
enum class Mistake { none, reads, writes, reads_vector, copies, no_wait, returns, one_thread };

/// Prepares shared memory, waits, and doubles its elements.
template <Mistake kMistake, bool kLetsBegin>
__global__ void doubling_kernel(float* x) {
  __shared__ float storage[kThreads];
  const Shared<float> tile(storage);
  const int i = static_cast<int>(threadIdx.x);
  float early = 0.0f;
  if (kMistake == Mistake::reads) early = x[i];
  if (kMistake == Mistake::writes) x[i] = 1.0f;
  if (kMistake == Mistake::reads_vector) early = __uint_as_float(ptx::load_16(x).word[0]);
  if (kMistake == Mistake::returns && i == 5) return;
  tile[i] = early;
  if (kMistake == Mistake::copies && i == 0) ptx::copy_async_16(tile.at(0), x, true);
  if (kMistake != Mistake::no_wait && !(kMistake == Mistake::one_thread && i == 7)) {
    if (kLetsBegin)
      ptx::after_earlier_kernels();
    else
      ptx::wait_for_earlier_kernels();
  }
  if (kMistake != Mistake::no_wait) x[i] = 2 * x[i];
}

/// Both forms of the wait.
template <Mistake kMistake>
void check(const std::string& what) {
  DeviceMemory memory(kThreads * sizeof(float));
  for (int i = 0; i < kThreads; ++i) as<float>(memory)[i] = static_cast<float>(i);
  for (const std::string& error :
       {error_of(doubling_kernel<kMistake, true>, dim3(2), dim3(kThreads), 0, as<float>(memory)),
        error_of(doubling_kernel<kMistake, false>, dim3(2), dim3(kThreads), 0, as<float>(memory))}) {
    if (!what.empty()) {
      has(error, what);
      continue;
    }
    INFO(error);
    CHECK(error.empty());
  }
}

}  // namespace

TEST_CASE("until it waits for earlier kernels, a kernel that may begin early accesses no global memory") {
  const emulation::BeginsEarly early;
  const std::string access = "an access to global memory before the wait for the kernels before this one";
  check<Mistake::none>("");
#ifndef SLIP_ACCESSES_ARE_NOT_SEEN
  check<Mistake::reads>("thread (0, 0, 0): " + access);
  check<Mistake::writes>("thread (0, 0, 0): " + access);
  check<Mistake::one_thread>("thread (7, 0, 0): " + access);
#endif
  check<Mistake::reads_vector>("thread (0, 0, 0): " + access);
  check<Mistake::copies>("thread (0, 0, 0): " + access);
  check<Mistake::no_wait>("it returns without a wait for the kernels before this one");
  check<Mistake::returns>("thread (5, 0, 0): it returns without a wait for the kernels before this one");
}

TEST_CASE("kernels of tests need no wait") { check<Mistake::no_wait>(""); }
