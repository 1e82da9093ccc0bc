// SPDX-License-Identifier: Apache-2.0
// The pieces of a decoder, forward and backward, in the order in which they run.

#include "models/common/decoder.h"

#include <algorithm>
#include <utility>

#include <fmt/core.h>

#include "models/common/ring.h"

namespace slipstream::models {
namespace {

/// Gradient of the residual between two blocks.
struct ResidualGradient {
  Slice all;      // rows of all tokens
  Slice crosses;  // sent to the previous stage at a cut here; the rank's own rows
};

struct Block : BlockParameters {
  Slice residual_in, normed_1, raw, qkv_out, lse, attended;  // activations kept for backward; raw: before head norms
  Slice residual_mid, normed_2, up_out, active;
  Linear projection;  // D -> q, k and v of this rank
  Slice kv_partial;
  ResidualGradient d_in, d_out;
  Slice d_qkv, d_mid, d_up;  // gradients of qkv_out, residual_mid and up_out
  Slice d_attention, d_mlp;  // of the outputs of both products; without dropout d_mid and d_out
};

class Decoder {
  using Stage = SpecBuilder::Stage;

 public:
  Decoder(const Architecture& family, const ModelOptions& options, Buffers& buffers)
      : f_(family), o_(options), b_(options, buffers), ring_(b_) {}

  ModelSpec build() {
    declare();
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
    b_.shared() ? b_.shared_losses() : b_.evaluate_head(hidden_, head_);
    b_.into({&spec.backward});
    backward();
    return b_.finish(f_.description);
  }

 private:
  Block& block(int64_t l) { return blocks_[static_cast<size_t>(l)]; }
  int end() const { return static_cast<int>(o_.layers); }

  void declare() {
    table_ = b_.vocab_parameter(f_.table, -1, {Init::Kind::normal, 0.02f});
    if (!f_.rotary) positions_ = b_.parameter(f_.positions, {o_.context, o_.width}, -1, {Init::Kind::normal, 0.02f});
    embedded_ = b_.own_activation("embedded", o_.width);
    for (int l = 0; l < end(); ++l) declare_block(l);
    final_ = with_memory(f_.final_norm(b_), "norm_f");
    head_ = b_.head_table(table_, f_.head, {Init::Kind::normal, 0.02f});
    residual_out_ = b_.own_activation("residual_out", o_.width);
    if (!b_.own_tokens()) hidden_ = b_.activation("hidden", o_.width);
    declare_scratch();
    declare_gradients();
  }

  /// Declares the activations that the forward pass keeps for the backward pass. If ranks share the tokens of norms, no
  /// norm output is kept: in the backward pass each rank recomputes its own tokens, at the cost of copying them, and
  /// gathers the inputs of products again.
  void declare_block(int l) {
    const int64_t D = o_.width, F = b_.ffn_width(), R = b_.rows();
    const std::string a = fmt::format("layer{}.", l);
    Block y{f_.block(b_, l)};
    // Bias gradients are sums over the rows of the gradients of outputs. The work that writes such a gradient forms
    // them where it sees all rows, and where weight gradients are not delayed.
    const bool sees_all = !b_.shared() && !o_.split_backward,
               of_norm = sees_all && y.norm_2.bias >= 0 && o_.dropout.residual == 0;
    y.up.sums_dy = f_.gated || !sees_all;
    y.out.sums_dy = !of_norm;
    // The norm of the next layer: on the same rank, and with this layer's gradients in memory.
    y.down.sums_dy = !of_norm || b_.cut_before(l + 1) || o_.whole_layers;
    y.projection = y.qkv;
    if (b_.shares_kv()) {
      y.projection = b_.joined_qkv(y.qkv, y.kv);
      y.kv_partial = b_.kv_partial(y.kv);
    }
    y.norm_1 = with_memory(y.norm_1, a + "norm_1");
    y.norm_2 = with_memory(y.norm_2, a + "norm_2");
    // The first block reads the embedding itself; the others store the sum that their first norm computes.
    y.residual_in = l == 0 ? embedded_ : b_.own_activation(a + "residual_in", D);
    if (!b_.own_tokens()) y.normed_1 = b_.activation(a + "normed_1", D);
    y.qkv_out = b_.activation(a + "qkv", b_.qkv_width());
    y.raw = y.qkv_out;
    if (y.head_norms.exist()) {
      y.raw = b_.activation(a + "qkv_raw", b_.qkv_width());
      y.head_norms.inv_rms = b_.statistics(a + "head_norms.inv_rms", (b_.heads() + b_.kv_heads()) * R);
      y.head_norms.partial = b_.head_norm_partial(a + "head_norms.gradient");
    }
    y.lse = b_.statistics(a + "lse", b_.heads() * R);
    y.attended = b_.activation(a + "attended", b_.attention_width());
    y.residual_mid = b_.own_activation(a + "residual_mid", D);
    if (!b_.own_tokens()) y.normed_2 = b_.activation(a + "normed_2", D);
    y.up_out = b_.activation(a + "up", y.up.out);
    y.active = b_.activation(a + "active", F);
    for (Slice made : {y.normed_1, y.norm_1.mean, y.norm_1.inv_std, y.normed_2, y.norm_2.mean, y.norm_2.inv_std})
      if (made.size_bytes > 0 && !b_.own_tokens()) b_.cheap(made);
    // Not GELU's output: the product rounds GELU's input only afterwards, so that recomputing GELU from the kept value
    // would give other bits.
    if (f_.gated) b_.cheap(y.active);
    blocks_.push_back(y);
  }

  void declare_scratch() {
    const int64_t D = o_.width, F = b_.ffn_width(), R = b_.rows();
    const auto rows = [&](const char* name, int64_t width) { return b_.scratch(name, bytes_of(R * width, o_.dtype)); };
    delta_ = rows("delta", D);
    d_residual_ = rows("d_residual", D);
    if (o_.dropout.residual > 0) d_dropped_ = rows("d_dropped", D);
    d_norm_ = rows("d_norm", D);
    // With chunks in flight, d_norm still holds chunks of the last norm while the first chunks of attention are
    // computed.
    d_attended_ = b_.shared() || b_.attention_width() != D ? rows("d_attended", b_.attention_width()) : d_norm_;
    if (f_.gated) d_active_ = rows("d_active", F);
    d_wide_ = rows("d_wide", std::max(blocks_.front().up.out, b_.qkv_width()));
    if (!b_.own_tokens()) return;
    gathered_ = rows("gathered", D);
    gathered_again_ = rows("gathered_again", D);
    for (Slice* made : {&mean_again_, &inv_std_again_})
      *made = b_.scratch(made == &mean_again_ ? "mean_again" : "inv_std_again", bytes_of(b_.own_rows(), DType::f32));
    if (!o_.cuts.empty()) d_crosses_ = b_.scratch("d_crosses", bytes_of(b_.own_rows() * D, o_.dtype));
  }

  void declare_gradients() {
    const int64_t D = o_.width;
    // With dropout, gradients of weights read d_attention and d_mlp, and those of the residual do not outlive them.
    const bool drops = o_.dropout.residual > 0;
    const auto between = [&](int64_t l, const std::string& name) {
      const Slice all = drops && l > 0 ? d_residual_ : b_.output_gradient(name, D, d_residual_);
      return ResidualGradient{all, !b_.cut_before(l) ? Slice{} : b_.own_tokens() ? d_crosses_ : all};
    };
    for (int l = 0; l < end(); ++l) {
      Block& y = block(l);
      const std::string a = fmt::format("layer{}.", l);
      y.d_in = l == 0 ? between(0, "d_embedded") : block(l - 1).d_out;
      y.d_qkv = b_.output_gradient(a + "d_qkv", b_.qkv_width(), b_.first_columns(d_wide_, b_.qkv_width()));
      y.d_mid = drops ? d_residual_ : b_.output_gradient(a + "d_mid", D, d_residual_);
      y.d_up = b_.output_gradient(a + "d_up", y.up.out, b_.first_columns(d_wide_, y.up.out));
      y.d_out = between(l + 1, a + "d_out");
      y.d_attention = drops ? b_.output_gradient(a + "d_attention", D, d_dropped_) : y.d_mid;
      y.d_mlp = drops ? b_.output_gradient(a + "d_mlp", D, d_dropped_) : y.d_out.all;
    }
  }

  Norm with_memory(Norm n, const std::string& name) {
    if (n.bias >= 0) n.mean = b_.statistics(name + ".mean", b_.own_rows());
    n.inv_std = b_.statistics(name + ".inv_std", b_.own_rows());
    n.partial = b_.norm_partial(name + ".gradient", static_cast<int64_t>(n.parameters().size()) * o_.width);
    return n;
  }
  Norm chunk_of(const Norm& n, TokenChunk c) const {
    return {n.weight, n.bias, b_.chunk(n.mean, c), b_.chunk(n.inv_std, c), n.partial};
  }
  /// The input of products after a norm, in a forward and in a backward pass.
  Slice seen(Slice normed) const { return b_.own_tokens() ? gathered_ : normed; }
  Slice seen_again(Slice normed) const { return b_.own_tokens() ? gathered_again_ : normed; }
  /// Chunk c of a norm's output from all ranks, for gradients of weights.
  void gather_again(const Norm& n, Slice x, TokenChunk c) {
    if (!b_.own_tokens()) return;
    b_.norm(b_.chunk(x, c), {}, {}, {n.weight, n.bias, b_.chunk(mean_again_, c), b_.chunk(inv_std_again_, c)},
            b_.own(gathered_again_, c));
    b_.gather(b_.own(gathered_again_, c), gathered_again_, c);
  }

  // Forward.

  static std::string attention_place(int64_t l) { return fmt::format("layer{}.attention", l); }
  static std::string mlp_place(int64_t l) { return fmt::format("layer{}.mlp", l); }

  /// The gradient of the output of a product before dropout from that of the residual after it.
  void dropout_gradient(const std::string& place, Slice d_sum, Slice d, TokenChunk c) {
    if (o_.dropout.residual == 0) return;
    b_.dropout(place, o_.dropout.residual, {}, b_.chunk(d_sum, c), b_.chunk(d, c), c.index * (b_.rows() / c.count));
  }

  /// The input of a norm: x, or the sum of x and the output `delta` of a product (all rows), which is stored.
  struct Sum {
    Slice x, delta = {}, sum = {};
    std::string place = {};  // of the product, for dropout
    double rate = 0;
  };

  /// A norm uses the rank's own rows.
  Stage norm_stage(const char* piece, const char* part, int l, const Norm& n, const Sum& of, Slice normed) {
    return {piece, part, l, [=, this](TokenChunk c) {
              const Slice out = seen(normed), x = b_.chunk(of.x, c), sum = b_.chunk(of.sum, c);
              if (of.rate > 0) {
                b_.dropout(of.place, of.rate, x, b_.own(of.delta, c), sum, b_.first_own_row(c));
                b_.norm(sum, {}, {}, chunk_of(n, c), b_.own(out, c));
              } else {
                b_.norm(x, of.delta.size_bytes > 0 ? b_.own(of.delta, c) : Slice{}, sum, chunk_of(n, c),
                        b_.own(out, c));
              }
              b_.gather(b_.own(out, c), out, c);
            }};
  }

  /// The sum of a layer before a cut.
  Stage sum_stage(int l, const Sum& of) {
    return {"residual_sum", "own", l, [=, this](TokenChunk c) {
              const Slice x = b_.chunk(of.x, c), delta = b_.own(of.delta, c), sum = b_.chunk(of.sum, c);
              of.rate > 0 ? b_.dropout(of.place, of.rate, x, delta, sum, b_.first_own_row(c))
                          : b_.residual_sum(x, delta, sum);
            }};
  }

  void embed(double rate) {
    b_.begin("embedding", -1);
    b_.embed(table_, positions_, rate > 0 ? delta_ : embedded_, delta_);
    if (rate == 0) return;
    const auto drop = [=, this](TokenChunk c) {
      b_.dropout("embedding", rate, {}, b_.own(delta_, c), b_.chunk(embedded_, c), b_.first_own_row(c));
    };
    b_.shared() ? b_.in_chunks({{"embedding", "dropout", -1, drop}}) : drop({});
  }

  void mlp(const Block& y, TokenChunk c) {
    const Slice x = b_.chunk(seen(y.normed_2), c), up = b_.chunk(y.up_out, c), active = b_.chunk(y.active, c);
    if (f_.gated) {
      b_.linear(x, y.up, up);
      b_.swiglu(up, active, b_.ffn_width());
    } else {
      b_.linear(x, y.up, active, up);
    }
    b_.partial_linear(active, y.down, b_.chunk(delta_, c));
    b_.reduce(delta_, c);
  }

  /// Adds all pieces before the losses.
  void forward(const DropoutRates& dropout) {
    const double rate = dropout.residual;
    embed(dropout.embedding);
    std::vector<Stage> stages;  // token-wise stages since the last attention
    for (int l = 0; l < end(); ++l) {
      const Block& y = block(l);
      stages.push_back(l == 0 || b_.cut_before(l)
                           ? norm_stage("attention", "norm", l, y.norm_1, {y.residual_in}, y.normed_1)
                           : norm_stage("attention", "norm", l, y.norm_1,
                                        {block(l - 1).residual_mid, delta_, y.residual_in, mlp_place(l - 1), rate},
                                        y.normed_1));
      stages.push_back({"attention", "qkv", l, [this, &y](TokenChunk c) {
                          if (b_.shares_kv() && c.index == 0) b_.assemble_qkv(y.qkv, y.kv, y.projection);
                          b_.linear(b_.chunk(seen(y.normed_1), c), y.projection, b_.chunk(y.raw, c));
                        }});
      b_.in_chunks(stages);
      stages.clear();
      if (b_.shared()) b_.begin("attention", l);
      if (y.head_norms.exist()) b_.head_norm(y.raw, y.head_norms, y.qkv_out);
      if (f_.rotary) b_.rotate(y.qkv_out, false);
      ring_.forward(l, dropout.attention, y.qkv_out, y.attended, y.lse);
      const auto out = [this, &y](TokenChunk c) {
        b_.partial_linear(b_.chunk(y.attended, c), y.out, b_.chunk(delta_, c));
        b_.reduce(delta_, c);
      };
      if (b_.shared())
        stages.push_back({"attention", "out", l, out});
      else
        out({});
      stages.push_back(norm_stage("mlp", "norm", l, y.norm_2,
                                  {y.residual_in, delta_, y.residual_mid, attention_place(l), rate}, y.normed_2));
      stages.push_back({"mlp", "products", l, [this, &y](TokenChunk c) { mlp(y, c); }});
      if (b_.cut_before(l + 1)) {
        const Slice sum = l + 1 == end() ? residual_out_ : block(l + 1).residual_in;
        stages.push_back(sum_stage(l, {y.residual_mid, delta_, sum, mlp_place(l), rate}));
      }
      if (!o_.whole_layers || !b_.shared()) continue;
      b_.in_chunks(stages);
      stages.clear();
    }
    stages.push_back(b_.cut_before(end())
                         ? norm_stage("final_norm", "own", end(), final_, {residual_out_}, hidden_)
                         : norm_stage("final_norm", "own", end(), final_,
                                      {blocks_.back().residual_mid, delta_, residual_out_, mlp_place(end() - 1), rate},
                                      hidden_));
    if (b_.shared())
      stages.push_back({"head", "products", end(), [this](TokenChunk c) { b_.head_part(seen(hidden_), head_, c); }});
    b_.in_chunks(stages);
  }

  // Backward: gradients of inputs from the last layer to the first, and beside them those of weights. On one rank the
  // gradients of weights come as early as they can, in one piece with the gradients of inputs before them. If ranks
  // share layers, the gradients of weights come after those of a layer's inputs, which are summed over the ranks while
  // the gradients of weights are computed.

  /// The gradient of a product's weights, and that of its input: both from the gradient of its output.
  struct Step {
    const char* piece = nullptr;  // of the weights; null: the step has none
    std::function<void()> weights = {};
    Stage input = {};
  };

  /// The gradient of an input. On one rank it belongs to the next piece.
  void input(Stage stage) {
    if (!b_.shared()) return inputs_.push_back(std::move(stage));
    if (stage.whole) {
      flush();
      if (!stage.piece.empty()) b_.begin(stage.piece, stage.layer);
      return stage.body({});
    }
    if (!inputs_.empty() && inputs_.back().is_part_of(stage))
      inputs_.back().body = [first = inputs_.back().body, then = stage.body](TokenChunk c) { first(c), then(c); };
    else
      inputs_.push_back(std::move(stage));
  }
  void flush() { b_.in_chunks(std::exchange(inputs_, {})); }
  /// A piece after the gradients of inputs so far.
  void piece(const std::string& name, int l, const std::function<void()>& body) {
    if (b_.shared()) flush();
    b_.begin(name, l);
    for (const Stage& stage : std::exchange(inputs_, {})) stage.body({});
    body();
  }

  /// Backward of a layer after norm `n` of x, from d_sum, the gradient of the residual after it. `place`: its name for
  /// dropout, which makes d of d_sum. `fetch` is called after the first piece.
  void layer_backward(
      const std::string& place, int l, Slice d_sum, Slice d, const Norm& n, Slice x, const std::vector<Step>& steps,
      const std::function<void()>& fetch = [] {}) {
    const Stage& first = steps.front().input;
    const auto beside_first = [&](std::function<void(TokenChunk)> body) {
      input({first.piece, first.part, l, std::move(body)});
    };
    beside_first([=, this](TokenChunk c) { dropout_gradient(place, d_sum, d, c); });
    if (!b_.shared()) {
      for (const Step& step : steps) {
        if (step.piece != nullptr) piece(step.piece, l, step.weights);
        if (&step == &steps.front()) fetch();
        input(step.input);
      }
      return;
    }
    bool gathers = true;
    for (const Step& step : steps) {
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
    for (const Step& step : steps)
      if (step.piece != nullptr) piece(step.piece, l, step.weights);
  }

  std::vector<Step> mlp_backward(const Block& y, int l) {
    const auto down = [this, &y](TokenChunk c) {
      const Slice up = b_.chunk(y.up_out, c), d_up = b_.chunk(y.d_up, c),
                  d_active = f_.gated ? b_.chunk(d_active_, c) : d_up;
      b_.linear_input_gradient(b_.chunk(y.d_mlp, c), y.down, d_active, f_.gated ? Slice{} : up, y.up);
      if (f_.gated) b_.swiglu_gradient(d_active, up, d_up, b_.ffn_width());
    };
    const auto up = [this, &y](TokenChunk c) {
      b_.linear_input_gradient(b_.chunk(y.d_up, c), y.up, b_.chunk(d_norm_, c));
      b_.reduce(d_norm_, c);
    };
    return {{"mlp_down_gradient",
             [this, &y] { b_.linear_weight_gradient(y.active, y.d_mlp, y.down); },
             {"mlp_input_gradient", "products", l, down}},
            {"mlp_up_gradient",
             [this, &y] { b_.linear_weight_gradient(seen_again(y.normed_2), y.d_up, y.up); },
             {"mlp_input_gradient", "products", l, up}}};
  }

  std::vector<Step> attention_backward(const Block& y, int l) {
    const auto out = [this, &y](TokenChunk c) {
      b_.linear_input_gradient(b_.chunk(y.d_attention, c), y.out, b_.chunk(d_attended_, c));
    };
    const auto attention = [this, &y, l](TokenChunk) {
      ring_.backward(l, d_attended_, y.qkv_out, y.attended, y.lse, y.d_qkv);
      // d_qkv becomes the gradient of what the product has written.
      if (f_.rotary) b_.rotate(y.d_qkv, true);
      if (y.head_norms.exist()) b_.head_norm_gradient(y.d_qkv, y.raw, y.head_norms);
    };
    const auto qkv = [this, &y](TokenChunk c) {
      if (b_.shares_kv() && c.index == 0) b_.assemble_qkv(y.qkv, y.kv, y.projection);
      b_.linear_input_gradient(b_.chunk(y.d_qkv, c), y.projection, b_.chunk(d_norm_, c));
      b_.reduce(d_norm_, c);
    };
    const auto qkv_weights = [this, &y] {
      b_.shares_kv() ? b_.qkv_weight_gradient(seen_again(y.normed_1), y.d_qkv, y.qkv, y.kv, y.kv_partial)
                     : b_.linear_weight_gradient(seen_again(y.normed_1), y.d_qkv, y.qkv);
    };
    const char* const one_piece = o_.context_ranks == 1 ? "attention_gradient" : "";  // a ring's have other names
    std::vector<Step> steps{{"attention_out_gradient",
                             [this, &y] { b_.linear_weight_gradient(y.attended, y.d_attention, y.out); },
                             {"attention_input_gradient", "out", l, out}},
                            {.input = {one_piece, "", l, attention, true}},
                            {"attention_qkv_gradient", qkv_weights, {"attention_input_gradient", "qkv", l, qkv}}};
    if (b_.shared() && y.head_norms.exist())
      steps.push_back(
          {"head_norms_share", [this, &y] { b_.add_partial(y.head_norms.partial, y.head_norms.parameters()); }});
    return steps;
  }

  /// Gradient of a norm's input: computed for the rank's own tokens and then gathered, because weights and inputs
  /// before it need all tokens; at a cut the previous stage gathers. Own rows are among all rows where they are
  /// gathered, and contiguous where they travel. `before`: the product whose output the residual before x has added.
  void norm_backward(const char* name, int l, const Norm& n, Slice x, Slice residual, const ResidualGradient& dx,
                     const Linear& before) {
    const auto body = [=, this](TokenChunk c) {
      const bool crosses = dx.crosses.size_bytes > 0;
      b_.norm_gradient(b_.own(d_norm_, c), b_.chunk(x, c), chunk_of(n, c),
                       residual.size_bytes > 0 ? b_.own(residual, c) : Slice{},
                       crosses ? b_.chunk(dx.crosses, c) : b_.own(dx.all, c), c, before);
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
    if (l == end()) return add_share("final_norm_share", l, final_);
    const Block& y = block(l);
    if (b_.shares_kv()) {
      b_.begin("kv_share", l);
      b_.add_kv_partial(y.kv, y.kv_partial);
    }
    add_share("norm_1_share", l, y.norm_1);
  }

  void head_backward() {
    if (!b_.shared()) return b_.head(hidden_, head_, d_norm_);
    if (b_.own_tokens()) {
      b_.begin("hidden_again", end());
      for (int i = 0; i < b_.chunks(); ++i) gather_again(final_, residual_out_, {i, b_.chunks()});
    }
    b_.in_chunks({{"head_input_gradient", "products", end(), [this](TokenChunk c) {
                     b_.head_input_gradient(head_, d_norm_, c);
                     b_.reduce(d_norm_, c);
                   }}});
    b_.head_weight_gradient(seen_again(hidden_), head_);
  }

  void backward() {
    head_backward();
    norm_backward("final_norm_gradient", end(), final_, residual_out_, {}, blocks_.back().d_out, blocks_.back().down);
    for (int l = end() - 1; l >= 0; --l) {
      const Block& y = block(l);
      if (o_.whole_layers) {
        flush();
        add_first_shares(l + 1);
      }
      if (b_.cut_before(l + 1)) gather_arrived(l, y.d_out);
      layer_backward(mlp_place(l), l, y.d_out.all, y.d_mlp, y.norm_2, y.residual_mid, mlp_backward(y, l),
                     // Only after the pieces that need all of a recomputed forward pass.
                     [&] { ring_.fetch(l, y.qkv_out); });
      if (!o_.whole_layers) add_first_shares(l + 1);
      norm_backward("norm_2_gradient", l, y.norm_2, y.residual_mid, y.d_out.all, {y.d_mid, {}}, y.out);
      layer_backward(attention_place(l), l, y.d_mid, y.d_attention, y.norm_1, y.residual_in, attention_backward(y, l));
      add_share("norm_2_share", l, y.norm_2);
      norm_backward("norm_1_gradient", l, y.norm_1, y.residual_in, y.d_mid, y.d_in,
                    l > 0 ? block(l - 1).down : Linear{});
    }
    gather_arrived(-1, block(0).d_in);
    add_first_shares(0);
    const Slice d = block(0).d_in.all;
    b_.begin("embedding_gradient", -1);
    if (o_.dropout.embedding > 0) b_.dropout("embedding", o_.dropout.embedding, {}, d, d, 0);
    b_.embed_gradient(table_, positions_, d);
  }

  const Architecture& f_;
  ModelOptions o_;
  SpecBuilder b_;
  Ring ring_;
  std::vector<Block> blocks_;
  std::vector<Stage> inputs_;  // of the backward pass, not yet in pieces
  Norm final_;
  uint32_t table_ = 0, head_ = 0;
  int64_t positions_ = -1;  // -1: rotary
  Slice embedded_, residual_out_, hidden_, delta_, d_residual_, d_norm_, d_active_, d_wide_, d_attended_;
  Slice gathered_, gathered_again_;   // of all tokens: a norm's output as the input of products
  Slice mean_again_, inv_std_again_;  // never read
  Slice d_crosses_, d_dropped_;
};

}  // namespace

ModelSpec build_decoder(const Architecture& family, const ModelOptions& options, Buffers& buffers) {
  return Decoder(family, options, buffers).build();
}

}  // namespace slipstream::models
