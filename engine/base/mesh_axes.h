// SPDX-License-Identifier: Apache-2.0
#pragma once
// The axes of parallelism as rows of a table. Code that treats all axes alike loops over the rows and names none of
// them.

#include <array>
#include <cstdint>
#include <string>

namespace slipstream {

/// The sets of ranks that a channel can connect: the four independent axes, products of them, and factors of those
/// products (engine/plan/mesh.cpp has their rows).
enum class Axis : uint8_t {
  self,
  data,
  context,
  pipeline,
  tensor,
  replica,  // data x context: the ranks that hold the same parameters, sum their gradients and share optimizer states
  data_inner,  // data_inner x data_outer = replica (hybrid sharding)
  data_outer,
  world,         // all ranks
  hosts,         // all ranks; their messages stay in the memory of their hosts
  expert,        // the ranks that divide the experts of a layer; expert x expert_data = replica
  expert_data,   // the ranks that hold the same experts
  expert_inner,  // those of them in one group of data_inner; expert_inner x data_outer = expert_data
};
constexpr size_t kAxes = static_cast<size_t>(Axis::expert_inner) + 1;
const char* name_of(Axis axis);

struct MeshSizes {
  int data = 1;
  int context = 1;
  int pipeline = 1;
  int tensor = 1;
  int data_inner = 0;  // ranks of `replica` that shard together; 0: all of them
  int expert = 1;      // ranks of `replica` that divide the experts

  int world() const { return data * context * pipeline * tensor; }
  int replicas() const { return data * context; }
};

struct Coordinates {
  int data = 0;
  int context = 0;
  int pipeline = 0;
  int tensor = 0;
  bool operator==(const Coordinates&) const = default;
};

/// An independent axis. Every rank has a coordinate on it, and the key parallel.NAME is its size.
struct MeshAxis {
  Axis axis;
  const char* short_name;  // in parallel.order
  int MeshSizes::*size;
  int Coordinates::*at;
};
/// The rows have the order in which texts list the axes.
inline constexpr std::array<MeshAxis, 4> kMeshAxes{{
    {Axis::data, "dp", &MeshSizes::data, &Coordinates::data},
    {Axis::tensor, "tp", &MeshSizes::tensor, &Coordinates::tensor},
    {Axis::pipeline, "pp", &MeshSizes::pipeline, &Coordinates::pipeline},
    {Axis::context, "cp", &MeshSizes::context, &Coordinates::context},
}};

/// The axis that takes the ranks that the others leave. It is the first row.
inline constexpr const MeshAxis& kFreeAxis = kMeshAxes.front();

/// Returns "data 2 x tensor 1 x pipeline 1 x context 1", or the same with another separator. "(experts over 2)" follows
/// if ranks divide experts.
std::string text_of(const MeshSizes& sizes, const char* separator = " x ");

}  // namespace slipstream
