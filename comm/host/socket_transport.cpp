// SPDX-License-Identifier: Apache-2.0
// The transport asks the kernel for bytes or room only after the kernel has announced some.

#include "comm/host/socket_transport.h"

#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <numeric>
#include <sstream>

#include "comm/host/stream_transport.h"
#include "comm/sockets.h"
#include "engine/base/check.h"
#include "engine/device/clock.h"

namespace slipstream::comm {
namespace {

// Inside a message, a rank wakes up only for this many bytes, which a link of 1 Gbit/s carries in a millisecond. Every
// waking takes the core from compute.
constexpr int64_t kWakeBytes = int64_t{128} << 10;
constexpr int64_t kConnectNs = int64_t{5} * 1'000'000'000;

/// The first bytes of a connection. The answer is only the token.
struct Greeting {
  char token[16];
  int32_t rank;
};

std::string drawn_token() {
  uint64_t drawn = 0;
  if (::getrandom(&drawn, sizeof drawn, 0) != sizeof drawn) drawn = static_cast<uint64_t>(monotonic_ns());
  return fmt::format("{:016x}", drawn);
}

int milliseconds_to(int64_t end_ns) {
  return static_cast<int>(std::max<int64_t>(0, (end_ns - monotonic_ns()) / 1'000'000));
}

bool receive_whole(int descriptor, char* bytes, size_t size, int64_t end_ns) {
  size_t got = 0;
  while (got < size && await_socket(descriptor, POLLIN, milliseconds_to(end_ns))) {
    const ssize_t count = ::recv(descriptor, bytes + got, size - got, MSG_DONTWAIT);
    if (count == 0 || (count < 0 && errno != EAGAIN && errno != EINTR)) return false;
    if (count > 0) got += static_cast<size_t>(count);
  }
  return got == size;
}

bool send_whole(int descriptor, const void* bytes, size_t size) {
  return ::send(descriptor, bytes, size, MSG_NOSIGNAL | MSG_DONTWAIT) == static_cast<ssize_t>(size);
}

/// Returns a socket to the rank that listens at these addresses, or -1.
int greet(int rank, const std::string& listening, int64_t end_ns) {
  std::istringstream words(listening);
  std::string token, address;
  uint16_t port = 0;
  if (!(words >> token >> port) || token.size() != sizeof Greeting::token) return -1;
  Greeting greeting{};
  std::memcpy(greeting.token, token.data(), token.size());
  greeting.rank = rank;
  while (words >> address && monotonic_ns() < end_ns) {
    const int descriptor = dial(address, port);
    if (descriptor < 0) continue;
    char answer[sizeof greeting.token];
    if (send_whole(descriptor, &greeting, sizeof greeting) &&
        receive_whole(descriptor, answer, sizeof answer, end_ns) &&
        std::memcmp(answer, greeting.token, sizeof answer) == 0)
      return descriptor;
    ::close(descriptor);
  }
  return -1;
}

/// Accepts the connections of `expected` higher ranks.
bool welcome(int listener, const std::string& token, int rank, const std::vector<bool>& far, int expected,
             int64_t end_ns, Sockets& sockets) {
  while (expected > 0 && await_socket(listener, POLLIN, milliseconds_to(end_ns))) {
    const int descriptor = accept_from(listener);
    if (descriptor < 0) continue;
    Greeting greeting{};
    const bool known = receive_whole(descriptor, reinterpret_cast<char*>(&greeting), sizeof greeting,
                                     std::min(end_ns, monotonic_ns() + 1'000'000'000)) &&
                       std::memcmp(greeting.token, token.data(), sizeof greeting.token) == 0 && greeting.rank > rank &&
                       greeting.rank < static_cast<int32_t>(far.size()) && far[static_cast<size_t>(greeting.rank)] &&
                       sockets[static_cast<size_t>(greeting.rank)] < 0 &&
                       send_whole(descriptor, token.data(), token.size());
    if (!known) {
      ::close(descriptor);
      continue;
    }
    sockets.set(static_cast<size_t>(greeting.rank), descriptor);
    --expected;
  }
  return expected == 0;
}

class SocketTransport final : public StreamTransport {
 public:
  SocketTransport(Sockets sockets, int rank, std::vector<int> names)
      : StreamTransport(rank, std::move(names)), sockets_(std::move(sockets)) {
    for (int peer = 0; peer < size(); ++peer) ends_.push_back({.descriptor = sockets_[static_cast<size_t>(peer)]});
    polls_.reserve(ends_.size());
    polled_.reserve(ends_.size());
  }

  void wait(int64_t at_most_ns) override {
    polls_.clear();
    polled_.clear();
    for (int peer = 0; peer < size(); ++peer) {
      End& end = ends_[static_cast<size_t>(peer)];
      if (end.descriptor < 0) continue;
      wake_for(end, std::clamp<int64_t>(missing_from(peer), 1, kWakeBytes));
      polls_.push_back(
          {.fd = end.descriptor, .events = static_cast<short>(POLLIN | (sends_to(peer) ? POLLOUT : 0)), .revents = 0});
      polled_.push_back(&end);
    }
    const timespec limit{at_most_ns / 1'000'000'000, static_cast<long>(at_most_ns % 1'000'000'000)};
    if (::ppoll(polls_.data(), polls_.size(), &limit, nullptr) <= 0) return;
    for (size_t i = 0; i < polls_.size(); ++i) {
      polled_[i]->has_bytes = polled_[i]->has_bytes || (polls_[i].revents & ~POLLOUT) != 0;
      polled_[i]->has_room = polled_[i]->has_room || (polls_[i].revents & ~POLLIN) != 0;
    }
  }

 private:
  struct End {
    int descriptor = -1;  // -1 also when the peer is gone: the limits of waits find its absence and name it
    bool has_bytes = true, has_room = true;
    int64_t wakes_at = 1;
  };

  /// Tells the kernel how many bytes are worth waking up for.
  static void wake_for(End& end, int64_t size_bytes) {
    if (end.wakes_at == size_bytes) return;
    const int low = static_cast<int>(size_bytes);
    ::setsockopt(end.descriptor, SOL_SOCKET, SO_RCVLOWAT, &low, sizeof low);
    end.wakes_at = size_bytes;
  }
  /// After a call that moved fewer bytes than asked, the kernel announces the next ones.
  static int64_t moved(End& end, bool& more, ssize_t count, int64_t asked) {
    if (count == asked) return count;
    if (count < 0 && errno == EINTR) return 0;
    more = false;
    if (count >= 0) return count;
    if (errno != EAGAIN && errno != EWOULDBLOCK) end.descriptor = -1;
    return 0;
  }
  int64_t write(int peer, const std::byte* from, int64_t size_bytes, bool more) override {
    End& end = ends_[static_cast<size_t>(peer)];
    if (end.descriptor < 0 || !end.has_room) return 0;
    return moved(end, end.has_room,
                 ::send(end.descriptor, from, static_cast<size_t>(size_bytes),
                        MSG_NOSIGNAL | MSG_DONTWAIT | (more ? MSG_MORE : 0)),
                 size_bytes);
  }
  int64_t read(int peer, std::byte* to, int64_t size_bytes) override {
    End& end = ends_[static_cast<size_t>(peer)];
    if (end.descriptor < 0 || !end.has_bytes) return 0;
    const ssize_t count = ::recv(end.descriptor, to, static_cast<size_t>(size_bytes), MSG_DONTWAIT);
    if (count == 0) end.descriptor = -1;
    return moved(end, end.has_bytes, count, size_bytes);
  }

  Sockets sockets_;
  std::vector<End> ends_;  // by peer
  std::vector<pollfd> polls_;
  std::vector<End*> polled_;
};

}  // namespace

Sockets::~Sockets() {
  for (const int descriptor : of_peer_)
    if (descriptor >= 0) ::close(descriptor);
}

Sockets connect_sockets(int rank, const std::vector<bool>& far, bool willing, const AllGatherText& all_gather) {
  const std::string token = drawn_token();
  const Listener listener = willing ? listen_on_free_port(static_cast<int>(far.size()), false) : Listener{};
  const std::vector<std::string> listening =
      all_gather(listener.descriptor < 0 ? "" : fmt::format("{} {}", token, listener.addresses));
  const bool all_listen = std::none_of(listening.begin(), listening.end(), [](const auto& at) { return at.empty(); });
  Sockets sockets(far.size());
  bool connected = all_listen;
  const int64_t end_ns = monotonic_ns() + kConnectNs;
  for (int peer = 0; peer < rank && connected; ++peer) {
    if (!far[static_cast<size_t>(peer)]) continue;
    const int descriptor = greet(rank, listening[static_cast<size_t>(peer)], end_ns);
    sockets.set(static_cast<size_t>(peer), descriptor);
    connected = descriptor >= 0;
  }
  if (connected)
    connected = welcome(listener.descriptor, token, rank, far,
                        static_cast<int>(std::count(far.begin() + rank + 1, far.end(), true)), end_ns, sockets);
  if (listener.descriptor >= 0) ::close(listener.descriptor);
  if (!all_listen) return {};
  const std::vector<std::string> outcomes = all_gather(connected ? "connected" : "");
  if (std::any_of(outcomes.begin(), outcomes.end(), [](const auto& outcome) { return outcome.empty(); })) return {};
  return sockets;
}

std::unique_ptr<HostTransport> make_socket_transport(Sockets sockets, int rank) {
  std::vector<int> names(sockets.size());
  std::iota(names.begin(), names.end(), 0);
  return std::make_unique<SocketTransport>(std::move(sockets), rank, std::move(names));
}

}  // namespace slipstream::comm
