// SPDX-License-Identifier: Apache-2.0
#pragma once
// Ranks as arithmetic: conversions between ranks, coordinates and groups by size and stride. Creates nothing.

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/base/mesh_axes.h"

namespace slipstream {

class Mesh {
 public:
  Mesh() : Mesh(MeshSizes{}) {}
  /// `order` lists the axes outwards from the one whose neighbours have adjacent ranks: "tp-cp-pp-dp".
  /// Throws ConfigError if it is not a permutation of those four, a size is below 1, or data_inner does not divide data
  /// x context.
  explicit Mesh(const MeshSizes& sizes, const std::string& order = "tp-cp-pp-dp");

  const MeshSizes& sizes() const { return sizes_; }
  int world() const { return sizes_.world(); }

  Coordinates coordinates(int rank) const;
  int rank(const Coordinates& at) const;

  /// Size of every group of `axis`.
  int group_size(Axis axis) const { return groups_[static_cast<size_t>(axis)].size; }
  /// Ranks of the group of `axis` that `rank` is in, in group order.
  std::vector<int> group(Axis axis, int rank) const;
  /// Position of `rank` in that list.
  int index_in_group(Axis axis, int rank) const;
  /// Does every group of `axis` consist of whole groups of `part`, on every mesh?
  static bool contains(Axis axis, Axis part);
  /// The axis with the smallest groups that contain those of all of these. Axes of one rank do not count.
  Axis smallest_with(std::vector<Axis> parts) const;
  /// Does a group of `axis` have ranks on several nodes, if every `ranks_per_node` consecutive ranks share one?
  bool crosses_nodes(Axis axis, int64_t ranks_per_node) const;

 private:
  /// One of the numbers whose product is a group: `size` ranks at distance `stride`.
  struct Digit {
    int size = 1, stride = 1;
  };
  /// A rank's number among the ranks of `digits`, the first digit fastest, is divided by `skip`; the remainder modulo
  /// `size` is its index.
  struct Group {
    std::array<Digit, kMeshAxes.size()> digits;
    int skip = 1, size = 1;
  };
  int number_in(const Group& group, int rank) const;

  MeshSizes sizes_;
  std::array<int, kMeshAxes.size()> strides_{};  // in the order of kMeshAxes
  std::array<Group, kAxes> groups_;              // by Axis
};

}  // namespace slipstream
