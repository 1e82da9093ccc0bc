// SPDX-License-Identifier: Apache-2.0
#pragma once
// The graph of all items of all ranks, with their waits and rendezvous. Virtual time is solved over it.

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "comm/rehearse/price.h"
#include "comm/rehearse/runs.h"
#include "comm/rehearse/virtual_time.h"

namespace slipstream::comm {

/// The name of a rendezvous, which breaks ties in time. It is equal on all members of the rendezvous, and different for
/// any two rendezvous of one rank. It consists of the wire, the sequence number on it, and the positions of sender and
/// receiver on the axis (collectives: 0, 0).
using RendezvousKey = std::array<uint32_t, 5>;

struct GraphOptions {
  RehearseOptions rehearse;
  bool instant = false;           // communication takes no time
  bool in_order_channels = true;  // false: communication channels have no order, and plans need no host order yet
};

class Graph {
 public:
  /// Borrows everything. Throws: PlanError if a plan is not finished (and in_order_channels), or if it names a channel,
  /// item or rank that does not exist.
  Graph(const Mesh& mesh, const std::vector<Channel>& channels, std::span<const RankRuns> ranks, const Price& price,
        const GraphOptions& options);

  bool solve() { return mismatch_.empty() && time_.solve(); }
  /// Returns true once `node` has started, because nothing later changes its start. The other times are then
  /// incomplete.
  bool solve_until_start_of(uint32_t node) { return mismatch_.empty() && time_.solve_until_start_of(node); }
  /// After solve() returned false: the tasks that do not match, or the cycle, by rank and item.
  std::string why_stuck() const;

  uint32_t node(size_t rank_index, size_t run, ItemId item) const { return nodes_[rank_index][run][item]; }
  const VirtualTime& time() const { return time_; }
  /// The key of the rendezvous of `node`, or null if the node is local.
  const RendezvousKey* key(uint32_t node) const;

 private:
  /// The group of a rank on a channel.
  struct Group {
    std::vector<int> ranks;
    int own = 0;               // the index of the rank in it
    uint32_t represented = 0;  // how many of its ranks are given
  };
  struct RankState {
    std::vector<uint32_t> tails;                        // the last node of each channel
    std::vector<uint32_t> collectives;                  // the number of collectives so far on each channel
    std::map<std::array<uint32_t, 4>, uint32_t> pairs;  // the number of transfers so far of two ranks on one wire
    std::vector<Group> groups;                          // the group of each channel
    uint32_t last_communication = kNoNode;              // the last communication in host order
    uint32_t last_compute = kNoNode;                    // the last item in order on the compute stream
    uint32_t host = kNoNode;                            // the last launch
  };
  struct KeyHash {
    size_t operator()(const RendezvousKey& key) const {
      uint64_t hash = 0;
      for (const uint32_t part : key) hash = (hash ^ part) * 0x9E3779B97F4A7C15ull, hash ^= hash >> 29;
      return hash;
    }
  };
  struct Origin {
    uint32_t rank_index, run;
    ItemId item;
  };

  void require_valid(const Plan& plan) const;
  void add_run(size_t rank_index, uint32_t run, RankState& state);
  /// The card that computes `item`; kNoNode if a copy engine runs it. With shared cores, the card is the host.
  uint32_t card_of(size_t rank_index, const Item& item) const;
  void add_edges(size_t rank_index, uint32_t run, const std::vector<ItemId>& order, RankState& state);
  /// Adds the launch of a compute item if the host takes time for it. `loss`: the node whose value the host reads
  /// first.
  void add_host(size_t rank_index, uint32_t run, ItemId id, uint32_t loss, RankState& state);
  uint32_t card_of(size_t rank_index) const;
  /// The units of a card: its multiprocessors, or thousandths of the cores that the represented ranks of a host have.
  int64_t units_of_a_card() const;
  PortUse use_of(size_t rank_index, const Plan& plan, ItemId id) const;
  uint32_t rendezvous_for(size_t rank_index, const Task& task, RankState& state);
  void require_same(uint32_t rendezvous, const Task& task, int rank);
  uint32_t represented(Axis axis, const std::vector<int>& group) const;
  std::string describe(uint32_t node) const;
  /// The ranks that do not join the rendezvous of `node`.
  std::string absent_from(uint32_t node) const;

  const Mesh& mesh_;
  const std::vector<Channel>& channels_;
  std::span<const RankRuns> ranks_;
  const Price& price_;
  GraphOptions options_;
  SharedCores shared_;
  VirtualTime time_;
  std::vector<uint32_t> wire_of_;  // of each channel
  std::map<int, size_t> index_of_rank_;
  uint32_t ports_per_rank_ = 1;
  std::vector<std::vector<std::vector<uint32_t>>> nodes_;            // by [rank][run][item]
  std::vector<Origin> origin_;                                       // of each node
  std::unordered_map<RendezvousKey, uint32_t, KeyHash> rendezvous_;  // by line and sequence
  std::vector<RendezvousKey> keys_;                                  // of each rendezvous
  std::vector<std::pair<const Task*, int>> first_member_;
  std::string mismatch_;
};

}  // namespace slipstream::comm
