// SPDX-License-Identifier: Apache-2.0
#pragma once
// The properties of an accepted sequence of tokens.

#include <algorithm>
#include <vector>

#include "engine/data/datasets/shards.h"
#include "tests/fuzz/trial.h"

namespace slipstream::fuzz {

/// Reads all ids, which must be in the vocabulary, and all documents, which must ascend.
inline void use_tokens(const data::TokenSource& tokens, int32_t vocab_size) {
  std::vector<int32_t> ids(64);
  std::vector<int64_t> documents;
  for (int64_t begin = 0; begin < tokens.count(); begin += std::ssize(ids)) {
    ids.resize(static_cast<size_t>(std::min<int64_t>(64, tokens.count() - begin)));
    documents.clear();
    tokens.read(begin, ids, &documents);
    require(std::all_of(ids.begin(), ids.end(), [&](int32_t id) { return id >= 0 && id < vocab_size; }),
            "an id is not in the vocabulary");
    int64_t least = 0;
    for (const int64_t document : documents) {
      require(document >= least && document < std::ssize(ids), "a document begins outside of what was read");
      least = document + 1;
    }
  }
}

}  // namespace slipstream::fuzz
