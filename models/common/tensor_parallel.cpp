// SPDX-License-Identifier: Apache-2.0
// Tensor parallelism: each rank's share of a layer, the chunks of its tokens, and the positions of its sums and gathers
// (Shoeybi et al. 2019, "Megatron-LM"; Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer
// Models", for the tokens of norms and residuals).

#include <algorithm>

#include "engine/base/check.h"
#include "engine/base/units.h"
#include "kernels/cast/cast.h"
#include "kernels/step_scalars/step_scalars.h"
#include "models/common/blocks.h"

namespace slipstream::models {
namespace {

// On all ranks together, the number of rows of a table is a multiple of twice this, and on each of several ranks a
// multiple of this. Products, vector loads and TMA need rows of logits that begin at a multiple of 16 bytes, and whole
// tiles.
constexpr int64_t kVocabAlignment = 64;

}  // namespace

int token_chunks(int64_t rows, int asked, int ranks, bool sequence_parallel) {
  const int64_t unit = sequence_parallel ? ranks : 1;
  int chunks = std::max(1, asked);
  while (chunks > 1 && rows % (chunks * unit) != 0) --chunks;
  return chunks;
}

int64_t SpecBuilder::vocab_rows() const {
  return round_up(options_.vocab, kVocabAlignment * std::max(2, options_.tensor)) / options_.tensor;
}

int64_t SpecBuilder::vocab_held() const { return std::clamp<int64_t>(options_.vocab - vocab_begin(), 0, vocab_rows()); }

Slice SpecBuilder::chunk(Slice rows, TokenChunk c) const {
  const int64_t size_bytes = rows.size_bytes / c.count;
  return {rows.buffer, rows.begin_bytes + c.index * size_bytes, size_bytes};
}

Slice SpecBuilder::own(Slice rows, TokenChunk c) const {
  return own_tokens() ? chunk(chunk(rows, c), {options_.tensor_index, options_.tensor}) : chunk(rows, c);
}

void SpecBuilder::reduce(Slice partial, TokenChunk c, Slice sum) {
  if (!shared()) return;
  Communication task{.name = own_tokens() ? "reduce_scatter" : "all_reduce",
                     .channel = Role::tensor_reduce,
                     .op = own_tokens() ? Op::reduce_scatter : Op::all_reduce,
                     .from = chunk(partial, c),
                     .to = sum.size_bytes > 0 ? chunk(sum, c) : own(partial, c),
                     .dtype = options_.dtype};
  task.elems = task.to.size_bytes / size_of(options_.dtype);
  communicate(std::move(task), c);
}

void SpecBuilder::gather(Slice part, Slice all, TokenChunk c) {
  if (!own_tokens()) return;
  Communication task{.name = "all_gather",
                     .channel = Role::tensor_gather,
                     .op = Op::all_gather,
                     .from = part,
                     .to = chunk(all, c),
                     .dtype = options_.dtype};
  task.elems = task.from.size_bytes / size_of(options_.dtype);
  communicate(std::move(task), c);
}

void SpecBuilder::communicate(Communication task, TokenChunk c) {
  Piece& piece = spec_.pieces.back();
  task.name += "." + piece.name;
  if (c.count > 1 && !piece.name.ends_with(fmt::format(".{}", c.index))) task.name += fmt::format(".{}", c.index);
  piece.communications.push_back(std::move(task));
}

void SpecBuilder::in_chunks(const std::vector<Stage>& stages) {
  const auto last = static_cast<int>(stages.size()) - 1;
  const int count = chunks();
  for (int time = 0; time <= last + count - 1; ++time)
    for (int s = 0; s <= last; ++s) {
      const TokenChunk c{time - s, count};
      if (c.index < 0 || c.index >= count) continue;
      const Stage& stage = stages[static_cast<size_t>(s)];
      begin(stage.piece + "." + stage.part + (count > 1 ? fmt::format(".{}", c.index) : ""), stage.layer);
      stage.body(c);
    }
}

NamedTensor SpecBuilder::held(NamedTensor whole, int dim, int blocks) const {
  if (!shared()) return whole;
  int64_t& size = whole.shape[static_cast<size_t>(dim)];
  whole.split = {.dim = dim, .blocks = blocks, .parts = options_.tensor, .index = options_.tensor_index, .whole = size};
  SLIP_ASSERT(size % (int64_t{blocks} * options_.tensor) == 0);
  size /= options_.tensor;
  return whole;
}

Slice SpecBuilder::norm_partial(const std::string& name, int64_t elems) {
  if (!own_tokens()) return {};
  if (options_.split_backward)
    return statistics(name, elems);  // added when weight gradients are computed, which may be later
  return scratch("norm.partial", bytes_of(elems, DType::f32));
}

Slice SpecBuilder::head_norm_partial(const std::string& name) {
  if (!shared()) return {};
  if (options_.split_backward) return statistics(name, 2 * head_dim());
  return scratch("head_norm.partial", bytes_of(2 * head_dim(), DType::f32));
}

void SpecBuilder::sum_partial(Slice partial) {
  if (partial.size_bytes == 0) return;
  communicate({.name = "all_reduce",
               .channel = Role::tensor_reduce,
               .op = Op::all_reduce,
               .from = partial,
               .to = partial,
               .dtype = DType::f32,
               .elems = partial.size_bytes / size_of(DType::f32)},
              {});
}

void SpecBuilder::add_partial(Slice partial, const std::vector<uint32_t>& parameters) {
  for (size_t i = 0; i < parameters.size() && partial.size_bytes > 0; ++i) {
    const Slice from = chunk(partial, {static_cast<int>(i), static_cast<int>(parameters.size())}),
                to = gradient(parameters[i]);
    const int64_t elems = to.size_bytes / size_of(DType::f32);
    const Meaning meaning{.rule = Rule::add, .results = 0, .sums = 1, .adds = Adds::as_planned};
    work("add_norm_gradient", {elems, 3 * to.size_bytes}, {from, to}, {to}, meaning, [=](LaunchContext& c) {
      if (adds(meaning, c))
        kernels::add(c, {.x = c.as<float>(from), .y = c.as<float>(to), .elems = elems});
      else
        kernels::copy(c, {.from = c.at(from), .to = c.at(to), .size_bytes = to.size_bytes});
    });
    ready(parameters[i]);
  }
}

uint32_t SpecBuilder::vocab_parameter(const std::string& name, int layer, Init init) {
  NamedTensor table{
      .name = name,
      .shape = {vocab_rows(), options_.width},
      .split = {.dim = 0, .parts = options_.tensor, .index = options_.tensor_index, .whole = options_.vocab}};
  return parameter(ParameterSpec{.tensors = {std::move(table)}, .layer = layer, .init = init, .decay = true});
}

}  // namespace slipstream::models
