// SPDX-License-Identifier: Apache-2.0
// Runs the stages of a decoder's forward pass over the newest tokens. It implements Ops with the ops of training, of
// kernels/decode and of kernels/sample.

#include "models/generation.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "engine/base/check.h"
#include "engine/base/units.h"
#include "engine/device/clock.h"
#include "kernels/attention/attention.h"
#include "kernels/cast/cast.h"
#include "kernels/decode/decode.h"
#include "kernels/embedding/embedding.h"
#include "kernels/experts/grouped.h"
#include "kernels/experts/route.h"
#include "kernels/experts/rows.h"
#include "kernels/experts/weighted_swiglu.h"
#include "kernels/gelu/gelu.h"
#include "kernels/head_norm/head_norm.h"
#include "kernels/layer_norm/layer_norm.h"
#include "kernels/matmul/matmul.h"
#include "kernels/rms_norm/rms_norm.h"
#include "kernels/rope/rope.h"
#include "kernels/swiglu/swiglu.h"
#include "models/common/generation_device.h"
#include "models/common/generation_weights.h"
#include "models/common/token_choice.h"
#include "models/layers/decoder.h"

namespace slipstream::models {
namespace {

ModelOptions of_one_sequence(ModelOptions options, int64_t capacity) {
  options.trains = false;
  options.batch = 1;
  options.tokens = capacity;
  options.global_tokens = capacity;
  options.cuts.clear();
  options.ends_apart = false;
  options.sequence_parallel = false;
  options.expert_ranks = 1;
  options.expert_rank = 0;
  return options;
}

}  // namespace

struct Generation::State final : Ops {
  State(const ModelOptions& asked, GenerationSetup given)
      : setup(std::move(given)),
        o(of_one_sequence(asked, setup.capacity)),
        b(o, buffers),
        model(architecture_of(o), b),
        stages(model.forward(*this, {})),
        device(std::move(setup.device), setup.threads, setup.records),
        context(device.context()),
        choice(device, {.sequences = setup.sequences,
                        .vocab = setup.vocab > 0 ? setup.vocab : o.vocab,
                        .holes = setup.holes,
                        .sampling = setup.sampling,
                        .seed = setup.seed}),
        scratch(buffers.size()),
        weights(device, b, setup.dtype, setup.read) {
    if (model.positions < 0) make_angles();
    windows.resize(static_cast<size_t>(o.layers));
    lengths.resize(static_cast<size_t>(setup.sequences));
    cache = device.allocate(bytes_of(o.layers * setup.sequences * cache_elems(), setup.dtype), "keys and values");
  }

  int64_t kv_width() const { return 2 * b.kv_heads() * b.head_dim(); }
  int64_t kept() const { return kernels::key_cache_capacity(setup.capacity); }
  int64_t cache_elems() const { return kernels::key_cache_elems(kept(), b.kv_heads(), b.head_dim()); }
  const std::byte* weight(int64_t p) const { return weights.at(p); }
  const float* floats(int64_t p) { return p < 0 ? nullptr : reinterpret_cast<const float*>(weight(p)); }

  void make_angles() {
    std::vector<float> values(static_cast<size_t>(setup.capacity * b.head_dim()));
    kernels::rope_table(values.data(), setup.capacity, b.head_dim(), o.rope_theta, o.rope_scaling);
    angles = device.allocate(bytes_of(std::ssize(values), DType::f32), "angles of rotary embeddings");
    device.store(values, angles->data(), DType::f32);
  }

  float* rows_of(GenerationDevice::Scratch& at, int64_t count, int64_t width) {
    return device.floats(at, count * width);
  }
  /// Returns the memory of a buffer of the model for the rows of the pass.
  float* at(Slice slice, int64_t width) { return rows_of(scratch[slice.buffer], rows.count, width); }

  /// The rows of a pass. They are those of a step, or those of a prompt, which belong to one sequence and begin with
  /// its first token.
  struct Rows : TextRows {
    int prompt_of = -1;  // the sequence; -1: the pass is a step
    bool are_a_prompt() const { return prompt_of >= 0; }
    /// Returns the number of last rows for which a token is drawn.
    int64_t drawing() const { return are_a_prompt() ? 1 : count; }
  };

  /// A product of some rows with a weight [out, in] in memory.
  struct Product {
    const float* x;
    const std::byte* weight;
    const float* bias;
    float* y;
    int64_t rows, in, out;
  };
  void few_rows(const Product& of) {
    for (int64_t r = 0; r < of.rows; r += kernels::kFewRows)
      kernels::few_rows_product(context, {.x = of.x + r * of.in,
                                          .weight = of.weight,
                                          .bias = of.bias,
                                          .y = of.y + r * of.out,
                                          .rows = std::min(kernels::kFewRows, of.rows - r),
                                          .in = of.in,
                                          .out = of.out,
                                          .dtype = setup.dtype});
  }
  /// The rows of a step are multiplied a few at a time, so that the bits of one row do not depend on the number of
  /// rows.
  void product(const Product& of) {
    if (of.rows <= kernels::kFewRows || !rows.are_a_prompt()) return few_rows(of);
    const std::byte* from = of.weight;
    if (setup.dtype != DType::f32) {
      float* const wide = rows_of(wide_weight, of.out, of.in);
      kernels::cast(context, {.from = from, .to = wide, .elems = of.out * of.in, .from_dtype = setup.dtype});
      from = reinterpret_cast<const std::byte*>(wide);
    }
    kernels::matmul_forward(
        context, {.x = of.x, .weight = from, .bias = of.bias, .y = of.y, .rows = of.rows, .in = of.in, .out = of.out});
  }
  void product(const float* x, const Linear& w, float* y, bool adds_bias) {
    product({x, weight(w.weight), adds_bias ? floats(w.bias) : nullptr, y, rows.count, w.in, w.out});
  }

  /// y[r] = row ids[r] of a table of `dtype` whose first row is `first`.
  void look_up(const std::byte* from, DType dtype, const int32_t* ids, int64_t width, float* y, int64_t table_rows,
               int64_t first = 0, bool part = false) {
    const int64_t count = rows.count;
    kernels::EmbeddingForward args{.ids = ids,
                                   .table = from,
                                   .y = y,
                                   .batch = 1,
                                   .tokens = count,
                                   .width = width,
                                   .dtype = dtype,
                                   .vocab = table_rows,
                                   .first = first,
                                   .part = part};
    if (dtype != DType::f32) args.y = rows_of(narrow_rows, count, width);
    kernels::embedding_forward(context, args);
    if (dtype != DType::f32)
      kernels::cast(context, {.from = args.y, .to = y, .elems = count * width, .from_dtype = dtype});
  }

  /// Returns the cosines and sines of the rows' positions, or null without rotary embeddings.
  const float* angles_of_pass() {
    if (!angles) return nullptr;
    if (rows.are_a_prompt()) return reinterpret_cast<const float*>(angles->data());
    float* const some = rows_of(angles_of_rows, rows.count, b.head_dim());
    look_up(angles->data(), DType::f32, rows.places, b.head_dim(), some, setup.capacity);
    return some;
  }

  // --- Ops, for all rows of the pass. Vocabulary rows of other ranks stay with those ranks.
  void embed(uint32_t table, int64_t positions, Slice to, Slice partial) override {
    const int64_t D = o.width, vocab = b.vocab_rows();
    float* const x = at(to, D);
    look_up(weight(table), setup.dtype, rows.ids, D, x, vocab, o.tensor_index * vocab, o.tensor > 1);
    if (positions >= 0 && o.tensor_index == 0) {
      float* const of_positions = at(partial, D);
      look_up(weight(positions), setup.dtype, rows.places, D, of_positions, o.context);
      kernels::add(context, {.x = of_positions, .y = x, .elems = rows.count * D});
    }
    reduce(to, {});
  }
  void norm(Slice from, Slice delta, Slice sum, const Norm& n, Slice to) override {
    float* const scale = rows_of(statistics, 2 * rows.count, 1);
    const auto with_operands = [&](auto args) {
      args.x = at(from, o.width);
      if (delta.size_bytes > 0) args.delta = at(delta, o.width), args.sum = at(sum, o.width);
      args.weight = weight(n.weight);
      args.y = at(to, o.width);
      args.rows = rows.count;
      args.width = o.width;
      args.eps = o.norm_eps;
      return args;
    };
    if (n.bias < 0)
      kernels::rms_norm_forward(context, with_operands(kernels::RmsNormForward{.inv_rms = scale}));
    else
      kernels::layer_norm_forward(context, with_operands(kernels::LayerNormForward{
                                               .bias = weight(n.bias), .mean = scale, .inv_std = scale + rows.count}));
  }
  void linear(Slice x, const Linear& w, Slice y) override { product(at(x, w.in), w, at(y, w.out), true); }
  void linear_gelu(Slice x, const Linear& w, Slice pre, Slice y) override {
    linear(x, w, pre);
    kernels::gelu_forward(context, {.x = at(pre, w.out), .y = at(y, w.out), .elems = rows.count * w.out});
  }
  void partial_linear(Slice x, const Linear& w, Slice y) override {
    product(at(x, w.in), w, at(y, w.out), o.tensor_index == 0);
  }
  void reduce(Slice partial, TokenChunk, Slice = {}) override {
    if (o.tensor == 1) return;
    float* const sums = at(partial, o.width);
    const std::span<float> values = device.to_host(sums, rows.count * o.width);
    setup.sum(values);
    device.to_device(values, sums);
  }
  void swiglu(Slice gate_up, Slice y, int64_t width) override {
    kernels::swiglu_forward(context,
                            {.gate_up = at(gate_up, 2 * width), .y = at(y, width), .rows = rows.count, .width = width});
  }
  /// Returns the memory of a buffer of the model for a row of each choice of the pass.
  float* of_choices(Slice slice, int64_t width) {
    return rows_of(scratch[slice.buffer], rows.count * o.experts.top_k, width);
  }
  int32_t* indices(Slice slice, int64_t count) {
    return reinterpret_cast<int32_t*>(rows_of(scratch[slice.buffer], count, 1));
  }
  void route(Slice x, const Router& router) override {
    const ExpertOptions& e = router.options;
    float* const logits = at(router.logits, e.count);
    product(at(x, o.width), {.weight = router.weight, .in = o.width, .out = e.count}, logits, false);
    kernels::route_forward(context, {.logits = logits,
                                     .scores = at(router.scores, e.count),
                                     .chosen = indices(router.chosen, rows.count * e.top_k),
                                     .weights = of_choices(router.weights, 1),
                                     .tokens = rows.count,
                                     .experts = e.count,
                                     .top_k = e.top_k,
                                     .groups = e.groups,
                                     .group_top_k = e.group_top_k,
                                     .router = e.router,
                                     .normalize = e.normalize,
                                     .scale = static_cast<float>(e.scale)});
  }
  void take_rows(Slice x, const Router& router, const ExpertRoute& route, Slice to) override {
    const ExpertOptions& e = router.options;
    const int64_t count = rows.count * e.top_k;
    kernels::arrange_rows(context, {.chosen = indices(router.chosen, count),
                                    .offsets = indices(route.offsets, e.count + 1),
                                    .rows = indices(route.choices, count),
                                    .places = indices(route.places, count),
                                    .tokens = rows.count,
                                    .experts = e.count,
                                    .top_k = e.top_k});
    kernels::take_rows(context, {.from = at(x, o.width),
                                 .rows = indices(route.choices, count),
                                 .to = of_choices(to, o.width),
                                 .top_k = e.top_k,
                                 .max_rows = count,
                                 .width = o.width,
                                 .weights = of_choices(router.weights, 1),
                                 .row_weights = of_choices(route.weights, 1)});
  }
  void send_rows(Slice, const ExpertRoute&, Slice) override {}  // every rank has all experts
  void find_own_rows(const ExpertRoute&) override {}
  void send_back(Slice, const ExpertRoute&, Slice) override {}
  /// On a GPU the host does not know how many rows an expert has, and one kernel computes the products of all.
  void expert_linear(Slice from, const ExpertLinear& w, const ExpertRoute& route, Slice to) override {
    const int64_t count = rows.count * o.experts.top_k;
    const int32_t* const offsets = indices(route.offsets, w.experts + 1);
    float* const x = of_choices(from, w.in);
    float* const y = of_choices(to, w.out);
    if (device.kind() == DeviceKind::cpu) {
      for (int64_t e = 0; e < w.experts; ++e)
        if (const int64_t first = offsets[e], some = offsets[e + 1] - first; some > 0)
          product({x + first * w.in, weight(w.weight) + bytes_of(e * w.out * w.in, setup.dtype), nullptr,
                   y + first * w.out, some, w.in, w.out});
      return;
    }
    const bool narrow = setup.dtype != DType::f32;
    kernels::GroupedForward args{.x = x,
                                 .weight = weight(w.weight),
                                 .y = y,
                                 .offsets = offsets,
                                 .max_rows = count,
                                 .experts = w.experts,
                                 .in = w.in,
                                 .out = w.out,
                                 .dtype = setup.dtype};
    if (narrow) {
      float* const x_narrow = rows_of(narrow_rows, count, w.in);
      kernels::cast(context, {.from = x, .to = x_narrow, .elems = count * w.in, .to_dtype = setup.dtype});
      args.x = x_narrow;
      args.y = rows_of(narrow_results, count, w.out);
    }
    kernels::grouped_forward(context, args);
    if (narrow) kernels::cast(context, {.from = args.y, .to = y, .elems = count * w.out, .from_dtype = setup.dtype});
  }
  void expert_swiglu(Slice gate_up, const ExpertRoute& route, Slice y, int64_t width) override {
    kernels::weighted_swiglu_forward(context, {.gate_up = of_choices(gate_up, 2 * width),
                                               .weights = of_choices(route.weights, 1),
                                               .y = of_choices(y, width),
                                               .max_rows = rows.count * o.experts.top_k,
                                               .width = width});
  }
  void return_rows(Slice from, const Router& router, const ExpertRoute& route, Slice more, Slice y) override {
    kernels::return_rows(context, {.from = of_choices(from, o.width),
                                   .places = indices(route.places, rows.count * router.options.top_k),
                                   .add = more.size_bytes > 0 ? at(more, o.width) : nullptr,
                                   .to = at(y, o.width),
                                   .tokens = rows.count,
                                   .top_k = router.options.top_k,
                                   .width = o.width});
  }
  void assemble_qkv(const Linear&, const Linear&, const Linear&) override {}  // GenerationWeights has joined them
  void head_norm(Slice raw, const HeadNorms& n, Slice qkv) override {
    kernels::head_norm_forward(context, {.x = at(raw, b.qkv_width()),
                                         .q_weight = weight(n.q_weight),
                                         .k_weight = weight(n.k_weight),
                                         .y = at(qkv, b.qkv_width()),
                                         .inv_rms = rows_of(statistics, rows.count, b.heads() + b.kv_heads()),
                                         .rows = rows.count,
                                         .heads = b.heads(),
                                         .kv_heads = b.kv_heads(),
                                         .head_dim = b.head_dim(),
                                         .eps = o.norm_eps});
  }
  void rotate(Slice qkv, bool inverse) override {
    kernels::rope(context, {.x = at(qkv, b.qkv_width()),
                            .batch = 1,
                            .tokens = rows.count,
                            .heads = b.heads() + b.kv_heads(),  // next to each other
                            .head_dim = b.head_dim(),
                            .row_stride = b.qkv_width(),
                            .theta = o.rope_theta,
                            .inverse = inverse,
                            .table = turns});
  }
  /// Stores keys and values of the rows, and attends.
  void attention(const AttentionLayer& layer, double, Slice qkv_rows, Slice to, Slice) override {
    const float scale = 1.0f / std::sqrt(static_cast<float>(b.head_dim()));
    windows[static_cast<size_t>(layer.index)] = layer.window;
    const float* const qkv = at(qkv_rows, b.qkv_width());
    float* const out = at(to, b.attention_width());
    if (rows.are_a_prompt()) return attend_all(layer, scale, qkv, out);
    kernels::OneTokenAttention args{.qkv = qkv,
                                    .out = out,
                                    .cache = cached(layer.index),
                                    .sequences = rows.sequences,
                                    .tokens = rows.places,
                                    .rows = rows.count,
                                    .window = layer.window,
                                    .heads = b.heads(),
                                    .kv_heads = b.kv_heads(),
                                    .head_dim = b.head_dim(),
                                    .scale = scale};
    args.scores = rows_of(statistics, kernels::attention_scores(args, device.kind()), 1);
    kernels::one_token_attention(context, args);
  }
  void attend_all(const AttentionLayer& layer, float scale, const float* qkv, float* out) {
    const int64_t width = b.qkv_width(), count = rows.count;
    const float *const k = qkv + b.attention_width(), *const v = k + kv_width() / 2;
    kernels::keep_keys(context, {.k = k,
                                 .v = v,
                                 .to = cached(layer.index),
                                 .sequence = rows.prompt_of,
                                 .rows = count,
                                 .row_stride = width,
                                 .kv_heads = b.kv_heads(),
                                 .head_dim = b.head_dim()});
    kernels::attention_forward(context, {.q = qkv,
                                         .k = k,
                                         .v = v,
                                         .out = out,
                                         .lse = rows_of(statistics, b.heads() * count, 1),
                                         .batch = 1,
                                         .tokens = count,
                                         .heads = b.heads(),
                                         .kv_heads = b.kv_heads(),
                                         .head_dim = b.head_dim(),
                                         .q_stride = width,
                                         .kv_stride = width,
                                         .out_stride = b.attention_width(),
                                         .scale = scale,
                                         .window = layer.window < count ? layer.window : 0});
  }
  kernels::KeyCache cached(int64_t layer) {
    const int64_t before = layer * setup.sequences * cache_elems();
    return {.at = cache->data() + bytes_of(before, setup.dtype), .capacity = kept(), .dtype = setup.dtype};
  }

  /// Returns the logits of the rows for which tokens are drawn. They are in the device's memory.
  float* forward(const Rows& of_pass) {
    rows = of_pass;
    turns = angles_of_pass();
    for (const Stage& stage : stages) stage.body({});
    const int64_t drawing = rows.drawing(), vocab = b.vocab_rows(), D = o.width;
    float* const logits = rows_of(logits_out, drawing, vocab);
    few_rows(
        {at(model.hidden(), D) + (rows.count - drawing) * D, weight(model.head), nullptr, logits, drawing, D, vocab});
    return logits_of_all_ranks(logits, drawing);
  }

  int64_t logits_width() { return b.vocab_rows() * o.tensor; }
  /// Returns the rows of logits with the parts of the vocabulary that other ranks have.
  float* logits_of_all_ranks(float* parts, int64_t count) {
    if (o.tensor == 1) return parts;
    const auto part = static_cast<size_t>(b.vocab_rows()), whole = static_cast<size_t>(logits_width());
    const std::span<float> mine = device.to_host(parts, count * b.vocab_rows());
    gathered.resize(whole * static_cast<size_t>(count));
    for (size_t r = 0; r < static_cast<size_t>(count); ++r)
      setup.gather(mine.subspan(r * part, part), std::span(gathered).subspan(r * whole, whole));
    float* const all = rows_of(logits_all, count, logits_width());
    device.to_device(gathered, all);
    return all;
  }

  void begin(int sequence, std::span<const int32_t> text, uint32_t text_number, uint32_t draws) {
    SLIP_ASSERT(!text.empty() && choice.on_their_way() == 0);
    device.finish();
    const std::span<const int32_t> known = text.last(static_cast<size_t>(std::min(setup.capacity, std::ssize(text))));
    const int64_t count = lengths[static_cast<size_t>(sequence)] = std::ssize(known);
    choice.start(sequence, text, count - 1, text_number, draws);
    std::vector<int32_t> ids_and_places(known.begin(), known.end());
    ids_and_places.resize(2 * known.size());
    std::iota(ids_and_places.begin() + count, ids_and_places.end(), 0);
    auto* const ids = reinterpret_cast<int32_t*>(device.floats(prompt, 2 * count));
    device.write(ids, ids_and_places.data(), bytes_of(2 * count, DType::i32));
    const Rows all{{.count = count, .ids = ids, .places = ids + count}, sequence};
    const size_t turn = choice.issue(1);
    device.run(turn, [&] { choice.choose(choice.row_of(sequence), forward(all), logits_width(), turn); });
  }

  void step(std::span<const int> sequences) {
    SLIP_ASSERT(choice.on_their_way() <= passes_ahead());
    for (const int sequence : sequences) {
      SLIP_ASSERT(lengths[static_cast<size_t>(sequence)] < setup.capacity);
      ++lengths[static_cast<size_t>(sequence)];
    }
    const Rows newest{choice.rows_of(sequences)};
    const size_t turn = choice.issue(newest.count);
    const auto body = [&] {
      choice.update(newest);
      choice.choose(newest, forward(newest), logits_width(), turn);
    };
    // Ranks that share the model exchange sums through the host, which a graph cannot record.
    o.tensor == 1 ? device.repeat(turn, newest.count, body) : device.run(turn, body);
  }

  int passes_ahead() const { return device.kind() == DeviceKind::cuda && o.tensor == 1 ? 1 : 0; }

  /// Calls take(bytes) for the weights of a step: all of them except a table that only the embedding reads.
  template <typename Take>
  void for_weights(const Take& take) {
    for (int64_t p = 0; p < weights.count(); ++p)
      if ((p != model.table || model.head == model.table) && p != model.positions)
        take(weight(p), weights.size_bytes(p));
  }

  GenerationSetup setup;
  ModelOptions o;
  Buffers buffers;
  SpecBuilder b;
  Decoder model;
  std::vector<Stage> stages;  // the stages of a forward pass
  GenerationDevice device;
  LaunchContext& context;
  TokenChoice choice;
  std::vector<GenerationDevice::Scratch> scratch;  // by buffer of the model
  Rows rows;                                       // the rows of the pass
  const float* turns = nullptr;                    // the angles of the pass's positions
  GenerationWeights weights;
  std::unique_ptr<Allocation> cache;   // [layers, sequences] of KeyCache
  std::vector<int64_t> windows;        // the windows of the layers in the last pass
  std::vector<int64_t> lengths;        // the tokens of each sequence in the cache, including those of issued passes
  std::unique_ptr<Allocation> angles;  // for rotary embeddings: [capacity, head_dim]
  std::vector<float> gathered;         // the logits of all ranks
  GenerationDevice::Scratch prompt, narrow_rows, narrow_results, angles_of_rows, wide_weight, statistics, logits_out,
      logits_all;
};

Generation::Generation(const ModelOptions& options, GenerationSetup setup)
    : state_(std::make_unique<State>(options, std::move(setup))) {}
Generation::~Generation() = default;
Generation::Generation(Generation&&) noexcept = default;

void Generation::begin(int sequence, std::span<const int32_t> text, uint32_t text_number, uint32_t draws) {
  state_->begin(sequence, text, text_number, draws);
}
void Generation::step(std::span<const int> sequences) { state_->step(sequences); }
bool Generation::has_room(int sequence) const { return tokens(sequence) < state_->setup.capacity; }
std::span<const int32_t> Generation::take() { return state_->choice.take(); }
int Generation::passes_ahead() const { return state_->passes_ahead(); }

std::vector<float> Generation::logits(int64_t row) {
  State& s = *state_;
  float* const rows = reinterpret_cast<float*>((s.o.tensor == 1 ? s.logits_out : s.logits_all)->data());
  const std::span<float> at = s.device.to_host(rows + row * s.logits_width(), s.o.vocab);
  return {at.begin(), at.end()};
}

void Generation::replace_drawn(int sequence, int32_t id) {
  SLIP_ASSERT(state_->choice.on_their_way() == 0);
  state_->device.finish();
  state_->choice.replace(sequence, id);
}

int64_t Generation::tokens(int sequence) const { return state_->lengths[static_cast<size_t>(sequence)]; }

int64_t Generation::weight_bytes() const {
  int64_t sum = 0;
  state_->for_weights([&](const std::byte*, int64_t size_bytes) { sum += size_bytes; });
  return sum;
}

int64_t Generation::cache_bytes(int sequence) const {
  const State& s = *state_;
  int64_t seen = 0;  // tokens, summed over all layers
  for (const int64_t window : s.windows) seen += window > 0 ? std::min(tokens(sequence), window) : tokens(sequence);
  return seen * s.kv_width() * size_of(s.setup.dtype);
}

double Generation::read_seconds() const {
  if (state_->device.kind() != DeviceKind::cpu) return 0;
  const int64_t begin_ns = monotonic_ns();
  state_->for_weights([&](const std::byte* at, int64_t size_bytes) {
    double sum = 0;
    kernels::read_all(state_->context,
                      {.at = reinterpret_cast<const float*>(at), .elems = size_bytes / 4, .sum = &sum});
  });
  return static_cast<double>(monotonic_ns() - begin_ns) / 1e9;
}

}  // namespace slipstream::models
