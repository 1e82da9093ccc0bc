// SPDX-License-Identifier: Apache-2.0
#pragma once
// The CUDA side of text generation's ops.
//
// Arguments are already checked and not empty, pointers are device memory. Each function enqueues on the context's
// stream and returns. Throws: ResourceError if a launch is refused.

#include "kernels/decode/decode.h"

namespace slipstream::kernels {

/// The tokens to which a block of threads attends. A sequence has as many parts as it needs, so that one long sequence
/// occupies the whole GPU, and the parts are combined at the end. The sizes do not depend on the other rows, and so
/// neither do the bits.
constexpr int64_t kPartTokens = 128;
/// The most parts of a row, for any tokens.
int64_t most_parts(const OneTokenAttention& args);
/// The floats of a part and head in the workspace: its values, their largest score, and the sum of their weights.
constexpr int64_t part_floats(int64_t head_dim) { return head_dim + 2; }

void few_rows_product_cuda(LaunchContext& context, const FewRowsProduct& args);
void keep_keys_cuda(LaunchContext& context, const KeepKeys& args);
void one_token_attention_cuda(LaunchContext& context, const OneTokenAttention& args);

}  // namespace slipstream::kernels
