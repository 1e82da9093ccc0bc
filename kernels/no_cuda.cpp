// SPDX-License-Identifier: Apache-2.0
// The CUDA side of every op in a build without CUDA: every call throws.

#include "engine/base/check.h"
#include "kernels/adamw/adamw.h"
#include "kernels/attention/attention_cuda.h"
#include "kernels/cast/cast.h"
#include "kernels/columns/columns.h"
#include "kernels/cross_entropy/cross_entropy.h"
#include "kernels/cross_entropy/sharded_cross_entropy.h"
#include "kernels/cuda/algorithms.h"
#include "kernels/cuda/workspace.h"
#include "kernels/decode/decode_cuda.h"
#include "kernels/dropout/dropout.h"
#include "kernels/embedding/embedding.h"
#include "kernels/experts/counts.h"
#include "kernels/experts/grouped.h"
#include "kernels/experts/route.h"
#include "kernels/experts/router_linear.h"
#include "kernels/experts/rows.h"
#include "kernels/experts/weighted_swiglu.h"
#include "kernels/gelu/gelu.h"
#include "kernels/head_norm/head_norm.h"
#include "kernels/hold/hold.h"
#include "kernels/layer_norm/layer_norm.h"
#include "kernels/matmul/matmul.h"
#include "kernels/muon/muon_passes.h"
#include "kernels/residual/residual.h"
#include "kernels/rms_norm/rms_norm.h"
#include "kernels/rope/rope.h"
#include "kernels/sample/sample.h"
#include "kernels/sum_squares/sum_squares.h"
#include "kernels/swiglu/swiglu.h"
#include "kernels/wire/wire.h"

namespace slipstream::kernels {
namespace {

[[noreturn]] void refuse(const char* op) {
  throw ResourceError(
      "[{}] this build has no CUDA kernels. Run it on device cpu, or configure with -Dcuda=enabled where a CUDA "
      "toolkit is installed.",
      op);
}

}  // namespace

GemmLibrary gemm_library() { return {}; }
void use_algorithms(AlgorithmTable) {}
std::map<ProductShape, ChosenAlgorithm> chosen_algorithms() { return {}; }
size_t search_algorithms(LaunchContext&, const std::vector<ProductShape>&, const SearchOptions&, AlgorithmTable&,
                         const std::function<void(const ProductShape&, const TimedAlgorithm&)>&) {
  refuse("search_algorithms");
}
void prepare_stream(void*) { refuse("prepare_stream"); }
void release_stream(void*) {}
void adamw_cuda(LaunchContext&, const Adamw&) { refuse("adamw"); }
void attention_forward_cuda(LaunchContext&, const AttentionForward&) { refuse("attention_forward"); }
void attention_backward_cuda(LaunchContext&, const AttentionBackward&) { refuse("attention_backward"); }
void attention_block_forward_cuda(LaunchContext&, const AttentionBlockForward&) { refuse("attention_block_forward"); }
void attention_block_backward_cuda(LaunchContext&, const AttentionBlockBackward&) {
  refuse("attention_block_backward");
}
void cast_cuda(LaunchContext&, const Cast&) { refuse("cast"); }
void add_cuda(LaunchContext&, const Add&) { refuse("add"); }
void columns_take_cuda(LaunchContext&, const ColumnsTake&) { refuse("columns_take"); }
void columns_sum_cuda(LaunchContext&, const ColumnsSum&) { refuse("columns_sum"); }
void cross_entropy_cuda(LaunchContext&, const CrossEntropy&) { refuse("cross_entropy"); }
void cross_entropy_part_cuda(LaunchContext&, const CrossEntropyPart&) { refuse("cross_entropy_part"); }
void cross_entropy_merge_cuda(LaunchContext&, const CrossEntropyMerge&) { refuse("cross_entropy_merge"); }
void few_rows_product_cuda(LaunchContext&, const FewRowsProduct&) { refuse("few_rows_product"); }
void keep_keys_cuda(LaunchContext&, const KeepKeys&) { refuse("keep_keys"); }
void one_token_attention_cuda(LaunchContext&, const OneTokenAttention&) { refuse("one_token_attention"); }
void sample_cuda(LaunchContext&, const Sample&) { refuse("sample"); }
void next_rows_cuda(LaunchContext&, const NextRows&) { refuse("next_rows"); }
void dropout_cuda(LaunchContext&, const Dropout&) { refuse("dropout"); }
void document_positions_cuda(LaunchContext&, const DocumentPositions&) { refuse("document_positions"); }
void embedding_forward_cuda(LaunchContext&, const EmbeddingForward&) { refuse("embedding_forward"); }
void embedding_backward_cuda(LaunchContext&, const EmbeddingBackward&) { refuse("embedding_backward"); }
void position_backward_cuda(LaunchContext&, const PositionBackward&) { refuse("position_backward"); }
void embedding_rows_pack_cuda(LaunchContext&, const EmbeddingRowsPack&) { refuse("embedding_rows_pack"); }
void embedding_rows_add_cuda(LaunchContext&, const EmbeddingRowsAdd&) { refuse("embedding_rows_add"); }
void count_rows_cuda(LaunchContext&, const CountRows&) { refuse("count_rows"); }
void own_rows_cuda(LaunchContext&, const OwnRows&) { refuse("own_rows"); }
void late_rows_cuda(LaunchContext&, const LateRows&) { refuse("late_rows"); }
void router_linear_cuda(LaunchContext&, const RouterLinear&) { refuse("router_linear"); }
void router_linear_backward_input_cuda(LaunchContext&, const RouterLinearBackwardInput&) {
  refuse("router_linear_backward_input");
}
void router_linear_backward_weight_cuda(LaunchContext&, const RouterLinearBackwardWeight&) {
  refuse("router_linear_backward_weight");
}
void route_forward_cuda(LaunchContext&, const RouteForward&) { refuse("route_forward"); }
void route_backward_cuda(LaunchContext&, const RouteBackward&) { refuse("route_backward"); }
void route_load_cuda(LaunchContext&, const RouteLoad&) { refuse("route_load"); }
void arrange_rows_cuda(LaunchContext&, const ArrangeRows&) { refuse("arrange_rows"); }
void take_rows_cuda(LaunchContext&, const TakeRows&) { refuse("take_rows"); }
void return_rows_cuda(LaunchContext&, const ReturnRows&) { refuse("return_rows"); }
void grouped_forward_cuda(LaunchContext&, const GroupedForward&) { refuse("grouped_forward"); }
void grouped_backward_input_cuda(LaunchContext&, const GroupedBackwardInput&) { refuse("grouped_backward_input"); }
void grouped_backward_weight_cuda(LaunchContext&, const GroupedBackwardWeight&) { refuse("grouped_backward_weight"); }
void weighted_swiglu_forward_cuda(LaunchContext&, const WeightedSwigluForward&) { refuse("weighted_swiglu_forward"); }
void weighted_swiglu_backward_cuda(LaunchContext&, const WeightedSwigluBackward&) {
  refuse("weighted_swiglu_backward");
}
void gelu_forward_cuda(LaunchContext&, const GeluForward&) { refuse("gelu_forward"); }
void gelu_backward_cuda(LaunchContext&, const GeluBackward&) { refuse("gelu_backward"); }
void hold_blocks_cuda(LaunchContext&, const HoldBlocks&) { refuse("hold_blocks"); }
void await_flag_cuda(LaunchContext&, const AwaitFlag&) { refuse("await_flag"); }
void copy_around_cuda(LaunchContext&, const CopyAround&) { refuse("copy_around"); }
void copy_on_device_cuda(LaunchContext&, std::byte*, const std::byte*, int64_t) { refuse("copy_on_device"); }
void layer_norm_forward_cuda(LaunchContext&, const LayerNormForward&) { refuse("layer_norm_forward"); }
void layer_norm_backward_cuda(LaunchContext&, const LayerNormBackward&) { refuse("layer_norm_backward"); }
void matmul_forward_cuda(LaunchContext&, const MatmulForward&) { refuse("matmul_forward"); }
void matmul_backward_input_cuda(LaunchContext&, const MatmulBackwardInput&) { refuse("matmul_backward_input"); }
void matmul_backward_weight_cuda(LaunchContext&, const MatmulBackwardWeight&) { refuse("matmul_backward_weight"); }
void muon_momentum_cuda(LaunchContext&, const MuonMomentum&) { refuse("muon"); }
void muon_normalize_cuda(LaunchContext&, const MuonNormalize&) { refuse("muon"); }
void muon_polynomial_cuda(LaunchContext&, const MuonPolynomial&) { refuse("muon"); }
void muon_step_cuda(LaunchContext&, const MuonStep&) { refuse("muon"); }
void residual_cuda(LaunchContext&, const Residual&) { refuse("residual"); }
void head_norm_forward_cuda(LaunchContext&, const HeadNormForward&) { refuse("head_norm_forward"); }
void head_norm_backward_cuda(LaunchContext&, const HeadNormBackward&) { refuse("head_norm_backward"); }
void rms_norm_forward_cuda(LaunchContext&, const RmsNormForward&) { refuse("rms_norm_forward"); }
void rms_norm_backward_cuda(LaunchContext&, const RmsNormBackward&) { refuse("rms_norm_backward"); }
void rope_cuda(LaunchContext&, const Rope&) { refuse("rope"); }
void sum_squares_cuda(LaunchContext&, const SumSquares&) { refuse("sum_squares"); }
void swiglu_forward_cuda(LaunchContext&, const SwigluForward&) { refuse("swiglu_forward"); }
void swiglu_backward_cuda(LaunchContext&, const SwigluBackward&) { refuse("swiglu_backward"); }
void encode_cuda(LaunchContext&, const Encode&) { refuse("encode"); }
void decode_cuda(LaunchContext&, const Decode&) { refuse("decode"); }
void sum_parts_cuda(LaunchContext&, const SumParts&) { refuse("sum_parts"); }

}  // namespace slipstream::kernels
