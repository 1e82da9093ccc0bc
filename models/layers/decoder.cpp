// SPDX-License-Identifier: Apache-2.0
// Declares a decoder's parameters and activations, and lists the stages of its forward pass.

#include "models/layers/decoder.h"

#include <utility>

namespace slipstream::models {

Decoder::Decoder(const Architecture& family, SpecBuilder& builder) : b_(builder), o_(builder.options()) {
  constexpr Init kNormal{Init::Kind::normal, 0.02f};
  table = b_.vocab_parameter(family.table, -1, kNormal);
  if (!family.positions.empty()) positions = b_.parameter(family.positions, {o_.context, o_.width}, -1, kNormal);
  const auto end = static_cast<int>(family.blocks.size());
  for (int l = 0; l < end; ++l) {
    const std::string prefix = fmt::format("{}{}.", family.prefix, l);
    const BlockKind& block = family.blocks[static_cast<size_t>(l)];
    for (const SublayerKind* kind : {&block.mixer, &block.mlp}) {
      const bool first = kind == &block.mixer;
      Sublayer s{.block = l, .first = first, .name = kind->layer.name, .norm_name = first ? "norm_1" : "norm_2"};
      s.norm = declare_norm(b_, prefix, l, kind->norm);
      s.layer = kind->layer.declare(b_, prefix, l);
      sublayers.push_back(std::move(s));
    }
  }
  sublayers.push_back({.block = end, .first = true, .norm_name = "final_norm"});
  sublayers.back().norm = declare_norm(b_, "", end, family.final_norm);
  head = b_.head_table(table, family.head, kNormal);
  embedded_ = b_.own_activation("embedded", o_.width);
  for (Sublayer& s : sublayers) declare_activations(s);
  delta_ = b_.scratch_rows("delta", o_.width);
  if (b_.own_tokens()) gathered_ = b_.scratch_rows("gathered", o_.width);
}

/// If ranks share the tokens of norms, no norm output is kept. In the backward pass, each rank recomputes its own
/// tokens, at the cost of copying them, and gathers the inputs of products again.
void Decoder::declare_activations(Sublayer& s) {
  const auto name_of = [&](const char* of_mixer, const char* of_mlp, const char* of_final_norm) {
    return s.layer ? b_.of_layer(s.block, s.first ? of_mixer : of_mlp) : of_final_norm;
  };
  Norm& n = s.norm;
  const std::string name = name_of("norm_1", "norm_2", "norm_f");
  if (n.bias >= 0) n.mean = b_.statistics(name + ".mean", b_.own_rows());
  n.inv_std = b_.statistics(name + ".inv_std", b_.own_rows());
  n.partial = b_.norm_partial(name + ".gradient", static_cast<int64_t>(n.parameters().size()) * o_.width);
  // The first sublayer reads the embedding itself, and the others store the sum that their norm computes. Without a
  // backward pass, all sums are in one buffer, and so are all outputs of norms.
  const bool is_embedded = &s == &sublayers.front() || !o_.trains;
  s.x = is_embedded ? embedded_ : b_.own_activation(name_of("residual_in", "residual_mid", "residual_out"), o_.width);
  if (!b_.own_tokens())
    s.normed = b_.activation(o_.trains ? name_of("normed_1", "normed_2", "hidden") : "normed", o_.width);
  if (!s.layer) return;
  s.layer->declare_activations();
  for (Slice made : {s.normed, n.mean, n.inv_std})
    if (made.size_bytes > 0 && !b_.own_tokens()) b_.cheap(made);
}

std::vector<Stage> Decoder::forward(Ops& ops, const DropoutRates& dropout) {
  const double rate = dropout.residual, embedding_rate = dropout.embedding;
  const Slice delta = delta_, embedded = embedded_;
  const auto drop = [=, this](const std::string& place, double at_rate, Slice x, Slice y, TokenChunk c) {
    b_.dropout(place, at_rate, x, b_.own(delta, c), y, b_.first_own_row(c));
  };
  std::vector<Stage> stages;
  const auto embed = [=, this, &ops](TokenChunk) {
    ops.embed(table, positions, embedding_rate > 0 ? delta : embedded, delta);
  };
  stages.push_back({"embedding", "", -1, embed, true});
  if (embedding_rate > 0)
    stages.push_back({"embedding", "dropout", -1,
                      [=, this](TokenChunk c) { drop("embedding", embedding_rate, {}, b_.chunk(embedded, c), c); }});
  const Sublayer* before = nullptr;
  for (const Sublayer& s : sublayers) {
    // This norm adds the output of the previous layer, or the other side of a cut does, so that one tensor crosses.
    if (before != nullptr && is_after_cut(s))
      stages.push_back({"residual_sum", "own", before->block, [=, this, &s](TokenChunk c) {
                          const Slice x = b_.chunk(before->x, c), sum = b_.chunk(s.x, c);
                          rate > 0 ? drop(before->place(), rate, x, sum, c) : b_.residual_sum(x, b_.own(delta, c), sum);
                        }});
    const bool sums = before != nullptr && !is_after_cut(s), drops = sums && rate > 0;
    // A norm uses the rank's own rows.
    const auto norm = [=, this, &ops, &s](TokenChunk c) {
      const Slice out = seen(s.normed), x = b_.chunk(s.x, c), x_before = sums ? b_.chunk(before->x, c) : Slice{};
      if (drops) drop(before->place(), rate, x_before, x, c);
      if (sums && !drops)
        ops.norm(x_before, b_.own(delta, c), x, chunk_of(s.norm, c), b_.own(out, c));
      else
        ops.norm(x, {}, {}, chunk_of(s.norm, c), b_.own(out, c));
      b_.gather(b_.own(out, c), out, c);
    };
    stages.push_back({s.layer ? s.name : s.norm_name, s.layer ? "norm" : "own", s.block, norm});
    if (s.layer)
      for (Stage& stage : s.layer->forward(ops, dropout, seen(s.normed), delta)) stages.push_back(std::move(stage));
    before = &s;
  }
  return stages;
}

}  // namespace slipstream::models
