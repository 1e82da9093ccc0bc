// SPDX-License-Identifier: Apache-2.0
#pragma once
// The CPU side of the embeddings, once per instruction set; arguments and ids are already checked.

#include "kernels/common/isa.h"
#include "kernels/embedding/embedding.h"

namespace slipstream::kernels {

/// Rows of equal ids as chains (RowLists), without its types, because the *_cpu.cpp files are compiled once per
/// instruction set.
struct Chains {
  const int32_t* firsts = nullptr;
  int64_t count = 0;
  const int32_t* next = nullptr;
};

SLIP_DECLARE_PER_ISA(void embedding_forward_cpu(LaunchContext& context, const EmbeddingForward& args);
                     void embedding_backward_cpu(LaunchContext& context, const EmbeddingBackward& args);
                     void position_backward_cpu(LaunchContext& context, const PositionBackward& args);
                     void embedding_rows_pack_cpu(LaunchContext& context, const EmbeddingRowsPack& args,
                                                  const Chains& chains);
                     void embedding_rows_add_cpu(LaunchContext& context, const EmbeddingRowsAdd& args,
                                                 const Chains& chains);)

}  // namespace slipstream::kernels
