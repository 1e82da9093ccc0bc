// SPDX-License-Identifier: Apache-2.0
// The emulated device itself: its results, and an error with a place for every kind of mistake.

#include <fmt/core.h>
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

__global__ void identity_kernel(int64_t elems, int* out) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < elems) out[i] = static_cast<int>(i);
}
/// The guard is off by one.
__global__ void guard_mutant_kernel(int64_t elems, int* out) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i <= elems) out[i] = static_cast<int>(i);
}
/// Thread 5 of block 1 touches byte `at`.
__global__ void read_kernel(unsigned char* x, int64_t at, int* sum) {
  if (blockIdx.x == 1 && threadIdx.x == 5) *sum = x[at];
}
__global__ void write_kernel(unsigned char* x, int64_t at, int*) {
  if (blockIdx.x == 1 && threadIdx.x == 5) x[at] = 1;
}
__global__ void vector_kernel(const float* x, float* sum) {
  const ptx::Words words = ptx::load_16(x + 4 * threadIdx.x);
  *sum = __uint_as_float(words.word[0]);
}
__global__ void before_kernel(int* out) { out[static_cast<int>(threadIdx.x) - 1] = 1; }

/// Sums the block by a tree; the mutant kSkip omits the barrier.
template <int kSkip>
__global__ void tree_kernel(const int* in, int* out) {
  __shared__ int storage[kThreads];
  const Shared<int> tile(storage);
  tile[threadIdx.x] = in[threadIdx.x];
  if (kSkip != 1) __syncthreads();
  for (int width = kThreads / 2; width > 0; width /= 2) {
    if (static_cast<int>(threadIdx.x) < width) tile[threadIdx.x] += tile[threadIdx.x + width];
    if (kSkip != 2) __syncthreads();
  }
  if (threadIdx.x == kThreads - 1) *out = tile[0];
}

__global__ void unwritten_kernel(int* out) {
  __shared__ int storage[kThreads];
  const Shared<int> tile(storage);
  if (threadIdx.x != 7) tile[threadIdx.x] = 1;
  __syncthreads();
  out[threadIdx.x] = tile[threadIdx.x];
}
__global__ void outside_kernel(int* out) {
  SLIP_DYNAMIC_SHARED(bytes);
  const Shared<int> tile(bytes, kThreads);
  tile[threadIdx.x + 1] = 1;
  *out = 1;
}
__global__ void exit_kernel(int* out) {
  if (threadIdx.x == 5) return;
  __syncthreads();
  out[threadIdx.x] = 1;
}
__global__ void elsewhere_kernel(int* out) {
  if (threadIdx.x < 32) {
    __syncthreads();
  } else {
    __syncthreads();
  }
  out[threadIdx.x] = 1;
}
__global__ void divergent_shuffle_kernel(int* out) {
  int value = 1;
  if (threadIdx.x != 9) value = __shfl_xor_sync(0xffffffffu, value, 1);
  out[threadIdx.x] = value;
}
__global__ void partial_mask_kernel(int* out) { out[threadIdx.x] = __shfl_xor_sync(0xffffu, 1, 1); }
__global__ void misaligned_kernel(float* x) { ptx::store_16(x + 1, ptx::load_16(x + 1)); }
/// A row of shared memory passes between lanes of a warp; without __syncwarp that is a race.
template <bool kSync>
__global__ void warp_kernel(int* out) {
  __shared__ int storage[kThreads];
  const Shared<int> tile(storage);
  tile[threadIdx.x] = static_cast<int>(threadIdx.x);
  if (kSync) __syncwarp();
  out[threadIdx.x] = tile[threadIdx.x ^ 1];
}

__global__ void warp_operations_kernel(int* out) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int* mine = out + threadIdx.x * 8;
  mine[0] = __shfl_xor_sync(0xffffffffu, lane, 5);
  mine[1] = __shfl_down_sync(0xffffffffu, lane, 3);
  mine[2] = __shfl_up_sync(0xffffffffu, lane, 2);
  mine[3] = __shfl_sync(0xffffffffu, lane, 17);
  mine[4] = static_cast<int>(__ballot_sync(0xffffffffu, lane % 3 == 0));
  mine[5] = __any_sync(0xffffffffu, lane == 31);
  mine[6] = __all_sync(0xffffffffu, lane < 31);
  mine[7] = __shfl_down_sync(0xffffffffu, lane, 8, 16);
}
__global__ void atomic_kernel(int* out) { atomicAdd(out, 2); }
__global__ void index_kernel(int* out) {
  const unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  const unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  out[block * blockDim.x * blockDim.y * blockDim.z + thread] += 1;
}

template <bool kWait, bool kSync>
__global__ void copy_kernel(const float* in, float* out, int valid) {
  SLIP_DYNAMIC_SHARED(bytes);
  const Shared<float> tile(bytes, 4 * kThreads);
  const int i = static_cast<int>(threadIdx.x);
  ptx::copy_async_16(tile.at(4 * i), in + (i < valid ? 4 * i : 0), i < valid);
  ptx::copy_async_commit();
  if (kWait) ptx::copy_async_wait<0>();
  if (kSync) __syncthreads();
  for (int k = 0; k < 4; ++k) out[4 * i + k] = tile[4 * (kThreads - 1 - i) + k];
}

enum class Mistake { none, issue_before_barrier, read_in_flight, write_in_flight, copy_in_flight, wait_for_less };
unsigned issue_line, read_line;

/// Two stages: a step reads one while the copies of the next step fill the other.
template <Mistake kMistake>
__global__ void pipeline_kernel(const float* in, float* out, int steps) {
  SLIP_DYNAMIC_SHARED(bytes);
  const Shared<float> tile(bytes, 2 * 4 * kThreads);
  const int i = static_cast<int>(threadIdx.x);
  const auto stage = [](int step) { return step % 2 * 4 * kThreads; };
  const auto load = [&](int step) {
    issue_line = __LINE__ + 1;
    if (step < steps) ptx::copy_async_16(tile.at(stage(step) + 4 * i), in + 4 * (step * kThreads + i), true);
    ptx::copy_async_commit();
  };
  float sum = 0.0f;
  load(0);
  for (int step = 0; step < steps; ++step) {
    if (kMistake == Mistake::issue_before_barrier) load(step + 1);
    kMistake == Mistake::issue_before_barrier || kMistake == Mistake::wait_for_less ? ptx::copy_async_wait<1>()
                                                                                    : ptx::copy_async_wait<0>();
    __syncthreads();
    if (kMistake != Mistake::issue_before_barrier) load(step + 1);
    read_line = __LINE__ + 1;
    sum += tile[stage(step) + 4 * (kThreads - 1 - i)];
    if (kMistake == Mistake::read_in_flight) sum += tile[stage(step + 1) + 4 * i];
    if (kMistake == Mistake::write_in_flight) tile[stage(step + 1) + 4 * i + 3] = 0.0f;
    if (kMistake == Mistake::copy_in_flight) load(step + 1);
  }
  out[i] = sum;
}

/// The first thread copies to bytes that the last one, which leaves the barrier first, has read.
__global__ void reuse_kernel(const float* in, float* out) {
  SLIP_DYNAMIC_SHARED(bytes);
  const Shared<float> tile(bytes, 4);
  if (threadIdx.x == 0) tile[0] = 1.0f;
  __syncthreads();
  read_line = __LINE__ + 1;
  if (threadIdx.x == kThreads - 1) *out = tile[0];
  issue_line = __LINE__ + 1;
  if (threadIdx.x == 0) ptx::copy_async_16(tile.at(0), in, true);
}

/// d = a b with a [16,16] and b [16,8] in shared memory, through ldmatrix; kSwap is a mutant's fragment order.
template <bool kSwap>
__global__ void product_kernel(const bfloat16* a, const bfloat16* b, float* d) {
  SLIP_DYNAMIC_SHARED(bytes);
  const Shared<bfloat16> left(bytes, 256), right(bytes + 512, 256);
  const int lane = static_cast<int>(threadIdx.x);
  for (int i = lane; i < 256; i += 32) left[i] = a[i];
  for (int i = lane; i < 256; i += 32) right[i] = i % 16 < 8 ? b[i / 16 * 8 + i % 16] : bfloat16();
  __syncwarp();
  uint32_t fragment[4], other[4];
  ptx::load_matrix_x4(fragment, left.at((lane % 16) * 16 + lane / 16 * 8));
  ptx::load_matrix_x4_transposed(other, right.at((lane % 16) * 16 + lane / 16 * 8));
  float sums[4] = {};
  ptx::mma_16x8x16(sums, fragment, other[kSwap ? 1 : 0], other[kSwap ? 0 : 1]);
  for (int i = 0; i < 4; ++i) d[(lane / 4 + 8 * (i / 2)) * 8 + 2 * (lane % 4) + i % 2] = sums[i];
}

}  // namespace

TEST_CASE("grids, blocks and threads: every index once, in three dimensions") {
  DeviceMemory out(sizeof(int) * 24 * 30);
  std::memset(out.data(), 0, out.size_bytes());
  CHECK(error_of(index_kernel, dim3(2, 3, 4), dim3(5, 3, 2), 0, as<int>(out)).empty());
  for (int i = 0; i < 24 * 30; ++i) REQUIRE(as<int>(out)[i] == 1);
}

TEST_CASE("an off-by-one guard is out of bounds, named by launch, block and thread") {
  for (int64_t elems : {1, 63, 64, 65, 130}) {
    DeviceMemory out(static_cast<size_t>(elems) * 4, "numbers");
    const dim3 grid(static_cast<unsigned>((elems + kThreads) / kThreads));
    CHECK(error_of(identity_kernel, grid, dim3(kThreads), 0, elems, as<int>(out)).empty());
    const std::string error = error_of(guard_mutant_kernel, grid, dim3(kThreads), 0, elems, as<int>(out));
    has(error, fmt::format("block ({}, 0, 0), thread ({}, 0, 0): access out of bounds, at byte {} of 'numbers', which "
                           "has {}.",
                           elems / kThreads, elems % kThreads, elems * 4, elems * 4));
    CHECK(out.intact());  // the write did not happen
  }
  DeviceMemory out(4096, "page");
  const std::string error = error_of(before_kernel, dim3(1), dim3(kThreads), 0, as<int>(out));
  has(error, "tests/emulation/error_of.h");
  has(error, "block (0, 0, 0), thread (0, 0, 0): access out of bounds, at byte -4 of 'page'");
}

TEST_CASE("an access outside memory is out of bounds at any distance and of any size") {
#ifdef SLIP_ACCESSES_ARE_NOT_SEEN
  return;  // another sanitizer has the place of ours
#endif
  for (size_t size_bytes : {1, 2, 14, 15, 16, 17, 31, 4096, 4100})
    for (size_t shift_bytes : {0, 2, 4, 12}) {
      CAPTURE(size_bytes, shift_bytes);
      DeviceMemory memory(size_bytes, "tensor", shift_bytes);
      DeviceMemory sum(4, "sum");
      const auto error = [&](auto kernel, int64_t at) {
        return error_of(kernel, dim3(3), dim3(kThreads), 0, memory.data(), at, as<int>(sum));
      };
      for (int64_t at = 0; at < static_cast<int64_t>(size_bytes); at += 13)
        CHECK((error(read_kernel, at).empty() && error(write_kernel, at).empty()));
      for (int64_t beside = 1; beside <= 20; ++beside)
        for (int64_t at : {-beside, static_cast<int64_t>(size_bytes) - 1 + beside})
          for (const std::string& what : {error(read_kernel, at), error(write_kernel, at)})
            has(what, fmt::format("block (1, 0, 0), thread (5, 0, 0): access out of bounds, at byte {} of 'tensor', "
                                  "which has {}.",
                                  at, size_bytes));
      CHECK(memory.intact());
    }
  // A vector that begins inside and ends outside: the first byte that is not there.
  DeviceMemory vector(24, "vector"), sum(4);
  has(error_of(vector_kernel, dim3(1), dim3(2), 0, as<float>(vector), as<float>(sum)),
      "thread (1, 0, 0): access out of bounds, at byte 24 of 'vector', which has 24");
}

TEST_CASE("a missing barrier is a race, whatever the order of the threads") {
  DeviceMemory in(kThreads * 4), out(4);
  for (int i = 0; i < kThreads; ++i) as<int>(in)[i] = i;
  for (bool descending : {false, true}) {
    emulation::set_descending(descending);
    CHECK(error_of(tree_kernel<0>, dim3(1), dim3(kThreads), 0, as<const int>(in), as<int>(out)).empty());
    CHECK(*as<int>(out) == 63 * 32);
    const std::string first = error_of(tree_kernel<1>, dim3(1), dim3(kThreads), 0, as<const int>(in), as<int>(out));
    if (descending)
      has(first, "race on shared memory");
    else
      has(first, "no one wrote");
    has(error_of(tree_kernel<2>, dim3(1), dim3(kThreads), 0, as<const int>(in), as<int>(out)), "race on shared memory");
  }
  emulation::set_descending(false);
  DeviceMemory lanes(kThreads * 4);
  CHECK(error_of(warp_kernel<true>, dim3(2), dim3(kThreads), 0, as<int>(lanes)).empty());
  CHECK_FALSE(error_of(warp_kernel<false>, dim3(2), dim3(kThreads), 0, as<int>(lanes)).empty());
}

TEST_CASE("a read of unwritten shared memory or outside its array is an error") {
  DeviceMemory out(kThreads * 4);
  has(error_of(unwritten_kernel, dim3(1), dim3(kThreads), 0, as<int>(out)),
      "thread (7, 0, 0): read of shared memory that no one wrote");
  has(error_of(outside_kernel, dim3(1), dim3(kThreads), 4 * kThreads, as<int>(out)),
      "element 64 of a shared array of 64");
  has(error_of(identity_kernel, dim3(1), dim3(kThreads), 99 * 1024 + 1, int64_t{1}, as<int>(out)),
      "101377 bytes of shared memory, a block has at most 101376");
  CHECK(error_of(identity_kernel, dim3(1), dim3(kThreads), 99 * 1024, int64_t{1}, as<int>(out)).empty());
  has(error_of(identity_kernel, dim3(1), dim3(1025), 0, int64_t{1}, as<int>(out)), "cannot run");
}

TEST_CASE("barriers and warp operations that not all threads reach are errors") {
  DeviceMemory out(kThreads * 4);
  const auto run = [&](auto kernel) { return error_of(kernel, dim3(1), dim3(kThreads), 0, as<int>(out)); };
  has(run(exit_kernel), "thread (5, 0, 0) has returned");
  has(run(elsewhere_kernel), "divergent __syncthreads");
  has(run(divergent_shuffle_kernel), "divergent __shfl_xor_sync");
  has(run(partial_mask_kernel), "mask of part of the warp");
}

TEST_CASE("a vector access that is not aligned is an error") {
  DeviceMemory x(64);
  has(error_of(misaligned_kernel, dim3(1), dim3(1), 0, as<float>(x)), "misaligned access of 16 bytes");
}

TEST_CASE("shuffles, ballots and votes follow the programming guide") {
  DeviceMemory out(64 * 8 * 4);
  CHECK(error_of(warp_operations_kernel, dim3(1), dim3(64), 0, as<int>(out)).empty());
  for (int thread = 0; thread < 64; ++thread) {
    const int lane = thread % 32, *mine = as<int>(out) + thread * 8;
    CHECK(mine[0] == (lane ^ 5));
    CHECK(mine[1] == (lane + 3 < 32 ? lane + 3 : lane));
    CHECK(mine[2] == (lane >= 2 ? lane - 2 : lane));
    CHECK(mine[3] == 17);
    CHECK(static_cast<unsigned>(mine[4]) == 0x49249249u);
    CHECK((mine[5] == 1 && mine[6] == 0));
    CHECK(mine[7] == (lane % 16 + 8 < 16 ? lane + 8 : lane));
  }
  DeviceMemory counter(4);
  *as<int>(counter) = 0;
  CHECK(error_of(atomic_kernel, dim3(3), dim3(100), 0, as<int>(counter)).empty());
  CHECK(*as<int>(counter) == 600);
}

TEST_CASE("an asynchronous copy lands when waited for, zeros where invalid") {
  DeviceMemory in(kThreads * 16), out(kThreads * 16);
  for (int i = 0; i < kThreads * 4; ++i) as<float>(in)[i] = static_cast<float>(i);
  CHECK(
      error_of(copy_kernel<true, true>, dim3(2), dim3(kThreads), 16 * kThreads, as<const float>(in), as<float>(out), 50)
          .empty());
  for (int i = 0; i < kThreads * 4; ++i) {
    const int from = 4 * (kThreads - 1 - i / 4) + i % 4;
    REQUIRE(as<float>(out)[i] == (from < 200 ? static_cast<float>(from) : 0.0f));
  }
  has(error_of(copy_kernel<false, true>, dim3(1), dim3(kThreads), 16 * kThreads, as<const float>(in), as<float>(out),
               50),
      "without a wait since");
  CHECK_FALSE(error_of(copy_kernel<true, false>, dim3(1), dim3(kThreads), 16 * kThreads, as<const float>(in),
                       as<float>(out), 50)
                  .empty());
}

TEST_CASE(
    "bytes of a copy in flight are neither read nor written, and no thread may have read them since the barrier") {
  constexpr int kSteps = 4;
  DeviceMemory in(kSteps * kThreads * 16), out(kThreads * 4);
  for (int i = 0; i < kSteps * kThreads * 4; ++i) as<float>(in)[i] = static_cast<float>(i);
  const auto run = [&](auto kernel) {
    return error_of(kernel, dim3(2), dim3(kThreads), 2 * 16 * kThreads, as<const float>(in), as<float>(out), kSteps);
  };
  const auto line = [](unsigned at) { return fmt::format("tests/emulation/emulator_test.cpp:{}", at); };
  for (bool descending : {false, true}) {
    emulation::set_descending(descending);
    CHECK(run(pipeline_kernel<Mistake::none>).empty());
    for (int i = 0; i < kThreads; ++i) {
      const int first = 4 * (kThreads - 1 - i), all = 4 * kThreads * (kSteps * (kSteps - 1) / 2);
      REQUIRE(as<float>(out)[i] == static_cast<float>(kSteps * first + all));
    }
    // A thread issues before or after another one reads; either way both lines are named.
    const std::string early = run(pipeline_kernel<Mistake::issue_before_barrier>);
    has(early, descending ? "block (1, 0, 0), thread (" : "block (0, 0, 0), thread (");
    has(early, "race on shared memory at");
    has(early, line(issue_line));
    has(early, line(read_line));
    for (const std::string& error :
         {run(pipeline_kernel<Mistake::read_in_flight>), run(pipeline_kernel<Mistake::write_in_flight>),
          run(pipeline_kernel<Mistake::copy_in_flight>), run(pipeline_kernel<Mistake::wait_for_less>)})
      has(error, fmt::format("began to copy to at {} without a wait since", line(issue_line)));
  }
  emulation::set_descending(false);
  const std::string reused = error_of(reuse_kernel, dim3(1), dim3(kThreads), 16, as<const float>(in), as<float>(out));
  has(reused, fmt::format("thread (0, 0, 0): race on shared memory at {}: begins to copy to byte 0", line(issue_line)));
  has(reused, fmt::format("which thread (63, 0, 0) read at {} with no barrier between", line(read_line)));
}

TEST_CASE("errors name the kernel of a launch") {
  CHECK(kernel_of("stream_of(context), forward_kernel<kHead, 2>, dim3(1, 2), 0") == "forward_kernel");
  CHECK(kernel_of("cudaStream_t{}, plain_kernel, grid") == "plain_kernel");
  CHECK(kernel_of("stream").empty());
  DeviceMemory out(4);
  std::string error;
  try {
    launch(cudaStream_t{}, before_kernel, dim3(1), dim3(kThreads), 0, as<int>(out));
  } catch (const emulation::Error& caught) {
    error = caught.what();
  }
  has(error, "[emulation] kernel before_kernel launched at tests/emulation/emulator_test.cpp:");
}

// PTX ISA 8.0, figures of section 9.7.13.4.8 (m16n8k16, .bf16): the element that a0..a7, b0..b3 and c0..c3 of some
// lanes hold.
TEST_CASE("fragments hold the elements of the manual's tables") {
  struct Row {
    int lane, a[8][2], b[4][2], c[4][2];
  };
  const Row table[] = {
      {0,
       {{0, 0}, {0, 1}, {8, 0}, {8, 1}, {0, 8}, {0, 9}, {8, 8}, {8, 9}},
       {{0, 0}, {1, 0}, {8, 0}, {9, 0}},
       {{0, 0}, {0, 1}, {8, 0}, {8, 1}}},
      {1,
       {{0, 2}, {0, 3}, {8, 2}, {8, 3}, {0, 10}, {0, 11}, {8, 10}, {8, 11}},
       {{2, 0}, {3, 0}, {10, 0}, {11, 0}},
       {{0, 2}, {0, 3}, {8, 2}, {8, 3}}},
      {3,
       {{0, 6}, {0, 7}, {8, 6}, {8, 7}, {0, 14}, {0, 15}, {8, 14}, {8, 15}},
       {{6, 0}, {7, 0}, {14, 0}, {15, 0}},
       {{0, 6}, {0, 7}, {8, 6}, {8, 7}}},
      {4,
       {{1, 0}, {1, 1}, {9, 0}, {9, 1}, {1, 8}, {1, 9}, {9, 8}, {9, 9}},
       {{0, 1}, {1, 1}, {8, 1}, {9, 1}},
       {{1, 0}, {1, 1}, {9, 0}, {9, 1}}},
      {30,
       {{7, 4}, {7, 5}, {15, 4}, {15, 5}, {7, 12}, {7, 13}, {15, 12}, {15, 13}},
       {{4, 7}, {5, 7}, {12, 7}, {13, 7}},
       {{7, 4}, {7, 5}, {15, 4}, {15, 5}}},
      {31,
       {{7, 6}, {7, 7}, {15, 6}, {15, 7}, {7, 14}, {7, 15}, {15, 14}, {15, 15}},
       {{6, 7}, {7, 7}, {14, 7}, {15, 7}},
       {{7, 6}, {7, 7}, {15, 6}, {15, 7}}},
  };
  for (const Row& row : table)
    for (int element = 0; element < 8; ++element) {
      // One 1 in the element of a that the lane holds, then every column of b in turn must meet it: d[row][n] =
      // b[column][n].
      DeviceMemory out(32 * 16);
      float* d = as<float>(out);
      const auto body = [&] {
        const int lane = static_cast<int>(threadIdx.x);
        uint32_t a[4] = {};
        if (lane == row.lane) a[element / 2] = element % 2 ? 0x3f800000u : 0x3f80u;
        // b[k][n] = 16 n + k, exact in bf16.
        const auto b = [&](int k) { return static_cast<float>(16 * (lane / 4) + k); };
        float sums[4] = {};
        ptx::mma_16x8x16(sums, a, ptx::bf16_pair(b(2 * (lane % 4)), b(2 * (lane % 4) + 1)),
                         ptx::bf16_pair(b(2 * (lane % 4) + 8), b(2 * (lane % 4) + 9)));
        for (int i = 0; i < 4; ++i) d[lane * 4 + i] = sums[i];
      };
      emulation::run({1, 1, 1}, {32, 1, 1}, 0, body, std::source_location::current());
      for (const Row& other : table)
        for (int i = 0; i < 4; ++i)
          CHECK(
              d[other.lane * 4 + i] ==
              (other.c[i][0] == row.a[element][0] ? static_cast<float>(16 * other.c[i][1] + row.a[element][1]) : 0.0f));
      if (element >= 4) continue;
      // And one 1 in b: d[m][column] = a[m][row] with a[m][k] = 16 m + k.
      const auto right = [&] {
        const int lane = static_cast<int>(threadIdx.x), g = lane / 4, c = 2 * (lane % 4);
        const auto at = [](int m, int k) { return static_cast<float>(16 * m + k); };
        const uint32_t a[4] = {ptx::bf16_pair(at(g, c), at(g, c + 1)), ptx::bf16_pair(at(g + 8, c), at(g + 8, c + 1)),
                               ptx::bf16_pair(at(g, c + 8), at(g, c + 9)),
                               ptx::bf16_pair(at(g + 8, c + 8), at(g + 8, c + 9))};
        uint32_t b[2] = {};
        if (lane == row.lane) b[element / 2] = element % 2 ? 0x3f800000u : 0x3f80u;
        float sums[4] = {};
        ptx::mma_16x8x16(sums, a, b[0], b[1]);
        for (int i = 0; i < 4; ++i) d[lane * 4 + i] = sums[i];
      };
      emulation::run({1, 1, 1}, {32, 1, 1}, 0, right, std::source_location::current());
      for (const Row& other : table)
        for (int i = 0; i < 4; ++i)
          CHECK(
              d[other.lane * 4 + i] ==
              (other.c[i][1] == row.b[element][1] ? static_cast<float>(16 * other.c[i][0] + row.b[element][0]) : 0.0f));
    }
}

TEST_CASE("products through ldmatrix equal double for every pair of one-hot matrices; swapped fragments do not") {
  DeviceMemory a(512), b(256), d(512);
  int wrong = 0;
  for (int one = 0; one < 256; one += 7) {
    for (int i = 0; i < 256; ++i) as<bfloat16>(a)[i] = bfloat16(i == one ? 1.0f : 0.0f);
    for (int i = 0; i < 128; ++i) as<bfloat16>(b)[i] = bfloat16(static_cast<float>(i + 1));
    CHECK(error_of(product_kernel<false>, dim3(1), dim3(32), 1024, as<const bfloat16>(a), as<const bfloat16>(b),
                   as<float>(d))
              .empty());
    for (int i = 0; i < 128; ++i)
      REQUIRE(as<float>(d)[i] == (i / 8 == one / 16 ? static_cast<float>(one % 16 * 8 + i % 8 + 1) : 0.0f));
    CHECK(error_of(product_kernel<true>, dim3(1), dim3(32), 1024, as<const bfloat16>(a), as<const bfloat16>(b),
                   as<float>(d))
              .empty());
    for (int i = 0; i < 128; ++i)
      wrong += as<float>(d)[i] != (i / 8 == one / 16 ? static_cast<float>(one % 16 * 8 + i % 8 + 1) : 0.0f);
  }
  CHECK(wrong > 0);
}
