// SPDX-License-Identifier: Apache-2.0
#pragma once
// The times of all items, from an event-driven solver over the items of all ranks, in integer nanoseconds.
//
// A node is local (with a duration) or a member of a rendezvous (one communication of a group or a pair). A node
// *enters* when its edges allow it. A rendezvous *starts* when its last member has entered, spends its latency, and
// then moves the bytes of each member through that member's port. Unless communication is instant, every node lasts at
// least 1 ns. An edge from an end to a begin therefore makes starts strictly increase, and sorting by start is a
// topological order.

#include <cstddef>
#include <cstdint>
#include <queue>
#include <vector>

namespace slipstream::comm {

constexpr uint32_t kNoNode = UINT32_MAX;

/// The load that one member of a rendezvous puts on its rank's port.
struct PortUse {
  uint32_t port = 0;       // numbered by the caller; full duplex: sending and receiving do not disturb each other
  int64_t latency_ns = 0;  // a rendezvous takes the largest latency of its members
  int64_t wire_ns = 0;     // the time on the wire if the member has the port to itself
  bool sends = true;
  bool receives = true;
  uint32_t card = kNoNode;  // of the member, numbered by the caller; kNoNode: none
  int blocks =
      0;  // the multiprocessors of the card that the member occupies from the start of the rendezvous to its end
  bool blocks_per_byte = false;  // the blocks work for its bytes: there are fewer while it shares the port, and none
                                 // once its bytes are sent
};

enum class After : uint8_t {
  end,    // `to` enters no earlier than `from` ends
  enter,  // `to` enters no earlier than `from` has entered: launch order
};

/// The reason why a node cannot proceed.
struct Blocked {
  enum class Why : uint8_t { end, enter, member, missing };
  uint32_t node = kNoNode;
  uint32_t awaited = kNoNode;  // kNoNode if `missing`: no node joins the rest of the rendezvous
  Why why = Why::end;
};

struct VirtualTimeOptions {
  bool contention = true;  // transfers in flight in one direction of a port share it equally, and a rendezvous ends
                           // when its slowest member is done; false: a rendezvous lasts latency + its longest wire time
  bool instant = false;    // a rendezvous ends as it starts, without contention
  int64_t multiprocessors = 0;  // of every card: local work there proceeds at (m - c) / m of its speed while members
                                // occupy c of them, with at least one left; 0: at full speed always
  // The cores of a host may be a card; local work then wants a share of them. Works that together want w units of a
  // card with m units, while the threads of transfers occupy c, proceed at (m - c) / w of their speed, but never faster
  // than alone.
};

class VirtualTime {
 public:
  explicit VirtualTime(const VirtualTimeOptions& options)
      : contention_(options.contention && !options.instant),
        instant_(options.instant),
        multiprocessors_(contention_ ? options.multiprocessors : 0) {}

  /// Adds a node of local work. Transfers that use blocks of `card` slow it; with kNoNode none do. `share` is the
  /// number of units of the card that the node wants, which other works then lack; with 0 the node runs on the whole
  /// card, as all such nodes do.
  uint32_t add_local(int64_t duration_ns, uint32_t card = kNoNode, int64_t share = 0);
  uint32_t add_rendezvous(uint32_t member_count);  // returns the rendezvous, not a node
  uint32_t join(uint32_t rendezvous, const PortUse& use);
  void edge(uint32_t from, uint32_t to, After after);

  /// Returns true if every node ended. O((n + e) log n); call once.
  bool solve();
  /// Returns true as soon as `node` has started, in place of solve(): what happens later changes no earlier time.
  bool solve_until_start_of(uint32_t node);

  size_t size() const { return entered_ns_.size(); }
  bool ended(uint32_t node) const { return end_ns_[node] >= 0; }
  int64_t start_ns(uint32_t node) const { return start_ns_[node]; }  // of a member: the start of its rendezvous
  int64_t end_ns(uint32_t node) const { return end_ns_[node]; }
  int64_t makespan_ns() const { return now_ns_; }
  uint32_t rendezvous_of(uint32_t node) const { return nodes_[node].rendezvous; }  // kNoNode if local

  /// After solve() returned false: a cycle (the last awaited node is the first one), or a chain that ends at `missing`.
  std::vector<Blocked> why_stuck() const;

 private:
  struct Node {
    int64_t duration_ns = 0;  // of a local node
    uint32_t rendezvous = kNoNode;
    uint32_t place = kNoNode;  // of a member: the index of its transfer; of local work on a card: the index of its work
    uint32_t pending = 0;      // the number of edges that do not yet allow it to enter
  };
  struct Rendezvous {
    uint32_t expected = 0;
    uint32_t joined = 0;
    uint32_t entered = 0;
    uint32_t moving = 0;        // the number of transfers that are not done
    uint32_t first_member = 0;  // an index into members_
  };
  struct Transfer {
    PortUse use;
    uint32_t node = 0;
    uint32_t stamp = 0;      // an event with an older stamp is void
    int64_t left_fixed = 0;  // wire time left at full bandwidth, in 1/65536 ns
    int64_t updated_ns = 0;
    int64_t sharers = 0;
    int64_t occupied = 0;  // the blocks of its card that it occupies
  };
  struct Port {
    std::vector<uint32_t> sending, receiving;
  };
  struct CardWork {
    uint32_t node = 0, card = 0;
    uint32_t stamp = 0;      // an event with an older stamp is void
    int64_t share = 0;       // the units of the card that it wants
    int64_t left_fixed = 0;  // time left at full speed, in 1/65536 ns
    int64_t updated_ns = 0;
  };
  struct CardState {
    int64_t blocks = 0;             // of members in flight
    int64_t wanted = 0;             // by running works
    std::vector<uint32_t> running;  // the running works
  };
  struct Edge {
    uint32_t from, to;
    After after;
  };
  enum class EventKind : uint8_t { local_end, move, transfer_end, work_end };
  struct Event {
    int64_t time_ns;
    uint32_t id;              // of a node, rendezvous, transfer or work
    uint32_t stamp_and_kind;  // stamp * 4 + kind
    bool operator<(const Event& other) const { return time_ns > other.time_ns; }
  };

  void index();
  /// Handles events until none is left or `node` has started.
  void run_until(uint32_t node);
  void push(int64_t time_ns, EventKind kind, uint32_t id, uint32_t stamp = 0);
  void release(uint32_t node, After after);
  void drain();
  void enter(uint32_t node);
  void finish(uint32_t node);
  void finish_rendezvous(uint32_t rendezvous);
  void begin_transfers(uint32_t rendezvous);
  void end_transfer(uint32_t transfer);
  void begin_work(CardWork& work, uint32_t id);
  void end_work(uint32_t id);
  /// From now on, the member occupies so many blocks of its card.
  void occupy(Transfer& transfer, int64_t blocks);
  void schedule(CardWork& work, uint32_t id);
  /// The works of a card have run at their speed until now; then their speed changes.
  void settle(const CardState& card);
  void schedule_all(const CardState& card);
  /// The speed of a work as a fraction.
  struct Speed {
    int64_t times, parts;
  };
  Speed speed_of(const CardWork& work) const;
  void share(const Port& port);
  void rebalance(Transfer& transfer, uint32_t id);
  Blocked blocked(uint32_t node, const std::vector<std::vector<Edge>>& incoming) const;

  bool contention_, instant_;
  int64_t multiprocessors_;
  int64_t now_ns_ = 0;
  size_t ended_count_ = 0;
  std::vector<Node> nodes_;
  std::vector<int64_t> entered_ns_, start_ns_, end_ns_;
  std::vector<Rendezvous> rendezvous_;
  std::vector<uint32_t> members_;  // the nodes, by rendezvous
  std::vector<Transfer> transfers_;
  std::vector<Port> ports_;
  std::vector<CardWork> works_;
  std::vector<CardState> cards_;
  std::vector<Edge> edges_;  // sorted by `from` once indexed
  std::vector<uint32_t> first_edge_;
  std::vector<uint32_t> ready_;
  std::priority_queue<Event> events_;
};

}  // namespace slipstream::comm
