// SPDX-License-Identifier: Apache-2.0
// The pieces of training and evaluation. Puts the stages of all layers in order, forward and backward, on one rank or
// on several ranks that share layers.

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
    if (o_.dropout.any()) {  // evaluation then has pieces of its own
      b_.into({&spec.evaluate});
      forward({});
      b_.into({&spec.forward});
      forward(o_.dropout);
    } else {
      b_.into({&spec.forward, &spec.evaluate});
      forward({});
    }
    b_.shared() ? b_.shared_losses() : b_.evaluate_head(m_.hidden(), m_.head);
    b_.into({&spec.backward});
    backward();
    return b_.finish(description);
  }

 private:
  Sublayer& sublayer(size_t i) { return m_.sublayers[i]; }
  size_t last() const { return m_.sublayers.size() - 1; }  // the final norm
  int end() const { return static_cast<int>(o_.layers); }

  void declare_gradients() {
    const int64_t D = o_.width;
    const Slice d_residual = b_.scratch_rows("d_residual", D);
    // With dropout, gradients of weights read d_mixer and d_mlp, and the gradients of the residual do not outlive them.
    const bool drops = o_.dropout.residual > 0;
    const Slice d_dropped = drops ? b_.scratch_rows("d_dropped", D) : Slice{};
    d_norm_ = b_.scratch_rows("d_norm", D);
    const int64_t own_rows_bytes = bytes_of(b_.own_rows(), DType::f32);
    if (b_.own_tokens()) {
      gathered_again_ = b_.scratch_rows("gathered_again", D);
      mean_again_ = b_.scratch("mean_again", own_rows_bytes);
      inv_std_again_ = b_.scratch("inv_std_again", own_rows_bytes);
    }
    const Slice d_crosses =
        b_.own_tokens() && !o_.cuts.empty() ? b_.scratch("d_crosses", bytes_of(b_.own_rows() * D, o_.dtype)) : Slice{};
    for (size_t i = 0; i <= last(); ++i) {
      Sublayer& s = sublayer(i);
      const std::string name = i == 0    ? "d_embedded"
                               : s.first ? b_.of_layer(s.block - 1, "d_out")
                                         : b_.of_layer(s.block, "d_mid");
      s.d_x.all = drops && i > 0 ? d_residual : b_.output_gradient(name, D, d_residual);
      if (m_.is_after_cut(s)) s.d_x.crosses = b_.own_tokens() ? d_crosses : s.d_x.all;
      if (s.layer) s.layer->declare_gradients();
    }
    for (size_t i = 0; i < last(); ++i) {
      Sublayer& s = sublayer(i);
      const Sublayer& next = sublayer(i + 1);
      s.d_y = drops ? b_.output_gradient(b_.of_layer(s.block, "d_" + s.name), D, d_dropped) : next.d_x.all;
      // The gradient of a bias is a sum over the rows of the gradient of an output. A layer norm after the residual sum
      // computes it together with the latter, if no dropout lies between them and the layer's gradients are in memory.
      const bool in_memory = !next.first || (!m_.is_after_cut(next) && !o_.whole_layers);
      if (Linear* const product = s.layer->last_product())
        product->sums_dy = !b_.sums_biases() || drops || next.norm.bias < 0 || !in_memory;
    }
  }

  // Forward pass: if ranks share layers, the token-wise stages between two whole ones run in chunks. On one rank,
  // stages with the same name and layer are one piece.

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
        {"head", "products", end(), [this](TokenChunk c) { b_.head_part(m_.seen(m_.hidden()), m_.head, c); }});
    for (Stage& stage : stages) {
      const int last = waiting_.empty() ? stage.layer : waiting_.back().layer;
      if (last != stage.layer && (last < 0 || o_.whole_layers)) flush();
      add(std::move(stage));
    }
    flush();
  }

  /// If ranks share layers, adds a whole stage after those that wait, and any other stage to those that wait.
  void add(Stage stage) {
    if (!stage.whole) return waiting_.push_back(std::move(stage));
    flush();
    if (!stage.piece.empty()) b_.begin(stage.piece, stage.layer);
    stage.body({});
  }
  void flush() { b_.in_chunks(std::exchange(waiting_, {})); }

  // Backward pass: gradients of inputs from the last layer to the first, and beside them those of weights. On one rank,
  // the gradients of weights come as early as they can, in one piece with the gradients of inputs before them. If ranks
  // share layers, the gradients of weights come after those of a layer's inputs, which are summed over the ranks while
  // the gradients of weights are computed.

  /// Adds the gradient of an input. On one rank it belongs to the next piece.
  void input(Stage stage) {
    if (!stage.body) return;
    if (!b_.shared()) return waiting_.push_back(std::move(stage));
    if (!waiting_.empty() && waiting_.back().is_part_of(stage))
      waiting_.back().body = [first = waiting_.back().body, then = stage.body](TokenChunk c) { first(c), then(c); };
    else
      add(std::move(stage));
  }
  /// Adds a piece after the gradients of inputs so far.
  void piece(const std::string& name, int l, const std::function<void()>& body) {
    if (b_.shared()) flush();
    b_.begin(name, l);
    for (const Stage& stage : std::exchange(waiting_, {})) stage.body({});
    body();
  }

  /// Computes d_norm_, the gradient of the norm's output.
  void layer_backward(size_t i) {
    const Sublayer& s = sublayer(i);
    const std::vector<GradientStep> steps = s.layer->backward(seen_again(s.normed), s.d_y, d_norm_);
    const Stage& first = steps.front().input;
    const auto beside_first = [&](std::function<void(TokenChunk)> body) {
      input({first.piece, first.part, s.block, std::move(body)});
    };
    if (o_.dropout.residual > 0)
      beside_first([=, this, &s, d_sum = sublayer(i + 1).d_x.all](TokenChunk c) {
        b_.dropout(s.place(), o_.dropout.residual, {}, b_.chunk(d_sum, c), b_.chunk(s.d_y, c),
                   c.index * (b_.rows() / c.count));
      });
    // Fetches what the next layer needs from other ranks. This must not begin earlier, because the first piece needs
    // all of a recomputed forward pass.
    const auto fetch = [&] {
      if (i > 0) sublayer(i - 1).layer->fetch();
    };
    if (!b_.shared()) {
      for (const GradientStep& step : steps) {
        if (step.piece != nullptr) piece(step.piece, s.block, step.weights);
        if (&step == &steps.front()) fetch();
        input(step.input);
      }
      return;
    }
    bool gathers = true;
    for (const GradientStep& step : steps) {
      if (step.input.whole) {
        // This runs after the last chunk: a stage of all tokens leaves bandwidth free, which the gathers of d_sum need
        // here.
        beside_first([this, &s](TokenChunk c) {
          if (c.index + 1 == c.count) gather_again(s);
        });
        gathers = false;
      }
      input(step.input);
    }
    if (gathers) beside_first([this, &s](TokenChunk c) { gather_again(s, c); });
    flush();
    fetch();
    for (const GradientStep& step : steps)
      if (step.piece != nullptr) piece(step.piece, s.block, step.weights);
  }

  /// The gradient of a norm's input is computed for the rank's own tokens and then gathered, because the weights and
  /// inputs before it need all tokens. At a cut, the previous stage gathers. Own rows are among all rows where they are
  /// gathered, and contiguous where they travel.
  void norm_backward(size_t i) {
    const Sublayer& s = sublayer(i);
    Linear* const before = i > 0 ? sublayer(i - 1).layer->last_product() : nullptr;
    const Slice residual = i < last() ? sublayer(i + 1).d_x.all : Slice{};
    const auto body = [=, this, &s](TokenChunk c) {
      const ResidualGradient& dx = s.d_x;
      const bool crosses = dx.crosses.size_bytes > 0;
      b_.norm_gradient(b_.own(d_norm_, c), b_.chunk(s.x, c), m_.chunk_of(s.norm, c),
                       residual.size_bytes > 0 ? b_.own(residual, c) : Slice{},
                       crosses ? b_.chunk(dx.crosses, c) : b_.own(dx.all, c), c,
                       before != nullptr ? *before : Linear{});
      if (!crosses) b_.gather(b_.own(dx.all, c), dx.all, c);
    };
    const std::string name = s.norm_name + "_gradient";
    b_.shared() ? input({name, "own", s.block, body}) : piece(name, s.block, [&] { body({}); });
  }
  /// After a cut, gathers all tokens of the gradient that the next stage has sent.
  void gather_arrived(const Sublayer& s) {
    flush();
    const ResidualGradient& d = s.d_x;
    if (d.crosses.size_bytes == 0 || !b_.own_tokens()) return;
    b_.begin("gather_gradient", s.block - 1);
    for (int i = 0; i < b_.chunks(); ++i) b_.gather(b_.chunk(d.crosses, {i, b_.chunks()}), d.all, {i, b_.chunks()});
  }
  /// Adds the last gradients of a sublayer, which are sums over ranks.
  void add_shares(const Sublayer& s) {
    if (s.layer) s.layer->complete_gradients();
    if (!b_.own_tokens()) return;
    b_.begin(s.norm_name + "_share", s.block);
    b_.add_partial(s.norm.partial, s.norm.parameters());
  }

  void head_backward() {
    if (!b_.shared()) return b_.head(m_.hidden(), m_.head, d_norm_);
    if (b_.own_tokens()) {
      b_.begin("hidden_again", end());
      gather_again(sublayer(last()));
    }
    b_.in_chunks({{"head_input_gradient", "products", end(), [this](TokenChunk c) {
                     b_.head_input_gradient(m_.head, d_norm_, c);
                     b_.reduce(d_norm_, c);
                   }}});
    b_.head_weight_gradient(seen_again(m_.hidden()), m_.head);
  }

  void backward() {
    head_backward();
    norm_backward(last());
    for (size_t i = last(); i-- > 0;) {
      const Sublayer& next = sublayer(i + 1);
      // Shares are added while sums of the previous layer travel, unless the memory of the layer's gradients ends here.
      const bool at_once = next.first && o_.whole_layers;
      if (at_once) flush(), add_shares(next);
      if (m_.is_after_cut(next)) gather_arrived(next);
      layer_backward(i);
      if (!at_once) add_shares(next);
      norm_backward(i);
    }
    gather_arrived(sublayer(0));
    add_shares(sublayer(0));
    const Slice d = sublayer(0).d_x.all;
    b_.begin("embedding_gradient", -1);
    if (o_.dropout.embedding > 0) b_.dropout("embedding", o_.dropout.embedding, {}, d, d, 0);
    b_.embed_gradient(m_.table, m_.positions, d);
  }

  /// Returns the input of products after a norm.
  Slice seen_again(Slice normed) const { return b_.own_tokens() ? gathered_again_ : normed; }
  /// Gathers chunk c of a norm's output from all ranks, for gradients of weights. The second form gathers all chunks.
  void gather_again(const Sublayer& s, TokenChunk c) {
    if (!b_.own_tokens()) return;
    b_.norm(b_.chunk(s.x, c), {}, {},
            {s.norm.weight, s.norm.bias, b_.chunk(mean_again_, c), b_.chunk(inv_std_again_, c)},
            b_.own(gathered_again_, c));
    b_.gather(b_.own(gathered_again_, c), gathered_again_, c);
  }
  void gather_again(const Sublayer& s) {
    for (int i = 0; i < b_.chunks(); ++i) gather_again(s, {i, b_.chunks()});
  }

  SpecBuilder b_;
  const ModelOptions& o_;
  Decoder m_;
  std::vector<Stage> waiting_;        // stages that are not yet in pieces
  Slice d_norm_;                      // the gradient of a norm's output
  Slice gathered_again_;              // for all tokens: a norm's output as the input of products
  Slice mean_again_, inv_std_again_;  // never read
};

}  // namespace

ModelSpec build_decoder(const Architecture& family, const ModelOptions& options, Buffers& buffers) {
  return Training(family, options, buffers).build(family.description);
}

}  // namespace slipstream::models
