// SPDX-License-Identifier: Apache-2.0
#pragma once
// The CUDA side of the cross-entropy.
//
// Arguments are already checked and not empty, pointers are device memory. Each function enqueues on the context's
// stream and returns. Throws: ResourceError if a launch is refused.
// Targets are on the device and cannot be refused: a target outside the vocabulary turns the loss into NaN. Nothing is
// read or written out of bounds.
//
// Memory traffic. The gradient needs a row twice: for its sum, and then for its probabilities. A block keeps the row in
// shared memory between the two, so it reads memory once and writes it once: 2 x 65536 x 50304 x 2 bytes = 13.2 GB for
// 64 x 1024 tokens. A second read would be 6.6 GB more unless it hit the L2. Blocks of 256 threads have 6 x 132 rows of
// 98 KiB in flight, which are 80 MB. Blocks of 1024 threads have 26 MB, but share the 50 MB of an H100 with the
// gradients that are written meanwhile. Shared memory depends on no such hit. A multiprocessor holds these numbers of
// rows of 50304 bf16 logits:
//   9.0, 10.0 (228 KiB): 2, so one computes while the other loads or stores;
//   8.0 (164 KiB), 8.6, 8.9, 12.0 (100 KiB): 1, whose copies run up to 48 KiB ahead of its sums.
// A row may be wider than the shared memory of a block: a vocabulary of 128256 has 251 KiB, and a block at most 227.
// The rest of the row is read twice, the second time from the L2 (132 x 24 KiB = 3 MB). Rows that are not aligned to 16
// bytes are not held. The order of additions depends only on the vocabulary's size and the type.

#include "kernels/cross_entropy/cross_entropy.h"
#include "kernels/cross_entropy/sharded_cross_entropy.h"

namespace slipstream::kernels {

void cross_entropy_cuda(LaunchContext& context, const CrossEntropy& args);
void cross_entropy_part_cuda(LaunchContext& context, const CrossEntropyPart& args);
void cross_entropy_merge_cuda(LaunchContext& context, const CrossEntropyMerge& args);

}  // namespace slipstream::kernels
