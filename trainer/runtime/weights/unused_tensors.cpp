// SPDX-License-Identifier: Apache-2.0
// Compares tensors with the values that the model computes.

#include "trainer/runtime/weights/unused_tensors.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include <fmt/ranges.h>

#include "engine/base/files.h"
#include "kernels/rope/rope.h"

namespace slipstream::runtime {
namespace {

constexpr int64_t kPieceElems = 1 << 18;
constexpr const char *kMask = ".attn.bias", *kMasked = ".attn.masked_bias", *kFrequencies = "rotary_emb.inv_freq";

/// Calls take(first, values) for all elements.
template <typename Take>
void for_pieces(const checkpoint::FolderTensor& tensor, const Take& take) {
  std::vector<float> piece;
  for (int64_t at = 0; at < tensor.elems(); at += kPieceElems) {
    piece.resize(static_cast<size_t>(std::min(kPieceElems, tensor.elems() - at)));
    tensor.read_floats(at, piece);
    take(at, piece);
  }
}

/// Returns the number of elements that `is_right(index, value)` refuses.
int64_t count_wrong(const checkpoint::FolderTensor& tensor, const std::function<bool(int64_t, float)>& is_right) {
  int64_t wrong = 0;
  for_pieces(tensor, [&](int64_t first, const std::vector<float>& values) {
    for (size_t i = 0; i < values.size(); ++i) wrong += !is_right(first + static_cast<int64_t>(i), values[i]);
  });
  return wrong;
}

std::string shown(const checkpoint::FolderTensor& tensor) {
  return fmt::format("{} [{}]", files::printable(tensor.name(), 120), fmt::join(tensor.shape(), ", "));
}

}  // namespace

bool is_constant(const std::string& name) {
  return name.ends_with(kMask) || name.ends_with(kMasked) || name.ends_with(kFrequencies);
}

std::string problem_of_constant(const checkpoint::FolderTensor& tensor, const models::ModelOptions& model) {
  const auto problem = [&](int64_t wrong, const std::string& right) {
    return wrong == 0 ? std::string()
                      : fmt::format("{} has {} of {} elements that are not those of {}", shown(tensor), wrong,
                                    tensor.elems(), right);
  };
  const std::vector<int64_t>& shape = tensor.shape();
  if (tensor.name().ends_with(kMask)) {
    if (shape.size() < 2 || shape.back() != shape[shape.size() - 2] || shape.back() * shape.back() != tensor.elems())
      return shown(tensor) + " is no causal mask";
    const int64_t size = shape.back();
    return problem(
        count_wrong(tensor, [&](int64_t at, float value) { return value == (at % size <= at / size ? 1.0f : 0.0f); }),
        "a causal mask");
  }
  if (tensor.name().ends_with(kMasked))
    return problem(count_wrong(tensor, [](int64_t, float value) { return value < -1000; }), "a mask, at most -1000");
  const int64_t half = model.size_of_head() / 2;
  if (tensor.elems() != half || !is_rotary(model.family))
    return fmt::format("{} is not the {} rotary frequencies of the model", shown(tensor),
                       is_rotary(model.family) ? half : 0);
  // At position 1, an angle is a frequency.
  std::vector<float> turns(static_cast<size_t>(4 * half));
  kernels::rope_table(turns.data(), 2, 2 * half, model.rope_theta, model.rope_scaling);
  const double tolerance = tensor.dtype() == "F32" ? 1e-5 : 1e-2;
  const auto is_right = [&](int64_t at, float value) {
    const auto cos = static_cast<size_t>(2 * half + at), sin = cos + static_cast<size_t>(half);
    const double right = std::atan2(static_cast<double>(turns[sin]), static_cast<double>(turns[cos]));
    return std::abs(static_cast<double>(value) - right) <= tolerance * right;
  };
  return problem(count_wrong(tensor, is_right), fmt::format("rope_theta = {}{}", model.rope_theta,
                                                            model.rope_scaling.factor > 0 ? " with scaling" : ""));
}

std::string problem_of_tied(const checkpoint::FolderTensor& head, const checkpoint::FolderTensor& table) {
  if (head.shape() != table.shape())
    return fmt::format("tie_word_embeddings is true, but {} has another shape than {}", shown(head), shown(table));
  int64_t wrong = 0;
  std::vector<float> of_table;
  for_pieces(head, [&](int64_t first, const std::vector<float>& values) {
    of_table.resize(values.size());
    table.read_floats(first, of_table);
    for (size_t i = 0; i < values.size(); ++i) wrong += values[i] != of_table[i];
  });
  if (wrong == 0) return "";
  return fmt::format(
      "tie_word_embeddings is true, but {} differs from {} in {} of {} elements. In a copy of the folder, set it to "
      "false to use both tensors, or remove the head",
      shown(head), files::printable(table.name(), 120), wrong, head.elems());
}

}  // namespace slipstream::runtime
