// SPDX-License-Identifier: Apache-2.0
#pragma once
// TCP sockets that never block.

#include <cstdint>
#include <string>

namespace slipstream::comm {

/// A listening socket on a free port; -1: none.
struct Listener {
  int descriptor = -1;
  /// "PORT ADDRESS ...": the IPv4 addresses of this machine, with the loopback interface last. If the launcher chose
  /// networks for MPI (Open MPI's btl_tcp_if_include), only addresses in these networks.
  std::string addresses;
};
/// Listens only on the loopback interface if `only_here`.
Listener listen_on_free_port(int backlog, bool only_here);

/// Returns a socket that is connected within a second, or -1.
int dial(const std::string& address, uint16_t port);
/// Accepts a connection. Returns -1 if there is none.
int accept_from(int listener);
/// Blocks until one of the poll(2) events has come. Returns false if the time is over.
bool await_socket(int descriptor, short events, int milliseconds);

}  // namespace slipstream::comm
