// SPDX-License-Identifier: Apache-2.0
// The pieces of training and evaluation: puts the stages of all layers in order, forward and backward, on one rank or
// on several that share layers.

#include <utility>

#include "models/layers/decoder.h"

namespace slipstream::models {
namespace {

class Training {
 public:
  Training(const Architecture& family, const ModelOptions& options, Buffers& buffers)
      : b_(options, buffers), o_(b_.options()), m_(family, b_) {
    declare_gradients();
  }

  ModelSpec build(const std::string& description) {
    ModelSpec& spec = b_.spec();
    b_.into({&spec.forward});
    b_.take_batch();
    if (o_.dropout.any()) {  // evaluation has pieces of its own
      b_.into({&spec.evaluate});
      forward({});
      b_.into({&spec.forward});
      forward(o_.dropout);
    } else {
      b_.into({&spec.forward, &spec.evaluate});
      forward({});
    }
    b_.shared() ? b_.shared_losses() : b_.evaluate_head(m_.hidden, m_.head);
    b_.into({&spec.backward});
    backward();
    return b_.finish(description);
  }

 private:
  Block& block(int64_t l) { return m_.blocks[static_cast<size_t>(l)]; }
  int end() const { return m_.end(); }

  void declare_gradients() {
    const int64_t D = o_.width;
    const Slice d_residual = b_.scratch_rows("d_residual", D);
    // With dropout, gradients of weights read d_mixer and d_mlp, and those of the residual do not outlive them.
    const bool drops = o_.dropout.residual > 0;
    const Slice d_dropped = drops ? b_.scratch_rows("d_dropped", D) : Slice{};
    d_norm_ = b_.scratch_rows("d_norm", D);
    const int64_t own_rows_bytes = bytes_of(b_.own_rows(), DType::f32);
    if (b_.own_tokens()) {
      gathered_again_ = b_.scratch_rows("gathered_again", D);
      mean_again_ = b_.scratch("mean_again", own_rows_bytes);
      inv_std_again_ = b_.scratch("inv_std_again", own_rows_bytes);
    }
    const auto between = [&](int64_t l, const std::string& name) {
      const Slice all = drops && l > 0 ? d_residual : b_.output_gradient(name, D, d_residual);
      if (!b_.cut_before(l)) return ResidualGradient{all, {}};
      return ResidualGradient{all,
                              b_.own_tokens() ? b_.scratch("d_crosses", bytes_of(b_.own_rows() * D, o_.dtype)) : all};
    };
    for (int l = 0; l < end(); ++l) {
      Block& y = block(l);
      const auto name = [&](const char* of) { return b_.of_layer(l, of); };
      y.d_in = l == 0 ? between(0, "d_embedded") : block(l - 1).d_out;
      y.mixer->declare_gradients();
      y.d_mid = drops ? d_residual : b_.output_gradient(name("d_mid"), D, d_residual);
      y.mlp->declare_gradients();
      y.d_out = between(l + 1, name("d_out"));
      y.d_mixer = drops ? b_.output_gradient(name("d_attention"), D, d_dropped) : y.d_mid;
      y.d_mlp = drops ? b_.output_gradient(name("d_mlp"), D, d_dropped) : y.d_out.all;
      choose_bias_sums(l);
    }
  }

  /// The gradient of a bias is a sum over the rows of the gradient of an output. A layer norm after the residual sum
  /// forms it with the latter, if no dropout lies between and the layer's gradients are in memory.
  void choose_bias_sums(int l) {
    const bool may = b_.sums_biases() && o_.dropout.residual == 0;
    const auto choose = [&](Layer& layer, const Norm& next, bool in_memory) {
      if (Linear* const last = layer.last_product()) last->sums_dy = !may || next.bias < 0 || !in_memory;
    };
    choose(*block(l).mixer, block(l).norm_2, true);
    choose(*block(l).mlp, l + 1 == end() ? m_.final_norm : block(l + 1).norm_1,
           !b_.cut_before(l + 1) && !o_.whole_layers);
  }

  // Forward: if ranks share layers, the token-wise stages between two whole ones run in chunks. On one rank, stages
  // with one name and layer are one piece.

  void forward(const DropoutRates& dropout) {
    std::vector<Stage> stages = m_.forward(b_, dropout);
    if (!b_.shared()) {
      for (size_t s = 0; s < stages.size(); ++s) {
        if (s == 0 || stages[s - 1].piece != stages[s].piece || stages[s - 1].layer != stages[s].layer)
          b_.begin(stages[s].piece, stages[s].layer);
        stages[s].body({});
      }
      return;
    }
    stages.push_back(
        {"head", "products", end(), [this](TokenChunk c) { b_.head_part(m_.seen(m_.hidden), m_.head, c); }});
    for (Stage& stage : stages) {
      const int last = waiting_.empty() ? stage.layer : waiting_.back().layer;
      if (last != stage.layer && (last < 0 || o_.whole_layers)) flush();
      add(std::move(stage));
    }
    flush();
  }

  /// If ranks share layers: adds a stage after those that wait, if it is whole, and otherwise to these.
  void add(Stage stage) {
    if (!stage.whole) return waiting_.push_back(std::move(stage));
    flush();
    if (!stage.piece.empty()) b_.begin(stage.piece, stage.layer);
    stage.body({});
  }
  void flush() { b_.in_chunks(std::exchange(waiting_, {})); }

  // Backward: gradients of inputs from the last layer to the first, and beside them those of weights. On one rank the
  // gradients of weights come as early as they can, in one piece with the gradients of inputs before them. If ranks
  // share layers, the gradients of weights come after those of a layer's inputs, which are summed over the ranks while
  // the gradients of weights are computed.

  /// The gradient of an input. On one rank it belongs to the next piece.
  void input(Stage stage) {
    if (!b_.shared()) return waiting_.push_back(std::move(stage));
    if (!waiting_.empty() && waiting_.back().is_part_of(stage))
      waiting_.back().body = [first = waiting_.back().body, then = stage.body](TokenChunk c) { first(c), then(c); };
    else
      add(std::move(stage));
  }
  /// A piece after the gradients of inputs so far.
  void piece(const std::string& name, int l, const std::function<void()>& body) {
    if (b_.shared()) flush();
    b_.begin(name, l);
    for (const Stage& stage : std::exchange(waiting_, {})) stage.body({});
    body();
  }

  /// A layer after norm `n` of x, which has made `normed`.
  struct Place {
    const Layer& layer;
    int index;
    const Norm& n;
    Slice x, normed;
    Slice d_sum, d;       // gradients of the residual after the layer, and, by dropout, of the layer's output
    std::string dropout;  // the layer's name there
  };
  /// Makes d_norm_. `fetch` is called after the first piece.
  void layer_backward(const Place& at, const std::function<void()>& fetch) {
    const std::vector<GradientStep> steps = at.layer.backward(seen_again(at.normed), at.d, d_norm_);
    const Stage& first = steps.front().input;
    const int l = at.index;
    const Norm n = at.n;
    const Slice x = at.x;
    const auto beside_first = [&](std::function<void(TokenChunk)> body) {
      input({first.piece, first.part, l, std::move(body)});
    };
    if (o_.dropout.residual > 0)
      beside_first([=, this, d_sum = at.d_sum, d = at.d, place = at.dropout](TokenChunk c) {
        b_.dropout(place, o_.dropout.residual, {}, b_.chunk(d_sum, c), b_.chunk(d, c), c.index * (b_.rows() / c.count));
      });
    if (!b_.shared()) {
      for (const GradientStep& step : steps) {
        if (step.piece != nullptr) piece(step.piece, l, step.weights);
        if (&step == &steps.front()) fetch();
        input(step.input);
      }
      return;
    }
    bool gathers = true;
    for (const GradientStep& step : steps) {
      if (step.input.whole) {
        // After the last chunk: a stage of all tokens leaves bandwidth free; here the gathers of d_sum need it.
        beside_first([=, this](TokenChunk c) {
          for (int i = 0; i < c.count && c.index + 1 == c.count; ++i) gather_again(n, x, {i, c.count});
        });
        gathers = false;
      }
      if (step.input.body) input(step.input);
    }
    if (gathers) beside_first([=, this](TokenChunk c) { gather_again(n, x, c); });
    flush();
    fetch();
    for (const GradientStep& step : steps)
      if (step.piece != nullptr) piece(step.piece, l, step.weights);
  }

  /// Gradient of a norm's input: computed for the rank's own tokens and then gathered, because weights and inputs
  /// before it need all tokens; at a cut the previous stage gathers. Own rows are among all rows where they are
  /// gathered, and contiguous where they travel. `before`: the layer whose output the residual x has added, or null.
  void norm_backward(const char* name, int l, const Norm& n, Slice x, Slice residual, const ResidualGradient& dx,
                     Layer* before) {
    const Linear* const last = before != nullptr ? before->last_product() : nullptr;
    const auto body = [=, this](TokenChunk c) {
      const bool crosses = dx.crosses.size_bytes > 0;
      b_.norm_gradient(b_.own(d_norm_, c), b_.chunk(x, c), m_.chunk_of(n, c),
                       residual.size_bytes > 0 ? b_.own(residual, c) : Slice{},
                       crosses ? b_.chunk(dx.crosses, c) : b_.own(dx.all, c), c, last != nullptr ? *last : Linear{});
      if (!crosses) b_.gather(b_.own(dx.all, c), dx.all, c);
    };
    b_.shared() ? input({name, "own", l, body}) : piece(name, l, [&] { body({}); });
  }
  /// After a cut: gathers all tokens of the gradient that the next stage has sent.
  void gather_arrived(int l, const ResidualGradient& d) {
    flush();
    if (d.crosses.size_bytes == 0 || !b_.own_tokens()) return;
    b_.begin("gather_gradient", l);
    for (int i = 0; i < b_.chunks(); ++i) b_.gather(b_.chunk(d.crosses, {i, b_.chunks()}), d.all, {i, b_.chunks()});
  }
  void add_share(const char* name, int l, const Norm& n) {
    if (!b_.own_tokens()) return;
    b_.begin(name, l);
    b_.add_partial(n.partial, n.parameters());
  }
  /// The last gradients of a layer that are sums over ranks.
  void add_first_shares(int l) {
    if (l == end()) return add_share("final_norm_share", l, m_.final_norm);
    const Block& y = block(l);
    y.mlp->complete_gradients();
    y.mixer->complete_gradients();
    add_share("norm_1_share", l, y.norm_1);
  }

  void head_backward() {
    if (!b_.shared()) return b_.head(m_.hidden, m_.head, d_norm_);
    if (b_.own_tokens()) {
      b_.begin("hidden_again", end());
      for (int i = 0; i < b_.chunks(); ++i) gather_again(m_.final_norm, m_.residual_out, {i, b_.chunks()});
    }
    b_.in_chunks({{"head_input_gradient", "products", end(), [this](TokenChunk c) {
                     b_.head_input_gradient(m_.head, d_norm_, c);
                     b_.reduce(d_norm_, c);
                   }}});
    b_.head_weight_gradient(seen_again(m_.hidden), m_.head);
  }

  void backward() {
    head_backward();
    norm_backward("final_norm_gradient", end(), m_.final_norm, m_.residual_out, {}, block(end() - 1).d_out,
                  block(end() - 1).mlp.get());
    for (int l = end() - 1; l >= 0; --l) {
      Block& y = block(l);
      if (o_.whole_layers) {
        flush();
        add_first_shares(l + 1);
      }
      if (b_.cut_before(l + 1)) gather_arrived(l, y.d_out);
      layer_backward({*y.mlp, l, y.norm_2, y.residual_mid, y.normed_2, y.d_out.all, y.d_mlp, m_.mlp_place(l)},
                     // Only after the pieces that need all of a recomputed forward pass.
                     [&] { y.mixer->fetch(); });
      if (!o_.whole_layers) add_first_shares(l + 1);
      norm_backward("norm_2_gradient", l, y.norm_2, y.residual_mid, y.d_out.all, {y.d_mid, {}}, y.mixer.get());
      layer_backward({*y.mixer, l, y.norm_1, y.residual_in, y.normed_1, y.d_mid, y.d_mixer, m_.mixer_place(l)}, [] {});
      add_share("norm_2_share", l, y.norm_2);
      norm_backward("norm_1_gradient", l, y.norm_1, y.residual_in, y.d_mid, y.d_in,
                    l > 0 ? block(l - 1).mlp.get() : nullptr);
    }
    gather_arrived(-1, block(0).d_in);
    add_first_shares(0);
    const Slice d = block(0).d_in.all;
    b_.begin("embedding_gradient", -1);
    if (o_.dropout.embedding > 0) b_.dropout("embedding", o_.dropout.embedding, {}, d, d, 0);
    b_.embed_gradient(m_.table, m_.positions, d);
  }

  /// The input of products after a norm.
  Slice seen_again(Slice normed) const { return b_.own_tokens() ? gathered_again_ : normed; }
  /// Chunk c of a norm's output from all ranks, for gradients of weights.
  void gather_again(const Norm& n, Slice x, TokenChunk c) {
    if (!b_.own_tokens()) return;
    b_.norm(b_.chunk(x, c), {}, {}, {n.weight, n.bias, b_.chunk(mean_again_, c), b_.chunk(inv_std_again_, c)},
            b_.own(gathered_again_, c));
    b_.gather(b_.own(gathered_again_, c), gathered_again_, c);
  }

  SpecBuilder b_;
  const ModelOptions& o_;
  Decoder m_;
  std::vector<Stage> waiting_;        // not yet in pieces
  Slice d_norm_;                      // gradient of a norm's output
  Slice gathered_again_;              // of all tokens: a norm's output as the input of products
  Slice mean_again_, inv_std_again_;  // never read
};

}  // namespace

ModelSpec build_decoder(const Architecture& family, const ModelOptions& options, Buffers& buffers) {
  return Training(family, options, buffers).build(family.description);
}

}  // namespace slipstream::models
