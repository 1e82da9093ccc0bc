// SPDX-License-Identifier: Apache-2.0
// Rank arithmetic: strides from the order of the axes, groups from coordinates.

#include "engine/plan/mesh.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "engine/base/check.h"

namespace slipstream {
namespace {

constexpr std::array<const char*, 4> kShortNames{"dp", "cp", "pp", "tp"};  // in the order of Mesh::strides_

/// Splits "tp-cp-pp-dp" into positions in kShortNames; empty if it is not a permutation of the four.
std::vector<size_t> axes_in_order(const std::string& order) {
  std::vector<size_t> axes;
  std::array<bool, 4> seen{};
  for (size_t at = 0; at <= order.size();) {
    const size_t end = std::min(order.find('-', at), order.size());
    size_t axis = 0;
    while (axis < 4 && order.compare(at, end - at, kShortNames[axis]) != 0) ++axis;
    if (axis == 4 || seen[axis]) return {};
    seen[axis] = true;
    axes.push_back(axis);
    at = end + 1;
  }
  return axes.size() == 4 ? axes : std::vector<size_t>{};
}

int replicas(const MeshSizes& sizes) { return sizes.data * sizes.context; }
/// Number of ranks that shard together.
int inner_size(const MeshSizes& sizes) { return sizes.data_inner == 0 ? replicas(sizes) : sizes.data_inner; }

}  // namespace

const char* name_of(Axis axis) {
  switch (axis) {
    case Axis::self:
      return "self";
    case Axis::data:
      return "data";
    case Axis::context:
      return "context";
    case Axis::pipeline:
      return "pipeline";
    case Axis::tensor:
      return "tensor";
    case Axis::replica:
      return "replica";
    case Axis::data_inner:
      return "data_inner";
    case Axis::data_outer:
      return "data_outer";
    case Axis::world:
      return "world";
    case Axis::hosts:
      return "hosts";
  }
  return "?";
}

Mesh::Mesh(const MeshSizes& sizes, const std::string& order) : sizes_(sizes) {
  const std::array<int, 4> size_of_axis{sizes.data, sizes.context, sizes.pipeline, sizes.tensor};
  int64_t world = 1;
  for (int size : size_of_axis) {
    if (size < 1 || world * size > std::numeric_limits<int>::max())
      throw ConfigError(
          "[parallel] data {} x context {} x pipeline {} x tensor {} ranks are impossible. Every size must be "
          "at least 1 and the product an int.",
          sizes.data, sizes.context, sizes.pipeline, sizes.tensor);
    world *= size;
  }
  if (sizes.data_inner < 0 || replicas(sizes) % inner_size(sizes) != 0)
    throw ConfigError(
        "[zero] shard_size {} does not divide the {} data-parallel ranks. Use a divisor, or 0 for all of "
        "them.",
        sizes.data_inner, replicas(sizes));
  const std::vector<size_t> axes = axes_in_order(order);
  if (axes.empty())
    throw ConfigError(
        "[parallel] order \"{}\" is not a permutation of tp, cp, pp and dp. Use for example "
        "\"tp-cp-pp-dp\".",
        order);
  int stride = 1;
  for (size_t axis : axes) {
    strides_[axis] = stride;
    stride *= size_of_axis[axis];
  }
}

Coordinates Mesh::coordinates(int rank) const {
  return {rank / strides_[0] % sizes_.data, rank / strides_[1] % sizes_.context, rank / strides_[2] % sizes_.pipeline,
          rank / strides_[3] % sizes_.tensor};
}

int Mesh::rank(const Coordinates& at) const {
  return at.data * strides_[0] + at.context * strides_[1] + at.pipeline * strides_[2] + at.tensor * strides_[3];
}

int Mesh::group_size(Axis axis) const {
  switch (axis) {
    case Axis::self:
      return 1;
    case Axis::data:
      return sizes_.data;
    case Axis::context:
      return sizes_.context;
    case Axis::pipeline:
      return sizes_.pipeline;
    case Axis::tensor:
      return sizes_.tensor;
    case Axis::replica:
      return replicas(sizes_);
    case Axis::data_inner:
      return inner_size(sizes_);
    case Axis::data_outer:
      return replicas(sizes_) / inner_size(sizes_);
    case Axis::world:
    case Axis::hosts:
      return world();
  }
  return 1;
}

std::vector<int> Mesh::group(Axis axis, int rank) const {
  std::vector<int> ranks(static_cast<size_t>(group_size(axis)));
  if (axis == Axis::world || axis == Axis::hosts) {
    std::iota(ranks.begin(), ranks.end(), 0);
    return ranks;
  }
  const Coordinates own = coordinates(rank);
  const int inner = inner_size(sizes_), replica = index_in_group(Axis::replica, rank);
  const auto set_replica = [&](Coordinates& at, int index) {
    at.data = index / sizes_.context;
    at.context = index % sizes_.context;
  };
  for (int i = 0; i < group_size(axis); ++i) {
    Coordinates at = own;
    switch (axis) {
      case Axis::data:
        at.data = i;
        break;
      case Axis::context:
        at.context = i;
        break;
      case Axis::pipeline:
        at.pipeline = i;
        break;
      case Axis::tensor:
        at.tensor = i;
        break;
      case Axis::replica:
        set_replica(at, i);
        break;
      case Axis::data_inner:
        set_replica(at, replica / inner * inner + i);
        break;
      case Axis::data_outer:
        set_replica(at, replica % inner + i * inner);
        break;
      case Axis::self:
      case Axis::world:
      case Axis::hosts:
        break;
    }
    ranks[static_cast<size_t>(i)] = this->rank(at);
  }
  return ranks;
}

bool Mesh::crosses_nodes(Axis axis, int64_t ranks_per_node) const {
  for (int rank = 0; rank < world(); ++rank) {
    if (index_in_group(axis, rank) != 0) continue;
    for (int other : group(axis, rank))
      if (other / ranks_per_node != rank / ranks_per_node) return true;
  }
  return false;
}

int Mesh::index_in_group(Axis axis, int rank) const {
  const Coordinates at = coordinates(rank);
  const int replica = at.data * sizes_.context + at.context;
  switch (axis) {
    case Axis::self:
      return 0;
    case Axis::data:
      return at.data;
    case Axis::context:
      return at.context;
    case Axis::pipeline:
      return at.pipeline;
    case Axis::tensor:
      return at.tensor;
    case Axis::replica:
      return replica;
    case Axis::data_inner:
      return replica % inner_size(sizes_);
    case Axis::data_outer:
      return replica / inner_size(sizes_);
    case Axis::world:
    case Axis::hosts:
      return rank;
  }
  return 0;
}

}  // namespace slipstream
