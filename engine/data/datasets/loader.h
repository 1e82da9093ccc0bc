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

/// One rank's data for one step: M micro-batches of B rows. targets[m][b][t] follows inputs[m][b][t] in the text. On a
/// context-parallel rank, T covers its two chunks of a sequence (ContextChunks).
struct Batch {
  BatchShape shape;
  int64_t index = 0;                     // the step, or the round of an evaluation
  std::vector<int32_t> inputs;           // [M][B][T]
  std::vector<int32_t> targets;          // [M][B][T]
  std::vector<int32_t> document_begins;  // [M][B][T] with documents: position in the sequence of the first token of
                                         // the document of each input
  std::vector<int64_t> valid_rows;       // [M]; rows from here on have no weight (evaluation only)
  std::vector<int64_t> first_rows;       // [M]; number of row 0 in the global batch (training only)

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

/// Allocates; a batch is filled many times.
Batch make_batch(const BatchShape& shape);

/// Fills `batch` (already shaped) for one index. Runs on the loader's thread.
using BatchFiller = std::function<void(int64_t index, Batch& batch)>;

/// index = the step, from 1 on. `source` is the split that `sampler` was made for.
BatchFiller training_filler(std::shared_ptr<const TokenSource> source, const TrainSampler& sampler, int64_t data_rank,
                            int64_t data_ranks, int context_rank = 0, int context_ranks = 1);
/// index = the round, from 0 on; M is 1.
BatchFiller evaluation_filler(std::shared_ptr<const TokenSource> source, const EvalSampler& sampler, int64_t data_rank,
                              int64_t data_ranks, int context_rank = 0, int context_ranks = 1);

struct LoaderOptions {
  BatchShape shape;
  int64_t first = 1;  // the first index
  int64_t last = 0;   // the last index; less than `first`: no batch
  int buffers = 2;    // batches in memory
  int held = 1;       // newest batches that stay valid; buffers > held. A caller whose copies lag by one step
                      // uses buffers = 3, held = 2.
};

/// Owns its thread and its buffers.
class Loader {
 public:
  /// Starts filling immediately.
  Loader(BatchFiller filler, const LoaderOptions& options);
  /// Blocks until the fill in progress has ended. Never throws.
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  /// Blocks. The batch of the next index; stays valid for `held` calls of next().
  /// Throws: the filler's error for this index, now and at every later call; InternalError behind `last`.
  const Batch& next();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace slipstream::data
