// SPDX-License-Identifier: Apache-2.0
#include "models/common/generation_weights.h"

#include <algorithm>

#include "engine/base/units.h"

namespace slipstream::models {
namespace {

constexpr int64_t kPieceElems = 1 << 18;  // the elements of a tensor that are copied at a time
constexpr int64_t kAlignment = 64;        // the alignment of a parameter in memory

/// A range of a tensor as this rank holds it.
struct Part {
  const NamedTensor* tensor;
  int64_t begin, elems;
};

/// Returns what the memory of each parameter holds, in order. With shared key-value heads, the rows of this rank's head
/// follow those of the queries, and the other rows have no memory.
std::vector<std::vector<Part>> parts_of_parameters(SpecBuilder& model) {
  const ModelOptions& o = model.options();
  std::vector<std::vector<Part>> all;
  for (const ParameterSpec& p : model.spec().parameters) {
    all.emplace_back();
    for (const NamedTensor& tensor : p.tensors) all.back().push_back({&tensor, 0, tensor.elems()});
  }
  const int64_t head_index = o.tensor_index * o.kv_heads / o.tensor;
  const auto join = [&](int64_t q, int64_t kv, int64_t columns) {
    std::vector<Part>& more = all[static_cast<size_t>(kv)];
    const int64_t elems = model.head_dim() * columns;
    for (const Part& part : more) all[static_cast<size_t>(q)].push_back({part.tensor, head_index * elems, elems});
    more.clear();
  };
  for (const auto& [q, kv] : model.joins()) {
    join(q.weight, kv.weight, o.width);
    if (kv.bias >= 0) join(q.bias, kv.bias, 1);
  }
  return all;
}

}  // namespace

GenerationWeights::GenerationWeights(GenerationDevice& device, SpecBuilder& model, DType dtype, const Read& read) {
  const std::vector<std::vector<Part>> parts = parts_of_parameters(model);
  const auto dtype_of = [&](size_t p) {
    return model.spec().parameters[p].tensors.front().shape.size() == 2 ? dtype : DType::f32;
  };
  int64_t all_bytes = 0;
  for (size_t p = 0; p < parts.size(); ++p) {
    int64_t elems = 0;
    for (const Part& part : parts[p]) elems += part.elems;
    held_.push_back({all_bytes, bytes_of(elems, dtype_of(p))});
    all_bytes = round_up(all_bytes + held_.back().size_bytes, kAlignment);
  }
  memory_ = device.allocate(all_bytes, "the model");
  std::vector<float> piece;
  for (size_t p = 0; p < parts.size(); ++p) {
    std::byte* to = memory_->data() + held_[p].begin_bytes;
    for (const Part& part : parts[p])
      for (int64_t at = 0; at < part.elems; at += std::ssize(piece)) {
        piece.resize(static_cast<size_t>(std::min(kPieceElems, part.elems - at)));
        read(*part.tensor, part.begin + at, piece);
        device.store(piece, to, dtype_of(p));
        to += bytes_of(std::ssize(piece), dtype_of(p));
      }
  }
}

}  // namespace slipstream::models
