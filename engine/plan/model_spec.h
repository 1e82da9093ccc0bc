// SPDX-License-Identifier: Apache-2.0
#pragma once
// The planner's view of a model: parameters, buffers, and pieces of forward and backward with their accesses.
//
// The folder models fills it in. Works inside the pieces name memory by Slice, so that a spec can be printed and
// rehearsed without memory.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/base/dtype.h"
#include "engine/device/work.h"
#include "engine/plan/buffers.h"
#include "engine/plan/plan.h"

namespace slipstream {

struct Init {
  enum class Kind : uint8_t { normal, ones, zeros };
  Kind kind = Kind::zeros;
  float std = 0;
};

/// The part of a tensor that each of `parts` ranks holds. Along `dim`, the tensor has `blocks` equal blocks (such as q,
/// k and v), and part i is the i-th of equal parts of each block.
struct Split {
  int dim = 0;
  int blocks = 1;
  int parts = 1;  // 1: the whole tensor
  int index = 0;
  /// The length of the whole tensor along dim; 0: as held. With one block, the end of the last parts may be padding.
  int64_t whole = 0;
};

/// A tensor with its external name: the rows of one parameter that a Hugging Face name covers.
struct NamedTensor {
  std::string name;
  std::vector<int64_t> shape;       // the parameter's shape: [out, in] or [width]
  int64_t begin_elems = 0;          // the offset in the parameter
  bool transposed_on_disk = false;  // GPT-2's Conv1D stores [in, out]
  Split split = {};
  int expert_rank = -1;  // the only index on Axis::expert whose ranks hold it; -1: all ranks do

  int64_t elems() const { return product(shape); }
  std::vector<int64_t> whole_shape() const {
    std::vector<int64_t> whole = shape;
    if (split.whole > 0) whole[static_cast<size_t>(split.dim)] = split.whole;
    return whole;
  }
  int64_t whole_elems() const { return product(whole_shape()); }
  /// Returns the elements of the held part, without padding.
  int64_t elems_of_whole() const {
    if (split.whole == 0 || split.dim > 0 || split.blocks > 1) return elems();
    const int64_t left = split.whole - split.index * shape[0];
    return elems() / shape[0] * (left < 0 ? 0 : left < shape[0] ? left : shape[0]);
  }

  /// Pure. Calls take(held, whole, elems) for the runs of part `index` that are contiguous in the whole tensor, too,
  /// for the elements [begin, begin + count) as held. Padding belongs to no run.
  template <typename Take>
  void for_runs(int index, int64_t begin, int64_t count, const Take& take) const {
    if (split.whole == 0) return take(begin, begin, count);
    const int64_t columns = elems() / shape[0], whole_columns = split.dim == 0 ? columns : split.whole;
    const int64_t block_rows = split.dim == 0 ? shape[0] / split.blocks : 0;
    for (int64_t at = begin; at < begin + count;) {
      const int64_t row = at / columns;
      int64_t end = (row + 1) * columns, whole = row * whole_columns + index * columns + at % columns;
      if (split.dim == 0) {
        const int64_t block = row / block_rows, first = index * block_rows, whole_rows = split.whole / split.blocks;
        end = ((block + 1) * block_rows) * columns;
        whole = (block * whole_rows + first) * columns + at - block * block_rows * columns;
        const int64_t held_end =
            (block * block_rows + (whole_rows - first < block_rows ? whole_rows - first : block_rows)) * columns;
        const int64_t stop = held_end < begin + count ? held_end : begin + count;
        if (at < stop) take(at, whole, stop - at);
      } else {
        take(at, whole, (end < begin + count ? end : begin + count) - at);
      }
      at = end;
    }
  }

 private:
  static int64_t product(const std::vector<int64_t>& dims) {
    int64_t product = 1;
    for (int64_t dim : dims) product *= dim;
    return product;
  }
};

/// One trainable tensor. A fused parameter (q, k and v in one) lists several named tensors that cover it in order.
struct ParameterSpec {
  std::vector<NamedTensor> tensors;
  std::vector<NamedTensor> elsewhere = {};  // the tensors of this parameter on other ranks of Axis::expert
  int layer = -1;                           // -1: before the first layer; `layers`: after the last
  Init init;
  bool decay = false;  // true for rank 2 and higher
  int64_t elems = 0;
  BufferId value = 0;  // views that the planner sets; value has the training dtype, gradient is float
  BufferId gradient = 0;
  /// It is a copy of the parameter with the same name: the head of a tied table, on another stage than the embedding.
  bool is_copy = false;

  const std::string& name() const { return tensors.front().name; }
  bool is_split() const { return tensors.front().split.parts > 1; }
  bool is_of_experts() const { return !elsewhere.empty(); }
  /// Returns the i-th of the tensors here and then elsewhere.
  const NamedTensor& tensor(size_t i) const { return i < tensors.size() ? tensors[i] : elsewhere[i - tensors.size()]; }
  size_t all_tensors() const { return tensors.size() + elsewhere.size(); }
};

/// A range of a parameter's gradient that is complete when a backward piece is complete.
struct GradientPart {
  uint32_t parameter = 0;
  int64_t begin_elems = 0;
  int64_t elems = 0;
};

/// Communication after a piece. It begins when the works of the piece are complete, in every plan that runs the piece,
/// and in the instances that the piece uses. The next user of the same memory, a piece or another communication, waits
/// for it. The planner finds that user, and the spine items between the two hide the communication. It is for
/// temporaries only, because the planner handles the gradients of parameters.
struct Communication {
  std::string name;                    // "all_reduce.attention"
  Role channel = Role::tensor_reduce;  // a separate stream that all communication of this role shares
  Axis axis = Axis::tensor;            // has more than one rank, and is the same for all users of a channel
  Op op = Op::all_reduce;
  int16_t peer = 0;  // as Task::peer
  Slice from, to;    // as pieces name them; a send has no `to`, a recv no `from`; equal: in place, if the op allows it
  DType dtype = DType::f32;
  int64_t elems = 0;  // as Task::elems
  Slice counts = {};  // all_to_all_v
  Route route = {};   // the same

  /// Calls take(slice, is_write) for the memory that it uses.
  template <typename Take>
  void for_accesses(const Take& take) const {
    if (from.size_bytes > 0) take(from, false);
    if (counts.size_bytes > 0) take(counts, false);
    if (to.size_bytes > 0) take(to, true);
  }
};

struct Piece {
  std::string name;
  int layer = -1;
  std::vector<Work> works;
  std::vector<Communication> communications = {};  // begin after the works; those of one channel keep this order
  std::vector<GradientPart> ready;                 // backward only: complete after this piece of the last micro-batch
};

/// The embedding's share of a tied table's gradient, separate from the head's (overlap.split_tied_embedding).
struct TiedEmbedding {
  bool split = false;
  uint32_t parameter = 0;
  bool as_rows = false;  // true: ids and rows travel; false: the dense table
  BufferId dense = 0;    // float [vocab, width], when !as_rows
  BufferId row_ids = 0;  // int32 [ranks, capacity]; this rank first writes its own part in place
  BufferId rows = 0;     // float [ranks, capacity, width]
  int64_t capacity = 0;  // the rows that a rank contributes
  int64_t width = 0;
  int64_t vocab = 0;
  uint32_t ready_piece = 0;  // an index into pieces
};

/// Memory that is filled once, when the model is built (rotary tables).
struct Constant {
  BufferId buffer = 0;
  std::function<void(std::byte* host)> fill;
};

struct ModelSpec {
  std::string description;  // "gpt2, 12 layers, 12 heads, width 768, ..."
  std::vector<ParameterSpec> parameters;
  std::vector<Piece> pieces;
  std::vector<uint32_t> forward;  // of one training micro-batch; the loss belongs to the forward or the backward pass
  std::vector<uint32_t> backward;
  std::vector<uint32_t> evaluate;  // the forward pass and per-token losses, without gradients
  TiedEmbedding tied;
  std::vector<Constant> constants;
  std::vector<BufferId>
      cheap;  // activations that works which only move bytes can recompute (train.recompute = "selective")
  std::vector<Work> replays;  // how a forward work runs again if its input is gone but a sum that it computed is kept

  DType dtype = DType::f32;
  int layers = 0;      // the number of blocks; pieces and parameters after them have layer == layers
  int64_t batch = 0;   // the sequences of a micro-batch
  int64_t tokens = 0;  // the tokens of a sequence
  int64_t vocab = 0;
  BufferId ids = 0;                // int32 [batch, tokens], per micro-batch: `batch.current`; targets follow
  bool documents = false;          // the positions at which the documents of the tokens begin follow the targets
  bool numbers_sequences = false;  // the batch ends with uint32 [batch, 2]: the step and the number in the global batch
  BufferId loss = 0;               // a double: the sum of the losses of this rank's tokens of the step
  BufferId row_losses = 0;         // float [batch * tokens] of the micro-batch that was evaluated last
  /// [tokens of the last chunk, logits_stride]; the first `vocab` columns are valid after an evaluation.
  BufferId logits = 0;
  int64_t logits_stride = 0;

  /// Pure. Calls take(slice, is_write) for all accesses of a piece in their order: first those of its works, then those
  /// of its communication.
  template <typename Take>
  void for_accesses(uint32_t piece, const Take& take) const {
    for (const Work& work : pieces[piece].works) {
      for (const Slice& slice : work.reads) take(slice, false);
      for (const Slice& slice : work.writes) take(slice, true);
    }
    for (const Communication& c : pieces[piece].communications) c.for_accesses(take);
  }

  /// Returns the number of elements of the whole tensors, not of this rank's parts.
  int64_t whole_parameter_elems() const {
    int64_t total = 0;
    for (const ParameterSpec& parameter : parameters)
      for (size_t t = 0; t < parameter.all_tensors() && !parameter.is_copy; ++t)
        total += parameter.tensor(t).whole_elems();
    return total;
  }
  /// Returns the number of elements of this rank's parts, without padding.
  int64_t parameter_elems() const {
    int64_t total = 0;
    for (const ParameterSpec& parameter : parameters)
      for (const NamedTensor& tensor : parameter.tensors)
        if (!parameter.is_copy) total += tensor.elems_of_whole();
    return total;
  }
};

}  // namespace slipstream
