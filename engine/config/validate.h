// SPDX-License-Identifier: Apache-2.0
#pragma once
// The rules between the keys of a run file, and between a run file and the started ranks.

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/config/config.h"

namespace slipstream {

/// Returns one sentence for each setting without effect, such as "pipeline.virtual_stages = 2 has no effect with
/// parallel.pipeline = 1". Pure.
std::vector<std::string> without_effect(const RunConfig& config);

/// Checks the settings of a resolved configuration that are in effect. Pure. Throws: ConfigError for the first broken
/// rule, with the numbers and what to do.
void validate(const RunConfig& config);

/// A key of which this version supports only some values.
struct SupportedRow {
  std::string_view key;
  bool (*supported)(const RunConfig&);
  std::string_view remedy;  // the supported values
};
const std::vector<SupportedRow>& supported_rows();

/// Throws: ConfigError that names the first key and value that this version does not support. Pure.
void require_supported(const RunConfig& config);

/// Throws: ConfigError for a setting without effect on the CPU. Pure.
void require_settings_of_cpu(const RunConfig& config);

/// Additional rules, such as those of a schedule. Throws: ConfigError. `config` has its axes and the settings in
/// effect.
using LayoutLaw = std::function<void(const RunConfig& config, const Batch& batch)>;

/// Returns the axes for `world` ranks, with `parallel.data` = -1 replaced by its value. Pure if `law` is. Throws:
/// ConfigError with all axes, both counts of ranks and the legal layouts if the axes do not multiply to `world`.
MeshSizes resolve_layout(const RunConfig& config, int world, const LayoutLaw& law = {});

/// Returns the batch over `data_ranks`, with `train.global_batch_size` = 0 replaced by its value. Pure. Throws:
/// ConfigError with the nearest legal sizes when micro_batch_size x data ranks does not divide it, or for more
/// micro-batches than a plan can list.
Batch resolve_batch(const RunConfig& config, int data_ranks);

/// Pure. Throws: ConfigError for sizes that fit no model of the family. The defaults must be resolved.
void validate_model(const Model& model);

/// Returns true for families whose layers have experts. Pure.
constexpr bool has_experts(Family family) { return family == Family::mixtral || family == Family::qwen3_moe; }

/// Pure. Throws: ConfigError for experts that the family lacks, or whose sizes contradict each other. The defaults must
/// be resolved.
void validate_experts(const Model& model);

/// Pure. Throws: ConfigError unless `layers`, the value of `key`, are numbers of layers of the model, each once and
/// ascending.
void validate_layer_numbers(std::string_view key, const std::vector<int64_t>& layers, const Model& model);

/// Pure. Throws: ConfigError if parallel.tensor ranks cannot share the model or the tokens of a micro-batch equally.
void validate_tensor(const RunConfig& config);

/// Pure. Throws: ConfigError for a table [data] that contradicts itself.
void validate_data(const RunConfig& config);

}  // namespace slipstream
