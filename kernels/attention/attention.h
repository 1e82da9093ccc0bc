// SPDX-License-Identifier: Apache-2.0
#pragma once
// Causal self-attention in blocks: no matrix of tokens x tokens ever exists in memory.
//
// Letters: B batch, T tokens, H heads, G key-value heads (G divides H), E head_dim.

#include <cstdint>
#include <set>
#include <string>

#include "engine/base/context_chunks.h"
#include "engine/base/dtype.h"
#include "engine/device/work.h"
#include "kernels/common/dropout_mask.h"
#include "kernels/common/isa.h"

namespace slipstream::kernels {

/// The widest head that fits in the kernels' scratch.
constexpr int64_t kAttentionHeadDimMax = 256;

/// Dropout of weights: after the softmax, the weight of query t and key s is multiplied by m / (1 - rate). Word s % 4
/// of the counter {s / 4, t, sequence, step} with key + h decides: m is 0 if the word is below rate x 2^32. t and s are
/// positions in whole sequences, and h counts the heads of all ranks.
struct AttentionDropout {
  const DropoutSample* samples = nullptr;  // [B]
  uint64_t key = 0;
  double rate = 0;
  int64_t first_head = 0;  // of the heads of this rank
};

/// out[t] = sum over s of softmax_s(scale * q[t].k[s]) v[s], head by head; lse[t] = log sum exp(scale * q[t].k[s]). s
/// goes over the tokens s <= t of the document of t (document_begins), and with a window W over those with t - W < s. t
/// and s are positions in whole sequences.
///
/// Shapes:  the row of token t of sequence b of q (of k, v, out) is at (b*T + t) * q_stride (kv_stride, out_stride)
///          elements, and head h is at + h*E, so q, k and v may be in one packed row; heads share key-value head
///          h / (H/G); lse [B, H, T]
/// Types:   q, k, v, out f32 or bf16; scores, softmax and sums f32; lse f32
/// Alias:   none: out does not overlap q, k, v
/// Cost:    4·B·H·E·P flops with P = T(T+1)/2, or with a window W < T, W(W+1)/2 + (T-W)W;
///          (2·H + 2·G)·B·T·E·sizeof(T) + 4·B·H·T bytes
/// Errors:  ShapeError if G does not divide H, E is not in [1, 256], scale is not positive, the window is negative, or
///          a stride is below its row
/// Source:  Dao 2023, arXiv:2307.08691 (blocks, running maximum and sum); Ainslie et al. 2023, arXiv:2305.13245
///          (groups)
struct AttentionForward {
  const void* q = nullptr;
  const void* k = nullptr;
  const void* v = nullptr;
  void* out = nullptr;
  float* lse = nullptr;
  int64_t batch = 0;
  int64_t tokens = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t q_stride = 0;    // elements
  int64_t kv_stride = 0;   // elements
  int64_t out_stride = 0;  // elements
  float scale = 1.0f;
  DType dtype = DType::f32;
  int64_t window = 0;                         // 0: none
  const int32_t* document_begins = nullptr;   // [B, T]: the position of the first token of a query's document; it does
                                              // not descend along a sequence; null: none
  const AttentionDropout* dropout = nullptr;  // null: none
  ContextChunks queries = {}, keys = {};      // the positions of their tokens; without tokens: 0 to T
};

/// dq, dk, dv of AttentionForward from dout; the scores are recomputed from lse.
///
/// Shapes:  as above; dout and out have out_stride, dq has dq_stride, dk and dv have dkv_stride;
///          workspace attention_backward_workspace_elems(args) floats
/// Types:   as above; dq, dk, dv in dtype, summed in f32; the heads of a group are summed in their order
/// Alias:   none: dq, dk, dv may be in one packed row, but overlap no input
/// Cost:    10·B·H·E·P flops; (4·H + 4·G)·B·T·E·sizeof(T) + 4·B·H·T bytes
/// Errors:  as above
/// Source:  as above, section 3.1.2. Parallel over B x G, so the bits do not depend on the number of threads.
struct AttentionBackward {
  const void* dout = nullptr;
  const void* q = nullptr;
  const void* k = nullptr;
  const void* v = nullptr;
  const void* out = nullptr;
  const float* lse = nullptr;
  void* dq = nullptr;
  void* dk = nullptr;
  void* dv = nullptr;
  float* workspace = nullptr;
  int64_t batch = 0;
  int64_t tokens = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t q_stride = 0;    // elements
  int64_t kv_stride = 0;   // elements
  int64_t out_stride = 0;  // elements; also of dout
  int64_t dq_stride = 0;   // elements
  int64_t dkv_stride = 0;  // elements
  float scale = 1.0f;
  DType dtype = DType::f32;
  int64_t window = 0;                         // 0: none
  const int32_t* document_begins = nullptr;   // [B, T]: the position of the first token of a query's document; it does
                                              // not descend along a sequence; null: none
  const AttentionDropout* dropout = nullptr;  // null: none
  ContextChunks queries = {}, keys = {};      // the positions of their tokens; without tokens: 0 to T
};

/// The softmax of every query over the keys that it has seen so far: the state with which attention continues when more
/// keys arrive.
struct AttentionCarried {
  float* out = nullptr;      // [B, H, T, E]: sum over keys of exp(score - maximum) v
  float* maximum = nullptr;  // [B, H, T]
  float* sum = nullptr;      // [B, H, T]: sum over keys of exp(score - maximum)
};

/// AttentionForward, one block of keys at a time. In context parallelism, the keys of a sequence arrive rank by rank.
///
/// The first block of a query starts without state, and the last one writes out and lse. The blocks between them only
/// update `carried`, in float for every type, so that out is rounded once. Every query must see a key of its first
/// block. A last block without keys (block.keys 0) is allowed and writes the carried values to out.
///
/// Shapes:  q, out, lse, carried: T = all.tokens rows of the queries' sequences; k, v: block.keys rows of the keys'
///          sequences
/// Alias:   as AttentionForward; carried overlaps no operand, and may be null in a block that is first and last
/// Cost:    4·B·H·E·pairs flops, where only pairs inside the window count, and the bytes of the rows that the block
///          touches. A block outside the window costs as much as a block without keys: nothing, unless it is the first
///          or the last
/// Errors:  as AttentionForward; ShapeError if the block lies outside T, or is causal with another number of keys than
///          queries
/// Source:  as AttentionForward; Liu et al. 2023, arXiv:2310.01889 (blocks that travel in a ring)
struct AttentionBlockForward {
  AttentionForward all;
  AttentionBlock block;
  AttentionCarried carried;
  bool first = true;
  bool last = true;
};

/// AttentionBackward, one block of keys at a time, from the final lse and out.
///
/// Shapes:  as above; dq_sum [B, H, T, E], dkv [B, T, 2·G·E] (k heads, then v heads), both float; all.dk and all.dv are
///          not used; workspace attention_backward_workspace_elems(all)
/// Types:   dq_sum carries dq without its scale; the last block of a query writes all.dq. dkv is what the block adds to
///          dk and dv. It is overwritten, with 0 in rows outside of the block's keys, so it can travel and be added as
///          it is
/// Alias:   dq_sum may be null in a block that is first and last
/// Cost:    10·B·H·E·pairs flops, as above
/// Errors:  as above
struct AttentionBlockBackward {
  AttentionBackward all;
  AttentionBlock block;
  float* dq_sum = nullptr;
  float* dkv = nullptr;
  bool first = true;
  bool last = true;
};

/// Blocks on cpu, enqueues on cuda. Throws: ShapeError, ResourceError (no kernel for the device).
void attention_forward(LaunchContext& context, const AttentionForward& args);
void attention_backward(LaunchContext& context, const AttentionBackward& args);
void attention_block_forward(LaunchContext& context, const AttentionBlockForward& args);
void attention_block_backward(LaunchContext& context, const AttentionBlockBackward& args);

/// Pure. The minimum of flops and bytes. Pointers may be null.
Cost attention_forward_cost(const AttentionForward& args);
Cost attention_backward_cost(const AttentionBackward& args);
Cost attention_block_forward_cost(const AttentionBlockForward& args);
Cost attention_block_backward_cost(const AttentionBlockBackward& args);

/// Pure. The floats of the workspace that dout . out of every row of every head takes on cuda.
int64_t attention_backward_delta_elems(const AttentionBackward& args);
/// Pure. The floats of the workspace. Depends only on batch, tokens, heads, kv_heads and head_dim. Pointers may be
/// null.
int64_t attention_backward_workspace_elems(const AttentionBackward& args);

/// The reasons why attention on GPUs of compute capability 9.x did not use the instructions of sm_90a, for run.json:
/// one sentence per reason, and none if it used them.
std::set<std::string> attention_fallbacks();

SLIP_DECLARE_PER_ISA(void attention_forward_cpu(LaunchContext& context, const AttentionForward& args);
                     void attention_backward_cpu(LaunchContext& context, const AttentionBackward& args);
                     void attention_block_forward_cpu(LaunchContext& context, const AttentionBlockForward& args);
                     void attention_block_backward_cpu(LaunchContext& context, const AttentionBlockBackward& args);)

}  // namespace slipstream::kernels
