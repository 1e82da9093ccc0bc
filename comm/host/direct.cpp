// SPDX-License-Identifier: Apache-2.0
// The direct algorithms: every rank exchanges with every other rank, beginning with its right neighbour, so that the
// ranks do not all begin with the same target.

#include <algorithm>
#include <cstring>

#include "comm/host/script.h"
#include "engine/base/units.h"

namespace slipstream::comm {
namespace {

constexpr int kSlots = 2;  // chunks that are received: one is added while the next is in flight
constexpr int kSendsAhead = 3;

void copy_bytes(std::byte* to, const std::byte* from, int64_t size_bytes) {
  if (to != from && size_bytes > 0) std::memcpy(to, from, static_cast<size_t>(size_bytes));
}

class DirectReduce final : public Script {
 public:
  DirectReduce(const Verb& verb, int rank, int size)
      : verb_(verb),
        rank_(rank),
        size_(size),
        dtype_(verb.transfer.dtype),
        gathers_(verb.op == Op::all_reduce),
        chunk_elems_(kChunkBytes / size_of(dtype_)),
        mine_(part(rank)),
        sources_(static_cast<size_t>(size)) {
    if (size > 1) {
      const int64_t slot_elems = std::min(chunk_elems_, std::max<int64_t>(mine_.elems, 0));
      slot_bytes_ = bytes_of(slot_elems, dtype_);
    }
  }

  void start(Poster& post, const std::byte* from, std::byte* to, std::byte* staging) override {
    from_ = from;
    to_ = to;
    staging_ = staging;
    if (size_ == 1) return copy_bytes(to, from, bytes_of(mine_.elems, dtype_));
    std::fill(std::begin(arrived_), std::end(arrived_), 0);
    for (int chunk = 0; chunk < kSlots; ++chunk) recv_contributions(post, chunk);
    for (int chunk = 0; chunk < kSendsAhead; ++chunk)
      for (int step = 1; step < size_; ++step) send_contribution(post, (rank_ + step) % size_, chunk);
  }

  void arrived(Poster& post, const Arrival& arrival) override {
    if (arrival.phase != Phase::reduce) return;
    if (!arrival.received) {
      // From here on the sum may arrive at the place from which the contribution was sent.
      if (gathers_) {
        const Part chunk = chunk_of(part(arrival.peer), arrival.index);
        post.recv(Phase::gather, arrival.peer, arrival.index, to_ + bytes_of(chunk.begin, dtype_),
                  bytes_of(chunk.elems, dtype_));
      }
      return send_contribution(post, arrival.peer, arrival.index + kSendsAhead);
    }
    const int slot = arrival.index % kSlots;
    if (++arrived_[slot] < size_ - 1) return;
    arrived_[slot] = 0;
    add_chunk(post, arrival.index);
    recv_contributions(post, arrival.index + kSlots);
  }

  int64_t staging_bytes() const override { return kSlots * size_ * slot_bytes_; }
  int messages() const override { return (size_ - 1) * (kSlots + kSendsAhead + 2 * (chunks(part(0)) + 1)); }

 private:
  Part part(int owner) const {
    return gathers_ ? part_of(verb_.transfer.elems, size_, owner)
                    : Part{owner * verb_.transfer.elems, verb_.transfer.elems};
  }
  int chunks(const Part& whole) const { return static_cast<int>(ceil_div(whole.elems, chunk_elems_)); }
  Part chunk_of(const Part& whole, int chunk) const {
    const int64_t begin = chunk * chunk_elems_;
    return {whole.begin + begin, std::min(chunk_elems_, whole.elems - begin)};
  }
  std::byte* slot(int chunk, int peer) { return staging_ + (chunk % kSlots * size_ + peer) * slot_bytes_; }

  void send_contribution(Poster& post, int peer, int chunk) {
    if (chunk >= chunks(part(peer))) return;
    const Part piece = chunk_of(part(peer), chunk);
    post.send(Phase::reduce, peer, chunk, from_ + bytes_of(piece.begin, dtype_), bytes_of(piece.elems, dtype_));
  }
  void recv_contributions(Poster& post, int chunk) {
    if (chunk >= chunks(mine_)) return;
    for (int step = 1; step < size_; ++step) {
      const int peer = (rank_ + size_ - step) % size_;
      post.recv(Phase::reduce, peer, chunk, slot(chunk, peer), bytes_of(chunk_of(mine_, chunk).elems, dtype_));
    }
  }
  void add_chunk(Poster& post, int chunk) {
    const Part piece = chunk_of(mine_, chunk);
    for (int r = 0; r < size_; ++r)
      sources_[static_cast<size_t>(r)] = r == rank_ ? from_ + bytes_of(piece.begin, dtype_) : slot(chunk, r);
    std::byte* to = to_ + bytes_of(gathers_ ? piece.begin : piece.begin - mine_.begin, dtype_);
    sum(dtype_, to, sources_.data(), size_, piece.elems);
    if (!gathers_) return;
    for (int step = 1; step < size_; ++step)
      post.send(Phase::gather, (rank_ + step) % size_, chunk, to, bytes_of(piece.elems, dtype_));
  }

  Verb verb_;
  int rank_, size_;
  DType dtype_;
  bool gathers_;
  int64_t chunk_elems_;
  Part mine_;
  int64_t slot_bytes_ = 0;
  std::byte* staging_ = nullptr;  // [slot][peer][chunk]
  std::vector<const std::byte*> sources_;
  int arrived_[kSlots] = {};
  const std::byte* from_ = nullptr;
  std::byte* to_ = nullptr;
};

class DirectMoves final : public Script {
 public:
  DirectMoves(const Verb& verb, int rank, int size) : verb_(verb), rank_(rank), size_(size) {}

  void start(Poster& post, const std::byte* from, std::byte* to, std::byte*) override {
    const int64_t bytes = bytes_of(verb_.transfer.elems, verb_.transfer.dtype);
    switch (verb_.op) {
      case Op::all_gather:
        for (int step = 1; step < size_; ++step) post.recv_whole(left(step), to + left(step) * bytes, bytes);
        for (int step = 1; step < size_; ++step) post.send_whole(right(step), from, bytes);
        return copy_bytes(to + rank_ * bytes, from, bytes);
      case Op::all_to_all:
        for (int step = 1; step < size_; ++step) post.recv_whole(left(step), to + left(step) * bytes, bytes);
        for (int step = 1; step < size_; ++step) post.send_whole(right(step), from + right(step) * bytes, bytes);
        return copy_bytes(to + rank_ * bytes, from + rank_ * bytes, bytes);
      default:
        break;
    }
    if (verb_.to_peer == rank_) return copy_bytes(to, from, bytes);
    if (verb_.from_peer >= 0) post.recv_whole(verb_.from_peer, to, bytes);
    if (verb_.to_peer >= 0) post.send_whole(verb_.to_peer, from, bytes);
  }
  void arrived(Poster&, const Arrival&) override {}
  int messages() const override {
    const int64_t bytes = bytes_of(verb_.transfer.elems, verb_.transfer.dtype);
    return static_cast<int>(2 * size_ * (bytes / kLargestMessageBytes + 1));
  }

 private:
  int right(int step) const { return (rank_ + step) % size_; }
  int left(int step) const { return (rank_ + size_ - step) % size_; }
  Verb verb_;
  int rank_, size_;
};

class RoutedMoves final : public RoutedScript {
 public:
  RoutedMoves(const Verb& verb, int rank, int size)
      : route_(verb.route), row_bytes_(bytes_of(verb.route.row_elems, verb.transfer.dtype)), rank_(rank), size_(size) {}

  void route(const RouteTable& table) override { table_ = &table; }
  void start(Poster& post, const std::byte* from, std::byte* to, std::byte*) override {
    for (int step = 1; step < size_; ++step) {
      const int peer = (rank_ + size_ - step) % size_;
      for (int j = 0, index = 0; j < route_.experts; ++j) {
        const RoutePiece& piece = route_.reverse ? table_->sent(peer, j) : table_->held(peer, j);
        index = post.recv_whole(peer, to + receiver_row(piece) * row_bytes_, piece.rows * row_bytes_, index);
      }
    }
    for (int step = 1; step < size_; ++step) {
      const int peer = (rank_ + step) % size_;
      for (int j = 0, index = 0; j < route_.experts; ++j) {
        const RoutePiece& piece = route_.reverse ? table_->held(peer, j) : table_->sent(peer, j);
        index = post.send_whole(peer, from + sender_row(piece) * row_bytes_, piece.rows * row_bytes_, index);
      }
    }
    for (int j = 0; j < route_.experts; ++j) {
      const RoutePiece& piece = table_->held(rank_, j);
      copy_bytes(to + receiver_row(piece) * row_bytes_, from + sender_row(piece) * row_bytes_, piece.rows * row_bytes_);
    }
  }
  void arrived(Poster&, const Arrival&) override {}
  int messages() const override {
    const int64_t whole = (route_.source_rows + route_.bound_rows) * row_bytes_ / kLargestMessageBytes;
    return static_cast<int>(2 * size_ * route_.experts + whole);
  }

 private:
  int64_t sender_row(const RoutePiece& piece) const { return route_.reverse ? piece.owner_row : piece.source_row; }
  int64_t receiver_row(const RoutePiece& piece) const { return route_.reverse ? piece.source_row : piece.owner_row; }

  Route route_;
  int64_t row_bytes_;
  int rank_, size_;
  const RouteTable* table_ = nullptr;
};

}  // namespace

std::unique_ptr<RoutedScript> make_routed_moves(const Verb& verb, int rank, int size) {
  return std::make_unique<RoutedMoves>(verb, rank, size);
}
std::unique_ptr<Script> make_direct_reduce(const Verb& verb, int rank, int size) {
  return std::make_unique<DirectReduce>(verb, rank, size);
}
std::unique_ptr<Script> make_direct_moves(const Verb& verb, int rank, int size) {
  return std::make_unique<DirectMoves>(verb, rank, size);
}

}  // namespace slipstream::comm
