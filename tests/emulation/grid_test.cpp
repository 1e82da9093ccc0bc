// SPDX-License-Identifier: Apache-2.0
// Blocks of a grid take turns, as many as fit on the device, and wait for each other only where they may.

#include <vector>

#include "tests/emulation/hopper_errors.h"

using namespace slipstream;
using namespace slipstream::test;
using emulation::DeviceMemory;
using emulation::resident_blocks;

namespace {

constexpr size_t kKiB = 1024;

/// The words that blocks write when they end, all 0 before.
struct Words {
  explicit Words(unsigned blocks) : memory(4 * blocks, "words") { std::memset(memory.data(), 0, memory.size_bytes()); }
  uint32_t* at(unsigned block) const { return as<uint32_t>(memory) + block; }
  DeviceMemory memory;
};

/// The error of blocks that each wait for another one, if it exists, and write their word: `distance` blocks on.
std::string error_of_chain(unsigned blocks, int distance, unsigned threads = 128) {
  const Words words(blocks);
  return error_in(
      [&] {
        const int other = static_cast<int>(blockIdx.x) + distance;
        if (thread() == 0 && other >= 0 && other < static_cast<int>(blocks))
          ptx::wait_until(words.at(static_cast<unsigned>(other)), 1);
        __syncthreads();
        if (thread() == 0) ptx::store_release(words.at(blockIdx.x), 1);
      },
      threads, 0, blocks);
}

}  // namespace

TEST_CASE("grid: as many blocks are resident as registers, threads and shared memory allow") {
  constexpr int kAll = emulation::kMultiprocessors;
  // Without a smaller number of registers, a compiler may use 255 a thread, allocated as 256: 65536 / 256 threads.
  CHECK(resident_blocks(32, 0) == kAll * 8);
  CHECK(resident_blocks(33, 0) == kAll * 4);
  CHECK(resident_blocks(128, 0) == kAll * 2);
  CHECK(resident_blocks(384, 0) == kAll);
  CHECK(resident_blocks(1024, 99 * kKiB) == kAll);
  const emulation::CompiledRegisters few(32);
  CHECK(resident_blocks(32, 0) == kAll * 16);   // compute capability 8.6: 16 blocks,
  CHECK(resident_blocks(128, 0) == kAll * 12);  // 1536 threads
  CHECK(resident_blocks(128, 49 * kKiB) == kAll * 2);
  CHECK(resident_blocks(128, 50 * kKiB) == kAll);  // and 100 KB, 1 KB of them reserved in each block
  const emulation::Capability hopper(90);
  CHECK(resident_blocks(32, 0) == kAll * 32);
  CHECK(resident_blocks(128, 0) == kAll * 16);
  CHECK(resident_blocks(512, 0) == kAll * 4);
  CHECK(resident_blocks(128, 75 * kKiB) == kAll * 3);
  CHECK(resident_blocks(128, 227 * kKiB) == kAll);
}

TEST_CASE("grid: a block may wait for an earlier one, and for a later one only if that is resident") {
  const emulation::Capability hopper(90);
  const auto resident = static_cast<unsigned>(resident_blocks(128, 0));
  const int all = static_cast<int>(resident);
  REQUIRE(resident == 4);
  for (int distance : {1, all - 1, all, all + 3}) CHECK(error_of_chain(10 * resident, -distance).empty());
  for (int distance : {1, all - 1}) CHECK(error_of_chain(resident, distance).empty());
  // Block 0 waits for the first block that is not resident, which begins when one of the others has ended.
  CHECK(error_of_chain(resident + 1, all).empty());
  // The last resident block waits for it, and the others for each other.
  const std::string stuck = error_of_chain(resident + 1, 1);
  has(stuck,
      "block (0, 0, 0), thread (0, 0, 0): deadlock: 1 thread from thread (0, 0, 0) on waits at "
      "tests/emulation/grid_test.cpp:");
  has(stuck,
      "(wait_until for 1, it is 0); 127 threads from thread (1, 0, 0) on wait at tests/emulation/grid_test.cpp:");
  has(stuck, "(__syncthreads); all 4 resident blocks wait, and 1 more begin only after one of them has ended.");
  // No manual promises that earlier blocks begin first.
  emulation::set_descending(true);
  CHECK_FALSE(error_of_chain(10 * resident, -1).empty());
  CHECK(error_of_chain(10 * resident, 1).empty());
  emulation::set_descending(false);
  // Blocks of more threads have fewer places, those of fewer registers more.
  CHECK_FALSE(error_of_chain(resident, 1, 256).empty());
  const emulation::CompiledRegisters few(32);
  CHECK(error_of_chain(resident + 2, 1, 256).empty());
}

TEST_CASE("grid: a word must have the awaited value when the waiting block looks") {
  const emulation::Capability hopper(90);
  const Words words(1);
  has(error_in(
          [&] {
            if (blockIdx.x == 1) {
              ptx::wait_until(words.at(0), 1);
            } else {
              ptx::store_release(words.at(0), 1);
              ptx::store_release(words.at(0), 2);
            }
          },
          1, 0, 2),
      "(wait_until for 1, it is 2); all 1 resident blocks wait, and 0 more begin");
}

TEST_CASE("grid: static and dynamic shared memory share a block's limit") {
  static float storage[6 * 1024];  // __shared__
  constexpr size_t kMost = emulation::kSharedMemoryBytes;
  const auto all = [](size_t dynamic_bytes) { return error_in([] { Shared<float>{storage}; }, 32, dynamic_bytes); };
  CHECK(all(kMost - sizeof storage).empty());
  has(all(kMost - sizeof storage + 16), "101392 bytes of static and dynamic shared memory, a block has at most 101376");
  // Between 24 and 32 KiB of dynamic memory the driver refuses what nothing has requested.
  CHECK(all(24 * kKiB).empty());
  CHECK(all(32 * kKiB + 16).empty());
  for (size_t dynamic_bytes : {24 * kKiB + 16, 32 * kKiB})
    has(all(dynamic_bytes), "launch() requests more than 49152 only for more than 32768 dynamic ones");
}

TEST_CASE("grid: errors name the source of their rule") {
  has(error_of_chain(1, 0),
      "needs compute capability 9.0, and the emulated device has 8.0. [CUDA C++ Programming Guide, ");
  const emulation::Capability hopper(90);
  has(error_of_chain(5, 1), "[CUDA C++ Programming Guide, Thread Hierarchy]");
  has(error_in([] { thread() < 128 ? registers_lower<48>() : registers_raise<232>(); }, 384), "[PTX ISA, setmaxnreg]");
  has(error_in([] { barrier_wait(barrier(), 0); }), "[PTX ISA, Lifecycle of the mbarrier object]");
}

TEST_CASE("grid: resident blocks take turns, each with its own shared memory") {
  constexpr unsigned kBlocks = 5, kTurns = 3;
  DeviceMemory order(4 * kBlocks * kTurns, "order"), taken(4, "taken"), sums(4 * kBlocks, "sums");
  *as<uint32_t>(taken) = 0;
  for (bool descending : {false, true}) {
    emulation::set_descending(descending);
    *as<uint32_t>(taken) = 0;
    CHECK(error_in(
              [&] {
                static float storage[256];  // __shared__
                const Shared<float> fixed(storage), dynamic(emulation::dynamic_shared(), 256);
                const auto mine = static_cast<float>(1000 * blockIdx.x);
                fixed[thread()] = mine;
                dynamic[thread()] = mine;
                for (unsigned turn = 0; turn < kTurns; ++turn) {
                  if (thread() == 0) as<uint32_t>(order)[atomicAdd(as<uint32_t>(taken), 1u)] = blockIdx.x;
                  __syncthreads();
                  const float other = fixed[(thread() + 1) % 256], same = dynamic[(thread() + 1) % 256];
                  if (other != same) wrong("another block's memory");
                  __syncthreads();
                  fixed[thread()] = other + 1;
                  dynamic[thread()] = same + 1;
                  __syncthreads();
                }
                if (thread() == 0) as<float>(sums)[blockIdx.x] = fixed[0];
              },
              256, 1024, kBlocks)
              .empty());
    for (unsigned block = 0; block < kBlocks; ++block)
      CHECK(as<float>(sums)[block] == static_cast<float>(1000 * block + kTurns));
    // Two blocks of 256 threads are resident: they alternate, and the last one is alone.
    std::vector<uint32_t> seen(as<uint32_t>(order), as<uint32_t>(order) + kBlocks * kTurns);
    for (uint32_t& block : seen) block = descending ? kBlocks - 1 - block : block;
    CHECK(seen == std::vector<uint32_t>{0, 1, 0, 1, 0, 1, 2, 3, 2, 3, 2, 3, 4, 4, 4});
  }
  emulation::set_descending(false);
}
