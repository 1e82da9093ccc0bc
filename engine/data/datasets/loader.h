// SPDX-License-Identifier: Apache-2.0
#pragma once
// Fills the next batches on a host thread while the caller uses the current one.

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "engine/data/datasets/shards.h"
#include "engine/data/datasets/windows.h"

namespace slipstream::data {

struct BatchShape {
  int64_t micro_batches = 1;    // M
  int64_t rows = 1;             // B
  int64_t sequence_length = 1;  // T
  bool documents = false;
};

/// One rank's data for one step: M micro-batches of B rows. targets[m][b][t] is the token after inputs[m][b][t] in the
/// text. On a context-parallel rank, T covers the rank's two chunks of a sequence (ContextChunks).
struct Batch {
  BatchShape shape;
  int64_t index = 0;             // the step, or the round of an evaluation
  std::vector<int32_t> inputs;   // [M][B][T]
  std::vector<int32_t> targets;  // [M][B][T]
  /// [M][B][T] with documents: for each input, the position in the sequence of the first token of its document.
  std::vector<int32_t> document_begins;
  std::vector<int64_t> valid_rows;  // [M]; rows from this number on have no weight (evaluation only)
  std::vector<int64_t> first_rows;  // [M]; the number of row 0 in the global batch (training only)

  const int32_t* inputs_of(int64_t micro_batch) const {
    return inputs.data() + micro_batch * shape.rows * shape.sequence_length;
  }
  const int32_t* document_begins_of(int64_t micro_batch) const {
    return document_begins.data() + micro_batch * shape.rows * shape.sequence_length;
  }
  const int32_t* targets_of(int64_t micro_batch) const {
    return targets.data() + micro_batch * shape.rows * shape.sequence_length;
  }
};

/// Allocates a batch, which is filled many times.
Batch make_batch(const BatchShape& shape);

/// Fills `batch`, which has its shape already, for one index. Runs on the loader's thread.
using BatchFiller = std::function<void(int64_t index, Batch& batch)>;

/// The index is the step, from 1 on. `source` is the split that `sampler` was made for.
BatchFiller training_filler(std::shared_ptr<const TokenSource> source, const TrainSampler& sampler, int64_t data_rank,
                            int64_t data_ranks, int context_rank = 0, int context_ranks = 1);
/// The index is the round, from 0 on, and M is 1.
BatchFiller evaluation_filler(std::shared_ptr<const TokenSource> source, const EvalSampler& sampler, int64_t data_rank,
                              int64_t data_ranks, int context_rank = 0, int context_ranks = 1);

struct LoaderOptions {
  BatchShape shape;
  int64_t first = 1;  // the first index
  int64_t last = 0;   // the last index; if it is less than `first`, there is no batch
  int buffers = 2;    // the batches in memory
  /// The newest batches that stay valid; buffers > held. Callers whose copies lag by one step use 3 buffers, 2 of them
  /// held.
  int held = 1;
};

/// Loads batches in order. Owns its thread and its buffers.
class Loader {
 public:
  /// Starts filling immediately.
  Loader(BatchFiller filler, const LoaderOptions& options);
  /// Blocks until the fill in progress has ended. Never throws.
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  /// Blocks. Returns the batch of the next index, which stays valid for `held` calls of next(). Throws: the filler's
  /// error for this index, now and at every later call; InternalError after `last`.
  const Batch& next();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace slipstream::data
