// SPDX-License-Identifier: Apache-2.0
// Frames of [size, 4 bytes][kind, 1 byte][body] on sockets that never block.

#include "comm/side_channel.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <sstream>

#include <fmt/core.h>

#include "comm/sockets.h"
#include "engine/device/clock.h"

namespace slipstream::comm {
namespace {

constexpr size_t kHeadBytes = 5;
constexpr uint32_t kLargestBody = 64u << 20;
constexpr size_t kLargestBacklog = 1u << 20;  // bytes that are kept for a rank that takes nothing
constexpr size_t kMostStrangers = 64;
constexpr int kConnectMilliseconds = 1000;
constexpr char kGreeting = 'g';

std::string frame(char kind, std::string_view body) {
  const auto size = static_cast<uint32_t>(body.size());
  std::string bytes(kHeadBytes, '\0');
  std::memcpy(bytes.data(), &size, sizeof size);
  bytes[4] = kind;
  return bytes.append(body);
}

}  // namespace

std::unique_ptr<SideChannel> SideChannel::listen(int size, bool only_here, const std::string& token) {
  std::unique_ptr<SideChannel> channel(new SideChannel);
  channel->size_ = size;
  channel->token_ = token;
  Listener listener = listen_on_free_port(size, only_here);
  channel->listener_ = listener.descriptor;
  channel->addresses_ = std::move(listener.addresses);
  return channel;
}

std::unique_ptr<SideChannel> SideChannel::connect(int rank, const std::string& addresses, bool same_host,
                                                  const std::string& token) {
  std::unique_ptr<SideChannel> channel(new SideChannel);
  channel->token_ = token;
  std::istringstream words(addresses);
  uint16_t port = 0;
  if (!(words >> port)) return channel;
  for (std::string address; words >> address;) {
    if (same_host != (address == "127.0.0.1")) continue;
    Peer peer{.descriptor = dial(address, port), .in = {}, .out = {}};
    if (peer.descriptor < 0) continue;
    peer.out = frame(kGreeting, fmt::format("{} {}", rank, token));
    channel->flush(peer);
    const int64_t end_ns = monotonic_ns() + int64_t{kConnectMilliseconds} * 1'000'000;
    const std::string answer = frame(kGreeting, token);
    while (peer.in.size() < answer.size() && monotonic_ns() < end_ns && await_socket(peer.descriptor, POLLIN, 100))
      if (!channel->receive(peer)) break;
    if (peer.in.starts_with(answer)) {
      peer.in.erase(0, answer.size());
      channel->peers_[0] = std::move(peer);
      break;
    }
    ::close(peer.descriptor);
  }
  return channel;
}

SideChannel::~SideChannel() {
  for (const auto& [rank, peer] : peers_) ::close(peer.descriptor);
  for (const Peer& peer : strangers_) ::close(peer.descriptor);
  if (listener_ >= 0) ::close(listener_);
}

std::vector<int> SideChannel::reached() const {
  std::vector<int> ranks;
  for (const auto& [rank, peer] : peers_) ranks.push_back(rank);
  return ranks;
}

void SideChannel::send(int rank, char kind, std::string_view body) {
  const auto peer = peers_.find(rank);
  if (peer == peers_.end() || peer->second.out.size() > kLargestBacklog) return;
  peer->second.out += frame(kind, body);
  flush(peer->second);
}

void SideChannel::send_all(char kind, std::string_view body) {
  for (const auto& [rank, peer] : peers_) send(rank, kind, body);
}

void SideChannel::flush(Peer& peer) {
  while (!peer.out.empty()) {
    const ssize_t sent = ::send(peer.descriptor, peer.out.data(), peer.out.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent <= 0) return;  // wait() sees that the connection has ended
    peer.out.erase(0, static_cast<size_t>(sent));
  }
}

bool SideChannel::receive(Peer& peer) {
  char bytes[65536];
  while (true) {
    const ssize_t got = ::recv(peer.descriptor, bytes, sizeof bytes, MSG_DONTWAIT);
    if (got == 0) return false;
    if (got < 0) return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
    peer.in.append(bytes, static_cast<size_t>(got));
  }
}

void SideChannel::take_messages(int rank, Peer& peer, std::vector<Message>& messages) {
  size_t at = 0;
  while (peer.in.size() - at >= kHeadBytes) {
    uint32_t size = 0;
    std::memcpy(&size, peer.in.data() + at, sizeof size);
    if (size > kLargestBody) {  // another program sent it
      ::shutdown(peer.descriptor, SHUT_RDWR);
      at = peer.in.size();
      break;
    }
    if (peer.in.size() - at < kHeadBytes + size) break;
    messages.push_back({rank, peer.in[at + 4], peer.in.substr(at + kHeadBytes, size)});
    at += kHeadBytes + size;
  }
  peer.in.erase(0, at);
}

void SideChannel::accept_one() {
  const int descriptor = accept_from(listener_);
  if (descriptor < 0) return;
  if (strangers_.size() >= kMostStrangers) {
    ::close(strangers_.front().descriptor);
    strangers_.erase(strangers_.begin());
  }
  strangers_.push_back({.descriptor = descriptor, .in = {}, .out = {}});
}

std::vector<SideChannel::Message> SideChannel::wait(std::chrono::milliseconds at_most, int wake) {
  std::vector<pollfd> polls{{.fd = wake, .events = POLLIN, .revents = 0}};
  if (listener_ >= 0) polls.push_back({.fd = listener_, .events = POLLIN, .revents = 0});
  const auto add = [&](const Peer& peer) {
    polls.push_back(
        {.fd = peer.descriptor, .events = static_cast<short>(POLLIN | (peer.out.empty() ? 0 : POLLOUT)), .revents = 0});
  };
  for (const auto& [rank, peer] : peers_) add(peer);
  for (const Peer& peer : strangers_) add(peer);
  std::vector<Message> messages;
  if (::poll(polls.data(), polls.size(), static_cast<int>(at_most.count())) <= 0) return messages;
  for (auto at = peers_.begin(); at != peers_.end();) {
    auto& [rank, peer] = *at;
    flush(peer);
    const bool open = receive(peer);
    take_messages(rank, peer, messages);
    if (open) {
      ++at;
      continue;
    }
    messages.push_back({rank, kEnded, {}});
    ::close(peer.descriptor);
    at = peers_.erase(at);
  }
  for (size_t i = 0; i < strangers_.size();) {
    Peer& peer = strangers_[i];
    const bool open = receive(peer);
    std::vector<Message> first;
    if (peer.in.size() >= kHeadBytes) take_messages(-1, peer, first);
    int rank = -1;
    if (!first.empty() && first[0].kind == kGreeting) {
      const std::string& body = first[0].body;
      std::from_chars(body.data(), body.data() + body.size(), rank);
      if (body != fmt::format("{} {}", rank, token_) || rank < 1 || rank >= size_) rank = -1;
    }
    if (open && first.empty() && peer.in.size() < 256) {
      ++i;
      continue;
    }
    if (!open || rank < 0 || peers_.contains(rank)) {
      ::close(peer.descriptor);
    } else {
      for (size_t m = 1; m < first.size(); ++m) messages.push_back({rank, first[m].kind, first[m].body});
      Peer& known = peers_[rank] = std::move(peer);
      known.out = frame(kGreeting, token_);
      flush(known);
    }
    strangers_.erase(strangers_.begin() + static_cast<std::ptrdiff_t>(i));
  }
  if (listener_ >= 0 && (polls[1].revents & POLLIN) != 0) accept_one();
  return messages;
}

}  // namespace slipstream::comm
