// SPDX-License-Identifier: Apache-2.0
#pragma once
// The training state of all ranks, read at rest or from snapshots.

#include <map>
#include <mutex>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/plan/saved_state.h"
#include "tests/equivalence/trained.h"

namespace slipstream::equivalence {

/// Bytes by step, rank, bucket and array.
using States = std::map<std::tuple<int, int, size_t, size_t>, std::vector<std::byte>>;

/// Calls take(bucket, array) for all arrays that a rank saves.
template <typename Take>
void for_arrays(const runtime::Rank& rank, const Take& take) {
  for (size_t b = 0; b < rank.job().storage.size(); ++b)
    for (size_t i = 0; i < saved_arrays(rank.job(), b).size(); ++i) take(b, i);
}

/// A run, and the arrays that its ranks save.
struct Seen {
  Trained trained;
  States states;
};

/// Trains and reads all arrays after every step, when nothing runs.
inline Seen run_at_rest(Layout row, int steps) {
  Seen seen;
  std::mutex mutex;
  row.at_rest = [&](runtime::Rank& rank, int step) {
    for_arrays(rank, [&](size_t b, size_t i) {
      std::vector<std::byte> bytes = rank.saved(b, i);
      std::lock_guard lock(mutex);
      seen.states[{step, rank.job().options.rank, b, i}] = std::move(bytes);
    });
  };
  seen.trained = train(row, steps);
  return seen;
}

/// Trains and reads the snapshots of Layout::save_interval.
inline Seen run_saving(Layout row, int steps) {
  Seen seen;
  std::mutex mutex;
  row.saved = [&](runtime::Rank& rank, int step) {
    for_arrays(rank, [&](size_t b, size_t i) {
      const std::span<const std::byte> bytes = rank.snapshot(b, i);
      std::lock_guard lock(mutex);
      seen.states[{step, rank.job().options.rank, b, i}] = {bytes.begin(), bytes.end()};
    });
  };
  seen.trained = train(row, steps);
  return seen;
}

}  // namespace slipstream::equivalence
