// SPDX-License-Identifier: Apache-2.0
// Tiles that TMA moves between tensors in global memory and shared memory.

#include <fmt/core.h>

#include <cstring>
#include <utility>

#include "tests/emulation/async_machine.h"

namespace slipstream::emulation {
namespace {

using kernels::hopper::TensorShape;
constexpr size_t kElementBytes = 2;

/// The box of a map at a place, row by row in the order of shared memory. Source: PTX ISA, Tensors: Bounding Box, Out
/// of Boundary Access and Swizzling Modes.
class Box {
 public:
  Box(const TensorShape& shape, const Coordinates& first) : shape_(shape), first_(first) {
    for (int d = 1; d < shape.rank; ++d) rows_ *= shape.box[d];
  }
  size_t row_bytes() const { return shape_.box[0] * kElementBytes; }
  size_t bytes() const { return rows_ * row_bytes(); }

  /// Calls body(row, global, skipped, bytes) for each row with elements in the tensor: `bytes` from `global` on are the
  /// row's bytes from `skipped` on.
  template <typename Body>
  void for_rows(const Body& body) const {
    const int64_t begin = std::max<int64_t>(first_[0], 0),
                  end = std::min(int64_t{first_[0]} + shape_.box[0], static_cast<int64_t>(shape_.sizes[0]));
    if (begin >= end) return;
    for (size_t row = 0; row < rows_; ++row) {
      int64_t offset = begin * static_cast<int64_t>(kElementBytes);
      bool inside = true;
      size_t rest = row;
      for (size_t d = 1; d < static_cast<size_t>(shape_.rank); ++d) {
        const int64_t at = first_[d] + static_cast<int64_t>(rest % shape_.box[d]);
        rest /= shape_.box[d];
        inside &= at >= 0 && at < static_cast<int64_t>(shape_.sizes[d]);
        offset += at * static_cast<int64_t>(shape_.strides_bytes[d]);
      }
      if (inside)
        body(row, static_cast<const unsigned char*>(shape_.base) + offset,
             static_cast<size_t>(begin - first_[0]) * kElementBytes, static_cast<size_t>(end - begin) * kElementBytes);
    }
  }
  /// Where byte `at` of a row lies from the begin of the box, by the swizzle.
  size_t place(size_t row, size_t at) const {
    return kernels::hopper::swizzled(static_cast<uint32_t>(row * row_bytes() + at), shape_.swizzle);
  }

 private:
  const TensorShape& shape_;
  Coordinates first_;
  size_t rows_ = 1;
};

/// The cells of a box in shared memory.
Cell* checked_cells(const char* operation, int rank, const TensorShape& shape, const Box& box, const void* shared,
                    const std::source_location& at) {
  if (shape.rank != rank)
    fail(source::kTensorCopy,
         fmt::format("{} at {} of rank {} with a map of rank {}", operation, file_of(at), rank, shape.rank));
  Cell* cells = cells_of(shared, box.bytes());
  if (!cells)
    fail(source::kTensorCopy,
         fmt::format("{} at {} of a box of {} bytes, which is out of bounds of dynamic shared memory", operation,
                     file_of(at), box.bytes()));
  const uint32_t needed = std::max(128u, 8 * span_bytes(shape.swizzle));
  if (shared_address(shared) % needed != 0)
    fail(source::kSwizzle,
         fmt::format("{} at {} uses {}, address {}: a swizzle of {} bytes needs a multiple of {}", operation,
                     file_of(at), offset_of(shared), shared_address(shared), span_bytes(shape.swizzle), needed));
  check_no_barrier(shared, box.bytes(), operation, at);
  return cells;
}

/// Completes what a thread's committed stores but those of the last `pending` groups read, and with `write` what they
/// write.
void wait_for_stores(size_t pending, bool write) {
  AsyncThread& mine = a.of[m.current];
  mine.stores_read.clear();
  for (size_t i = 0; i < a.stores.size(); ++i) {
    Store& store = a.stores[i];
    if (store.thread != m.current || store.group + pending >= mine.store_groups) continue;
    if (write && store.write) std::exchange(store.write, nullptr)();
    if (store.read) continue;
    store.read = true;
    store.step = a.step(m.current);
    mine.stores_read.push_back(i);
  }
  if (!mine.stores_read.empty()) m.fibers[m.current].last.kind = Access::Kind::stores;
}

void change_and_wait(const char* operation, size_t pending, bool write, const std::source_location& at) {
  require_hopper(operation, at);
  const Change change = change_of(operation, at);
  if (change == Change::removed) return;
  if (change == Change::late) return move_down([=] { wait_for_stores(pending, write); });
  wait_for_stores(pending + (change == Change::weakened ? 1 : 0), write);
}

}  // namespace

void tma_load(int rank, void* shared, const TensorMap& map, uint64_t* words, const Coordinates& first,
              const std::source_location& at) {
  PhaseBarrier& barrier = barrier_at(words, "tma_load", at);
  if (!barrier.init_fenced)
    fail(source::kMbarrierFence,
         fmt::format("tma_load at {} uses a barrier without a barrier_init_fence since its barrier_init at {}",
                     file_of(at), file_of(m.sites.at[barrier.init_site])));
  const TensorShape shape = decoded(map, "tma_load", at);
  const Box box(shape, first);
  Cell* const cells = checked_cells("tma_load", rank, shape, box, shared, at);
  Fiber& fiber = m.fibers[m.current];
  before_access(fiber);
  fiber.last = {};
  auto* const to = static_cast<unsigned char*>(shared);
  Load& load = a.loads.emplace_back(Load{m.current, m.sites.of(at), static_cast<size_t>(&barrier - a.barriers.data()),
                                         barrier.phase, to, std::vector<unsigned char>(box.bytes(), 0)});
  box.for_rows([&](size_t row, const unsigned char* from, size_t skipped, size_t bytes) {
    access(from, bytes);
    for (size_t i = 0; i < bytes; i += kElementBytes)
      std::memcpy(&load.image[box.place(row, skipped + i)], from + i, kElementBytes);
  });
  const Asynchronous writes{a.threads[m.current], "begins to load", true, at};
  for (size_t c = 0; c < box.bytes() / 16; ++c) {
    Cell& cell = cells[c];
    check_asynchronous(cell, writes);
    check_granules(to + 16 * c, writes);
    cell = {};
    cell.load = static_cast<uint32_t>(a.loads.size());
  }
  std::memset(to, 0xff, box.bytes());
}

bool land_next() {
  if (a.landed == a.loads.size()) return false;
  Load& load = a.loads[a.landed++];
  m.current = load.thread;
  PhaseBarrier& barrier = a.barriers[load.barrier];
  if (barrier.phase != load.phase)
    fail(source::kMbarrierTransactions,
         fmt::format("bytes of its tma_load at {} in phase {} of a barrier arrive in phase {}: barrier_arrive_expect "
                     "must name the bytes of all boxes of a phase",
                     file_of(m.sites.at[load.site]), load.phase, barrier.phase));
  std::memcpy(load.to, load.image.data(), load.image.size());
  barrier.arrived_bytes += static_cast<int64_t>(load.image.size());
  load.image = {};
  complete_phase(barrier);
  return true;
}

void tma_store(int rank, const TensorMap& map, const void* shared, const Coordinates& first,
               const std::source_location& at) {
  require_hopper("tma_store", at);
  const TensorShape shape = decoded(map, "tma_store", at);
  const Box box(shape, first);
  Cell* const cells = checked_cells("tma_store", rank, shape, box, shared, at);
  for (int d = 0; d < rank; ++d)
    if (first[static_cast<size_t>(d)] < 0)
      fail(source::kTensorCopy,
           fmt::format("tma_store at {} begins at element {} of dimension {}: a store cannot begin before the tensor",
                       file_of(at), first[static_cast<size_t>(d)], d));
  Fiber& fiber = m.fibers[m.current];
  before_access(fiber);
  fiber.last = {};
  const auto* const from = static_cast<const unsigned char*>(shared);
  struct Row {
    unsigned char* to;
    std::vector<unsigned char> bytes;
  };
  std::vector<Row> rows;
  box.for_rows([&](size_t row, const unsigned char* to, size_t skipped, size_t bytes) {
    access(to, bytes);
    Row& copied = rows.emplace_back(Row{const_cast<unsigned char*>(to), std::vector<unsigned char>(bytes)});
    for (size_t i = 0; i < bytes; i += kElementBytes)
      std::memcpy(&copied.bytes[i], from + box.place(row, skipped + i), kElementBytes);
  });
  Store& store = a.stores.emplace_back(
      Store{.thread = m.current, .group = a.of[m.current].store_groups, .site = m.sites.of(at), .write = nullptr});
  store.write = [rows = std::move(rows)] {
    for (const Row& row : rows) std::memcpy(row.to, row.bytes.data(), row.bytes.size());
  };
  const Asynchronous reads{a.threads[m.current], "begins to store", false, at};
  for (size_t c = 0; c < box.bytes() / 16; ++c) {
    check_asynchronous(cells[c], reads);
    check_granules(from + 16 * c, reads);
    cells[c].store = static_cast<uint32_t>(a.stores.size());
  }
}

void tma_store_commit(const std::source_location& at) {
  require_hopper("tma_store_commit", at);
  if (change_of("tma_store_commit", at) == Change::none) ++a.of[m.current].store_groups;
}
void tma_store_wait_read(size_t pending, const std::source_location& at) {
  change_and_wait("tma_store_wait_read", pending, false, at);
}
void tma_store_wait(size_t pending, const std::source_location& at) {
  change_and_wait("tma_store_wait", pending, true, at);
}

}  // namespace slipstream::emulation
