// SPDX-License-Identifier: Apache-2.0
#pragma once
// Turns a run file into the configuration that a run computes with: it resolves defaults, "auto", settings without
// effect, and settings that imply others. There are two exceptions: a plan decides optimizer.double_buffer = "auto" and
// device.graph = "auto" (trainer/planner/planner.h), and each host decides device.threads = 0.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/config/config.h"

namespace slipstream {

/// The inputs of resolve() that do not come from the run file.
struct RunFacts {
  int world = 1;
  bool on_gpus = false;
  int64_t vocab = 0;  // the tokenizer's vocabulary; 0: model.vocab_size is known
};

/// The configuration that a run computes with. It is immutable, and only resolve() builds it.
class ResolvedConfig {
 public:
  const RunConfig& operator*() const { return *config_; }
  const RunConfig* operator->() const { return config_.get(); }
  const MeshSizes& layout() const { return layout_; }
  const Batch& batch() const { return batch_; }
  int world() const { return layout_.world(); }
  bool on_gpus() const { return config_->device.kind == DeviceChoice::cuda; }
  /// Returns one sentence for each setting of the run file that has no effect.
  const std::vector<std::string>& without_effect() const { return without_effect_; }
  /// Returns the facts with which resolve() gives the same value again.
  RunFacts facts() const { return {.world = world(), .on_gpus = on_gpus(), .vocab = config_->model.vocab_size}; }

 private:
  friend ResolvedConfig resolve(const RunConfig& written, const RunFacts& facts);
  ResolvedConfig(RunConfig config, MeshSizes layout, Batch batch, std::vector<std::string> without_effect)
      : config_(std::make_shared<const RunConfig>(std::move(config))),
        layout_(layout),
        batch_(batch),
        without_effect_(std::move(without_effect)) {}

  std::shared_ptr<const RunConfig> config_;
  MeshSizes layout_;
  Batch batch_;
  std::vector<std::string> without_effect_;
};

/// Resolves `written`. All later code reads only the result. `config.resolved.toml` prints it, and as a run file it
/// resolves to the same value. Pure.
/// Throws: ConfigError if the axes or the batch do not suit the ranks, or if the tokenizer has more tokens than the
/// model.
ResolvedConfig resolve(const RunConfig& written, const RunFacts& facts);

}  // namespace slipstream
