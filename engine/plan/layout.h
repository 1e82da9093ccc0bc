// SPDX-License-Identifier: Apache-2.0
#pragma once
// Flat buffers in backward-completion order: where each parameter lives and which ranges travel together.

#include <cstdint>
#include <vector>

#include "engine/plan/model_spec.h"

namespace slipstream {

/// How gradients become tasks (overlap.grad_reduce). The first three exist to be measured against.
enum class ReduceWay : uint8_t { bucketed, per_parameter, flat, naive };
const char* name_of(ReduceWay way);

struct LayoutOptions {
  ReduceWay way = ReduceWay::bucketed;
  int64_t bucket_bytes = 25 << 20;
  int64_t first_bucket_bytes = 1 << 20;
  int group_size = 1;     // bucket ends are padded to a multiple of group_size x 16 elements
  bool sharded = false;   // every bucket divides evenly among the group
  bool by_layer = false;  // the parameters of a layer are one bucket, alone in it
};

/// A gradient part with its place in the flat buffers (elements).
struct PlacedPart {
  GradientPart part;
  int64_t offset_elems = 0;
  uint32_t ready_position = 0;  // index into ModelSpec::backward: complete after that piece
};

/// A contiguous range of the flat buffers, padding included.
struct Bucket {
  int64_t offset_elems = 0;
  int64_t elems = 0;
  uint32_t first_part = 0;
  uint32_t part_count = 0;
  uint32_t ready_position = 0;  // the latest of its parts
  int layer = -1;               // when it holds one layer and nothing else (by_layer), else -1
};

struct ParameterLayout {
  std::vector<PlacedPart> parts;             // in flat order
  std::vector<Bucket> buckets;               // in flat order, covering it
  std::vector<int64_t> parameter_offsets;    // of each parameter, elements
  int64_t flat_elems = 0;                    // padding included
};

/// Places every parameter once. Pure.
/// Throws: PlanError if a parameter never becomes ready, becomes ready twice, or its parts leave a hole.
ParameterLayout place_parameters(const ModelSpec& model, const LayoutOptions& options);

}  // namespace slipstream
