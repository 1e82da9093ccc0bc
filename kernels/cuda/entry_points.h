// SPDX-License-Identifier: Apache-2.0
#pragma once
// The CUDA side of every op; arguments are already checked and not empty, pointers are device memory. Each op defines
// its own arguments: the op includes this header, not the other way round.
//
// Each function enqueues on the context's stream and returns. Throws: ResourceError if a launch is refused. Ids and
// targets are on the device, so invalid ones cannot be refused: they turn the loss or the row into NaN, or are left out
// of a gradient, and nothing is read or written out of bounds.

#include "engine/device/work.h"

namespace slipstream::kernels {

struct Adamw;
struct Add;
struct AttentionBackward;
struct AttentionBlockBackward;
struct AttentionBlockForward;
struct AttentionForward;
struct AwaitFlag;
struct Cast;
struct ColumnsSum;
struct ColumnsTake;
struct CopyAround;
struct CrossEntropy;
struct CrossEntropyMerge;
struct CrossEntropyPart;
struct Decode;
struct EmbeddingBackward;
struct EmbeddingForward;
struct EmbeddingRowsAdd;
struct EmbeddingRowsPack;
struct Encode;
struct GeluBackward;
struct GeluForward;
struct HoldBlocks;
struct LayerNormBackward;
struct LayerNormForward;
struct MatmulBackwardInput;
struct MatmulBackwardWeight;
struct MatmulForward;
struct PositionBackward;
struct Residual;
struct RmsNormBackward;
struct RmsNormForward;
struct Rope;
struct SumParts;
struct SumSquares;
struct SwigluBackward;
struct SwigluForward;

void adamw_cuda(LaunchContext& context, const Adamw& args);
void attention_forward_cuda(LaunchContext& context, const AttentionForward& args);
void attention_backward_cuda(LaunchContext& context, const AttentionBackward& args);
void attention_block_forward_cuda(LaunchContext& context, const AttentionBlockForward& args);
void attention_block_backward_cuda(LaunchContext& context, const AttentionBlockBackward& args);
void cast_cuda(LaunchContext& context, const Cast& args);
void add_cuda(LaunchContext& context, const Add& args);
void columns_take_cuda(LaunchContext& context, const ColumnsTake& args);
void columns_sum_cuda(LaunchContext& context, const ColumnsSum& args);
void cross_entropy_cuda(LaunchContext& context, const CrossEntropy& args);
void cross_entropy_part_cuda(LaunchContext& context, const CrossEntropyPart& args);
void cross_entropy_merge_cuda(LaunchContext& context, const CrossEntropyMerge& args);
void embedding_forward_cuda(LaunchContext& context, const EmbeddingForward& args);
void embedding_backward_cuda(LaunchContext& context, const EmbeddingBackward& args);
void position_backward_cuda(LaunchContext& context, const PositionBackward& args);
void embedding_rows_pack_cuda(LaunchContext& context, const EmbeddingRowsPack& args);
void embedding_rows_add_cuda(LaunchContext& context, const EmbeddingRowsAdd& args);
void gelu_forward_cuda(LaunchContext& context, const GeluForward& args);
void gelu_backward_cuda(LaunchContext& context, const GeluBackward& args);
void hold_blocks_cuda(LaunchContext& context, const HoldBlocks& args);
void await_flag_cuda(LaunchContext& context, const AwaitFlag& args);
void copy_around_cuda(LaunchContext& context, const CopyAround& args);
void copy_on_device_cuda(LaunchContext& context, std::byte* to, const std::byte* from, int64_t size_bytes);
void layer_norm_forward_cuda(LaunchContext& context, const LayerNormForward& args);
void layer_norm_backward_cuda(LaunchContext& context, const LayerNormBackward& args);
void matmul_forward_cuda(LaunchContext& context, const MatmulForward& args);
void matmul_backward_input_cuda(LaunchContext& context, const MatmulBackwardInput& args);
/// `dy_stride` is resolved (never 0).
void matmul_backward_weight_cuda(LaunchContext& context, const MatmulBackwardWeight& args);
void residual_cuda(LaunchContext& context, const Residual& args);
void rms_norm_forward_cuda(LaunchContext& context, const RmsNormForward& args);
void rms_norm_backward_cuda(LaunchContext& context, const RmsNormBackward& args);
void rope_cuda(LaunchContext& context, const Rope& args);
void sum_squares_cuda(LaunchContext& context, const SumSquares& args);
void swiglu_forward_cuda(LaunchContext& context, const SwigluForward& args);
void swiglu_backward_cuda(LaunchContext& context, const SwigluBackward& args);
void encode_cuda(LaunchContext& context, const Encode& args);
void decode_cuda(LaunchContext& context, const Decode& args);
void sum_parts_cuda(LaunchContext& context, const SumParts& args);

}  // namespace slipstream::kernels
