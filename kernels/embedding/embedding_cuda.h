// SPDX-License-Identifier: Apache-2.0
#pragma once
// The CUDA side of the embedding.
//
// Arguments are already checked and not empty, pointers are device memory. Each function enqueues on the context's
// stream and returns. Throws: ResourceError if a launch is refused.
// Ids are on the device and cannot be refused. An id outside the vocabulary or the positions turns its row into NaN, or
// is left out of a gradient. Nothing is read or written out of bounds.

#include "kernels/embedding/embedding.h"

namespace slipstream::kernels {

void document_positions_cuda(LaunchContext& context, const DocumentPositions& args);
void embedding_forward_cuda(LaunchContext& context, const EmbeddingForward& args);
void embedding_backward_cuda(LaunchContext& context, const EmbeddingBackward& args);
void position_backward_cuda(LaunchContext& context, const PositionBackward& args);
void embedding_rows_pack_cuda(LaunchContext& context, const EmbeddingRowsPack& args);
void embedding_rows_add_cuda(LaunchContext& context, const EmbeddingRowsAdd& args);

}  // namespace slipstream::kernels
