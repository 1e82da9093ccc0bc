// SPDX-License-Identifier: Apache-2.0
#pragma once
// The plan's NCCL table: the resources of each channel, and the algorithm and protocol of each collective.
//
//   {"channels": {"*":      {"max_ctas": 8},
//                 "gather": {"policy": "zero"},
//                 "reduce": {"min_ctas": 2, "max_ctas": 4, "cluster_size": 0, "traffic_class": 1,
//                            "choices": [{"verb": "all_reduce", "up_to": "1MiB", "algorithm": "tree", "protocol":
//                            "ll"},
//                                        {"verb": "all_reduce", "algorithm": "ring", "protocol": "simple"}]}}}
//
// A channel without an entry uses "*". Policies are default, efficiency and zero. Values that are not set come from the
// table of the card (comm/nccl/card_table.h), and NCCL chooses those that this table lacks, too. The user's NCCL_*
// variables take precedence.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/plan/plan.h"

namespace slipstream::comm {

/// In NCCL's order: the values index its cost table.
enum class NcclAlgorithm : uint8_t { tree, ring, collnet_direct, collnet_chain, nvls, nvls_tree, pat };
enum class NcclProtocol : uint8_t { ll, ll128, simple };
std::string name_of(NcclAlgorithm algorithm);
std::string name_of(NcclProtocol protocol);

struct NcclChoice {
  Op op = Op::all_reduce;
  int64_t up_to_bytes = INT64_MAX;  // the larger one of a rank's input and output
  NcclAlgorithm algorithm = NcclAlgorithm::ring;
  NcclProtocol protocol = NcclProtocol::simple;
};

/// NCCL's CTA policy (NCCL 2.28 and newer; older versions have none).
enum class NcclPolicy : int8_t {
  unset = -1,
  standard,    // "default"
  efficiency,  // fewer blocks where that costs no bandwidth
  zero,        // no blocks: copy engines, for gathers of registered windows inside a node
};

/// The word in the table. `policy` must be set.
std::string name_of(NcclPolicy policy);

struct NcclChannel {
  int min_ctas = 0;  // blocks that a collective takes from compute kernels; 0: not set
  int max_ctas = 0;
  int cluster_size = -1;   // blocks of a cluster; -1: not set, 0: no clusters
  int traffic_class = -1;  // of the network; -1: not set
  NcclPolicy policy = NcclPolicy::unset;
  std::vector<NcclChoice> choices;

  /// The choice with the smallest up_to_bytes that is at least `bytes`. Pure.
  std::optional<NcclChoice> choice(Op op, int64_t bytes) const;
};

class NcclTable {
 public:
  /// Pure. "" gives the empty table. Throws: ConfigError that names the wrong entry.
  static NcclTable parse(const std::string& text, const std::string& source);
  /// Blocks. Returns "" for path "". Throws: ConfigError.
  static std::string read_text(const std::string& path);
  const NcclChannel& of(const std::string& channel) const;
  void set(const std::string& channel, NcclChannel settings) { channels_[channel] = std::move(settings); }

 private:
  std::map<std::string, NcclChannel> channels_;
};

/// NCCL's choice for one size class of a verb on a channel. Classes end at powers of two.
struct NcclUse {
  std::string channel;
  Op op = Op::all_reduce;
  int64_t up_to_bytes = 0;
  NcclAlgorithm algorithm = NcclAlgorithm::ring;
  NcclProtocol protocol = NcclProtocol::simple;
  bool from_table = false;
};
/// The choices of all communicators so far, in the order of channel, verb and size. Empty if NCCL did not load our
/// tuner.
std::vector<NcclUse> nccl_uses();

}  // namespace slipstream::comm
