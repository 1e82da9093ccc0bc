// SPDX-License-Identifier: Apache-2.0
// Declares a decoder's parameters and activations, and lists the stages of its forward pass.

#include "models/layers/decoder.h"

#include <utility>

namespace slipstream::models {

Decoder::Decoder(const Architecture& family, SpecBuilder& builder) : b_(builder), o_(builder.options()) {
  constexpr Init kNormal{Init::Kind::normal, 0.02f};
  table = b_.vocab_parameter(family.table, -1, kNormal);
  if (!family.positions.empty()) positions = b_.parameter(family.positions, {o_.context, o_.width}, -1, kNormal);
  for (int l = 0; l < end(); ++l) {
    const BlockKind& kind = family.blocks[static_cast<size_t>(l)];
    const std::string prefix = fmt::format("{}{}.", family.prefix, l);
    Block& y = blocks.emplace_back();  // in the order of declaration
    y.norm_1 = declare_norm(b_, prefix, l, kind.norm_1);
    y.mixer = kind.mixer.declare(b_, prefix, l);
    y.norm_2 = declare_norm(b_, prefix, l, kind.norm_2);
    y.mlp = kind.mlp.declare(b_, prefix, l);
  }
  final_norm = declare_norm(b_, "", end(), family.final_norm);
  head = b_.head_table(table, family.head, kNormal);
  embedded = b_.own_activation("embedded", o_.width);
  for (int l = 0; l < end(); ++l) declare_activations(l);
  final_norm = with_memory(final_norm, "norm_f");
  residual_out = residual("residual_out");
  if (!b_.own_tokens()) hidden = normed("hidden");
  delta_ = b_.scratch_rows("delta", o_.width);
  if (b_.own_tokens()) gathered_ = b_.scratch_rows("gathered", o_.width);
}

/// If ranks share the tokens of norms, no norm output is kept: in the backward pass each rank recomputes its own
/// tokens, at the cost of copying them, and gathers the inputs of products again.
void Decoder::declare_activations(int l) {
  Block& y = blocks[static_cast<size_t>(l)];
  const auto name = [&](const char* of) { return b_.of_layer(l, of); };
  y.norm_1 = with_memory(y.norm_1, name("norm_1"));
  y.norm_2 = with_memory(y.norm_2, name("norm_2"));
  // The first block reads the embedding itself; the others store the sum that their first norm computes.
  y.residual_in = l == 0 ? embedded : residual(name("residual_in"));
  if (!b_.own_tokens()) y.normed_1 = normed(name("normed_1"));
  y.mixer->declare_activations();
  y.residual_mid = residual(name("residual_mid"));
  if (!b_.own_tokens()) y.normed_2 = normed(name("normed_2"));
  y.mlp->declare_activations();
  for (Slice made : {y.normed_1, y.norm_1.mean, y.norm_1.inv_std, y.normed_2, y.norm_2.mean, y.norm_2.inv_std})
    if (made.size_bytes > 0 && !b_.own_tokens()) b_.cheap(made);
}

Norm Decoder::with_memory(Norm n, const std::string& name) {
  if (n.bias >= 0) n.mean = b_.statistics(name + ".mean", b_.own_rows());
  n.inv_std = b_.statistics(name + ".inv_std", b_.own_rows());
  n.partial = b_.norm_partial(name + ".gradient", static_cast<int64_t>(n.parameters().size()) * o_.width);
  return n;
}

/// Without a backward pass all sums of the residual are in one place, and so are all outputs of norms.
Slice Decoder::residual(const std::string& name) { return o_.trains ? b_.own_activation(name, o_.width) : embedded; }
Slice Decoder::normed(const std::string& name) { return b_.activation(o_.trains ? name : "normed", o_.width); }

/// A norm uses the rank's own rows.
Stage Decoder::norm_stage(Ops& ops, const char* piece, const char* part, int l, const Norm& n, const Sum& of,
                          Slice normed) {
  return {piece, part, l, [=, this, &ops](TokenChunk c) {
            const Slice out = seen(normed), x = b_.chunk(of.x, c), sum = b_.chunk(of.sum, c);
            if (of.rate > 0) {
              b_.dropout(of.place, of.rate, x, b_.own(of.delta, c), sum, b_.first_own_row(c));
              ops.norm(sum, {}, {}, chunk_of(n, c), b_.own(out, c));
            } else {
              ops.norm(x, of.delta.size_bytes > 0 ? b_.own(of.delta, c) : Slice{}, sum, chunk_of(n, c), b_.own(out, c));
            }
            b_.gather(b_.own(out, c), out, c);
          }};
}

/// The sum of a layer before a cut.
Stage Decoder::sum_stage(int l, const Sum& of) {
  return {"residual_sum", "own", l, [=, this](TokenChunk c) {
            const Slice x = b_.chunk(of.x, c), delta = b_.own(of.delta, c), sum = b_.chunk(of.sum, c);
            of.rate > 0 ? b_.dropout(of.place, of.rate, x, delta, sum, b_.first_own_row(c))
                        : b_.residual_sum(x, delta, sum);
          }};
}

std::vector<Stage> Decoder::forward(Ops& ops, const DropoutRates& dropout) {
  std::vector<Stage> stages;
  const auto add = [&](std::vector<Stage> more) {
    for (Stage& stage : more) stages.push_back(std::move(stage));
  };
  const double rate = dropout.residual, embedding_rate = dropout.embedding;
  const Slice sum = embedding_rate > 0 ? delta_ : embedded;
  stages.push_back(
      {"embedding", "", -1, [=, this, &ops](TokenChunk) { ops.embed(table, positions, sum, delta_); }, true});
  if (embedding_rate > 0)
    stages.push_back({"embedding", "dropout", -1, [=, this](TokenChunk c) {
                        b_.dropout("embedding", embedding_rate, {}, b_.own(delta_, c), b_.chunk(embedded, c),
                                   b_.first_own_row(c));
                      }});
  // The residual before the first norm of layer l: the sum that the layer before it has left to this norm, unless a cut
  // lies between the two.
  const auto before = [&](int l, Slice to) {
    return l == 0 || b_.cut_before(l)
               ? Sum{to}
               : Sum{blocks[static_cast<size_t>(l - 1)].residual_mid, delta_, to, mlp_place(l - 1), rate};
  };
  for (int l = 0; l < end(); ++l) {
    const Block& y = blocks[static_cast<size_t>(l)];
    stages.push_back(norm_stage(ops, "attention", "norm", l, y.norm_1, before(l, y.residual_in), y.normed_1));
    add(y.mixer->forward(ops, dropout, seen(y.normed_1), delta_));
    stages.push_back(norm_stage(ops, "mlp", "norm", l, y.norm_2,
                                {y.residual_in, delta_, y.residual_mid, mixer_place(l), rate}, y.normed_2));
    add(y.mlp->forward(ops, dropout, seen(y.normed_2), delta_));
    if (!b_.cut_before(l + 1)) continue;
    const Slice next = l + 1 == end() ? residual_out : blocks[static_cast<size_t>(l + 1)].residual_in;
    stages.push_back(sum_stage(l, {y.residual_mid, delta_, next, mlp_place(l), rate}));
  }
  stages.push_back(norm_stage(ops, "final_norm", "own", end(), final_norm, before(end(), residual_out), hidden));
  return stages;
}

}  // namespace slipstream::models
