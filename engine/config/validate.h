// SPDX-License-Identifier: Apache-2.0
#pragma once
// Rules between the keys of a run file, and between a run file and the started ranks.

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/config/config.h"

namespace slipstream {

/// Replaces every 0, "auto" and "" that depends on the run file alone: kv_heads, ffn_width, tie_embeddings,
/// sequence_length, decay_steps, gather_dtype, checkpoint.dir. Applying it twice changes nothing. Pure.
RunConfig resolve_defaults(RunConfig config);

/// The settings in effect. Settings of an axis of one rank (sequence_parallel, tensor_chunks; [pipeline], p2p,
/// align_grad_reduce) and of ZeRO's stage 3 in lower stages (prefetch_depth, reshard_after_forward,
/// persistence_threshold) return to their defaults, so that parallel.pipeline = 1 alone switches a pipeline off. Pure.
RunConfig in_effect(RunConfig config);
/// "pipeline.virtual_stages = 2 has no effect with parallel.pipeline = 1", one sentence for each such setting. Pure.
std::vector<std::string> without_effect(const RunConfig& config);

/// Checks the settings in effect of a resolved configuration. Pure.
/// Throws: ConfigError for the first broken rule, with the numbers and what to do.
void validate(const RunConfig& config);

/// A key of which this version supports only some values.
struct SupportedRow {
  std::string_view key;
  bool (*supported)(const RunConfig&);
  std::string_view remedy;  // the supported values
};
const std::vector<SupportedRow>& supported_rows();

/// Throws: ConfigError naming the first key and value that this version does not support. Pure.
void require_supported(const RunConfig& config);

/// Ranks along each axis; their product is the world.
struct Layout {
  int data = 1;
  int tensor = 1;
  int pipeline = 1;
  int context = 1;
};
/// Throws: ConfigError for a setting without effect on the CPU. Pure.
void require_settings_of_cpu(const RunConfig& config);

struct Batch {
  int64_t global_batch_size = 0;  // sequences of one step
  int64_t micro_batches = 0;      // that each data rank computes in one step
};
/// Additional rules, such as those of a schedule: throws ConfigError. `config` has its axes.
using LayoutLaw = std::function<void(const RunConfig& config, const Batch& batch)>;

/// The axes for `world` ranks, `parallel.data` = -1 filled in. Pure, if `law` is.
/// Throws: ConfigError with all axes, both counts of ranks and the legal layouts if the axes do not multiply to
/// `world`.
Layout resolve_layout(const RunConfig& config, int world, const LayoutLaw& law = {});

/// The batch over `data_ranks`, `train.global_batch_size` = 0 filled in. Pure.
/// Throws: ConfigError with the nearest legal sizes when micro_batch_size x data ranks does not divide it.
Batch resolve_batch(const RunConfig& config, int data_ranks);

}  // namespace slipstream
