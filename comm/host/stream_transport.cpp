// SPDX-License-Identifier: Apache-2.0
// Moves as many bytes of each stream as the stream takes or gives, and finds the receive of each message by its tag.

#include "comm/host/stream_transport.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "engine/base/check.h"

namespace slipstream::comm {

StreamTransport::StreamTransport(int rank, std::vector<int> names)
    : rank_(rank), names_(std::move(names)), out_(names_.size()), in_(names_.size()) {}

void StreamTransport::send(int peer, int tag, const void* data, int64_t size_bytes, uint64_t token) {
  Outbox& box = out_[static_cast<size_t>(peer)];
  box.push({tag, static_cast<const std::byte*>(data), size_bytes, token});
  ++outstanding_;
  if (box.first + 1 == box.messages.size()) push(peer);
}

void StreamTransport::recv(int peer, int tag, void* data, int64_t size_bytes, uint64_t token) {
  Inbox& box = in_[static_cast<size_t>(peer)];
  ++outstanding_;
  const Posted posted{tag, static_cast<std::byte*>(data), size_bytes, token};
  // A message that arrived before its receive was posted.
  const auto early =
      std::find_if(box.early.begin(), box.early.end(), [&](const Early& e) { return !e.claimed && e.tag == tag; });
  if (early == box.early.end()) return box.posted.push_back(posted);
  check_size(peer, size_bytes, std::ssize(early->bytes));
  early->claimed = true;
  early->posted = posted;
  settle(box);
}

int StreamTransport::poll(uint64_t* tokens, int capacity) {
  begin_poll();
  for (int peer = 0; peer < size(); ++peer)
    if (sends_to(peer)) push(peer);
  for (int peer = 0; peer < size(); ++peer)
    if (peer != rank_) pull(peer);
  const int given = static_cast<int>(std::min<size_t>(static_cast<size_t>(capacity), finished_.size()));
  std::copy_n(finished_.begin(), given, tokens);
  finished_.erase(finished_.begin(), finished_.begin() + given);
  outstanding_ -= given;
  patient_ = given > 0;
  return given;
}

std::string StreamTransport::waiting_for() const {
  std::set<int> peers;
  for (size_t r = 0; r < names_.size(); ++r)
    if (!out_[r].empty() || !in_[r].posted.empty() || in_[r].current.data) peers.insert(names_[r]);
  std::string text;
  for (int peer : peers) text += fmt::format("{}rank {}", text.empty() ? "" : ", ", peer);
  return text;
}

void StreamTransport::reserve(int messages) {
  finished_.reserve(std::max(finished_.capacity(), static_cast<size_t>(messages)));
  const auto of_peer = static_cast<size_t>(messages / std::max(1, size()) + 1);
  for (Outbox& box : out_) box.messages.reserve(std::max(box.messages.capacity(), of_peer));
  for (Inbox& box : in_) box.posted.reserve(std::max(box.posted.capacity(), of_peer));
}

void StreamTransport::cancel() {
  for (Outbox& box : out_) box.messages.clear(), box.first = 0;
  for (Inbox& box : in_) box.posted.clear(), box.early.clear(), box.current = {};
  finished_.clear();
  outstanding_ = 0;
}

void StreamTransport::push(int peer) {
  Outbox& box = out_[static_cast<size_t>(peer)];
  bool moved = false;
  while (!box.empty()) {
    const Sending& message = box.messages[box.first];
    if (box.sent_bytes == 0) box.header = {message.size_bytes, message.tag, 0};
    if (box.sent_bytes < kHeaderBytes) {
      const int64_t count = write(peer, reinterpret_cast<const std::byte*>(&box.header) + box.sent_bytes,
                                  kHeaderBytes - box.sent_bytes, message.size_bytes > 0);
      moved = moved || count > 0;
      box.sent_bytes += count;
      if (box.sent_bytes < kHeaderBytes) break;
    }
    const int64_t sent = box.sent_bytes - kHeaderBytes, left = message.size_bytes - sent;
    const int64_t count = left > 0 ? write(peer, message.data + sent, left, false) : 0;
    moved = moved || count > 0;
    box.sent_bytes += count;
    if (count < left) break;
    wrote_message(peer, message.size_bytes);
    finished_.push_back(message.token);
    box.sent_bytes = 0;
    box.pop();
  }
  if (moved) publish(peer);
}

void StreamTransport::pull(int peer) {
  Inbox& box = in_[static_cast<size_t>(peer)];
  while (true) {
    if (!box.current.data && !begin_message(peer, box)) break;
    Current& current = box.current;
    const int64_t left = current.size_bytes - current.taken_bytes;
    const int64_t count = left > 0 ? read(peer, current.data + current.taken_bytes, left) : 0;
    current.taken_bytes += count;
    if (count < left) break;
    read_message(peer, current.size_bytes);
    if (current.is_early)
      box.early.back().complete = true;
    else
      finished_.push_back(current.token);
    current = {};
    settle(box);
  }
  release(peer);
}

bool StreamTransport::begin_message(int peer, Inbox& box) {
  if (box.header_bytes < kHeaderBytes)
    box.header_bytes +=
        read(peer, reinterpret_cast<std::byte*>(&box.header) + box.header_bytes, kHeaderBytes - box.header_bytes);
  if (box.header_bytes < kHeaderBytes) return false;
  const auto posted =
      std::find_if(box.posted.begin(), box.posted.end(), [&](const Posted& p) { return p.tag == box.header.tag; });
  if (posted != box.posted.end()) {
    check_size(peer, posted->size_bytes, box.header.size_bytes);
    // An empty message needs an address as well, because null means no message.
    box.current = {posted->data ? posted->data : &nowhere_, posted->size_bytes, 0, posted->token, false};
    box.posted.erase(posted);
  } else {
    // The message stays in the stream while completions are pending that may post its receive.
    if (patient_ || !finished_.empty()) return false;
    Early& early = box.early.emplace_back();
    early.tag = box.header.tag;
    early.bytes.resize(static_cast<size_t>(box.header.size_bytes));
    box.current = {early.bytes.empty() ? &nowhere_ : early.bytes.data(), box.header.size_bytes, 0, 0, true};
  }
  box.header_bytes = 0;
  return true;
}

/// Delivers early messages that are complete and whose receives are posted. A message that is still flowing is the last
/// one.
void StreamTransport::settle(Inbox& box) {
  for (auto early = box.early.begin(); early != box.early.end();) {
    if (!early->claimed || !early->complete) {
      ++early;
      continue;
    }
    if (!early->bytes.empty()) std::memcpy(early->posted.data, early->bytes.data(), early->bytes.size());
    finished_.push_back(early->posted.token);
    early = box.early.erase(early);
  }
}

void StreamTransport::check_size(int peer, int64_t expected_bytes, int64_t came_bytes) const {
  if (expected_bytes == came_bytes) return;
  throw CommError(
      "[comm] rank {} expects {} bytes from rank {}, which sends {}. Both must launch the same verbs in the same "
      "order.",
      names_[static_cast<size_t>(rank_)], expected_bytes, names_[static_cast<size_t>(peer)], came_bytes);
}

}  // namespace slipstream::comm
