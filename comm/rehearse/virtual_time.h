// SPDX-License-Identifier: Apache-2.0
#pragma once
// Times of all items: an event-driven solver over the items of all ranks, in integer nanoseconds.
//
// A node is local (a duration) or a member of a rendezvous (one communication of a group or a pair). A node *enters*
// when its edges allow; a rendezvous *starts* when its last member has entered, spends its latency, then moves each
// member's bytes through that member's port. Unless communication is instant, every node lasts at least 1 ns, so an
// end-to-begin edge makes starts strictly increase: sorting by start is a topological order.

#include <cstddef>
#include <cstdint>
#include <queue>
#include <vector>

namespace slipstream::comm {

constexpr uint32_t kNoNode = UINT32_MAX;

/// The load that one member of a rendezvous puts on its rank's port.
struct PortUse {
  uint32_t port = 0;       // numbered by the caller; full duplex: sending and receiving do not disturb each other
  int64_t latency_ns = 0;  // a rendezvous takes the largest of its members
  int64_t wire_ns = 0;     // with the port to itself
  bool sends = true;
  bool receives = true;
  uint32_t card = kNoNode;  // of the member, numbered by the caller; kNoNode: none
  int blocks = 0;  // multiprocessors of the card that the member occupies from the rendezvous' start to its end
  bool blocks_per_byte =
      false;  // they work for its bytes: fewer while it shares the port, none once its bytes are over
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
  bool instant = false;    // a rendezvous ends as it starts; there is no contention
  int64_t multiprocessors = 0;  // of every card: local work there proceeds at (m - c) / m of its speed while members
                                // occupy c of them, with at least one left; 0: at full speed always
  // A card may be the cores of a host, in units of which local work wants a share. Works that want w together on a card
  // of m units, c of them occupied by the threads of transfers, proceed at (m - c) / w of their speed, at most in full.
};

class VirtualTime {
 public:
  explicit VirtualTime(const VirtualTimeOptions& options)
      : contention_(options.contention && !options.instant),
        instant_(options.instant),
        multiprocessors_(contention_ ? options.multiprocessors : 0) {}

  /// `card`: members with blocks on it slow this node; kNoNode: none do. `share`: units of the card that it wants,
  /// which other works then lack; 0: it runs on the whole card, as the others do.
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
  int64_t start_ns(uint32_t node) const { return start_ns_[node]; }  // of a member: of its rendezvous
  int64_t end_ns(uint32_t node) const { return end_ns_[node]; }
  int64_t makespan_ns() const { return now_ns_; }
  uint32_t rendezvous_of(uint32_t node) const { return nodes_[node].rendezvous; }  // kNoNode if local

  /// After solve() returned false: a cycle (the last awaited is the first node), or a chain that ends at `missing`.
  std::vector<Blocked> why_stuck() const;

 private:
  struct Node {
    int64_t duration_ns = 0;  // of a local node
    uint32_t rendezvous = kNoNode;
    uint32_t place = kNoNode;  // of a member: its transfer; of local work on a card: its work
    uint32_t pending = 0;      // edges that do not yet allow it to enter
  };
  struct Rendezvous {
    uint32_t expected = 0;
    uint32_t joined = 0;
    uint32_t entered = 0;
    uint32_t moving = 0;        // transfers not yet done
    uint32_t first_member = 0;  // into members_
  };
  struct Transfer {
    PortUse use;
    uint32_t node = 0;
    uint32_t stamp = 0;      // an event with an older stamp is void
    int64_t left_fixed = 0;  // wire time left at full bandwidth, in 1/65536 ns
    int64_t updated_ns = 0;
    int64_t sharers = 0;
    int64_t occupied = 0;  // blocks of its card
  };
  struct Port {
    std::vector<uint32_t> sending, receiving;
  };
  struct CardWork {
    uint32_t node = 0, card = 0;
    uint32_t stamp = 0;      // an event with an older stamp is void
    int64_t share = 0;       // units of the card that it wants
    int64_t left_fixed = 0;  // time left at full speed, in 1/65536 ns
    int64_t updated_ns = 0;
  };
  struct CardState {
    int64_t blocks = 0;             // of members in flight
    int64_t wanted = 0;             // by running works
    std::vector<uint32_t> running;  // works
  };
  struct Edge {
    uint32_t from, to;
    After after;
  };
  enum class EventKind : uint8_t { local_end, move, transfer_end, work_end };
  struct Event {
    int64_t time_ns;
    uint32_t id;              // node, rendezvous, transfer or work
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
  /// Speed of a work as a fraction.
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
  std::vector<uint32_t> members_;  // nodes, by rendezvous
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
