// SPDX-License-Identifier: Apache-2.0
// Encodes whole texts.

#include "engine/data/tokenizers/tokenizer.h"

namespace slipstream::data {

std::vector<int32_t> Tokenizer::encode(std::string_view text) const {
  std::vector<int32_t> ids;
  encode_window({.text = text},
                [&](std::span<const int32_t> piece, int64_t) { ids.insert(ids.end(), piece.begin(), piece.end()); });
  return ids;
}

}  // namespace slipstream::data
