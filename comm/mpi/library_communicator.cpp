// SPDX-License-Identifier: Apache-2.0
// The verbs as the MPI library implements them, for benchmarks: blocking calls on the stream's thread.

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <vector>

#include "comm/host/bind.h"
#include "comm/host/route_table.h"
#include "comm/mpi/mpi_parts.h"
#include "engine/base/check.h"

namespace slipstream::comm {
namespace {

constexpr int kTag = 0;

MPI_Datatype type_of(const Verb& verb) {
  switch (verb.transfer.dtype) {
    case DType::f32:
      return MPI_FLOAT;
    case DType::f64:
      return MPI_DOUBLE;
    default:
      throw CommError("[mpi] {}: the library's verbs take float32 and float64 only.", describe(verb));
  }
}

class LibraryCommunicator final : public Communicator {
 public:
  explicit LibraryCommunicator(MPI_Comm connection) : connection_(connection) {
    MPI_Comm_rank(connection_, &rank_);
    MPI_Comm_size(connection_, &size_);
  }
  ~LibraryCommunicator() override { MPI_Comm_free(&connection_); }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  Work all_reduce(const Transfer& transfer) override {
    return bound({.op = Op::all_reduce, .transfer = transfer}, [this](const Operands& o) {
      return MPI_Allreduce(o.from == o.to ? MPI_IN_PLACE : o.from, o.to, o.count, o.type, MPI_SUM, connection_);
    });
  }
  Work reduce_scatter(const Transfer& transfer) override {
    return bound({.op = Op::reduce_scatter, .transfer = transfer}, [this](const Operands& o) {
      return MPI_Reduce_scatter_block(o.from, o.to, o.count, o.type, MPI_SUM, connection_);
    });
  }
  Work all_gather(const Transfer& transfer) override {
    return bound({.op = Op::all_gather, .transfer = transfer}, [this](const Operands& o) {
      return MPI_Allgather(o.from, o.count, o.type, o.to, o.count, o.type, connection_);
    });
  }
  Work all_to_all(const Transfer& transfer) override {
    return bound({.op = Op::all_to_all, .transfer = transfer}, [this](const Operands& o) {
      return MPI_Alltoall(o.from, o.count, o.type, o.to, o.count, o.type, connection_);
    });
  }
  Work all_to_all_v(const RoutedTransfer& transfer) override {
    const Verb verb = verb_of(transfer, size_);
    const int64_t row_bytes = bytes_of(verb.route.row_elems, verb.transfer.dtype), bytes = to_bytes(verb, size_);
    if (std::max(bytes, from_bytes(verb, size_)) > INT32_MAX)
      throw CommError("[mpi] {}: the library counts at most {} bytes.", describe(verb), INT32_MAX);
    const auto blocks = std::make_shared<Blocks>();
    Work work = bind(verb, rank_, size_,
                     [this, verb, row_bytes, blocks, what = describe(verb)](LaunchContext& context, BoundState&) {
                       if (aborted_) throw CommError("[mpi] {}: the communicator was aborted.", what);
                       exchange_blocks(verb, row_bytes, *blocks, what, context);
                     });
    blocks->table.reserve(verb.route, size_);
    blocks->staging.resize(static_cast<size_t>(verb.route.bound_rows * row_bytes));
    for (std::vector<int>* list : {&blocks->out, &blocks->out_at, &blocks->in, &blocks->in_at})
      list->resize(static_cast<size_t>(size_));
    return work;
  }
  Work send(const Transfer& transfer, int peer) override {
    return bound({.op = Op::send, .transfer = transfer, .to_peer = peer}, [this, peer](const Operands& o) {
      return MPI_Send(o.from, o.count, o.type, peer, kTag, connection_);
    });
  }
  Work recv(const Transfer& transfer, int peer) override {
    return bound({.op = Op::recv, .transfer = transfer, .from_peer = peer}, [this, peer](const Operands& o) {
      return MPI_Recv(o.to, o.count, o.type, peer, kTag, connection_, MPI_STATUS_IGNORE);
    });
  }
  Work exchange(const Transfer& transfer, int to_peer, int from_peer) override {
    return bound({.op = Op::exchange, .transfer = transfer, .to_peer = to_peer, .from_peer = from_peer},
                 [this, to_peer, from_peer](const Operands& o) {
                   return MPI_Sendrecv(o.from, o.count, o.type, to_peer, kTag, o.to, o.count, o.type, from_peer, kTag,
                                       connection_, MPI_STATUS_IGNORE);
                 });
  }
  /// A call in flight goes on: MPI cannot end it.
  void abort() override { aborted_ = true; }

 private:
  struct Operands {
    const std::byte* from = nullptr;
    std::byte* to = nullptr;
    int count = 0;
    MPI_Datatype type = MPI_DATATYPE_NULL;
  };

  /// The memory of an all_to_all_v: the pieces of each rank as one block, and the blocks' sizes and places in bytes.
  struct Blocks {
    RouteTable table;
    std::vector<std::byte> staging;
    std::vector<int> out, out_at, in, in_at;  // by peer: on the side of the sources, and of the owners
  };

  /// The rows of a source for one owner lie together at the source. At the owner they are collected in staging memory,
  /// because MPI_Alltoallv takes one block for each pair of ranks.
  void exchange_blocks(const Verb& verb, int64_t row_bytes, Blocks& blocks, const std::string& what,
                       LaunchContext& context) {
    const Route& route = verb.route;
    blocks.table.read(route, rank_, size_, context.as<const int32_t>(verb.counts), what);
    int at = 0;
    for (int peer = 0; peer < size_; ++peer) {
      const auto p = static_cast<size_t>(peer);
      blocks.out[p] = blocks.in[p] = 0;
      blocks.out_at[p] = static_cast<int>(blocks.table.sent(peer, 0).source_row * row_bytes);
      blocks.in_at[p] = at;
      for (int j = 0; j < route.experts; ++j) {
        blocks.out[p] += static_cast<int>(blocks.table.sent(peer, j).rows * row_bytes);
        blocks.in[p] += static_cast<int>(blocks.table.held(peer, j).rows * row_bytes);
      }
      at += blocks.in[p];
    }
    const auto for_pieces = [&](auto copy) {
      std::byte* staged = blocks.staging.data();
      for (int peer = 0; peer < size_; ++peer)
        for (int j = 0; j < route.experts; ++j) {
          const RoutePiece& piece = blocks.table.held(peer, j);
          const int64_t bytes = piece.rows * row_bytes;
          if (bytes > 0) copy(staged, piece.owner_row * row_bytes, static_cast<size_t>(bytes));
          staged += bytes;
        }
    };
    const std::byte* from = context.at(verb.transfer.from);
    std::byte* to = context.at(verb.transfer.to);
    if (route.reverse) {
      for_pieces([&](std::byte* staged, int64_t begin, size_t bytes) { std::memcpy(staged, from + begin, bytes); });
      check_mpi(MPI_Alltoallv(blocks.staging.data(), blocks.in.data(), blocks.in_at.data(), MPI_BYTE, to,
                              blocks.out.data(), blocks.out_at.data(), MPI_BYTE, connection_),
                what);
    } else {
      check_mpi(MPI_Alltoallv(from, blocks.out.data(), blocks.out_at.data(), MPI_BYTE, blocks.staging.data(),
                              blocks.in.data(), blocks.in_at.data(), MPI_BYTE, connection_),
                what);
      for_pieces([&](std::byte* staged, int64_t begin, size_t bytes) { std::memcpy(to + begin, staged, bytes); });
    }
  }

  template <typename Call>
  Work bound(const Verb& verb, Call call) {
    const MPI_Datatype type = type_of(verb);
    if (verb.transfer.elems > INT32_MAX)
      throw CommError("[mpi] {}: the library counts at most {} elements.", describe(verb), INT32_MAX);
    return bind(verb, rank_, size_,
                [this, verb, call, type, what = describe(verb)](LaunchContext& context, BoundState&) {
                  if (aborted_) throw CommError("[mpi] {}: the communicator was aborted.", what);
                  const Operands operands{.from = verb.op != Op::recv ? context.at(verb.transfer.from) : nullptr,
                                          .to = verb.op != Op::send ? context.at(verb.transfer.to) : nullptr,
                                          .count = static_cast<int>(verb.transfer.elems),
                                          .type = type};
                  check_mpi(call(operands), what);
                });
  }

  MPI_Comm connection_;
  int rank_ = 0, size_ = 1;
  std::atomic<bool> aborted_{false};
};

}  // namespace

std::unique_ptr<Communicator> make_library_communicator(MPI_Comm connection) {
  return std::make_unique<LibraryCommunicator>(connection);
}

}  // namespace slipstream::comm
