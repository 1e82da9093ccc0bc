// SPDX-License-Identifier: Apache-2.0
#pragma once
// Evaluates the model of a folder: losses and logits by the forward pass of training, on one rank.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "trainer/runtime/rank/rank.h"
#include "trainer/runtime/weights/model_folder.h"

namespace slipstream::runtime {

struct EvaluatedFolderOptions {
  int64_t tokens = 0;           // the tokens of a sequence, at most the model's context
  int64_t batch = 1;            // the number of sequences
  std::string device = "auto";  // auto | cpu | cuda
};

class EvaluatedFolder {
 public:
  /// Blocks while it reads all weights. Throws: CheckpointError, ResourceError.
  EvaluatedFolder(const ModelFolder& weights, const EvaluatedFolderOptions& options);

  /// Blocks. ids and targets are [batch, tokens]. Returns the loss of every token, in nats.
  std::vector<float> losses(std::span<const int32_t> ids, std::span<const int32_t> targets);
  /// Blocks. Returns the logits of a row of the last call.
  std::vector<float> logits(int64_t row) { return rank_->logits(row); }

 private:
  std::unique_ptr<Rank> rank_;
};

}  // namespace slipstream::runtime
