// SPDX-License-Identifier: Apache-2.0
#pragma once
// Flat buffers in the order in which the backward pass completes gradients: the location of each parameter and the
// ranges that travel together.

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/modes.h"
#include "engine/plan/model_spec.h"

namespace slipstream {

/// How the parameters of a group are divided.
struct GroupLayout {
  int shards = 1;         // the equal parts of a bucket, each of which one rank updates
  bool by_layer = false;  // the parameters of a layer form one bucket without other parts
};

struct LayoutOptions {
  ReduceMode reduce_mode = ReduceMode::bucketed;
  int64_t bucket_bytes = 25 << 20;
  int64_t first_bucket_bytes = 1 << 20;
  int group_size = 1;           // bucket ends are padded to a multiple of group_size x 16 elements
  bool sharded = false;         // the group divides every bucket evenly, in units of 16 elements
  std::vector<uint32_t> alone;  // each of these parameters has a bucket of its own
  /// By group; a bucket holds parameters of one group, and groups follow each other.
  std::vector<GroupLayout> groups = {{}};
  std::vector<uint32_t> group_of;  // by parameter; empty: there is one group
  /// With by_layer: the parts before the first layer and after the last also have buckets of their own.
  bool ends = false;
  /// With by_layer: the ready positions at which another pass begins; each pass has a separate bucket for its part of a
  /// layer.
  std::vector<uint32_t> passes;
  /// Ready positions [begin, end): gradients that become ready there form one bucket without other parts.
  std::vector<std::pair<uint32_t, uint32_t>> whole;
  /// With by_layer: parameters up to this size are in buckets of no layer, after all others.
  int64_t persistent_elems = 0;
  /// By parameter, the cost of its update as a matrix; > 0: it stays whole in one shard, and this cost balances the
  /// shards; empty: none does.
  std::vector<int64_t> matrix_costs;
};

/// A gradient part with its position in the flat buffers (elements).
struct PlacedPart {
  GradientPart part;
  int64_t offset_elems = 0;
  uint32_t ready_position = 0;  // an index into ModelSpec::backward: the part is complete after that piece
  int32_t norm_index = -1;      // its position in the sum of squares over the whole model; -1: another stage counts it
};

/// A contiguous range of the flat buffers, including padding. With shards of whole matrices, the parts of a bucket are
/// in the order of the shards, and each shard is padded to the size of the largest.
struct Bucket {
  int64_t offset_elems = 0;
  int64_t elems = 0;
  uint32_t first_part = 0;
  uint32_t part_count = 0;
  uint32_t ready_position = 0;  // the latest ready position of its parts
  uint32_t group = 0;           // the group of its parameters
  bool persistent = false;      // it contains only small parameters of layers (persistent_elems)
  /// With by_layer, the unit of its gather and reduction: a layer's number, -1 before the first layer, `layers` after
  /// the last; none: it stays whole.
  std::optional<int> unit;
};

struct ParameterLayout {
  std::vector<PlacedPart> parts;           // in flat order
  std::vector<Bucket> buckets;             // in flat order; they cover all of it
  std::vector<int64_t> parameter_offsets;  // by parameter, in elements
  int64_t flat_elems = 0;                  // includes padding
};

/// Pure. Returns the position of each part of each parameter in the sum of squares. It is the completion order over the
/// whole model, so that the sum is the same for all divisions into stages. The keys are the name of the parameter and
/// the first element. For a table with two copies, the head's copy counts.
std::map<std::pair<std::string, int64_t>, int32_t> norm_order(const ModelSpec& whole);

/// Pure. Places every parameter once.
/// Throws: PlanError if a parameter never becomes ready, becomes ready twice, or its parts leave a gap.
ParameterLayout place_parameters(const ModelSpec& model, const LayoutOptions& options);

/// Returns the owner of each item. The most expensive item is assigned first, and each item goes to the owner with the
/// least work so far. The largest owner has at most 4/3 - 1/(3 owners) of the least possible work (Graham 1969, "Bounds
/// on multiprocessing timing anomalies"). Owners with equal work take turns by `totals`, the work of earlier calls, to
/// which this call adds. Otherwise pure.
std::vector<int> owners_of(std::span<const int64_t> costs, std::vector<int64_t>& totals);

}  // namespace slipstream
