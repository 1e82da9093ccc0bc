// SPDX-License-Identifier: Apache-2.0
#pragma once
// Ranks as arithmetic: conversions between ranks, coordinates and groups by size and stride. Nothing is created.

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/base/mesh_axes.h"

namespace slipstream {

class Mesh {
 public:
  Mesh() : Mesh(MeshSizes{}) {}
  /// `order` lists the axes, beginning with the one whose neighbours have adjacent ranks: "tp-cp-pp-dp".
  /// Throws: ConfigError if it is not a permutation of those four, a size is below 1, data_inner or expert does not
  /// divide data x context, or neither of these two divides the other.
  explicit Mesh(const MeshSizes& sizes, const std::string& order = "tp-cp-pp-dp");

  const MeshSizes& sizes() const { return sizes_; }
  int world() const { return sizes_.world(); }
  /// Returns the number of stages of the pipeline.
  int stages() const { return sizes_.pipeline; }

  Coordinates coordinates(int rank) const;
  int rank(const Coordinates& at) const;

  /// Returns the size of every group of `axis`.
  int group_size(Axis axis) const { return groups_[static_cast<size_t>(axis)].size; }
  /// Returns the ranks of the group of `axis` that `rank` is in, in group order.
  std::vector<int> group(Axis axis, int rank) const;
  /// Returns the position of `rank` in that list.
  int index_in_group(Axis axis, int rank) const;
  /// Returns true if, on every mesh, every group of `axis` consists of whole groups of `part`.
  static bool contains(Axis axis, Axis part);
  /// Returns true if groups of `axis` have ranks of several stages.
  bool joins_stages(Axis axis) const { return stages() > 1 && contains(axis, Axis::pipeline); }
  /// Returns the axis with the smallest groups that contain those of all `parts`. Axes of one rank do not count.
  Axis smallest_with(std::vector<Axis> parts) const;
  /// Returns true if a group of `axis` has ranks on several nodes, where every `ranks_per_node` consecutive ranks share
  /// a node.
  bool crosses_nodes(Axis axis, int64_t ranks_per_node) const;

 private:
  /// One of the factors of a group: `size` ranks at the distance `stride`.
  struct Digit {
    int size = 1, stride = 1;
  };
  /// The digits number the ranks of a set, the first digit fastest. The index of a rank in its group is this number
  /// divided by `skip`, modulo `size`.
  struct Group {
    std::array<Digit, kMeshAxes.size()> digits;
    int skip = 1, size = 1;
  };
  int number_in(const Group& group, int rank) const;

  MeshSizes sizes_;
  std::array<int, kMeshAxes.size()> strides_{};  // in the order of kMeshAxes
  std::array<Group, kAxes> groups_;              // indexed by Axis
};

}  // namespace slipstream
