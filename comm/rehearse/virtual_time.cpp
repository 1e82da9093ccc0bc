// SPDX-License-Identifier: Apache-2.0
// The event loop: a node enters when no edge holds it, a rendezvous starts with its last member, ports are shared
// equally, and local work leaves multiprocessors to transfers.

#include "comm/rehearse/virtual_time.h"

#include <algorithm>

#include "engine/base/check.h"

namespace slipstream::comm {
namespace {
constexpr int kFixedBits = 16;  // progress under sharing is kept in 1/65536 ns, so it is the same on every machine
constexpr int64_t kHalf = int64_t{1} << (kFixedBits - 1);
// Longer work is not slowed, because its time on one of 1024 multiprocessors would overflow. A minute of work comes
// from a wrong rate in a machine file.
constexpr int64_t kLongestSlowed_ns = int64_t{1} << 36;

/// value * times / parts, without an intermediate overflow.
int64_t scaled(int64_t value, int64_t times, int64_t parts) {
  return value / parts * times + value % parts * times / parts;
}
}  // namespace

uint32_t VirtualTime::add_local(int64_t duration_ns, uint32_t card, int64_t share) {
  const auto node = static_cast<uint32_t>(nodes_.size());
  nodes_.push_back({.duration_ns = std::max<int64_t>(1, duration_ns)});
  if (multiprocessors_ > 0 && card != kNoNode && duration_ns < kLongestSlowed_ns) {
    nodes_[node].place = static_cast<uint32_t>(works_.size());
    works_.push_back({.node = node, .card = card, .share = share});
  }
  return node;
}

uint32_t VirtualTime::add_rendezvous(uint32_t member_count) {
  rendezvous_.push_back({.expected = member_count});
  return static_cast<uint32_t>(rendezvous_.size() - 1);
}

uint32_t VirtualTime::join(uint32_t rendezvous, const PortUse& use) {
  const auto node = static_cast<uint32_t>(nodes_.size());
  nodes_.push_back({.rendezvous = rendezvous, .place = static_cast<uint32_t>(transfers_.size())});
  transfers_.push_back({.use = use, .node = node});
  ++rendezvous_[rendezvous].joined;
  SLIP_ASSERT(rendezvous_[rendezvous].joined <= rendezvous_[rendezvous].expected);
  return node;
}

void VirtualTime::edge(uint32_t from, uint32_t to, After after) { edges_.push_back({from, to, after}); }

void VirtualTime::index() {
  const size_t count = nodes_.size();
  entered_ns_.assign(count, -1);
  start_ns_.assign(count, -1);
  end_ns_.assign(count, -1);

  first_edge_.assign(count + 1, 0);
  for (const Edge& e : edges_) {
    ++first_edge_[e.from + 1];
    ++nodes_[e.to].pending;
  }
  for (size_t i = 0; i < count; ++i) first_edge_[i + 1] += first_edge_[i];
  std::vector<Edge> sorted(edges_.size());
  std::vector<uint32_t> next(first_edge_.begin(), first_edge_.end() - 1);
  for (const Edge& e : edges_) sorted[next[e.from]++] = e;
  edges_ = std::move(sorted);

  uint32_t offset = 0;
  for (Rendezvous& rendezvous : rendezvous_) {
    rendezvous.first_member = offset;
    offset += rendezvous.joined;
    rendezvous.joined = 0;
  }
  members_.resize(offset);
  uint32_t port_count = 0;
  for (const Transfer& transfer : transfers_) {
    Rendezvous& rendezvous = rendezvous_[nodes_[transfer.node].rendezvous];
    members_[rendezvous.first_member + rendezvous.joined++] = transfer.node;
    port_count = std::max(port_count, transfer.use.port + 1);
  }
  ports_.resize(port_count);
  uint32_t card_count = 0;
  for (const CardWork& work : works_) card_count = std::max(card_count, work.card + 1);
  cards_.resize(card_count);
}

bool VirtualTime::solve() {
  run_until(kNoNode);
  return ended_count_ == nodes_.size();
}

bool VirtualTime::solve_until_start_of(uint32_t node) {
  run_until(node);
  return start_ns_[node] >= 0;
}

void VirtualTime::run_until(uint32_t node) {
  index();
  for (uint32_t first = 0; first < nodes_.size(); ++first)
    if (nodes_[first].pending == 0) ready_.push_back(first);
  drain();
  while (!events_.empty() && (node == kNoNode || start_ns_[node] < 0)) {
    const Event event = events_.top();
    events_.pop();
    const auto kind = static_cast<EventKind>(event.stamp_and_kind & 3);
    if (kind == EventKind::transfer_end && event.stamp_and_kind >> 2 != transfers_[event.id].stamp) continue;
    if (kind == EventKind::work_end && event.stamp_and_kind >> 2 != works_[event.id].stamp) continue;
    now_ns_ = event.time_ns;
    switch (kind) {
      case EventKind::local_end:
        finish(event.id);
        break;
      case EventKind::work_end:
        end_work(event.id);
        break;
      case EventKind::move:
        if (contention_)
          begin_transfers(event.id);
        else
          finish_rendezvous(event.id);
        break;
      case EventKind::transfer_end:
        end_transfer(event.id);
        break;
    }
    drain();
  }
}

void VirtualTime::push(int64_t time_ns, EventKind kind, uint32_t id, uint32_t stamp) {
  events_.push({time_ns, id, stamp << 2 | static_cast<uint32_t>(kind)});
}

void VirtualTime::release(uint32_t node, After after) {
  for (uint32_t e = first_edge_[node]; e < first_edge_[node + 1]; ++e)
    if (edges_[e].after == after && --nodes_[edges_[e].to].pending == 0) ready_.push_back(edges_[e].to);
}

void VirtualTime::drain() {
  while (!ready_.empty()) {
    const uint32_t node = ready_.back();
    ready_.pop_back();
    enter(node);
  }
}

void VirtualTime::enter(uint32_t node) {
  entered_ns_[node] = now_ns_;
  release(node, After::enter);
  if (nodes_[node].rendezvous == kNoNode) {
    start_ns_[node] = now_ns_;
    if (const uint32_t work = nodes_[node].place; work != kNoNode)
      begin_work(works_[work], work);
    else
      push(now_ns_ + nodes_[node].duration_ns, EventKind::local_end, node);
    return;
  }
  Rendezvous& rendezvous = rendezvous_[nodes_[node].rendezvous];
  if (++rendezvous.entered < rendezvous.expected) return;
  int64_t latency_ns = 0;
  int64_t wire_ns = 0;
  for (uint32_t i = 0; i < rendezvous.joined; ++i) {
    const uint32_t member = members_[rendezvous.first_member + i];
    Transfer& transfer = transfers_[nodes_[member].place];
    const PortUse& use = transfer.use;
    start_ns_[member] = now_ns_;
    occupy(transfer, use.blocks);
    latency_ns = std::max(latency_ns, use.latency_ns);
    wire_ns = std::max(wire_ns, use.wire_ns);
  }
  const int64_t alone_ns = instant_ ? 0 : std::max<int64_t>(1, latency_ns + wire_ns);
  push(now_ns_ + (contention_ && wire_ns > 0 ? latency_ns : alone_ns), EventKind::move, nodes_[node].rendezvous);
}

void VirtualTime::finish(uint32_t node) {
  end_ns_[node] = now_ns_;
  ++ended_count_;
  release(node, After::end);
}

void VirtualTime::finish_rendezvous(uint32_t id) {
  const Rendezvous& rendezvous = rendezvous_[id];
  for (uint32_t i = 0; i < rendezvous.joined; ++i) {
    const uint32_t member = members_[rendezvous.first_member + i];
    occupy(transfers_[nodes_[member].place], 0);
    finish(member);
  }
}

void VirtualTime::begin_work(CardWork& work, uint32_t id) {
  CardState& card = cards_[work.card];
  if (work.share > 0) settle(card);
  work.left_fixed = nodes_[work.node].duration_ns << kFixedBits;
  work.updated_ns = now_ns_;
  card.running.push_back(id);
  card.wanted += work.share;
  work.share > 0 ? schedule_all(card) : schedule(work, id);
}

void VirtualTime::end_work(uint32_t id) {
  const CardWork& work = works_[id];
  CardState& card = cards_[work.card];
  if (work.share > 0) settle(card);
  std::erase(card.running, id);
  card.wanted -= work.share;
  if (work.share > 0) schedule_all(card);
  finish(work.node);
}

VirtualTime::Speed VirtualTime::speed_of(const CardWork& work) const {
  const CardState& card = cards_[work.card];
  const int64_t left = multiprocessors_ - std::min(card.blocks, multiprocessors_ - 1);
  if (work.share == 0) return {left, multiprocessors_};
  constexpr int64_t kLeast = 20;  // a twentieth of the cores: the kernel starves no thread
  return {std::min(card.wanted, std::max(left, multiprocessors_ / kLeast)), card.wanted};
}

void VirtualTime::settle(const CardState& card) {
  for (uint32_t id : card.running) {
    CardWork& work = works_[id];
    const Speed speed = speed_of(work);
    work.left_fixed -= scaled((now_ns_ - work.updated_ns) << kFixedBits, speed.times, speed.parts);
    work.left_fixed = std::max<int64_t>(work.left_fixed, 0);
    work.updated_ns = now_ns_;
  }
}

void VirtualTime::schedule_all(const CardState& card) {
  for (uint32_t id : card.running) schedule(works_[id], id);
}

void VirtualTime::occupy(Transfer& transfer, int64_t blocks) {
  if (blocks == transfer.occupied || transfer.use.card >= cards_.size()) return;
  CardState& card = cards_[transfer.use.card];
  settle(card);
  card.blocks += blocks - transfer.occupied;
  transfer.occupied = blocks;
  schedule_all(card);
}

void VirtualTime::schedule(CardWork& work, uint32_t id) {
  const Speed speed = speed_of(work);
  const int64_t time_fixed = scaled(work.left_fixed, speed.parts, speed.times);
  push(now_ns_ + ((time_fixed + kHalf) >> kFixedBits), EventKind::work_end, id, ++work.stamp);
}

void VirtualTime::begin_transfers(uint32_t id) {
  Rendezvous& rendezvous = rendezvous_[id];
  for (uint32_t i = 0; i < rendezvous.joined; ++i) {
    const uint32_t index = nodes_[members_[rendezvous.first_member + i]].place;
    Transfer& transfer = transfers_[index];
    if (transfer.use.wire_ns <= 0) continue;
    ++rendezvous.moving;
    transfer.left_fixed = transfer.use.wire_ns << kFixedBits;
    transfer.updated_ns = now_ns_;
    Port& port = ports_[transfer.use.port];
    if (transfer.use.sends) port.sending.push_back(index);
    if (transfer.use.receives) port.receiving.push_back(index);
    share(port);
  }
  if (rendezvous.moving == 0) finish_rendezvous(id);
}

void VirtualTime::end_transfer(uint32_t index) {
  Transfer& transfer = transfers_[index];
  Port& port = ports_[transfer.use.port];
  std::erase(port.sending, index);
  std::erase(port.receiving, index);
  if (transfer.use.blocks_per_byte) occupy(transfer, 0);
  share(port);
  const uint32_t rendezvous = nodes_[transfer.node].rendezvous;
  if (--rendezvous_[rendezvous].moving == 0) finish_rendezvous(rendezvous);
}

void VirtualTime::share(const Port& port) {
  for (uint32_t index : port.sending) rebalance(transfers_[index], index);
  for (uint32_t index : port.receiving) rebalance(transfers_[index], index);
}

void VirtualTime::rebalance(Transfer& transfer, uint32_t index) {
  const Port& port = ports_[transfer.use.port];
  const size_t sharers = std::max(
      {transfer.use.sends ? port.sending.size() : 0, transfer.use.receives ? port.receiving.size() : 0, size_t{1}});
  if (static_cast<int64_t>(sharers) == transfer.sharers) return;
  if (transfer.sharers > 0) transfer.left_fixed -= ((now_ns_ - transfer.updated_ns) << kFixedBits) / transfer.sharers;
  transfer.left_fixed = std::max<int64_t>(transfer.left_fixed, 0);
  transfer.updated_ns = now_ns_;
  transfer.sharers = static_cast<int64_t>(sharers);
  if (transfer.use.blocks_per_byte) occupy(transfer, transfer.use.blocks / transfer.sharers);
  push(now_ns_ + ((transfer.left_fixed * transfer.sharers + kHalf) >> kFixedBits), EventKind::transfer_end, index,
       ++transfer.stamp);
}

Blocked VirtualTime::blocked(uint32_t node, const std::vector<std::vector<Edge>>& incoming) const {
  for (const Edge& e : incoming[node]) {
    if (e.after == After::end && end_ns_[e.from] < 0) return {node, e.from, Blocked::Why::end};
    if (e.after == After::enter && entered_ns_[e.from] < 0) return {node, e.from, Blocked::Why::enter};
  }
  const Rendezvous& rendezvous = rendezvous_[nodes_[node].rendezvous];  // a local node without unmet edges has ended
  for (uint32_t i = 0; i < rendezvous.joined; ++i) {
    const uint32_t member = members_[rendezvous.first_member + i];
    if (entered_ns_[member] < 0) return {node, member, Blocked::Why::member};
  }
  return {node, kNoNode, Blocked::Why::missing};
}

std::vector<Blocked> VirtualTime::why_stuck() const {
  std::vector<std::vector<Edge>> incoming(nodes_.size());
  for (const Edge& e : edges_) incoming[e.to].push_back(e);
  uint32_t node = 0;
  while (node < nodes_.size() && end_ns_[node] >= 0) ++node;
  if (node == nodes_.size()) return {};

  std::vector<Blocked> chain;
  std::vector<uint32_t> place(nodes_.size(), kNoNode);
  while (node != kNoNode && place[node] == kNoNode) {
    place[node] = static_cast<uint32_t>(chain.size());
    chain.push_back(blocked(node, incoming));
    node = chain.back().awaited;
  }
  if (node != kNoNode) chain.erase(chain.begin(), chain.begin() + place[node]);
  return chain;
}

}  // namespace slipstream::comm
