// SPDX-License-Identifier: Apache-2.0
#pragma once
// Flat buffers in backward-completion order: the location of each parameter and the ranges that travel together.

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

struct LayoutOptions {
  ReduceMode reduce_mode = ReduceMode::bucketed;
  int64_t bucket_bytes = 25 << 20;
  int64_t first_bucket_bytes = 1 << 20;
  int group_size = 1;           // bucket ends are padded to a multiple of group_size x 16 elements
  bool sharded = false;         // every bucket divides evenly among the group, in units of 16 elements
  std::vector<uint32_t> alone;  // parameters in a separate bucket without other parts
  bool by_layer = false;        // the parameters of a layer form one bucket without other parts
  bool ends = false;            // by_layer: separate buckets, too, before the first layer and after the last
  std::vector<uint32_t>
      passes;  // by_layer: ready positions at which another pass begins; its part of a layer is a separate bucket
  std::vector<std::pair<uint32_t, uint32_t>>
      whole;  // ready positions [begin, end): gradients that become ready there form one bucket without other parts
  std::vector<uint32_t> group_of;  // by parameter; a bucket holds one group, and groups follow each other. Empty: one
  int64_t persistent_elems = 0;    // by_layer: parameters up to this size are in buckets of no layer, after all others
  int shards = 1;                  // equal parts of a bucket, each of which one rank updates
  std::vector<int64_t> matrix_costs;  // of an update, by parameter; > 0: it stays whole in one shard, and shards are
                                      // balanced by this cost. Empty: none
};

/// A gradient part with its place in the flat buffers (elements).
struct PlacedPart {
  GradientPart part;
  int64_t offset_elems = 0;
  uint32_t ready_position = 0;  // index into ModelSpec::backward: complete after that piece
  int32_t norm_index = -1;      // its place in the sum of squares over the whole model; -1: another stage counts it
};

/// A contiguous range of the flat buffers, padding included. With shards of whole matrices, the parts of a bucket are
/// in the order of the shards, each padded to the largest.
struct Bucket {
  int64_t offset_elems = 0;
  int64_t elems = 0;
  uint32_t first_part = 0;
  uint32_t part_count = 0;
  uint32_t ready_position = 0;  // the latest of its parts
  uint32_t group = 0;           // of its parameters
  bool persistent = false;      // contains only small parameters of layers (persistent_elems)
  std::optional<int> unit;      // by_layer: its gather and reduction unit: a layer's number, -1 before the first,
                                // `layers` after the last; none: stays whole
};

struct ParameterLayout {
  std::vector<PlacedPart> parts;           // in flat order
  std::vector<Bucket> buckets;             // in flat order, covering it
  std::vector<int64_t> parameter_offsets;  // of each parameter, elements
  int64_t flat_elems = 0;                  // padding included
};

/// Pure. Position of each part of each parameter in the sum of squares: completion order over the whole model, so that
/// the sum is the same for all divisions into stages. Keys: name of the parameter, first element. For a table in two
/// copies the head's counts.
std::map<std::pair<std::string, int64_t>, int32_t> norm_order(const ModelSpec& whole);

/// Pure. Places every parameter once.
/// Throws: PlanError if a parameter never becomes ready, becomes ready twice, or its parts leave a gap.
ParameterLayout place_parameters(const ModelSpec& model, const LayoutOptions& options);

/// The owner of each item: the most expensive item first, to the owner with the least work so far. The largest owner
/// has at most 4/3 - 1/(3 owners) of the least possible (Graham 1969, "Bounds on multiprocessing timing anomalies").
/// Owners with equal work take turns by `totals`, the work of earlier calls, to which this call adds. Pure otherwise.
std::vector<int> owners_of(std::span<const int64_t> costs, std::vector<int64_t>& totals);

}  // namespace slipstream
