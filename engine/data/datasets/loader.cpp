// SPDX-License-Identifier: Apache-2.0
// A ring of host batches between a thread that fills them and one reader.

#include "engine/data/datasets/loader.h"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <span>
#include <thread>

#include "engine/base/check.h"
#include "engine/base/context_chunks.h"
#include "engine/base/parallel.h"

namespace slipstream::data {

namespace {

/// The ids and documents that one read returned.
struct Window {
  std::vector<int32_t> ids;
  std::vector<int64_t> documents;
};

/// Fills row `row` of the batch, counted over all micro-batches, from the window that begins at token `begin`.
void fill_row(const TokenSource& source, int64_t begin, int64_t row, const ContextChunks& chunks, Window& window,
              Batch& batch) {
  const int64_t length = batch.shape.sequence_length;
  SLIP_ASSERT(length == chunks.local_tokens());
  window.ids.resize(static_cast<size_t>(chunks.tokens) + 1);
  window.documents.clear();
  source.read(begin, window.ids, batch.shape.documents ? &window.documents : nullptr);
  auto next = window.documents.begin();  // the first document that begins after the token
  int64_t document = 0;
  for (int64_t t = 0; t < length; ++t) {
    const int64_t position = chunks.position(t);
    const auto at = static_cast<size_t>(position), to = static_cast<size_t>(row * length + t);
    batch.inputs[to] = window.ids[at];
    batch.targets[to] = window.ids[at + 1];
    if (!batch.shape.documents) continue;
    for (; next != window.documents.end() && *next <= position; ++next) document = *next;
    batch.document_begins[to] = static_cast<int32_t>(document);
  }
}

}  // namespace

Batch make_batch(const BatchShape& shape) {
  SLIP_ASSERT(shape.micro_batches >= 1 && shape.rows >= 1 && shape.sequence_length >= 1);
  const auto elems = static_cast<size_t>(shape.micro_batches * shape.rows * shape.sequence_length);
  Batch batch;
  batch.shape = shape;
  batch.inputs.resize(elems);
  batch.targets.resize(elems);
  if (shape.documents) batch.document_begins.resize(elems);
  batch.valid_rows.assign(static_cast<size_t>(shape.micro_batches), shape.rows);
  batch.first_rows.assign(static_cast<size_t>(shape.micro_batches), 0);
  return batch;
}

BatchFiller training_filler(std::shared_ptr<const TokenSource> source, const TrainSampler& sampler, int64_t data_rank,
                            int64_t data_ranks, int context_rank, int context_ranks) {
  const ContextChunks chunks{.tokens = sampler.options().sequence_length, .ranks = context_ranks, .rank = context_rank};
  // Prefetches the windows of the next step while the current one is filled.
  const auto prefetch = [source, sampler, data_rank, data_ranks](int64_t step) {
    for (int64_t micro_batch = 0; micro_batch < sampler.micro_batches(data_ranks); ++micro_batch) {
      const SampleRange samples = sampler.samples_of(step, data_rank, data_ranks, micro_batch);
      for (int64_t row = 0; row < samples.count; ++row)
        source->prefetch(sampler.begin_of(samples.begin + static_cast<uint64_t>(row)),
                         sampler.options().sequence_length + 1);
    }
  };
  return [source = std::move(source), sampler, data_rank, data_ranks, chunks, prefetch, prefetched = int64_t{-1},
          window = Window()](int64_t step, Batch& batch) mutable {
    if (prefetched != step) prefetch(step);
    prefetched = step + 1;
    prefetch(prefetched);
    SLIP_ASSERT(batch.shape.micro_batches == sampler.micro_batches(data_ranks));
    SLIP_ASSERT(batch.shape.rows == sampler.options().micro_batch_size);
    for (int64_t micro_batch = 0; micro_batch < batch.shape.micro_batches; ++micro_batch) {
      const SampleRange samples = sampler.samples_of(step, data_rank, data_ranks, micro_batch);
      batch.first_rows[static_cast<size_t>(micro_batch)] =
          static_cast<int64_t>(samples.begin) - (step - 1) * sampler.options().global_batch_size;
      for (int64_t row = 0; row < samples.count; ++row)
        fill_row(*source, sampler.begin_of(samples.begin + static_cast<uint64_t>(row)),
                 micro_batch * batch.shape.rows + row, chunks, window, batch);
    }
  };
}

BatchFiller evaluation_filler(std::shared_ptr<const TokenSource> source, const EvalSampler& sampler, int64_t data_rank,
                              int64_t data_ranks, int context_rank, int context_ranks) {
  const ContextChunks chunks{.tokens = sampler.options().sequence_length, .ranks = context_ranks, .rank = context_rank};
  return [source = std::move(source), sampler, data_rank, data_ranks, chunks, window = Window()](int64_t round,
                                                                                                 Batch& batch) mutable {
    SLIP_ASSERT(batch.shape.micro_batches == 1);
    SLIP_ASSERT(batch.shape.rows == sampler.options().micro_batch_size);
    const EvalRows rows = sampler.rows_of(round, data_rank, data_ranks);
    batch.valid_rows[0] = rows.valid_rows;
    for (int64_t row = 0; row < batch.shape.rows; ++row)
      fill_row(*source, sampler.begin_of(row < rows.valid_rows ? rows.begin + row : 0), row, chunks, window, batch);
  };
}

struct Loader::State {
  BatchFiller filler;
  LoaderOptions options;
  std::vector<Batch> ring;

  std::mutex mutex;
  std::condition_variable changed;
  int64_t filled = 0;  // the batches that the thread has filled
  int64_t taken = 0;   // the batches that next() has returned
  bool stop = false;
  std::exception_ptr error;  // the error of batch number `filled`
  std::thread thread;

  int64_t count() const { return std::max<int64_t>(0, options.last - options.first + 1); }
  Batch& slot(int64_t number) { return ring[static_cast<size_t>(number % options.buffers)]; }
  /// Returns true if batch `filled` may be filled: it reuses the slot of batch filled - buffers, which the caller must
  /// have released.
  bool may_fill() const { return filled - options.buffers < taken - options.held; }
  void run();
};

void Loader::State::run() {
  const int64_t total = count();
  for (int64_t number = 0; number < total; ++number) {
    {
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] { return stop || may_fill(); });
      if (stop) return;
    }
    std::exception_ptr failure;
    try {
      Batch& batch = slot(number);
      batch.index = options.first + number;
      filler(batch.index, batch);
    } catch (...) {
      failure = std::current_exception();
    }
    {
      const std::lock_guard lock(mutex);
      error = failure;
      if (!failure) ++filled;
    }
    changed.notify_all();
    if (failure) return;
  }
}

Loader::Loader(BatchFiller filler, const LoaderOptions& options) : state_(std::make_unique<State>()) {
  SLIP_ASSERT(options.held >= 1 && options.buffers > options.held);
  state_->filler = std::move(filler);
  state_->options = options;
  for (int i = 0; i < options.buffers; ++i) state_->ring.push_back(make_batch(options.shape));
  state_->thread = start_thread("the loader of batches", [state = state_.get()] { state->run(); });
}

Loader::~Loader() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->stop = true;
  }
  state_->changed.notify_all();
  state_->thread.join();
}

const Batch& Loader::next() {
  State& state = *state_;
  std::unique_lock lock(state.mutex);
  SLIP_ASSERT(state.taken < state.count());
  const int64_t number = state.taken++;
  // Taking a batch releases the one that was returned `held` calls earlier, and the thread may be waiting for it.
  state.changed.notify_all();
  state.changed.wait(lock, [&] { return state.filled > number || state.error; });
  if (state.filled > number) return state.slot(number);
  state.taken = number;
  std::rethrow_exception(state.error);
}

}  // namespace slipstream::data
