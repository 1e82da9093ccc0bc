// SPDX-License-Identifier: Apache-2.0
#pragma once
// NCCL's share of a card, by card and link: blocks, clusters and copy engines, for the values that comm.nccl does not
// set.
//
// None of these numbers was measured on a card. They follow from sources:
//   Blocks   A block moves at most 20 GB/s on Ampere and 36.7 GB/s on Hopper (NCCL 2.27, src/graph/tuning.cc, LL128
//            rings). The table has the smallest multiple of four whose blocks move 1.25 times the rate of the link. A
//            group across nodes with several ranks in each needs two blocks for each of a node's eight adapters, since
//            every block's ring uses one of them. NCCL's own number on NVLink is 24.
//   Clusters Products on Hopper launch clusters of two blocks. Pairs of NCCL's blocks leave an even number of
//            multiprocessors in each of the groups into which clusters are placed. NCCL's own clusters of four begin
//            only when four multiprocessors of one group are free. Ampere has no clusters.
//   Copies   Gathers inside a node of Hopper cards use copy engines. PyTorch issues 176613 and 179937 report steps that
//            are 15 % and 2.4 % shorter. Across nodes, Megatron-LM issue 5657 reports longer steps, and reductions need
//            blocks. Groups of two ranks use blocks where NCCL can hang in their first copy (copies_may_hang).

#include <cstdint>

#include "comm/nccl/nccl_table.h"
#include "engine/config/machine.h"

namespace slipstream::comm {

/// The links between the ranks of a group, each of which has a card.
enum class CardLink : uint8_t {
  node,     // inside a node: NVLink
  network,  // across nodes, with one rank in each
  both,     // across nodes, with several ranks in each
};
/// Pure. "NVLink", "network", "NVLink and network".
const char* name_of(CardLink link);

struct CardShare {
  int max_ctas = 0;
  int cluster_size = 0;
  bool copies_gathers = false;  // gathers use copy engines
};

/// Pure. Null: the table has no entry, and NCCL chooses.
const CardShare* card_share(Card card, CardLink link);

/// The first version of NCCL with the zero-CTA policy (2.28).
constexpr int kNcclWithPolicies = 22800;

/// Pure. Can the first collective with copy engines hang in a group of so many ranks? It can in groups of two with NCCL
/// 2.29 to 2.31.1: a rank may write a flag before the other one has bound its memory (NCCL issue 2241, pull request
/// 2290).
bool copies_may_hang(int nccl_version, int64_t ranks);

/// A channel and its group.
struct CardGroup {
  Card card = Card::other;
  CardLink link = CardLink::node;
  int64_t ranks = 1;
  bool gathers = false;  // the channel carries only gathers
};
/// Pure. `written`, completed by the table's values as a whole, so that no cluster exceeds the blocks. `nccl_version` 0
/// is unknown and counts as a version with policies.
NcclChannel completed(const NcclChannel& written, const CardGroup& group, int nccl_version);

}  // namespace slipstream::comm
