// SPDX-License-Identifier: Apache-2.0
// Serves the metrics from a thread that sleeps in poll().

#include "trainer/runtime/loop/metrics_endpoint.h"

#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <string_view>

#include "engine/base/check.h"
#include "engine/base/log.h"

namespace slipstream::runtime {
namespace {

constexpr size_t kLargestRequest = 8192;
constexpr std::chrono::seconds kClientTime{2};

std::string response(std::string_view status, std::string_view text) {
  return fmt::format(
      "HTTP/1.1 {}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: {}\r\nConnection: "
      "close\r\n\r\n{}",
      status, text.size(), text);
}

}  // namespace

MetricsEndpoint::MetricsEndpoint(int port) {
  listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  stop_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  const int on = 1;  // allows the port of a run that has just ended
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (listener_ < 0 || stop_ < 0 || ::setsockopt(listener_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
      ::bind(listener_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      ::listen(listener_, 16) != 0) {
    const int error = errno;
    if (listener_ >= 0) ::close(listener_);
    if (stop_ >= 0) ::close(stop_);
    throw ResourceError("[output] port {} of 127.0.0.1 cannot be used: {}. Set output.prometheus_port to a free port.",
                        port, std::strerror(error));
  }
  // Signals that end the run belong to the thread that trains.
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { serve(); });
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

MetricsEndpoint::~MetricsEndpoint() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(stop_, &one, sizeof one);
  thread_.join();
  ::close(listener_);
  ::close(stop_);
}

void MetricsEndpoint::set(std::string text) {
  const std::lock_guard lock(mutex_);
  text_ = std::move(text);
}

void MetricsEndpoint::serve() {
  for (;;) {
    pollfd waits[] = {{listener_, POLLIN, 0}, {stop_, POLLIN, 0}};
    if (::poll(waits, 2, -1) < 0 && errno != EINTR) break;
    if (waits[1].revents != 0) return;
    if (waits[0].revents == 0) continue;
    const int client = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (client >= 0) {
      answer(client);
      ::close(client);
    } else if (errno != EINTR && errno != EAGAIN && errno != ECONNABORTED && errno != EPROTO) {
      break;
    }
  }
  log_warn("[output] the metrics endpoint has ended: {}. Training goes on without it.", std::strerror(errno));
}

void MetricsEndpoint::answer(int client) {
  const auto end = std::chrono::steady_clock::now() + kClientTime;
  /// Returns false if the time is over or the server must end.
  const auto wait_for = [&](short events) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
    pollfd waits[] = {{client, events, 0}, {stop_, POLLIN, 0}};
    return left.count() > 0 && ::poll(waits, 2, static_cast<int>(left.count())) > 0 && waits[1].revents == 0;
  };
  std::string request;
  char part[1024];
  while (request.find("\r\n\r\n") == std::string::npos) {
    if (request.size() > kLargestRequest || !wait_for(POLLIN)) return;
    const ssize_t count = ::recv(client, part, sizeof part, 0);
    if (count == 0 || (count < 0 && errno != EAGAIN && errno != EINTR)) return;
    if (count > 0) request.append(part, static_cast<size_t>(count));
  }
  std::string text;
  if (!request.starts_with("GET ")) {
    text = response("405 Method Not Allowed", "Use GET.\n");
  } else if (request.starts_with("GET /metrics ") || request.starts_with("GET /metrics?")) {
    const std::lock_guard lock(mutex_);
    text = response("200 OK", text_);
  } else {
    text = response("404 Not Found", "The metrics are at /metrics.\n");
  }
  for (std::string_view rest = text; !rest.empty();) {
    if (!wait_for(POLLOUT)) return;
    const ssize_t count = ::send(client, rest.data(), rest.size(), MSG_NOSIGNAL);
    if (count < 0 && errno != EAGAIN && errno != EINTR) return;
    if (count > 0) rest.remove_prefix(static_cast<size_t>(count));
  }
}

}  // namespace slipstream::runtime
