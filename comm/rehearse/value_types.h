// SPDX-License-Identifier: Apache-2.0
#pragma once
// The types of the values in a rank's memory: how the values of all ranks give the value of one rank that trains alone.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/plan/buffers.h"
#include "engine/plan/mesh.h"

namespace slipstream::comm {

/// The dimension that is divided among the ranks of an axis.
enum class Dim : uint8_t {
  whole,
  tokens,
  features,  // heads, hidden units or words of a row
  rows,      // of a weight: its outputs
  columns,   // of a weight: its inputs
};

/// A value over one axis. Ranks count from the one that holds it, so that the type of one rank stands for all.
struct Share {
  Dim dim = Dim::whole;
  int16_t shift = 0;  // it holds the part of the rank that is so much further along the axis (rings)
  int16_t first = 0;  // it contains the terms of `terms` ranks, beginning with the rank so much further;
  int16_t terms = 0;  // 0: it contains all terms, so it is complete

  bool is_complete() const { return terms == 0; }
  bool is_partial() const { return terms > 0; }
  bool operator==(const Share&) const = default;
};

/// The rows of a value over the ranks that divide the experts of a layer.
enum class Rows : uint8_t {
  own,         // of the rank's tokens
  of_tokens,   // of the tokens of all ranks; every rank has the same
  of_experts,  // of the rank's experts, in their order: some tokens of all ranks
  partial,     // of the tokens of all ranks, with the terms of the rank's experts
};

enum class Kind : uint8_t {
  none,
  neutral,  // the batch and constants, with the same rows as everything else
  zero,
  any,  // known to the ranks that have more than padding
  weight,
  state,
  gradient,    // of the loss, by a parameter
  activation,  // of some rows
  derivative,  // of the loss, by an activation
  statistics,  // of the losses of rows, over the columns of one rank
  losses,      // a sum of losses
  squares,     // a sum of the squares of a part of a gradient
  scalar,
  clip_factor,
  residual,  // what rounding has removed from a gradient
  header,    // of a slot for kept snapshots
  tally,     // counts over the tokens of a sequence
};

struct Type {
  Kind kind = Kind::none;
  Share tensor, context;     // the context of a gradient is in `summed`
  int32_t micro_batch = -1;  // of an activation or derivative
  int32_t layer = -1;        // of the same: the layer of the piece that wrote it

  int32_t terms = -1;             // of gradient, losses: the terms that are added up on this rank (TermPool)
  uint16_t summed = 0;            // of gradient, losses, squares, residual: a bit for each axis over which it is summed
  Axis shard = Axis::self;        // of weight, state, gradient: this is one of the parts of the axis; self: it is whole
  Axis sender_axis = Axis::self;  // of a gradient that a sum will add: the axis of the rank whose part it is
  int16_t sender = 0;             // that rank, counted from this one
  Axis routed = Axis::self;       // of activation, derivative: the axis whose ranks' tokens it has; self: own rows
  Rows rows = Rows::own;          // of the same
  int64_t routed_by = -1;         // of rows of experts: the place of the counts or choices that give their order
  int16_t round = 0, rounds = 1;  // of rows of experts: their round, of all rounds in which rows travel
  uint32_t returned = 0;          // of own rows: a bit for each round that has returned; 0: all rows are there
  int16_t group = -1, stage = -1;  // of squares: the group of their parameters, and the stage that has added them
  bool is_split = false;           // of squares: every tensor rank has a part of the parameter
  int16_t state = -1;              // of state: its index among the states of its optimizer
  int32_t version = 0;             // of weight, state: the steps since the plan began
  int64_t mean_over = 0;           // of gradient, derivative: the number of tokens
  int64_t first = -1;     // of weight, state, gradient, residual: the place in the flat order; -1: no place yet
  int8_t elem_bytes = 0;  // the size of an element of the flat order; 0: no place

  bool operator==(const Type&) const = default;
};

/// The terms that one rank has added to a sum: some rows of some micro-batches, for one use of a parameter.
struct Term {
  int32_t use = 0, micro_batch = 0, micro_batch_end = 1;
  int64_t begin = 0, end = 1, of = 1;  // the rows; all of them: 0..1 of 1

  bool is_whole() const { return begin == 0 && end == of; }
  auto operator<=>(const Term&) const = default;
};
using Terms = std::vector<Term>;  // sorted, disjoint, joined where they touch

class TermPool {
 public:
  int32_t intern(Terms terms);
  const Terms& operator[](int32_t id) const { return pool_[static_cast<size_t>(id)]; }
  /// The sum of both. Nothing if they have rows in common, which are then in `twice`.
  std::optional<int32_t> sum(int32_t a, int32_t b);
  Term twice;

 private:
  std::vector<Terms> pool_;
  std::map<Terms, int32_t> ids_;
  std::map<std::pair<int32_t, int32_t>, int32_t> sums_;
};

/// A part of a slice, in bytes or in elements from its beginning.
struct Run {
  int64_t begin = 0, end = 0;
  Type type;
};
using Runs = std::vector<Run>;

/// The type of every byte: an interval map per buffer.
class TypeMap {
 public:
  Runs read(const Slice& slice) const;
  /// The type of all bytes if they were written at once, and null otherwise.
  const Type* only(const Slice& slice) const;
  void write(const Slice& slice, const Type& type);
  void write(const Slice& slice, const Runs& runs);  // bytes between them have no type afterwards
  void erase(const Slice& slice) { cut_out(slice); }

 private:
  struct Segment {
    int64_t end_bytes = 0;
    Type type;
  };
  using Segments = std::map<int64_t, Segment>;  // by begin_bytes; they are disjoint

  Segments& of(BufferId buffer);
  static void split(Segments& segments, int64_t at_bytes);
  Segments& cut_out(const Slice& slice);

  std::vector<Segments> buffers_;
};

/// The same type for memory that begins `bytes` further.
Type moved(Type type, int64_t bytes);

}  // namespace slipstream::comm
