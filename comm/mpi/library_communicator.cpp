// SPDX-License-Identifier: Apache-2.0
// The verbs as the MPI library implements them, for benchmarks: blocking calls on the stream's thread.

#include "comm/mpi/library_communicator.h"

#include <atomic>
#include <cstring>

#include "comm/host/bind.h"
#include "comm/mpi/mpi_check.h"
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
  Work broadcast(const Transfer& transfer, int root) override {
    return bound({.op = Op::broadcast, .transfer = transfer, .root = root}, [this, root](const Operands& o) {
      if (rank_ == root && o.from != o.to) std::memcpy(o.to, o.from, static_cast<size_t>(o.bytes));
      return MPI_Bcast(o.to, o.count, o.type, root, connection_);
    });
  }
  Work all_to_all(const Transfer& transfer) override {
    return bound({.op = Op::all_to_all, .transfer = transfer}, [this](const Operands& o) {
      return MPI_Alltoall(o.from, o.count, o.type, o.to, o.count, o.type, connection_);
    });
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
  std::unique_ptr<Communicator> split(int color, int key) override {
    MPI_Comm part = MPI_COMM_NULL;
    check_mpi(MPI_Comm_split(connection_, color, key, &part), "split a communicator");
    return std::make_unique<LibraryCommunicator>(part);
  }
  /// A call in flight continues, because MPI cannot end it.
  void abort() override { aborted_ = true; }

 private:
  struct Operands {
    const std::byte* from = nullptr;
    std::byte* to = nullptr;
    int count = 0;
    int64_t bytes = 0;
    MPI_Datatype type = MPI_DATATYPE_NULL;
  };

  template <typename Call>
  Work bound(const Verb& verb, Call call) {
    const MPI_Datatype type = type_of(verb);
    if (verb.transfer.elems > INT32_MAX)
      throw CommError("[mpi] {}: the library counts at most {} elements.", describe(verb), INT32_MAX);
    return bind(verb, rank_, size_,
                [this, verb, call, type, what = describe(verb)](LaunchContext& context, BoundState&) {
                  if (aborted_) throw CommError("[mpi] {}: the communicator was aborted.", what);
                  const bool reads = verb.op != Op::recv && (verb.op != Op::broadcast || rank_ == verb.root);
                  const Operands operands{.from = reads ? context.at(verb.transfer.from) : nullptr,
                                          .to = verb.op != Op::send ? context.at(verb.transfer.to) : nullptr,
                                          .count = static_cast<int>(verb.transfer.elems),
                                          .bytes = bytes_of(verb.transfer.elems, verb.transfer.dtype),
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
