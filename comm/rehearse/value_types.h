// SPDX-License-Identifier: Apache-2.0
#pragma once
// Types of the values in a rank's memory: how the values of all ranks give that of one rank that trains alone.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/plan/buffers.h"
#include "engine/plan/mesh.h"

namespace slipstream::comm {

/// The dimension of which the ranks of an axis hold parts.
enum class Dim : uint8_t {
  whole,
  tokens,
  features,  // heads, hidden units or words of a row
  rows,      // of a weight: its outputs
  columns,   // of a weight: its inputs
};

/// A value over one axis. Ranks count from the one that holds it, so that one rank's type stands for all.
struct Share {
  Dim dim = Dim::whole;
  int16_t shift = 0;  // it holds the part of the rank so much further (rings)
  int16_t first = 0;  // it contains the terms of `terms` ranks, from the one so much further;
  int16_t terms = 0;  // 0: all terms, the complete value

  bool is_complete() const { return terms == 0; }
  bool is_partial() const { return terms > 0; }
  bool operator==(const Share&) const = default;
};

enum class Kind : uint8_t {
  none,
  neutral,  // the batch, constants: the same rows as everything else
  zero,
  any,  // known to the ranks that have more than padding
  weight,
  state,
  gradient,    // of a parameter
  activation,  // of some rows
  derivative,  // of the loss by an activation
  statistics,  // of losses of rows, by one rank's columns
  losses,      // a sum
  squares,     // a sum of those of a gradient's part
  scalar,
  clip_factor,
  residual,  // what rounding has removed from a gradient
  header,    // of a slot for kept snapshots
};

struct Type {
  Kind kind = Kind::none;
  Share tensor, context;     // a gradient's context is in `summed`
  int32_t micro_batch = -1;  // activation, derivative
  int32_t layer = -1;        // the same: of the piece that wrote it

  int32_t terms = -1;              // gradient, losses: what it adds up on this rank (TermPool)
  uint16_t summed = 0;             // gradient, losses, squares, residual: a bit for each axis that it is summed over
  Axis shard = Axis::self;         // weight, state, gradient: the axis of whose parts this is one; self: whole
  Axis sender_axis = Axis::self;   // gradient: an addend, the own part as one rank has it
  int16_t sender = 0;              // that rank, counted from this one
  int16_t group = -1, stage = -1;  // squares: of which parameters, and the stage that has added them
  bool is_split = false;           // squares: of a parameter of which every tensor rank has a part
  int16_t state = -1;              // state: which one of its optimizer
  int32_t version = 0;             // weight, state: steps since the plan began
  int64_t mean_over = 0;           // gradient, derivative: tokens
  int64_t first = -1;              // weight, state, gradient, residual: its place in the flat order; -1: no place yet
  int8_t elem_bytes = 0;           // of an element of the flat order; 0: no place

  bool operator==(const Type&) const = default;
};

/// What a sum has added up on one rank: some rows of some micro-batches, for one use of a parameter.
struct Term {
  int32_t use = 0, micro_batch = 0, micro_batch_end = 1;
  int64_t begin = 0, end = 1, of = 1;  // rows; all: 0..1 of 1

  bool is_whole() const { return begin == 0 && end == of; }
  auto operator<=>(const Term&) const = default;
};
using Terms = std::vector<Term>;  // sorted, disjoint, joined where they touch

class TermPool {
 public:
  int32_t intern(Terms terms);
  const Terms& operator[](int32_t id) const { return pool_[static_cast<size_t>(id)]; }
  /// Both. Nothing if they have rows in common, which are then in `twice`.
  std::optional<int32_t> sum(int32_t a, int32_t b);
  Term twice;

 private:
  std::vector<Terms> pool_;
  std::map<Terms, int32_t> ids_;
  std::map<std::pair<int32_t, int32_t>, int32_t> sums_;
};

/// A part of a slice, in bytes or elements from its begin.
struct Run {
  int64_t begin = 0, end = 0;
  Type type;
};
using Runs = std::vector<Run>;

/// The type of every byte: an interval map per buffer.
class TypeMap {
 public:
  Runs read(const Slice& slice) const;
  /// The type of all bytes, if it was written at once; otherwise null.
  const Type* only(const Slice& slice) const;
  void write(const Slice& slice, const Type& type);
  void write(const Slice& slice, const Runs& runs);  // bytes between them have no type afterwards
  void erase(const Slice& slice) { cut_out(slice); }

 private:
  struct Segment {
    int64_t end_bytes = 0;
    Type type;
  };
  using Segments = std::map<int64_t, Segment>;  // by begin_bytes; disjoint

  Segments& of(BufferId buffer);
  static void split(Segments& segments, int64_t at_bytes);
  Segments& cut_out(const Slice& slice);

  std::vector<Segments> buffers_;
};

/// The same type `bytes` further.
Type moved(Type type, int64_t bytes);

}  // namespace slipstream::comm
