// SPDX-License-Identifier: Apache-2.0
// The head: logits, losses and their gradients. A single rank computes them in chunks of tokens with one buffer of
// logits.

#include <algorithm>

#include <fmt/core.h>

#include "engine/base/units.h"
#include "kernels/cross_entropy/cross_entropy.h"
#include "kernels/cross_entropy/sharded_cross_entropy.h"
#include "kernels/matmul/matmul.h"
#include "kernels/step_scalars/step_scalars.h"
#include "models/common/blocks.h"

namespace slipstream::models {

std::vector<SpecBuilder::Rows> SpecBuilder::head_chunks() const {
  // Delayed weight gradients need all logits. Ranks that share a vocabulary exchange all losses in one message.
  const bool at_once = shared() || options_.split_backward || options_.head_tokens == 0;
  const int64_t most = at_once ? rows() : std::min(rows(), options_.head_tokens);
  const int64_t each = most == 0 ? 0 : ceil_div(rows(), ceil_div(rows(), most));
  std::vector<Rows> chunks{{0, each}};
  while (chunks.back().end() < rows())
    chunks.push_back({chunks.back().end(), std::min(each, rows() - chunks.back().end())});
  return chunks;
}

Slice SpecBuilder::rows_of_all(Slice all, Rows r) const {
  const int64_t row_bytes = all.size_bytes / rows();
  return {all.buffer, all.begin_bytes + r.begin * row_bytes, r.count * row_bytes};
}

Slice SpecBuilder::logits_of(Rows r) const {
  return {logits_.buffer, logits_.begin_bytes, bytes_of(r.count * vocab_rows(), options_.dtype)};
}

Linear SpecBuilder::head_product(uint32_t table) const {
  return {.weight = table, .in = options_.width, .out = vocab_rows(), .padding = vocab_padding()};
}

void SpecBuilder::head_losses(Slice hidden, uint32_t table, Rows r, bool training) {
  const Slice logits = logits_of(r), targets = rows_of_all(targets_, r), row_losses = rows_of_all(row_losses_, r),
              part = loss_part_;
  linear(rows_of_all(hidden, r), head_product(table), logits);
  const Meaning meaning{.rule = Rule::losses, .sums = 1, .mean_over = options_.global_tokens};
  const kernels::CrossEntropy shape{.rows = r.count,
                                    .vocab = options_.vocab,
                                    .stride = vocab_rows(),
                                    .gradient_scale = 1.0f / static_cast<float>(meaning.mean_over),
                                    .dtype = options_.dtype,
                                    .backward = training};
  std::vector<Slice> writes{row_losses, part};
  if (training) writes.push_back(logits);
  work("cross_entropy", kernels::cross_entropy_cost(shape), {logits, targets}, writes, meaning, [=](LaunchContext& c) {
    kernels::CrossEntropy args = shape;
    args.logits = c.at(logits);
    args.targets = c.as<int32_t>(targets);
    args.row_losses = c.as<float>(row_losses);
    args.loss_sum = c.as<double>(part);
    kernels::cross_entropy(c, args);
  });
  if (training) add_loss(r.begin > 0);
}

void SpecBuilder::add_loss(bool always) {
  const Slice part = loss_part_, total = loss_;
  // Every rank that shares a layer has its losses, and one of them counts.
  const Meaning meaning{
      .rule = Rule::count, .results = 0, .sums = 1, .adds = always ? Adds::always : Adds::later_passes, .once = 0};
  work("add_loss", {1, 24}, {part, total}, {total}, meaning,
       [=, counts = adds_once_operand(meaning)](LaunchContext& c) {
         if (counts)
           kernels::add_loss(
               c, {.part = c.as<double>(part), .total = c.as<double>(total), .accumulate = adds(meaning, c)});
         else
           kernels::zero(c, {.to = c.at(total), .size_bytes = total.size_bytes});
       });
}

void SpecBuilder::evaluate_head(Slice hidden, uint32_t table) {
  into({&spec_.evaluate});
  begin("head_evaluate", static_cast<int>(options_.layers));
  for (const Rows& r : head_chunks()) head_losses(hidden, table, r, false);
}

void SpecBuilder::head(Slice hidden, uint32_t table, Slice d_hidden) {
  const auto layer = static_cast<int>(options_.layers);
  const std::vector<Rows> chunks = head_chunks();
  for (size_t i = 0; i < chunks.size(); ++i) {
    const Rows r = chunks[i];
    const bool last = i + 1 == chunks.size();
    begin(last ? "head" : fmt::format("head.{}", i), layer);
    head_losses(hidden, table, r, true);
    if (last)
      head_weight_gradient(hidden, table, r);
    else
      table_gradient(hidden, table, r, {0, vocab_rows()});
    if (last) begin("head_input_gradient", layer);
    linear_input_gradient(logits_of(r), head_product(table), rows_of_all(d_hidden, r));
  }
}

void SpecBuilder::head_input_gradient(uint32_t table, Slice d_hidden, TokenChunk c) {
  linear_input_gradient(chunk(logits_, c), head_product(table), chunk(d_hidden, c));
}

void SpecBuilder::head_weight_gradient(Slice hidden, uint32_t table, Rows r) {
  const int64_t width = options_.width, vocab = vocab_rows(), multiplied = vocab - vocab_padding();
  const int64_t rows_per_chunk =
      std::min(multiplied, std::max<int64_t>(64, round_up(options_.head_chunk_bytes / (4 * width), 64)));
  // An unsplit tied table is complete only when the embedding has added its share.
  const bool reports = !options_.tie_embeddings || options_.split_tied_embedding || tied_apart();
  for (int64_t begin_row = 0; begin_row < multiplied; begin_row += rows_per_chunk) {
    // The last chunk includes the padding.
    const bool last = begin_row + rows_per_chunk >= multiplied;
    const Rows words{begin_row, last ? vocab - begin_row : rows_per_chunk};
    begin(fmt::format("head_gradient.{}", begin_row / rows_per_chunk), static_cast<int>(options_.layers));
    table_gradient(hidden, table, r, words);
    if (reports) ready(table, words.begin * width, words.count * width);
  }
}

void SpecBuilder::table_gradient(Slice hidden, uint32_t table, Rows r, Rows words) {
  const int64_t width = options_.width, vocab = vocab_rows();
  const int64_t begin_bytes = bytes_of(words.begin, options_.dtype);
  const Slice dw = gradient(table), dlogits = logits_of(r), x = rows_of_all(hidden, r);
  const Slice dw_words{dw.buffer, dw.begin_bytes + words.begin * width * 4, words.count * width * 4};
  const Meaning meaning{
      .rule = Rule::weight_gradient, .results = 0, .sums = 1, .adds = r.begin > 0 ? Adds::always : Adds::as_planned};
  const kernels::MatmulBackwardWeight shape{.rows = r.count,
                                            .in = width,
                                            .out = words.count,
                                            .dtype = options_.dtype,
                                            // The cost then includes reading the sum.
                                            .accumulate = meaning.adds == Adds::always,
                                            .dy_stride = vocab,
                                            .padding = words.end() == vocab ? vocab_padding() : 0};
  work("matmul_weight_gradient", kernels::matmul_backward_weight_cost(shape), {x, dlogits, dw_words}, {dw_words},
       meaning, [=](LaunchContext& c) {
         kernels::MatmulBackwardWeight args = shape;
         args.x = c.at(x);
         args.dy = c.at(dlogits) + begin_bytes;
         args.dweight = c.as<float>(dw_words);
         args.accumulate = adds(meaning, c);
         kernels::matmul_backward_weight(c, args);
       });
}

Slice SpecBuilder::loss_parts(int rank) const { return chunk(loss_parts_, {rank, options_.tensor}); }

void SpecBuilder::head_part(Slice hidden, uint32_t table, TokenChunk c) {
  const Slice logits = chunk(logits_, c), targets = chunk(targets_, c),
              parts = chunk(loss_parts(options_.tensor_index), c);
  linear(chunk(hidden, c), {.weight = table, .in = options_.width, .out = vocab_rows()}, logits);
  const kernels::CrossEntropyPart shape{.rows = rows() / c.count,
                                        .vocab = vocab_held(),
                                        .stride = vocab_rows(),
                                        .first = vocab_begin(),
                                        .whole_vocab = options_.vocab,
                                        .dtype = options_.dtype};
  work("cross_entropy_part", kernels::cross_entropy_part_cost(shape), {logits, targets}, {parts},
       {.rule = Rule::statistics}, [=](LaunchContext& context) {
         kernels::CrossEntropyPart args = shape;
         args.logits = context.at(logits);
         args.targets = context.as<int32_t>(targets);
         args.parts = context.as<double>(parts);
         kernels::cross_entropy_part(context, args);
       });
  if (c.index + 1 < c.count) return;
  communicate({.name = "all_gather",
               .channel = Role::tensor_gather,
               .op = Op::all_gather,
               .from = loss_parts(options_.tensor_index),
               .to = loss_parts_,
               .dtype = DType::f64,
               .elems = rows() * kernels::kCrossEntropyPartElems},
              {});
}

void SpecBuilder::shared_losses() {
  for (bool training : {true, false}) {
    into({training ? &spec_.forward : &spec_.evaluate});
    begin(training ? "head" : "head_evaluate", static_cast<int>(options_.layers));
    merge_losses(training);
  }
}

void SpecBuilder::merge_losses(bool training) {
  const Slice logits = logits_, targets = targets_, row_losses = row_losses_, sum = loss_part_, parts = loss_parts_;
  const Meaning meaning{.rule = Rule::merged_losses, .sums = 1, .mean_over = options_.global_tokens};
  const kernels::CrossEntropyMerge shape{.rows = rows(),
                                         .vocab = vocab_held(),
                                         .stride = vocab_rows(),
                                         .first = vocab_begin(),
                                         .ranks = options_.tensor,
                                         .gradient_scale = 1.0f / static_cast<float>(meaning.mean_over),
                                         .dtype = options_.dtype,
                                         .backward = training};
  std::vector<Slice> reads{parts}, writes{row_losses, sum};
  if (training) reads.insert(reads.end(), {logits, targets});
  if (training) writes.push_back(logits);
  work("cross_entropy_merge", kernels::cross_entropy_merge_cost(shape), reads, writes, meaning, [=](LaunchContext& c) {
    kernels::CrossEntropyMerge args = shape;
    args.logits = c.at(logits);
    args.targets = c.as<int32_t>(targets);
    args.parts = c.as<double>(parts);
    args.row_losses = c.as<float>(row_losses);
    args.loss_sum = c.as<double>(sum);
    kernels::cross_entropy_merge(c, args);
  });
  if (training) add_loss(false);
}

}  // namespace slipstream::models
