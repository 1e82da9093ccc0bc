// SPDX-License-Identifier: Apache-2.0
// Isend, Irecv and Testsome; MPI moves bytes only inside these calls.

#include "comm/mpi/mpi_transport.h"

#include <algorithm>
#include <atomic>
#include <set>

#include "comm/mpi/mpi_check.h"
#include "engine/base/check.h"

namespace slipstream::comm {

void check_mpi(int code, const std::string& what) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw CommError("[mpi] {}: {}. Look at the output of the other ranks; a peer or the network may be gone.", what,
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
    // Freeing is collective: after a failure the peers may never come.
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
    const int outcome = MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &count, indices_.data(),
                                     statuses_.data());
    if (outcome == MPI_ERR_IN_STATUS) {
      for (int i = 0; i < count; ++i)
        if (const int error = statuses_[static_cast<size_t>(i)].MPI_ERROR; error != MPI_SUCCESS && error != MPI_ERR_PENDING)
          check_mpi(error, "a message");
    }
    check_mpi(outcome, "poll");
    if (count == MPI_UNDEFINED) count = 0;
    int taken = 0;
    for (; taken < count; ++taken) finished_.push_back(messages_[static_cast<size_t>(check_size(taken))].token);
    remove_completed();
    const int given = std::min<int>(capacity, static_cast<int>(finished_.size()));
    std::copy_n(finished_.begin(), given, tokens);
    finished_.erase(finished_.begin(), finished_.begin() + given);
    return given;
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
  std::unique_ptr<HostTransport> split(int color, int key) override {
    MPI_Comm part = MPI_COMM_NULL;
    check_mpi(MPI_Comm_split(connection_, color, key, &part), "split");
    return std::make_unique<MpiTransport>(part);
  }

 private:
  struct Message {
    uint64_t token = 0;
    int peer = 0;
    bool received = false;
    int64_t size_bytes = 0;
  };
  void add(MPI_Request request, const Message& message) {
    requests_.push_back(request);
    messages_.push_back(message);
    if (indices_.size() < requests_.size()) reserve(static_cast<int>(2 * requests_.size()));
  }
  /// Index of the `completed`-th completed message, after a look at what really came.
  int check_size(int completed) const {
    const int index = indices_[static_cast<size_t>(completed)];
    const Message& message = messages_[static_cast<size_t>(index)];
    if (!message.received) return index;
    int came = 0;
    MPI_Get_count(&statuses_[static_cast<size_t>(completed)], MPI_BYTE, &came);
    if (came != message.size_bytes)
      throw CommError("[comm] rank {} expects {} bytes from rank {}, which sends {}. Both must launch the same verbs in the "
                      "same order.", rank_, message.size_bytes, message.peer, came);
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
  std::vector<MPI_Request> requests_;
  std::vector<Message> messages_;       // same index as requests_
  std::vector<uint64_t> finished_;      // completed, not yet handed out
  std::vector<int> indices_;
  std::vector<MPI_Status> statuses_;
  std::atomic<bool> aborted_{false};
};

}  // namespace

std::unique_ptr<HostTransport> make_mpi_transport(MPI_Comm connection) {
  return std::make_unique<MpiTransport>(connection);
}

}  // namespace slipstream::comm
