// SPDX-License-Identifier: Apache-2.0
// Rank arithmetic: strides from the order of the axes, groups as products of axes and factors of those products.

#include "engine/plan/mesh.h"

#include <algorithm>
#include <limits>

#include "engine/base/check.h"
#include "engine/base/plural.h"

namespace slipstream {
namespace {

using AxisSet = uint8_t;  // one bit for each row of kMeshAxes
constexpr AxisSet kAll = (1 << kMeshAxes.size()) - 1;

constexpr size_t row_of(Axis axis) {
  size_t row = 0;
  while (row < kMeshAxes.size() && kMeshAxes[row].axis != axis) ++row;
  return row;
}

/// A factor of the product of some axes: of every `within` neighbours, the ranks at the distance `apart`. A size of 0
/// stands for all ranks of the product.
struct GroupRow {
  Axis axis;
  AxisSet over;
  int MeshSizes::*apart = nullptr;   // null: 1
  int MeshSizes::*within = nullptr;  // null: all ranks of the product
};
constexpr AxisSet kReplica = 1 << row_of(Axis::data) | 1 << row_of(Axis::context);
/// Every axis that is not a row of kMeshAxes.
constexpr GroupRow kGroups[] = {
    {Axis::self, 0},
    {Axis::replica, kReplica},
    {Axis::data_inner, kReplica, nullptr, &MeshSizes::data_inner},
    {Axis::data_outer, kReplica, &MeshSizes::data_inner, nullptr},
    {Axis::expert, kReplica, nullptr, &MeshSizes::expert},
    {Axis::expert_data, kReplica, &MeshSizes::expert, nullptr},
    {Axis::expert_inner, kReplica, &MeshSizes::expert, &MeshSizes::data_inner},
    {Axis::world, kAll},
    {Axis::hosts, kAll},
};

GroupRow group_row(Axis axis) {
  for (const GroupRow& row : kGroups)
    if (row.axis == axis) return row;
  return {axis, static_cast<AxisSet>(1 << row_of(axis))};
}

/// Splits "tp-cp-pp-dp" into rows of kMeshAxes. Returns nothing if it is not a permutation of them.
std::vector<size_t> rows_in_order(const std::string& order) {
  std::vector<size_t> rows;
  AxisSet seen = 0;
  for (size_t at = 0; at <= order.size();) {
    const size_t end = std::min(order.find('-', at), order.size());
    size_t row = 0;
    while (row < kMeshAxes.size() && order.compare(at, end - at, kMeshAxes[row].short_name) != 0) ++row;
    if (row == kMeshAxes.size() || (seen >> row & 1) != 0) return {};
    seen |= static_cast<AxisSet>(1 << row);
    rows.push_back(row);
    at = end + 1;
  }
  return seen == kAll ? rows : std::vector<size_t>{};
}

}  // namespace

Mesh::Mesh(const MeshSizes& sizes, const std::string& order) : sizes_(sizes) {
  int64_t world = 1;
  for (const MeshAxis& row : kMeshAxes) {
    const int size = sizes.*row.size;
    if (size < 1 || world * size > std::numeric_limits<int>::max())
      throw ConfigError("[parallel] {} ranks are impossible. Every size must be at least 1 and the product an int.",
                        text_of(sizes));
    world *= size;
  }
  const auto divides = [&](int inner) { return inner >= 0 && (inner == 0 || sizes.replicas() % inner == 0); };
  if (sizes.expert == 0 || !divides(sizes.expert))
    throw ConfigError(
        "[parallel] expert {} does not divide the {} of data x context. Use a divisor of both this number and "
        "the number of experts.",
        sizes.expert, counted(sizes.replicas(), "rank"));
  if (!divides(sizes.data_inner))
    throw ConfigError(
        "[zero] shard_size {} does not divide the {} data-parallel ranks. Use a divisor, or 0 for all of "
        "them.",
        sizes.data_inner, sizes.replicas());
  if (sizes.data_inner > 0 && sizes.data_inner % sizes.expert != 0 && sizes.expert % sizes.data_inner != 0)
    throw ConfigError(
        "[zero] shard_size {} is neither a multiple nor a divisor of expert {}: the ranks that shard together would "
        "hold some experts more often than others. Use a multiple or a divisor of {}, or 0.",
        sizes.data_inner, sizes.expert, sizes.expert);
  const std::vector<size_t> rows = rows_in_order(order);
  if (rows.empty())
    throw ConfigError(
        "[parallel] order \"{}\" is not a permutation of tp, cp, pp and dp. Use for example "
        "\"tp-cp-pp-dp\".",
        order);
  int stride = 1;
  for (size_t row : rows) {
    strides_[row] = stride;
    stride *= sizes.*kMeshAxes[row].size;
  }
  for (size_t axis = 0; axis < kAxes; ++axis) {
    const GroupRow row = group_row(static_cast<Axis>(axis));
    // All ranks keep their order. The context ranks of a replica are neighbours in every order.
    std::vector<size_t> over = row.over == kAll ? rows : std::vector<size_t>{};
    for (size_t r = kMeshAxes.size(); r-- > 0 && row.over != kAll;)
      if ((row.over >> r & 1) != 0) over.push_back(r);
    Group& group = groups_[axis];
    for (size_t d = 0; d < over.size(); ++d) {
      group.digits[d] = {sizes.*kMeshAxes[over[d]].size, strides_[over[d]]};
      group.size *= group.digits[d].size;
    }
    const auto ranks_of = [&](int MeshSizes::*member) { return sizes.*member == 0 ? group.size : sizes.*member; };
    const int apart = row.apart == nullptr ? 1 : ranks_of(row.apart),
              within = row.within == nullptr ? group.size : ranks_of(row.within);
    group.skip = apart;
    group.size = std::max(1, within / apart);
  }
}

Coordinates Mesh::coordinates(int rank) const {
  Coordinates at;
  for (size_t row = 0; row < kMeshAxes.size(); ++row)
    at.*kMeshAxes[row].at = rank / strides_[row] % (sizes_.*kMeshAxes[row].size);
  return at;
}

int Mesh::rank(const Coordinates& at) const {
  int rank = 0;
  for (size_t row = 0; row < kMeshAxes.size(); ++row) rank += at.*kMeshAxes[row].at * strides_[row];
  return rank;
}

int Mesh::number_in(const Group& group, int rank) const {
  int number = 0, times = 1;
  for (const Digit& digit : group.digits) {
    number += rank / digit.stride % digit.size * times;
    times *= digit.size;
  }
  return number;
}

int Mesh::index_in_group(Axis axis, int rank) const {
  const Group& group = groups_[static_cast<size_t>(axis)];
  return number_in(group, rank) / group.skip % group.size;
}

std::vector<int> Mesh::group(Axis axis, int rank) const {
  const Group& group = groups_[static_cast<size_t>(axis)];
  int first = number_in(group, rank);  // the rank at index 0
  first -= first / group.skip % group.size * group.skip;
  for (const Digit& digit : group.digits) rank -= rank / digit.stride % digit.size * digit.stride;
  std::vector<int> ranks(static_cast<size_t>(group.size), rank);
  for (int i = 0; i < group.size; ++i) {
    int number = first + i * group.skip;
    for (const Digit& digit : group.digits) {
      ranks[static_cast<size_t>(i)] += number % digit.size * digit.stride;
      number /= digit.size;
    }
  }
  return ranks;
}

bool Mesh::contains(Axis axis, Axis part) {
  const GroupRow outer = group_row(axis), inner = group_row(part);
  if (axis == part || inner.over == 0) return true;
  const auto no_smaller = [&](int MeshSizes::*GroupRow::*size) {
    return outer.*size == nullptr || (outer.*size == inner.*size && outer.over == inner.over);
  };
  return (inner.over & ~outer.over) == 0 && no_smaller(&GroupRow::apart) && no_smaller(&GroupRow::within);
}

Axis Mesh::smallest_with(std::vector<Axis> parts) const {
  std::erase_if(parts, [&](Axis part) { return group_size(part) == 1; });
  std::vector<Axis> holders;
  for (size_t a = 0; a < kAxes; ++a)
    if (std::all_of(parts.begin(), parts.end(), [&](Axis part) { return contains(static_cast<Axis>(a), part); }))
      holders.push_back(static_cast<Axis>(a));
  return *std::min_element(holders.begin(), holders.end(),
                           [&](Axis a, Axis b) { return group_size(a) < group_size(b); });
}

bool Mesh::crosses_nodes(Axis axis, int64_t ranks_per_node) const {
  for (int rank = 0; rank < world(); ++rank) {
    if (index_in_group(axis, rank) != 0) continue;
    for (int other : group(axis, rank))
      if (other / ranks_per_node != rank / ranks_per_node) return true;
  }
  return false;
}

}  // namespace slipstream
