// SPDX-License-Identifier: Apache-2.0
#pragma once
// Flat buffers in backward-completion order: where each parameter lives and which ranges travel together.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/plan/model_spec.h"

namespace slipstream {

/// How gradients become tasks (overlap.grad_reduce). The first three exist to be measured against.
enum class ReduceMode : uint8_t { bucketed, per_parameter, flat, naive };
const char* name_of(ReduceMode reduce_mode);

struct LayoutOptions {
  ReduceMode reduce_mode = ReduceMode::bucketed;
  int64_t bucket_bytes = 25 << 20;
  int64_t first_bucket_bytes = 1 << 20;
  int group_size = 1;           // bucket ends are padded to a multiple of group_size x 16 elements
  bool sharded = false;         // every bucket divides evenly among the group, 16 elements at a time
  std::vector<uint32_t> alone;  // parameters that have a bucket of their own, of which nothing is left over
  bool by_layer = false;        // the parameters of a layer are one bucket, alone in it
  bool ends =
      false;  // by_layer: those before the first layer, and those behind the last, have buckets of their own, too
  std::vector<uint32_t>
      passes;  // by_layer: ready positions where another pass begins: what it makes of a layer is a bucket of its own
  std::vector<std::pair<uint32_t, uint32_t>>
      whole;                       // ready positions [begin, end): what becomes ready there is one bucket, alone in it
  std::vector<uint32_t> group_of;  // by parameter; a bucket holds one group, and groups follow each other. Empty: one
  int64_t persistent_elems =
      0;  // by_layer: but those up to so many elements are in buckets of no layer, behind all others
};

/// A gradient part with its place in the flat buffers (elements).
struct PlacedPart {
  GradientPart part;
  int64_t offset_elems = 0;
  uint32_t ready_position = 0;  // index into ModelSpec::backward: complete after that piece
  int32_t norm_index = -1;      // its place in the sum of squares over the whole model; -1: counted on another stage
};

/// A contiguous range of the flat buffers, padding included.
struct Bucket {
  int64_t offset_elems = 0;
  int64_t elems = 0;
  uint32_t first_part = 0;
  uint32_t part_count = 0;
  uint32_t ready_position = 0;  // the latest of its parts
  uint32_t group = 0;           // of its parameters
  bool persistent = false;      // holds small parameters of layers and nothing else (persistent_elems)
  std::optional<int> unit;  // by_layer: what it is gathered and reduced with: a layer's number, -1 before the first,
                            // `layers` behind the last; none: stays whole
};

struct ParameterLayout {
  std::vector<PlacedPart> parts;           // in flat order
  std::vector<Bucket> buckets;             // in flat order, covering it
  std::vector<int64_t> parameter_offsets;  // of each parameter, elements
  int64_t flat_elems = 0;                  // padding included
};

/// Where each part of each parameter stands in the sum of squares: completion order over the whole model, so that the
/// sum is the same whatever the stages. Keys: name of the parameter, first element. Of a table in two copies the head's
/// is counted. Pure.
std::map<std::pair<std::string, int64_t>, int32_t> norm_order(const ModelSpec& whole);

/// Places every parameter once. Pure.
/// Throws: PlanError if a parameter never becomes ready, becomes ready twice, or its parts leave a hole.
ParameterLayout place_parameters(const ModelSpec& model, const LayoutOptions& options);

}  // namespace slipstream
