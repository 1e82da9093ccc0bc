// SPDX-License-Identifier: Apache-2.0
// Products and registers of warpgroups with one mistake each: the error names the place and the rule.

#include "tests/emulation/hopper_errors.h"

using namespace slipstream;
using namespace slipstream::test;

TEST_CASE("hopper errors: products need fences, commits and waits") {
  const emulation::Capability hopper(90);
  const auto multiplying = [](int mistake) {
    fill();
    Accumulator<64> sums;
    uint32_t a[4] = {};
    if (mistake == 1) sums[3] = 1.0f;
    if (mistake != 2) wgmma_fence(sums, a);
    if (mistake == 3) sums[3] = 1.0f;
    if (mistake == 4) a[1] = 1;
    multiply(sums);
    wgmma_registers<64, Major::k>(sums, a, operand(8192), true);
    if (mistake == 5) sums[0] += 1.0f;
    if (mistake != 6) wgmma_commit();
    if (mistake == 7) floats()[thread()] = 1.0f;
    if (mistake == 8) wgmma_wait<1>();
    if (mistake == 9) wgmma_wait<0>();
    if (mistake < 8) wgmma_wait<0>(sums);
    if (mistake == 10) wgmma_wait<1>(sums);
    if (sums[5] != 0.0f) wrong("another sum");
    if (mistake == 11) multiply(sums);
    floats()[thread()] = 1.0f;
  };
  const auto error = [&](int mistake) { return error_in([&] { multiplying(mistake); }, 128); };
  const std::string here = "tests/emulation/warpgroup_error_test.cpp:";
  CHECK(error(0).empty());
  CHECK(error(1).empty());
  has(error(2), "without a wgmma_fence before the first one");
  has(error(3), "uses an accumulator that instructions accessed at " + here);
  has(error(4), "uses an A fragment without a wgmma_fence since its last change");
  has(error(5), "to element 0 of an accumulator that the wgmma at " + here);
  has(error(6), "names an accumulator whose wgmma at " + here);
  has(error(7), "which the wgmma of thread (0, 0, 0) and 127 more at tests/emulation/hopper_errors.h:");
  has(error(8), "to element 5 of an accumulator that the wgmma at " + here);
  has(error(9), "without a wgmma_wait since that names it");
  has(error(10), "is still in flight, without a wait for its group");
  has(error(11), "without a wgmma_wait since that names it");
  has(error_in(
          [] {
            fill();
            Accumulator<64> sums;
            wgmma_fence(sums);
            multiply(sums);
            wgmma_commit();
          },
          128),
      "it returns while the wgmma at tests/emulation/hopper_errors.h:");
}

TEST_CASE("hopper errors: operands of products are written, fenced, inside and not overwritten") {
  const emulation::Capability hopper(90);
  const auto reading = [](int mistake) {
    const Shared<float> all(shared(), 4096);
    for (int i = thread(); i < 4096; i += 256)
      if (mistake != 1 || i != 2050) all[i] = 0.0f;
    if (mistake != 2) fence_async();
    if (mistake != 3) __syncthreads();
    if (mistake == 4 && thread() == 130) all[2050] = 0.0f;
    if (mistake == 5 && thread() == 3) all[2050] = 0.0f;
    if (thread() < 128) {
      Accumulator<64> sums;
      wgmma_fence(sums);
      wgmma<64, Major::k, Major::k>(sums, operand(), mistake == 6 ? operand(12 * 1024) : operand(8192), false);
      wgmma_commit();
      wgmma_wait<0>(sums);
    }
    if (mistake != 7) named_barrier_sync(1, 256);
    if (thread() >= 128) all[2048 + thread()] = 1.0f;
  };
  const auto error = [&](int mistake) { return error_in([&] { reading(mistake); }, 256, 16 * 1024); };
  CHECK(error(0).empty());
  has(error(1), "wgmma reads shared memory that no one wrote");
  has(error(2), "without a fence_async since");
  CHECK_FALSE(error(3).empty());
  emulation::set_descending(true);  // the writer runs first
  has(error(4), "with no barrier between");
  emulation::set_descending(false);
  has(error(5), "with no barrier between");
  has(error(6), "which is out of bounds of its 16384");
  has(error(7), "with no barrier between");
  // A warp that knows its own 16 rows of A alone is not enough: a warpgroup reads A.
  const auto own_rows = [](bool all_know) {
    const Shared<float> all(shared(), 4096);
    for (int i = thread(); i < 2048; i += 128) all[2048 + i] = 0.0f;
    fence_async();
    __syncthreads();
    for (int i = thread() % 32; i < 512; i += 32) all[512 * (thread() / 32) + i] = 0.0f;  // 16 rows of 128 bytes
    fence_async();
    all_know ? __syncthreads() : __syncwarp();
    Accumulator<64> sums;
    wgmma_fence(sums);
    multiply(sums);
    wgmma_commit();
    wgmma_wait<0>(sums);
  };
  CHECK(error_in([&] { own_rows(true); }, 128, 16 * 1024).empty());
  has(error_in([&] { own_rows(false); }, 128, 16 * 1024), "wgmma reads");
  has(error_in([] { matrix_descriptor(shared() + 8, 16, 1024, Swizzle::none); }), "all must be multiples of 16");
  has(error_in([] { matrix_descriptor(shared(), 8, 1024, Swizzle::none); }), "distances of 8 and 1024 bytes");
  unsigned char elsewhere;
  has(error_in([&] { matrix_descriptor(&elsewhere, 16, 16, Swizzle::none); }), "outside dynamic shared memory");
}

TEST_CASE("hopper errors: a warpgroup multiplies together") {
  const emulation::Capability hopper(90);
  has(error_in(
          [] {
            Accumulator<64> sums;
            wgmma_fence(sums);
          },
          192),
      "in a warpgroup of 64 threads: it needs 128");
  has(error_in(
          [] {
            Accumulator<64> sums;
            if (thread() != 77) wgmma_fence(sums);
          },
          128),
      "deadlock: 127 threads from thread (0, 0, 0) on wait at");
  has(error_in(
          [] {
            Accumulator<64> sums;
            if (thread() < 64) {
              wgmma_fence(sums);
            } else {
              wgmma_fence(sums);
            }
          },
          128),
      "divergent wgmma_fence");
  has(error_in(
          [] {
            fill();
            Accumulator<64> sums;
            wgmma_fence(sums);
            wgmma<64, Major::k, Major::k>(sums, operand(), operand(thread() == 5 ? 0 : 8192), false);
          },
          128),
      "with different operands in the threads of a warpgroup");
}

TEST_CASE("hopper errors: warpgroups exchange the registers that their block was launched with") {
  const emulation::Capability hopper(90);
  const auto change = [](auto first, auto second) {
    return error_in([&] { thread() < 128 ? first() : second(); }, 256);
  };
  CHECK(change([] { registers_raise<256>(); }, [] { registers_lower<40>(); }).empty());
  // Three warpgroups are launched with 168 registers a thread, of which FlashAttention-3 makes 24 and 240 or 40 and
  // 232.
  CHECK(error_in([] { thread() < 128 ? registers_lower<24>() : registers_raise<240>(); }, 384).empty());
  CHECK(error_in([] { thread() < 128 ? registers_lower<40>() : registers_raise<232>(); }, 384).empty());
  // 48 and 232 are 512: 65536 in all, and more than the 504 of the launch.
  const std::string stuck = error_in([] { thread() < 128 ? registers_lower<48>() : registers_raise<232>(); }, 384);
  has(stuck, "deadlock: 128 threads from thread (256, 0, 0) on wait at");
  has(stuck, "registers_raise to 232 registers");
  const emulation::CompiledRegisters compiled(160);
  has(error_in([] { thread() < 128 ? registers_lower<24>() : registers_raise<240>(); }, 384), "deadlock");
  has(change(
          [] {
            registers_lower<40>();
            registers_lower<48>();
          },
          [] {}),
      "to 48 registers: each thread of the warpgroup has 40");
  has(error_in([] { registers_lower<40>(); }, 96), "in a warpgroup of 96 threads");
}
