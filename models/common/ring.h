// SPDX-License-Identifier: Apache-2.0
#pragma once
// Causal attention over a sequence whose tokens are distributed over ranks. Keys and values travel in a ring, one rank
// further during every block.
//
// Rank r holds chunks r and 2c-1-r of the sequence (ContextChunks). In step s it has the keys of rank r + s, while
// those of rank r + s + 1 are in flight. Forward begins with the rank's own keys, so that the first exchange overlaps
// with a block. Backward ends with the rank's own keys. The gradients of other ranks' keys travel in the same direction
// as the keys, each rank adds its share, and they arrive at their owner during the last block.

#include "models/common/blocks.h"

namespace slipstream::models {

/// The memory of a rank in addition to that of the layers is: keys and values four times (forward and backward have
/// separate buffers, so that a recomputed forward pass may run between fetch() and backward()), their float gradients
/// three times, and one float output with its softmax.
class Ring {
 public:
  explicit Ring(SpecBuilder& builder);

  /// These implement SpecBuilder::attention(), fetch_keys() and attention_gradient(). The blocks after the first are
  /// separate pieces.
  void forward(const AttentionLayer& layer, double dropout_rate, Slice qkv, Slice out, Slice lse);

  void fetch(int layer, Slice qkv);
  void backward(const AttentionLayer& layer, Slice dout, Slice qkv, Slice out, Slice lse, Slice dqkv);

 private:
  int ranks() const { return chunks_.ranks; }
  int64_t kv_width() const { return 2 * b_.kv_heads() * b_.head_dim(); }
  Slice keys(int step, bool again) const {
    return keys_[again][step % 2];
  }  // the keys of rank r + step, in steps 1 and later; again: for backward
  Slice gradients(int step) const {
    return gradients_[step % 2];
  }  // the gradients of those keys, summed over the ranks that have had them, this one last
  Slice dq_sum() const { return {carried_.buffer, 0, bytes_of(b_.rows() * b_.heads() * b_.head_dim(), DType::f32)}; }
  /// Starts sending this rank's keys. The first two exchanges fill both buffers. A later one overwrites the keys of a
  /// block after that block.
  void start_keys(Slice qkv, bool again);
  /// The keys of step `step` arrive during the pieces after the current one.
  void exchange_keys(int step, bool again);
  void exchange_gradients(int step);
  void block(const AttentionLayer& layer, double dropout_rate, int step, Slice qkv, Slice out, Slice lse);
  void block_gradient(const AttentionLayer& layer, int step, Slice dout, Slice qkv, Slice out, Slice lse, Slice dqkv,
                      Slice dkv);

  SpecBuilder& b_;
  ContextChunks chunks_;
  Slice keys_[2][2], gradients_[2];
  Slice share_;    // this rank's share in the gradients of its keys
  Slice carried_;  // forward: the output, maximum and sum of the softmax so far; backward: dq so far
};

}  // namespace slipstream::models
