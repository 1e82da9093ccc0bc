// SPDX-License-Identifier: Apache-2.0
// Rings of neighbours. Chunk c makes all its steps before chunk c + kChunksInFlight starts, so that a rank
// never waits for a slot that in turn waits for that rank.

#include <algorithm>
#include <array>
#include <cstring>

#include "comm/host/script.h"
#include "engine/base/units.h"

namespace slipstream::comm {
namespace {

constexpr int kChunksInFlight = 2;

void copy_bytes(std::byte* to, const std::byte* from, int64_t size_bytes) {
  if (to != from && size_bytes > 0) std::memcpy(to, from, static_cast<size_t>(size_bytes));
}

/// Message number is chunk * hops + hop. Rank r receives part r - 2 - hop in the reduce phase, and part r - 1 - hop in
/// the gather phase. At each step it sends what it received at the step before.
class Ring final : public Script {
 public:
  Ring(const Verb& verb, int rank, int size)
      : verb_(verb),
        rank_(rank),
        size_(size),
        hops_(size - 1),
        dtype_(verb.transfer.dtype),
        reduces_(verb.op != Op::all_gather),
        gathers_(verb.op != Op::reduce_scatter),
        chunk_elems_(kChunkBytes / size_of(dtype_)),
        chunks_(static_cast<int>(ceil_div(part(0).elems, chunk_elems_))) {
    if (!reduces_ || size == 1) return;
    slot_bytes_ = bytes_of(std::min(chunk_elems_, part(0).elems), dtype_);
  }

  void start(Poster& post, const std::byte* from, std::byte* to, std::byte* staging) override {
    from_ = from;
    to_ = to;
    staging_ = staging;
    const Part mine = part(rank_);
    if (!reduces_) copy_bytes(to + bytes_of(mine.begin, dtype_), from, bytes_of(mine.elems, dtype_));
    if (size_ == 1) return reduces_ ? copy_bytes(to, from, bytes_of(mine.elems, dtype_)) : void();
    for (int chunk = 0; chunk < kChunksInFlight; ++chunk) open(post, chunk);
  }

  void arrived(Poster& post, const Arrival& arrival) override {
    const int chunk = arrival.index / hops_, hop = arrival.index % hops_;
    int& left = left_[static_cast<size_t>(chunk % kChunksInFlight)];
    if (arrival.phase == Phase::reduce) {
      if (arrival.received) add(post, chunk, hop);
      if (--left == 0) gathers_ ? open_gather(post, chunk) : open(post, chunk + kChunksInFlight);
      return;
    }
    if (arrival.received && hop + 1 < hops_) send(post, chunk, hop + 1);
    if (--left == 0) open(post, chunk + kChunksInFlight);
  }

  int64_t staging_bytes() const override { return kChunksInFlight * hops_ * slot_bytes_; }
  int messages() const override { return kChunksInFlight * 2 * size_; }

 private:
  Part part(int owner) const {
    if (verb_.op == Op::all_reduce) return part_of(verb_.transfer.elems, size_, owner);
    return {owner * verb_.transfer.elems, verb_.transfer.elems};
  }
  int around(int rank) const { return (rank % size_ + size_) % size_; }
  int right() const { return around(rank_ + 1); }
  int left() const { return around(rank_ - 1); }
  /// Chunk `chunk` of a part. The smaller parts may have an empty last chunk.
  Part piece(int owner, int chunk) const {
    const Part whole = part(owner);
    const int64_t begin = std::min(chunk * chunk_elems_, whole.elems);
    return {whole.begin + begin, std::min(chunk_elems_, whole.elems - begin)};
  }
  std::byte* slot(int chunk, int hop) { return staging_ + (chunk % kChunksInFlight * hops_ + hop) * slot_bytes_; }

  void open(Poster& post, int chunk) {
    if (chunk >= chunks_) return;
    if (!reduces_) return open_gather(post, chunk);
    left_[static_cast<size_t>(chunk % kChunksInFlight)] = 2 * hops_;
    for (int hop = 0; hop < hops_; ++hop)
      post.recv(Phase::reduce, left(), chunk * hops_ + hop, slot(chunk, hop),
                bytes_of(piece(around(rank_ - 2 - hop), chunk).elems, dtype_));
    const Part first = piece(left(), chunk);
    post.send(Phase::reduce, right(), chunk * hops_, from_ + bytes_of(first.begin, dtype_),
              bytes_of(first.elems, dtype_));
  }
  void add(Poster& post, int chunk, int hop) {
    const Part own = piece(around(rank_ - 2 - hop), chunk);
    const bool last = hop + 1 == hops_;
    std::byte* partial = slot(chunk, hop);
    const std::byte* pair[] = {partial, from_ + bytes_of(own.begin, dtype_)};
    std::byte* to = !last ? partial : to_ + bytes_of(gathers_ ? own.begin : own.begin - part(rank_).begin, dtype_);
    sum(dtype_, to, pair, 2, own.elems);
    if (!last) post.send(Phase::reduce, right(), chunk * hops_ + hop + 1, partial, bytes_of(own.elems, dtype_));
  }
  void open_gather(Poster& post, int chunk) {
    left_[static_cast<size_t>(chunk % kChunksInFlight)] = 2 * hops_;
    for (int hop = 0; hop < hops_; ++hop) {
      const Part next = piece(around(rank_ - 1 - hop), chunk);
      post.recv(Phase::gather, left(), chunk * hops_ + hop, to_ + bytes_of(next.begin, dtype_),
                bytes_of(next.elems, dtype_));
    }
    send(post, chunk, 0);
  }
  void send(Poster& post, int chunk, int hop) {
    const Part next = piece(around(rank_ - hop), chunk);
    post.send(Phase::gather, right(), chunk * hops_ + hop, to_ + bytes_of(next.begin, dtype_),
              bytes_of(next.elems, dtype_));
  }

  Verb verb_;
  int rank_, size_, hops_;
  DType dtype_;
  bool reduces_, gathers_;
  int64_t chunk_elems_;
  int chunks_;
  int64_t slot_bytes_ = 0;
  std::byte* staging_ = nullptr;             // [chunk in flight][hop][chunk]
  std::array<int, kChunksInFlight> left_{};  // the messages of the chunk's phase that are not complete
  const std::byte* from_ = nullptr;
  std::byte* to_ = nullptr;
};

}  // namespace

std::unique_ptr<Script> make_ring(const Verb& verb, int rank, int size) {
  return std::make_unique<Ring>(verb, rank, size);
}

}  // namespace slipstream::comm
