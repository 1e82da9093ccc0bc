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

/// Dropout of weights: after the softmax, the weight of query t and key s is multiplied by m / (1 - rate). Word
/// s % 4 of the counter {s / 4, t, sequence, step} with key + h decides: m is 0 if it is below rate x 2^32; t and s are
/// positions in whole sequences, h counts the heads of all ranks.
struct AttentionDropout {
  const DropoutSample* samples = nullptr;  // [B]
  uint64_t key = 0;
  double rate = 0;
  int64_t first_head = 0;  // of this rank
};

/// out[t] = sum over s of softmax_s(scale * q[t].k[s]) v[s], head by head; lse[t] = log sum exp(scale * q[t].k[s]);
/// over s <= t of the document of t (document_begins), with a window W over t - W < s. t and s are positions in whole
/// sequences.
///
/// Shapes:  row of token t of sequence b of q (of k, v, out) is at (b*T + t) * q_stride (kv_stride, out_stride)
/// elements;
///          head h is at + h*E, so q, k and v may lie in one packed row; heads share key-value head h / (H/G); lse [B,
///          H, T]
/// Types:   q, k, v, out f32 or bf16; scores, softmax and sums f32; lse f32
/// Alias:   none: out is apart from q, k, v
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
  const int32_t* document_begins = nullptr;   // [B, T]: position of the first token of a query's document, which does
                                              // not descend along a sequence; null: none
  const AttentionDropout* dropout = nullptr;  // null: none
  ContextChunks queries = {}, keys = {};      // positions of their tokens; without tokens: 0 to T
};

/// dq, dk, dv of the above from dout; the scores are recomputed from lse.
///
/// Shapes:  as above; dout and out have out_stride, dq has dq_stride, dk and dv have dkv_stride;
///          workspace attention_backward_workspace_elems(args) floats
/// Types:   as above; dq, dk, dv in dtype, summed in f32; heads of a group are summed in order of heads
/// Alias:   none: dq, dk, dv may lie in one packed row, apart from all inputs
/// Cost:    10·B·H·E·P flops; (4·H + 4·G)·B·T·E·sizeof(T) + 4·B·H·T bytes
/// Errors:  as above
/// Source:  as above, section 3.1.2. Parallel over B x G, so bits do not depend on the number of threads.
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
  int64_t out_stride = 0;  // elements; of dout too
  int64_t dq_stride = 0;   // elements
  int64_t dkv_stride = 0;  // elements
  float scale = 1.0f;
  DType dtype = DType::f32;
  int64_t window = 0;                         // 0: none
  const int32_t* document_begins = nullptr;   // [B, T]: position of the first token of a query's document, which does
                                              // not descend along a sequence; null: none
  const AttentionDropout* dropout = nullptr;  // null: none
  ContextChunks queries = {}, keys = {};      // positions of their tokens; without tokens: 0 to T
};

/// The softmax of every query over the keys seen so far: the state with which attention continues when more keys
/// arrive.
struct AttentionCarried {
  float* out = nullptr;      // [B, H, T, E]: sum over keys of exp(score - maximum) v
  float* maximum = nullptr;  // [B, H, T]
  float* sum = nullptr;      // [B, H, T]: of exp(score - maximum)
};

/// AttentionForward, one block of keys at a time (context parallelism: the keys of a sequence arrive rank by rank).
///
/// The first block of a query starts without state, the last one writes out and lse; blocks in between only update
/// `carried`, in float for every type, so that out is rounded once. Every query must see a key of its first block; a
/// last block without keys (block.keys 0) is allowed and writes out the carried values.
///
/// Shapes:  q, out, lse, carried: T = all.tokens rows of the queries' sequences; k, v: as many of the keys'
/// Alias:   as AttentionForward; carried overlaps no operand, and may be null in a block that is first and last
/// Cost:    4·B·H·E·pairs flops, of the pairs that a window leaves; the sum of rows that the block touches. If it
///          leaves none, the block is one without keys, and costs nothing between the first and the last
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
///          dk and dv, overwritten, 0 in rows outside of the block's keys: it can travel and be added as it is
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

/// Pure. Minimum flops and bytes. Pointers may be null.
Cost attention_forward_cost(const AttentionForward& args);
Cost attention_backward_cost(const AttentionBackward& args);
Cost attention_block_forward_cost(const AttentionBlockForward& args);
Cost attention_block_backward_cost(const AttentionBlockBackward& args);

/// Pure. Floats of the workspace that dout . out of every row of every head takes on cuda.
int64_t attention_backward_delta_elems(const AttentionBackward& args);
/// Pure. Floats of workspace; depends on batch, tokens, heads, kv_heads and head_dim only. Pointers may be null.
int64_t attention_backward_workspace_elems(const AttentionBackward& args);

/// Why attention on GPUs of compute capability 9.x did not use the instructions of sm_90a, for run.json: one sentence
/// per reason, none if it did.
std::set<std::string> attention_fallbacks();

SLIP_DECLARE_PER_ISA(void attention_forward_cpu(LaunchContext& context, const AttentionForward& args);
                     void attention_backward_cpu(LaunchContext& context, const AttentionBackward& args);
                     void attention_block_forward_cpu(LaunchContext& context, const AttentionBlockForward& args);
                     void attention_block_backward_cpu(LaunchContext& context, const AttentionBlockBackward& args);)

}  // namespace slipstream::kernels
