// SPDX-License-Identifier: Apache-2.0
#pragma once
// The parts of resolve() that depend only on the run file: defaults, and settings without effect.

#include "engine/config/config.h"

namespace slipstream {

/// Replaces every 0, "auto" and "" that depends only on the run file: kv_heads, ffn_width, experts.ffn_width,
/// tie_embeddings, sequence_length, decay_steps, gather_dtype, grad_dtype, checkpoint.dir. Applying it twice changes
/// nothing. Pure.
RunConfig resolve_defaults(RunConfig config);

/// Returns the settings that are in effect. Some settings return to their defaults, so that parallel.pipeline = 1 alone
/// switches a pipeline off: those of an axis with one rank (sequence_parallel, tensor_chunks; [pipeline], p2p,
/// align_grad_reduce), and in lower stages those of ZeRO's stage 3 (prefetch_depth, reshard_after_forward,
/// persistence_threshold). Pure.
RunConfig in_effect(RunConfig config);

}  // namespace slipstream
