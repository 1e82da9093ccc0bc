// SPDX-License-Identifier: Apache-2.0
// Listens, connects and accepts.

#include "comm/sockets.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <charconv>
#include <cstdlib>
#include <sstream>

#include <fmt/core.h>

namespace slipstream::comm {
namespace {

constexpr int kConnectMilliseconds = 1000;

void prepare(int descriptor) {
  ::fcntl(descriptor, F_SETFL, O_NONBLOCK);
  ::fcntl(descriptor, F_SETFD, FD_CLOEXEC);
  const int on = 1;
  ::setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

/// Has the launcher chosen this network for MPI? "10.0.0.0/24,eth1": by address or by interface.
bool is_chosen(const std::string& interface, in_addr address) {
  const char* list = std::getenv("OMPI_MCA_btl_tcp_if_include");
  if (!list || *list == '\0') return true;
  std::istringstream networks(list);
  for (std::string network; std::getline(networks, network, ',');) {
    const size_t slash = network.find('/');
    if (slash == std::string::npos && network == interface) return true;
    in_addr first{};
    if (slash == std::string::npos || ::inet_pton(AF_INET, network.substr(0, slash).c_str(), &first) != 1) continue;
    int bits = -1;
    std::from_chars(network.data() + slash + 1, network.data() + network.size(), bits);
    if (bits < 0 || bits > 32) continue;
    if (bits == 0 || (ntohl(address.s_addr) ^ ntohl(first.s_addr)) >> (32 - bits) == 0) return true;
  }
  return false;
}

std::string own_addresses() {
  std::string list;
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) == 0)
    for (const ifaddrs* at = all; at; at = at->ifa_next) {
      if (!at->ifa_addr || at->ifa_addr->sa_family != AF_INET || (at->ifa_flags & IFF_LOOPBACK) != 0 ||
          (at->ifa_flags & IFF_UP) == 0)
        continue;
      const in_addr address = reinterpret_cast<const sockaddr_in*>(at->ifa_addr)->sin_addr;
      if (!is_chosen(at->ifa_name, address)) continue;
      char text[INET_ADDRSTRLEN] = "";
      ::inet_ntop(AF_INET, &address, text, sizeof text);
      list += fmt::format(" {}", text);
    }
  if (all) ::freeifaddrs(all);
  return list + " 127.0.0.1";
}

}  // namespace

bool await_socket(int descriptor, short events, int milliseconds) {
  pollfd poll{.fd = descriptor, .events = events, .revents = 0};
  return ::poll(&poll, 1, milliseconds) == 1 && (poll.revents & events) != 0;
}

Listener listen_on_free_port(int backlog, bool only_here) {
  const int descriptor = ::socket(AF_INET, SOCK_STREAM, 0);
  if (descriptor < 0) return {};
  prepare(descriptor);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(only_here ? INADDR_LOOPBACK : INADDR_ANY);
  socklen_t length = sizeof at;
  if (::bind(descriptor, reinterpret_cast<const sockaddr*>(&at), sizeof at) != 0 ||
      ::listen(descriptor, backlog) != 0 || ::getsockname(descriptor, reinterpret_cast<sockaddr*>(&at), &length) != 0) {
    ::close(descriptor);
    return {};
  }
  return {descriptor, fmt::format("{}{}", ntohs(at.sin_port), only_here ? " 127.0.0.1" : own_addresses())};
}

int dial(const std::string& address, uint16_t port) {
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(port);
  if (::inet_pton(AF_INET, address.c_str(), &to.sin_addr) != 1) return -1;
  const int descriptor = ::socket(AF_INET, SOCK_STREAM, 0);
  if (descriptor < 0) return -1;
  prepare(descriptor);
  ::connect(descriptor, reinterpret_cast<const sockaddr*>(&to), sizeof to);
  int error = 0;
  socklen_t size = sizeof error;
  if (await_socket(descriptor, POLLOUT, kConnectMilliseconds) &&
      ::getsockopt(descriptor, SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error == 0)
    return descriptor;
  ::close(descriptor);
  return -1;
}

int accept_from(int listener) {
  const int descriptor = ::accept(listener, nullptr, nullptr);
  if (descriptor >= 0) prepare(descriptor);
  return descriptor;
}

}  // namespace slipstream::comm
