// SPDX-License-Identifier: Apache-2.0
#pragma once
// What NCCL may use on each channel, and which algorithm and protocol a collective takes: a table that belongs to the
// plan.
//
//   {"channels": {"*":      {"max_ctas": 8},
//                 "reduce": {"min_ctas": 2, "max_ctas": 4, "cluster_size": 0, "traffic_class": 1,
//                            "choices": [{"verb": "all_reduce", "up_to": "1MiB", "algorithm": "tree", "protocol":
//                            "ll"},
//                                        {"verb": "all_reduce", "algorithm": "ring", "protocol": "simple"}]}}}
//
// A channel that is not named has what "*" has; what is not set is NCCL's own choice. Variables NCCL_* of the user come
// first.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/plan/plan.h"

namespace slipstream::comm {

/// In NCCL's order: their numbers are columns and rows of its cost table.
enum class NcclAlgorithm : uint8_t { tree, ring, collnet_direct, collnet_chain, nvls, nvls_tree, pat };
enum class NcclProtocol : uint8_t { ll, ll128, simple };
std::string name_of(NcclAlgorithm algorithm);
std::string name_of(NcclProtocol protocol);

struct NcclChoice {
  Op op = Op::all_reduce;
  int64_t up_to_bytes = INT64_MAX;  // of the larger of what a rank gives and gets
  NcclAlgorithm algorithm = NcclAlgorithm::ring;
  NcclProtocol protocol = NcclProtocol::simple;
};

struct NcclChannel {
  int min_ctas = 0;  // blocks that a collective takes from the compute kernels; 0: not set
  int max_ctas = 0;
  int cluster_size = -1;   // blocks of a cluster; -1: not set, 0: no clusters
  int traffic_class = -1;  // of the network; -1: not set
  std::vector<NcclChoice> choices;

  /// The choice with the smallest up_to_bytes that holds `bytes`. Pure.
  std::optional<NcclChoice> choice(Op op, int64_t bytes) const;
};

class NcclTable {
 public:
  /// "" is the empty table. Throws: ConfigError that names what is wrong. Pure.
  static NcclTable parse(const std::string& text, const std::string& source);
  /// Blocks. "" of path "". Throws: ConfigError.
  static std::string read_text(const std::string& path);
  const NcclChannel& of(const std::string& channel) const;

 private:
  std::map<std::string, NcclChannel> channels_;
};

/// What one size class of a verb took on a channel; classes end at powers of two.
struct NcclUse {
  std::string channel;
  Op op = Op::all_reduce;
  int64_t up_to_bytes = 0;
  NcclAlgorithm algorithm = NcclAlgorithm::ring;
  NcclProtocol protocol = NcclProtocol::simple;
  bool from_table = false;
};
/// Of all communicators so far, in order of channel, verb and size. Empty where NCCL did not take our tuner.
std::vector<NcclUse> nccl_uses();

}  // namespace slipstream::comm
