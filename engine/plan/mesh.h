// SPDX-License-Identifier: Apache-2.0
#pragma once
// Ranks as arithmetic: conversions between ranks, coordinates and groups by size and stride. Creates nothing.

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace slipstream {

/// The sets of ranks that a channel can connect. replica = data x context: the ranks that hold the same parameters, sum
/// their gradients and share optimizer states. data_inner x data_outer = replica (hybrid sharding).
enum class Axis : uint8_t {
  self,
  data,
  context,
  pipeline,
  tensor,
  replica,
  data_inner,
  data_outer,
  world,  // all ranks
  hosts,  // all ranks, whose messages are in the memory of their hosts
};
const char* name_of(Axis axis);

struct MeshSizes {
  int data = 1;
  int context = 1;
  int pipeline = 1;
  int tensor = 1;
  int data_inner = 0;  // ranks of `replica` that shard together; 0: all of them

  int world() const { return data * context * pipeline * tensor; }
};

struct Coordinates {
  int data = 0;
  int context = 0;
  int pipeline = 0;
  int tensor = 0;
  bool operator==(const Coordinates&) const = default;
};

class Mesh {
 public:
  Mesh() = default;
  /// `order` lists the axes outwards from the one whose neighbours have adjacent ranks: "tp-cp-pp-dp".
  /// Throws ConfigError if it is not a permutation of those four, a size is below 1, or data_inner does not divide data
  /// x context.
  explicit Mesh(const MeshSizes& sizes, const std::string& order = "tp-cp-pp-dp");

  const MeshSizes& sizes() const { return sizes_; }
  int world() const { return sizes_.world(); }

  Coordinates coordinates(int rank) const;
  int rank(const Coordinates& at) const;

  /// Size of every group of `axis`.
  int group_size(Axis axis) const;
  /// Ranks of the group of `axis` that `rank` is in, in group order.
  std::vector<int> group(Axis axis, int rank) const;
  /// Does a group of `axis` have ranks on several nodes, if every `ranks_per_node` consecutive ranks share one?
  bool crosses_nodes(Axis axis, int64_t ranks_per_node) const;
  /// Position of `rank` in that list.
  int index_in_group(Axis axis, int rank) const;

 private:
  MeshSizes sizes_;
  std::array<int, 4> strides_{1, 1, 1, 1};  // of data, context, pipeline, tensor
};

}  // namespace slipstream
