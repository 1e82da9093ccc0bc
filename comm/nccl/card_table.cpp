// SPDX-License-Identifier: Apache-2.0
// The table of card_table.h.

#include "comm/nccl/card_table.h"

#include <algorithm>

namespace slipstream::comm {
namespace {

struct Row {
  Card card;
  CardLink link;
  CardShare share;
};

constexpr Row kRows[] = {
    {Card::a100, CardLink::node, {.max_ctas = 16}},
    {Card::a100, CardLink::network, {.max_ctas = 4}},
    {Card::a100, CardLink::both, {.max_ctas = 16}},
    {Card::h100, CardLink::node, {.max_ctas = 16, .cluster_size = 2, .copies_gathers = true}},
    {Card::h100, CardLink::network, {.max_ctas = 4, .cluster_size = 2}},
    {Card::h100, CardLink::both, {.max_ctas = 16, .cluster_size = 2}},
    {Card::h200, CardLink::node, {.max_ctas = 16, .cluster_size = 2, .copies_gathers = true}},
    {Card::h200, CardLink::network, {.max_ctas = 4, .cluster_size = 2}},
    {Card::h200, CardLink::both, {.max_ctas = 16, .cluster_size = 2}},
};

}  // namespace

const char* name_of(CardLink link) {
  return link == CardLink::node ? "NVLink" : link == CardLink::network ? "network" : "NVLink and network";
}

const CardShare* card_share(Card card, CardLink link) {
  const auto* const found = std::find_if(std::begin(kRows), std::end(kRows),
                                         [&](const Row& row) { return row.card == card && row.link == link; });
  return found == std::end(kRows) ? nullptr : &found->share;
}

bool copies_may_hang(int nccl_version, int64_t ranks) {
  return ranks == 2 && nccl_version >= 22900 && nccl_version < 23102;
}

NcclChannel completed(const NcclChannel& written, const CardGroup& group, int nccl_version) {
  NcclChannel channel = written;
  const CardShare* const share = card_share(group.card, group.link);
  if (!share) return channel;
  if (channel.max_ctas == 0) channel.max_ctas = std::max(share->max_ctas, channel.min_ctas);
  if (channel.cluster_size < 0) channel.cluster_size = std::min(share->cluster_size, channel.max_ctas);
  if (channel.policy == NcclPolicy::unset && group.gathers && share->copies_gathers &&
      (nccl_version == 0 || nccl_version >= kNcclWithPolicies) && !copies_may_hang(nccl_version, group.ranks))
    channel.policy = NcclPolicy::zero;
  return channel;
}

}  // namespace slipstream::comm
