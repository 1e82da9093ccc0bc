// SPDX-License-Identifier: Apache-2.0
// Messages inside a machine use shared memory. Messages between machines use sockets or, where the network has faster
// ways, Isend, Irecv and Testsome. MPI moves bytes only inside these calls, so a thread must poll.

#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <set>

#include "comm/host/shared_transport.h"
#include "comm/host/socket_transport.h"
#include "comm/mpi/mpi_parts.h"
#include "engine/base/check.h"
#include "engine/device/clock.h"

namespace slipstream::comm {

void check_mpi(int code, const std::string& what) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw CommError("[mpi] {}: {}. Check the output of the other ranks; a peer or the network may be gone.", what,
                  std::string(text, static_cast<size_t>(length)));
}

namespace {

class MpiTransport final : public HostTransport {
 public:
  explicit MpiTransport(MPI_Comm connection) : connection_(connection) {
    check_mpi(MPI_Comm_set_errhandler(connection_, MPI_ERRORS_RETURN), "set the error handler");
    check_mpi(MPI_Comm_rank(connection_, &rank_), "ask for the rank");
    check_mpi(MPI_Comm_size(connection_, &size_), "ask for the size");
  }
  ~MpiTransport() override {
    cancel();
    int finalized = 0;
    MPI_Finalized(&finalized);
    // Freeing is collective, and after a failure the peers may never call it.
    if (!finalized && !is_aborted()) MPI_Comm_free(&connection_);
  }
  MpiTransport(const MpiTransport&) = delete;
  MpiTransport& operator=(const MpiTransport&) = delete;

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  void send(int peer, int tag, const void* data, int64_t size_bytes, uint64_t token) override {
    SLIP_ASSERT(size_bytes <= kLargestMessageBytes);
    MPI_Request request = MPI_REQUEST_NULL;
    check_mpi(MPI_Isend(data, static_cast<int>(size_bytes), MPI_BYTE, peer, tag, connection_, &request), "send");
    add(request, {token, peer, false});
  }
  void recv(int peer, int tag, void* data, int64_t size_bytes, uint64_t token) override {
    SLIP_ASSERT(size_bytes <= kLargestMessageBytes);
    MPI_Request request = MPI_REQUEST_NULL;
    check_mpi(MPI_Irecv(data, static_cast<int>(size_bytes), MPI_BYTE, peer, tag, connection_, &request), "receive");
    add(request, {token, peer, true, size_bytes});
  }

  int poll(uint64_t* tokens, int capacity) override {
    int count = 0;
    const int outcome =
        MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &count, indices_.data(), statuses_.data());
    if (outcome == MPI_ERR_IN_STATUS) {
      for (int i = 0; i < count; ++i)
        if (const int error = statuses_[static_cast<size_t>(i)].MPI_ERROR;
            error != MPI_SUCCESS && error != MPI_ERR_PENDING)
          check_mpi(error, "a message");
    }
    check_mpi(outcome, "poll");
    if (count == MPI_UNDEFINED) count = 0;
    int taken = 0;
    if (count > 0) moved_ns_ = monotonic_ns();
    for (; taken < count; ++taken) finished_.push_back(messages_[static_cast<size_t>(check_size(taken))].token);
    remove_completed();
    const int given = std::min<int>(capacity, static_cast<int>(finished_.size()));
    std::copy_n(finished_.begin(), given, tokens);
    finished_.erase(finished_.begin(), finished_.begin() + given);
    return given;
  }
  void wait(int64_t at_most_ns) override {
    const timespec pause{0, static_cast<long>(std::min(at_most_ns, polling_pause_ns(monotonic_ns() - moved_ns_)))};
    clock_nanosleep(CLOCK_MONOTONIC, 0, &pause, nullptr);
  }
  int outstanding() const override { return static_cast<int>(requests_.size() + finished_.size()); }
  std::string waiting_for() const override {
    std::set<int> peers;
    for (const Message& message : messages_) peers.insert(message.peer);
    std::string text;
    for (int peer : peers) text += fmt::format("{}rank {}", text.empty() ? "" : ", ", peer);
    return text;
  }
  void reserve(int messages) override {
    const size_t capacity = std::max(requests_.capacity(), static_cast<size_t>(messages));
    requests_.reserve(capacity);
    messages_.reserve(capacity);
    finished_.reserve(capacity);
    indices_.resize(capacity);
    statuses_.resize(capacity);
  }

  void cancel() override {
    int finalized = 0;
    MPI_Finalized(&finalized);
    for (size_t i = 0; i < requests_.size() && !finalized; ++i) {
      if (messages_[i].received) MPI_Cancel(&requests_[i]);
      MPI_Request_free(&requests_[i]);
    }
    requests_.clear();
    messages_.clear();
    finished_.clear();
  }
  void abort() override { aborted_.store(true, std::memory_order_release); }
  bool is_aborted() const override { return aborted_.load(std::memory_order_acquire); }

 private:
  struct Message {
    uint64_t token = 0;
    int peer = 0;
    bool received = false;
    int64_t size_bytes = 0;
  };
  void add(MPI_Request request, const Message& message) {
    if (requests_.empty()) moved_ns_ = monotonic_ns();
    requests_.push_back(request);
    messages_.push_back(message);
    if (indices_.size() < requests_.size()) reserve(static_cast<int>(2 * requests_.size()));
  }
  /// Returns the index of the `completed`-th completed message, after checking its received size.
  int check_size(int completed) const {
    const int index = indices_[static_cast<size_t>(completed)];
    const Message& message = messages_[static_cast<size_t>(index)];
    if (!message.received) return index;
    int came = 0;
    MPI_Get_count(&statuses_[static_cast<size_t>(completed)], MPI_BYTE, &came);
    if (came != message.size_bytes)
      throw CommError(
          "[comm] rank {} expects {} bytes from rank {}, which sends {}. Both must launch the same verbs in the "
          "same order.",
          rank_, message.size_bytes, message.peer, came);
    return index;
  }
  void remove_completed() {
    for (size_t i = requests_.size(); i-- > 0;) {
      if (requests_[i] != MPI_REQUEST_NULL) continue;
      requests_[i] = requests_.back();
      messages_[i] = messages_.back();
      requests_.pop_back();
      messages_.pop_back();
    }
  }

  MPI_Comm connection_;
  int rank_ = 0;
  int size_ = 1;
  int64_t moved_ns_ = 0;  // the time at which a message last completed, or the first one was posted
  std::vector<MPI_Request> requests_;
  std::vector<Message> messages_;   // with the same index as requests_
  std::vector<uint64_t> finished_;  // completed, but not yet returned
  std::vector<int> indices_;
  std::vector<MPI_Status> statuses_;
  std::atomic<bool> aborted_{false};
};

/// Collective. Memory that the ranks of `local` share, or null when the machine has no room for it; then messages use
/// MPI. It is not an MPI window, because freeing a window waits for all ranks, and after a failure they do not call it.
std::shared_ptr<std::byte> memory_among(MPI_Comm local, int64_t size_bytes) {
  static std::atomic<int> count{0};
  int rank = 0;
  MPI_Comm_rank(local, &rank);
  char name[64] = "";
  fmt::format_to_n(name, sizeof(name) - 1, "{}{}", shared_memory_prefix(getpid()), count.fetch_add(1));
  if (rank == 0) remove_abandoned_memory();
  check_mpi(MPI_Bcast(name, sizeof(name), MPI_CHAR, 0, local), "share memory");
  std::shared_ptr<std::byte> memory = rank == 0 ? create_shared_memory(name, size_bytes) : nullptr;
  check_mpi(MPI_Barrier(local), "share memory");
  if (rank != 0) memory = open_shared_memory(name, size_bytes);
  const int mine = memory ? 1 : 0;
  int all = 0;
  check_mpi(MPI_Allreduce(&mine, &all, 1, MPI_INT, MPI_MIN, local), "share memory");
  if (rank == 0) remove_shared_memory(name);  // from here on nothing remains, however the ranks end
  return all == 1 ? memory : nullptr;
}

/// Reaches peers on this machine through shared memory, and the others through sockets or MPI.
class NearAndFar final : public HostTransport {
 public:
  NearAndFar(std::unique_ptr<HostTransport> near, std::unique_ptr<HostTransport> far, std::vector<int> near_of)
      : near_(std::move(near)), far_(std::move(far)), near_of_(std::move(near_of)) {}

  int rank() const override { return far_->rank(); }
  int size() const override { return far_->size(); }
  void send(int peer, int tag, const void* data, int64_t size_bytes, uint64_t token) override {
    const int near = near_of_[static_cast<size_t>(peer)];
    near >= 0 ? near_->send(near, tag, data, size_bytes, token) : far_->send(peer, tag, data, size_bytes, token);
  }
  void recv(int peer, int tag, void* data, int64_t size_bytes, uint64_t token) override {
    const int near = near_of_[static_cast<size_t>(peer)];
    near >= 0 ? near_->recv(near, tag, data, size_bytes, token) : far_->recv(peer, tag, data, size_bytes, token);
  }
  int poll(uint64_t* tokens, int capacity) override {
    const int count = near_->poll(tokens, capacity);
    return count < capacity && far_->outstanding() > 0 ? count + far_->poll(tokens + count, capacity - count) : count;
  }
  void wait(int64_t at_most_ns) override {
    if (far_->outstanding() == 0) return near_->wait(at_most_ns);
    // A peer on this machine cannot wake a thread that waits for another machine.
    constexpr int64_t kBothNs = 100'000;
    far_->wait(near_->outstanding() > 0 ? std::min(at_most_ns, kBothNs) : at_most_ns);
  }
  int outstanding() const override { return near_->outstanding() + far_->outstanding(); }
  std::string waiting_for() const override {
    const std::string near = near_->waiting_for(), far = far_->waiting_for();
    return near + (near.empty() || far.empty() ? "" : ", ") + far;
  }
  void reserve(int messages) override {
    near_->reserve(messages);
    far_->reserve(messages);
  }
  void cancel() override {
    near_->cancel();
    far_->cancel();
  }
  void abort() override {
    far_->abort();
    near_->abort();
  }
  bool is_aborted() const override { return far_->is_aborted(); }

 private:
  std::unique_ptr<HostTransport> near_, far_;
  std::vector<int> near_of_;  // the index in near_ by rank; -1: on another machine
};

/// Reaches the ranks of this machine through shared memory.
struct Near {
  std::unique_ptr<HostTransport> transport;  // null: this rank is alone, or there is no room
  std::vector<int> index_of;                 // the index in it by rank; -1: not in it
};

Near connect_near(MPI_Comm connection, int rank, int size) {
  Near near{.transport = nullptr, .index_of = std::vector<int>(static_cast<size_t>(size), -1)};
  MPI_Comm local = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split_type(connection, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &local),
            "find the ranks of this machine");
  int local_rank = 0, local_size = 1;
  MPI_Comm_rank(local, &local_rank);
  MPI_Comm_size(local, &local_size);
  std::vector<int> names(static_cast<size_t>(local_size));
  check_mpi(MPI_Allgather(&rank, 1, MPI_INT, names.data(), 1, MPI_INT, local), "name the ranks of this machine");
  std::shared_ptr<std::byte> memory;
  if (local_size > 1) memory = memory_among(local, local_size * shared_area_bytes(local_size));
  if (memory) {
    for (int i = 0; i < local_size; ++i) near.index_of[static_cast<size_t>(names[static_cast<size_t>(i)])] = i;
    std::vector<std::byte*> areas;
    for (int r = 0; r < local_size; ++r) areas.push_back(memory.get() + r * shared_area_bytes(local_size));
    prepare_shared_area(areas[static_cast<size_t>(local_rank)], local_size);
    check_mpi(MPI_Barrier(local), "share memory");
    near.transport = make_shared_transport(areas, local_rank, names, memory);
  }
  MPI_Comm_free(&local);
  return near;
}

/// MPI may use a network that is faster than its TCP.
bool has_remote_memory_access() {
  std::error_code error;
  return std::filesystem::directory_iterator("/sys/class/infiniband", error) != std::filesystem::directory_iterator();
}

std::vector<std::string> all_gather_text(MPI_Comm connection, int size, const std::string& text) {
  constexpr size_t kMost = 1024;
  std::vector<char> mine(kMost, '\0'), all(kMost * static_cast<size_t>(size));
  std::copy_n(text.begin(), std::min(text.size(), kMost - 1), mine.begin());
  check_mpi(MPI_Allgather(mine.data(), kMost, MPI_CHAR, all.data(), kMost, MPI_CHAR, connection), "connect machines");
  std::vector<std::string> texts;
  for (size_t r = 0; r < static_cast<size_t>(size); ++r) texts.emplace_back(all.data() + r * kMost);
  return texts;
}

}  // namespace

std::unique_ptr<HostTransport> make_mpi_transport(MPI_Comm connection, const Carriers& carriers) {
  auto mpi = std::make_unique<MpiTransport>(connection);
  const int rank = mpi->rank(), size = mpi->size();
  Near near{.transport = nullptr, .index_of = std::vector<int>(static_cast<size_t>(size), -1)};
  if (carriers.share_memory) near = connect_near(connection, rank, size);
  std::vector<bool> far(static_cast<size_t>(size));
  for (int r = 0; r < size; ++r) far[static_cast<size_t>(r)] = r != rank && near.index_of[static_cast<size_t>(r)] < 0;
  const auto far_ranks = std::count(far.begin(), far.end(), true);
  constexpr int kMostSockets = 64;
  Sockets sockets;
  if (carriers.sockets && far_ranks > 0)
    sockets = connect_sockets(rank, far, far_ranks <= kMostSockets && !has_remote_memory_access(),
                              [&](const std::string& text) { return all_gather_text(connection, size, text); });
  // With sockets, the MPI connection has done its work when the ranks are connected.
  std::unique_ptr<HostTransport> transport = std::move(mpi);
  if (!sockets.empty()) transport = make_socket_transport(std::move(sockets), rank);
  if (!near.transport) return transport;
  return std::make_unique<NearAndFar>(std::move(near.transport), std::move(transport), std::move(near.index_of));
}

}  // namespace slipstream::comm
