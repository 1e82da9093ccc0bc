// SPDX-License-Identifier: Apache-2.0
// Products of a warpgroup (wgmma), with the layouts of the PTX manual (ISA 8.0 and later, section "Asynchronous
// Warpgroup Level Matrix Instructions").

#include <fmt/core.h>

#include <bit>
#include <cstring>
#include <utility>

#include "tests/emulation/async_machine.h"

namespace slipstream::emulation {
namespace {

constexpr size_t kGroup = 128;
constexpr int kRows = 64, kDepth = 16, kColumnsMax = 256;

Warpgroup& my_group() { return a.groups[m.current / kGroup]; }

/// An operand in shared memory: 16-byte chunks of 8 elements along its major dimension. Source: PTX ISA, Matrix
/// Descriptor Format, Strides and Canonical Layouts; CUTLASS, cute/atom/mma_traits_sm90_gmma.hpp.
class Operand {
 public:
  Operand(uint64_t descriptor, Major major)
      : major_(major),
        address_(static_cast<uint32_t>(descriptor & 0x3fff) << 4),
        leading_(static_cast<uint32_t>(descriptor >> 16 & 0x3fff) << 4),
        stride_(static_cast<uint32_t>(descriptor >> 32 & 0x3fff) << 4),
        swizzle_(kSwizzles[descriptor >> 62]) {}

  /// The address in shared memory of the chunk with element (i, k): i is a row of A or a column of B.
  uint32_t chunk(int i, int k) const {
    const auto [minor, major] = major_ == Major::k ? std::pair(i, k / 8) : std::pair(k, i / 8);
    const auto row = static_cast<uint32_t>(minor % 8), rows = static_cast<uint32_t>(minor / 8);
    const auto column = static_cast<uint32_t>(major);
    const uint32_t span = span_bytes(swizzle_), columns = span / 16;
    uint32_t at = address_ + row * span;
    if (swizzle_ == Swizzle::none)  // 8 rows of 16 bytes in 128 bytes
      at += major_ == Major::k ? rows * stride_ + column * leading_ : rows * leading_ + column * stride_;
    else  // 8 rows of the span; K-major operands of 16 elements are not wider
      at += rows * stride_ + column % columns * 16 + column / columns * (major_ == Major::k ? 16 * columns : leading_);
    return kernels::hopper::swizzled(at, swizzle_);
  }
  /// Calls body(chunk, i, k) for every chunk of rows (or columns) i < count, with its first element.
  template <typename Body>
  void for_chunks(int count, const Body& body) const {
    for (int i = 0; i < count; i += major_ == Major::k ? 1 : 8)
      for (int k = 0; k < kDepth; k += major_ == Major::k ? 8 : 1) body(chunk(i, k), i, k);
  }
  Major major() const { return major_; }

 private:
  static constexpr Swizzle kSwizzles[] = {Swizzle::none, Swizzle::b128, Swizzle::b64, Swizzle::b32};
  Major major_;
  uint32_t address_, leading_, stride_;
  Swizzle swizzle_;
};

float element(const unsigned char* p) {
  uint16_t bits;
  std::memcpy(&bits, p, 2);
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

/// What all threads of the group know: the warpgroup reads both operands (PTX ISA, wgmma.mma_async).
const Knowledge& common_knowledge(size_t group_index) {
  Warpgroup& group = a.groups[group_index];
  if (std::exchange(group.common_known, true)) return group.common;
  const auto lower = [](std::vector<int32_t>& to, const std::vector<int32_t>& from) {
    for (size_t i = 0; i < from.size(); ++i) to[i] = std::min(to[i], from[i]);
  };
  group.common = a.threads[kGroup * group_index];
  for (size_t t = 1; t < kGroup; ++t) {
    lower(group.common.known, a.threads[kGroup * group_index + t].known);
    lower(group.common.fenced, a.threads[kGroup * group_index + t].fenced);
  }
  return group.common;
}

/// Checks that a product may read the operand, and copies its elements to values[k * pitch + i].
void load_operand(const Operand& operand, int count, float* values, int pitch, const std::source_location& at) {
  const size_t g = m.current / kGroup;
  const Asynchronous reads{common_knowledge(g), "wgmma reads", false, at};
  const int step = operand.major() == Major::k ? pitch : 1;
  operand.for_chunks(count, [&](uint32_t address, int i, int k) {
    const unsigned char* p = m.dynamic + (int64_t{address} - dynamic_base());
    Cell* cell = cells_of(p, 16);
    if (!cell)
      fail(source::kMatrixDescriptor, fmt::format("wgmma at {} reads 16 bytes at {}, which is out of bounds of its {}",
                                                  file_of(at), offset_of(p), m.dynamic_bytes));
    check_asynchronous(*cell, reads);
    if (cell->generic || cell->load == 0) check_granules(p, reads);
    cell->product[g] = a.groups[g].started;
    for (int j = 0; j < 8; ++j) values[k * pitch + i + j * step] = element(p + 2 * j);
  });
}

/// sums (64 x columns) += left right, for `left` and `right` by k.
#if defined(__x86_64__) && !defined(__clang__)
__attribute__((target_clones("avx2", "default"), optimize("O3")))
#endif
void multiply(const float* __restrict left, const float* __restrict right, float* __restrict sums, int columns) {
  for (int row = 0; row < kRows; ++row)
    for (int k = 0; k < kDepth; ++k) {
      const float factor = left[k * kRows + row];
      for (int column = 0; column < columns; ++column)
        sums[row * columns + column] += factor * right[k * columns + column];
    }
}

/// Element i of a thread's accumulator: its row and column in the tile. Source: PTX ISA, Register Fragments for
/// wgmma.mma_async.m64nNk16.
std::pair<int, int> place_in_tile(size_t thread, int i) {
  const int warp = static_cast<int>(thread / 32), lane = static_cast<int>(thread % 32);
  return {16 * warp + lane / 4 + 8 * (i / 2 % 2), 8 * (i / 4) + 2 * (lane % 4) + i % 2};
}

void run_product(const std::source_location& at) {
  Warpgroup& group = my_group();
  const Product& first = group.products[0];
  for (const Product& one : group.products)
    if (one.a != first.a || one.b != first.b || one.accumulate != first.accumulate || one.columns != first.columns)
      fail(source::kWgmma,
           fmt::format("wgmma at {} with different operands in the threads of a warpgroup", file_of(at)));
  ++group.started;
  group.sites.push_back(m.sites.of(at));
  static float left[kDepth * kRows], right[kDepth * kColumnsMax], sums[kRows * kColumnsMax];
  const int columns = first.columns;
  if (first.fragment) {
    for (size_t t = 0; t < kGroup; ++t)
      for (int r = 0; r < 4; ++r)
        for (int half = 0; half < 2; ++half) {
          const int lane = static_cast<int>(t % 32), row = 16 * static_cast<int>(t / 32) + lane / 4 + 8 * (r % 2),
                    k = 2 * (lane % 4) + 8 * (r / 2) + half;
          const uint32_t pair = group.products[t].fragment[r];
          left[k * kRows + row] = std::bit_cast<float>(half ? pair & 0xffff0000u : pair << 16);
        }
  } else {
    load_operand({first.a, first.major_a}, kRows, left, kRows, at);
  }
  load_operand({first.b, first.major_b}, columns, right, columns, at);
  if (!first.accumulate) std::fill(sums, sums + kRows * columns, 0.0f);
  for (size_t t = 0; first.accumulate && t < kGroup; ++t)
    for (int i = 0; i < columns / 2; ++i) {
      const auto [row, column] = place_in_tile(t, i);
      sums[row * columns + column] = group.products[t].sums[i];
    }
  multiply(left, right, sums, columns);
  for (size_t t = 0; t < kGroup; ++t)
    for (int i = 0; i < columns / 2; ++i) {
      const auto [row, column] = place_in_tile(t, i);
      group.products[t].sums[i] = sums[row * columns + column];
    }
}

void wait_for_products(size_t pending, const std::source_location& at) {
  meet_group("wgmma_wait", at, [] {});
  Warpgroup& group = my_group();
  int32_t& complete = a.threads[m.current].known[a.product_of(m.current / kGroup)];
  a.of[m.current].products_before = complete;
  if (group.commits.size() > pending) complete = std::max(complete, group.commits[group.commits.size() - 1 - pending]);
  m.fibers[m.current].last.kind = Access::Kind::products;
}

}  // namespace

void meet_group(const char* operation, const std::source_location& at, const std::function<void()>& action) {
  const size_t first = m.current / kGroup * kGroup;
  if (first + kGroup > m.threads)
    fail(source::kWgmma,
         fmt::format("{} at {} in a warpgroup of {} threads: it needs 128", operation, file_of(at), m.threads - first));
  Warpgroup& group = my_group();
  for (size_t t = first; t < first + kGroup; ++t) {
    const Fiber& other = m.fibers[t];
    if (other.state == State::at_group_operation && (other.at.line() != at.line() || other.operation != operation))
      fail(source::kWgmma, fmt::format("divergent {} at {}: {} of the same warpgroup waits at {} ({})", operation,
                                       file_of(at), place_of(t), file_of(other.at), other.operation));
    if (group.arrived > 0 && other.state == State::at_group_operation) break;
  }
  if (++group.arrived < kGroup) return wait_at(State::at_group_operation, operation, at);
  group.arrived = 0;
  for (size_t t = first; t < first + kGroup; ++t)
    if (t != m.current) m.fibers[t].state = State::ready;
  action();
}

void sums_access(SumsState& state, int i, int count, const std::source_location& at) {
  if (i < 0 || i >= count)
    fail(source::kHopper, fmt::format("element {} of an accumulator of {} at {}", i, count, file_of(at)));
  if (state.in_flight)
    fail(source::kWgmma,
         fmt::format(
             "access at {} to element {} of an accumulator that the wgmma at {} is writing, without a wgmma_wait "
             "since that names it",
             file_of(at), i, file_of(state.started_at)));
  state.touched = true;
  state.touched_at = at;
}

void RegistersVisitor::sums(SumsState& state) const {
  if (operation == Operation::fence) state.touched = false;
  if (operation != Operation::wait || !state.in_flight) return;
  if (state.product >= a.threads[m.current].known[a.product_of(m.current / kGroup)])
    fail(source::kWgmmaWait,
         fmt::format(
             "wgmma_wait at {} names an accumulator whose wgmma at {} is still in flight, without a wait for its "
             "group",
             file_of(at), file_of(state.started_at)));
  state.in_flight = false;
}

void RegistersVisitor::fragment(const uint32_t* p) const {
  if (operation != Operation::fence) return;
  std::vector<AsyncThread::Fragment>& all = a.of[m.current].fragments;
  auto found = std::find_if(all.begin(), all.end(), [&](const auto& one) { return one.at == p; });
  if (found == all.end()) found = all.insert(all.end(), {p, {}});
  std::memcpy(found->values.data(), p, sizeof found->values);
}

RegistersVisitor wgmma_fence(const std::source_location& at) {
  require_hopper("wgmma_fence", at);
  if (change_of("wgmma_fence", at) == Change::removed) return {RegistersVisitor::Operation::none, at};
  meet_group("wgmma_fence", at, [] {});
  a.of[m.current].wgmma_fenced = true;
  return {RegistersVisitor::Operation::fence, at};
}

void wgmma_commit(const std::source_location& at) {
  require_hopper("wgmma_commit", at);
  if (change_of("wgmma_commit", at) == Change::removed) return;
  meet_group("wgmma_commit", at, [] { my_group().commits.push_back(my_group().started); });
}

RegistersVisitor wgmma_wait(size_t pending, const std::source_location& at) {
  require_hopper("wgmma_wait", at);
  const Change change = change_of("wgmma_wait", at);
  if (change == Change::late) move_down([=] { wait_for_products(pending, at); });
  if (change == Change::removed || change == Change::late) return {RegistersVisitor::Operation::none, at};
  wait_for_products(pending + (change == Change::weakened ? 1 : 0), at);
  return {RegistersVisitor::Operation::wait, at};
}

void wgmma(const Product& product, const std::source_location& at) {
  require_hopper("wgmma", at);
  Fiber& fiber = m.fibers[m.current];
  before_access(fiber);
  fiber.last = {};
  const AsyncThread& mine = a.of[m.current];
  SumsState& state = *product.state;
  if (!mine.wgmma_fenced)
    fail(source::kWgmmaFence, fmt::format("wgmma at {} without a wgmma_fence before the first one", file_of(at)));
  if (state.touched)
    fail(source::kWgmmaFence,
         fmt::format(
             "wgmma at {} uses an accumulator that instructions accessed at {}, without a wgmma_fence since that "
             "names it",
             file_of(at), file_of(state.touched_at)));
  if (product.fragment) {
    const auto fenced = [&](const AsyncThread::Fragment& one) {
      return one.at == product.fragment && std::memcmp(one.values.data(), one.at, sizeof one.values) == 0;
    };
    if (std::none_of(mine.fragments.begin(), mine.fragments.end(), fenced))
      fail(source::kWgmmaFence,
           fmt::format("wgmma at {} uses an A fragment without a wgmma_fence since its last change that names it",
                       file_of(at)));
  }
  Warpgroup& group = my_group();
  group.products[m.current % kGroup] = product;
  meet_group("wgmma", at, [&] { run_product(at); });
  state.in_flight = true;
  state.product = group.started - 1;
  state.started_at = at;
}

uint32_t descriptor_address(const void* shared, uint32_t leading_bytes, uint32_t stride_bytes,
                            const std::source_location& at) {
  if (static_cast<size_t>(static_cast<const unsigned char*>(shared) - m.dynamic) >= m.dynamic_bytes)
    fail(source::kMatrixDescriptor,
         fmt::format("matrix_descriptor at {} of an address outside dynamic shared memory", file_of(at)));
  if (shared_address(shared) % 16 != 0 || leading_bytes % 16 != 0 || stride_bytes % 16 != 0)
    fail(source::kMatrixDescriptor,
         fmt::format("matrix_descriptor at {} of {} with distances of {} and {} bytes: all must be multiples of 16",
                     file_of(at), offset_of(shared), leading_bytes, stride_bytes));
  return shared_address(shared);
}

}  // namespace slipstream::emulation
