// SPDX-License-Identifier: Apache-2.0
// Runs a decoder's layers over the newest tokens, with the ops of training and those of kernels/decode.

#include "models/generation.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "engine/base/check.h"
#include "engine/base/delayed_parts.h"
#include "engine/base/units.h"
#include "engine/device/clock.h"
#include "kernels/attention/attention.h"
#include "kernels/cast/cast.h"
#include "kernels/decode/decode.h"
#include "kernels/embedding/embedding.h"
#include "kernels/gelu/gelu.h"
#include "kernels/head_norm/head_norm.h"
#include "kernels/layer_norm/layer_norm.h"
#include "kernels/matmul/matmul.h"
#include "kernels/rms_norm/rms_norm.h"
#include "kernels/rope/rope.h"
#include "kernels/swiglu/swiglu.h"
#include "models/common/decoder.h"
#include "models/common/generation_device.h"

namespace slipstream::models {
namespace {

constexpr int64_t kPieceElems = 1 << 18;  // of a tensor on its way into memory
constexpr int64_t kAlignment = 64;        // of a parameter in memory

ModelOptions of_one_sequence(ModelOptions options, int64_t capacity) {
  options.batch = 1;
  options.tokens = capacity;
  options.global_tokens = capacity;
  options.cuts.clear();
  options.sequence_parallel = false;
  return options;
}

}  // namespace

struct Generation::State {
  State(const ModelOptions& asked, GenerationSetup given)
      : setup(std::move(given)),
        o(of_one_sequence(asked, setup.capacity)),
        family(architecture_of(o)),
        b(o, buffers),
        device(std::move(setup.device), setup.threads),
        context(device.context()) {
    table = b.vocab_parameter(family.table, -1, {});
    if (!family.rotary) positions = b.parameter(family.positions, {o.context, o.width}, -1, {});
    for (int l = 0; l < o.layers; ++l) blocks.push_back(family.block(b, l));
    final_norm = family.final_norm(b);
    head = b.head_table(table, family.head, {});
    load(parts_of_parameters());
    if (family.rotary) make_angles();
    lengths.resize(static_cast<size_t>(setup.sequences));
    cache = device.allocate(o.layers * setup.sequences * cache_elems() * size_of(DType::f32), "keys and values");
  }

  int64_t kv_width() const { return 2 * b.kv_heads() * b.head_dim(); }
  int64_t kept() const { return kernels::key_cache_capacity(setup.capacity); }
  int64_t cache_elems() const { return kernels::key_cache_elems(kept(), b.kv_heads(), b.head_dim()); }
  const ParameterSpec& parameter(uint32_t p) { return b.spec().parameters[p]; }
  bool is_matrix(uint32_t p) { return parameter(p).tensors.front().shape.size() == 2; }
  DType dtype_of(uint32_t p) { return is_matrix(p) ? setup.dtype : DType::f32; }
  const std::byte* weight(int64_t p) { return memory->data() + held[static_cast<size_t>(p)].begin_bytes; }
  const float* floats(int64_t p) { return p < 0 ? nullptr : reinterpret_cast<const float*>(weight(p)); }

  /// A range of a tensor, as this rank holds it.
  struct Part {
    const NamedTensor* tensor;
    int64_t begin, elems;
  };
  /// The memory of each parameter, in order. With shared key-value heads the rows of this rank's head follow those of
  /// the queries, and the rest of them has no memory.
  std::vector<std::vector<Part>> parts_of_parameters() {
    std::vector<std::vector<Part>> all;
    for (const ParameterSpec& p : b.spec().parameters) {
      all.emplace_back();
      for (const NamedTensor& tensor : p.tensors) all.back().push_back({&tensor, 0, tensor.elems()});
    }
    if (!b.shares_kv()) return all;
    const int64_t head_index = o.tensor_index * o.kv_heads / o.tensor;
    const auto join = [&](int64_t q, int64_t kv, int64_t columns) {
      std::vector<Part>& more = all[static_cast<size_t>(kv)];
      const int64_t elems = b.head_dim() * columns;
      for (const Part& part : more) all[static_cast<size_t>(q)].push_back({part.tensor, head_index * elems, elems});
      more.clear();
    };
    for (BlockParameters& y : blocks) {
      join(y.qkv.weight, y.kv.weight, o.width);
      if (y.kv.bias >= 0) join(y.qkv.bias, y.kv.bias, 1);
      y.qkv.out = b.qkv_width();
    }
    return all;
  }

  void load(const std::vector<std::vector<Part>>& parts) {
    int64_t all_bytes = 0;
    for (uint32_t p = 0; p < parts.size(); ++p) {
      int64_t elems = 0;
      for (const Part& part : parts[p]) elems += part.elems;
      held.push_back({all_bytes, bytes_of(elems, dtype_of(p))});
      all_bytes = round_up(all_bytes + held.back().size_bytes, kAlignment);
    }
    // In one piece, so that the kernel gives huge pages to small matrices, too.
    memory = device.allocate(all_bytes, "the model");
    std::vector<float> piece;
    for (uint32_t p = 0; p < parts.size(); ++p) {
      std::byte* to = memory->data() + held[p].begin_bytes;
      for (const Part& part : parts[p])
        for (int64_t at = 0; at < part.elems; at += std::ssize(piece)) {
          piece.resize(static_cast<size_t>(std::min(kPieceElems, part.elems - at)));
          setup.read(*part.tensor, part.begin + at, piece);
          device.store(piece, to, dtype_of(p));
          to += bytes_of(std::ssize(piece), dtype_of(p));
        }
    }
  }

  void make_angles() {
    std::vector<float> turns(static_cast<size_t>(setup.capacity * b.head_dim()));
    kernels::rope_table(turns.data(), setup.capacity, b.head_dim(), o.rope_theta, o.rope_scaling);
    angles = device.allocate(bytes_of(std::ssize(turns), DType::f32), "angles of rotary embeddings");
    device.store(turns, angles->data(), DType::f32);
  }

  float* rows_of(GenerationDevice::Scratch& at, int64_t rows, int64_t width) { return device.floats(at, rows * width); }

  void sum_over_ranks(float* at, int64_t elems) {
    if (o.tensor == 1) return;
    const std::span<float> values = device.to_host(at, elems);
    setup.sum(values);
    device.to_device(values, at);
  }

  /// y = x w^T + bias; `adds_bias`: the first of the ranks that share a sum.
  void product(const float* x, const Linear& w, int64_t rows, float* y, bool adds_bias = true) {
    const float* bias = adds_bias ? floats(w.bias) : nullptr;
    const std::byte* from = weight(w.weight);
    if (rows <= kernels::kFewRows)
      return kernels::few_rows_product(
          context,
          {.x = x, .weight = from, .bias = bias, .y = y, .rows = rows, .in = w.in, .out = w.out, .dtype = setup.dtype});
    if (setup.dtype != DType::f32) {
      float* const wide = rows_of(wide_weight, w.out, w.in);
      kernels::cast(context, {.from = from, .to = wide, .elems = w.out * w.in, .from_dtype = setup.dtype});
      from = reinterpret_cast<const std::byte*>(wide);
    }
    kernels::matmul_forward(context,
                            {.x = x, .weight = from, .bias = bias, .y = y, .rows = rows, .in = w.in, .out = w.out});
  }
  /// The part of a layer whose result is a sum over ranks.
  void partial_product(const float* x, const Linear& w, int64_t rows, float* y) {
    product(x, w, rows, y, o.tensor_index == 0);
    sum_over_ranks(y, rows * w.out);
  }

  /// With delta: x += delta, y = norm(x).
  void norm(float* x, const float* delta, const Norm& n, int64_t rows, float* y) {
    float* const scale = rows_of(statistics, 2 * rows, 1);
    float* const sum = delta != nullptr ? x : nullptr;
    if (n.bias < 0)
      return kernels::rms_norm_forward(context, {.x = x,
                                                 .delta = delta,
                                                 .sum = sum,
                                                 .weight = weight(n.weight),
                                                 .y = y,
                                                 .inv_rms = scale,
                                                 .rows = rows,
                                                 .width = o.width,
                                                 .eps = o.norm_eps});
    kernels::layer_norm_forward(context, {.x = x,
                                          .delta = delta,
                                          .sum = sum,
                                          .weight = weight(n.weight),
                                          .bias = weight(n.bias),
                                          .y = y,
                                          .mean = scale,
                                          .inv_std = scale + rows,
                                          .rows = rows,
                                          .width = o.width,
                                          .eps = o.norm_eps});
  }

  /// y[r] = row ids[r] of a table of `dtype` whose first row is `first`.
  void look_up(const std::byte* from, DType dtype, const int32_t* ids, int64_t rows, int64_t width, float* y,
               int64_t table_rows, int64_t first = 0, bool part = false) {
    kernels::EmbeddingForward args{.ids = ids,
                                   .table = from,
                                   .y = y,
                                   .batch = 1,
                                   .tokens = rows,
                                   .width = width,
                                   .dtype = dtype,
                                   .vocab = table_rows,
                                   .first = first,
                                   .part = part};
    if (dtype != DType::f32) args.y = rows_of(narrow_rows, rows, width);
    kernels::embedding_forward(context, args);
    if (dtype != DType::f32)
      kernels::cast(context, {.from = args.y, .to = y, .elems = rows * width, .from_dtype = dtype});
  }

  /// x[r] = table[id] + positions[position]; rows of other ranks' vocabulary are theirs.
  void embed(const int32_t* ids, const int32_t* at, int64_t rows, float* x) {
    const int64_t D = o.width, vocab = b.vocab_rows();
    look_up(weight(table), setup.dtype, ids, rows, D, x, vocab, o.tensor_index * vocab, o.tensor > 1);
    if (positions >= 0 && o.tensor_index == 0) {
      float* const of_positions = rows_of(layer_out, rows, D);
      look_up(weight(positions), setup.dtype, at, rows, D, of_positions, o.context);
      kernels::add(context, {.x = of_positions, .y = x, .elems = rows * D});
    }
    sum_over_ranks(x, rows * D);
  }

  /// Cosines and sines of the rows' positions; null without rotary embeddings.
  const float* angles_of(const int32_t* at, int64_t rows, bool begins) {
    if (!family.rotary) return nullptr;
    if (begins) return reinterpret_cast<const float*>(angles->data());
    float* const some = rows_of(angles_of_rows, rows, b.head_dim());
    look_up(angles->data(), DType::f32, at, rows, b.head_dim(), some, setup.capacity);
    return some;
  }
  void rotate(float* qkv, int64_t rows, const float* turns) {
    kernels::Rope args{.x = qkv,
                       .batch = 1,
                       .tokens = rows,
                       .heads = b.heads() + b.kv_heads(),  // side by side
                       .head_dim = b.head_dim(),
                       .row_stride = b.qkv_width(),
                       .theta = o.rope_theta,
                       .table = turns};
    kernels::rope(context, args);
  }

  kernels::KeyCache cached(int64_t layer, int sequence) {
    float* const all = reinterpret_cast<float*>(cache->data());
    return {.at = all + (layer * setup.sequences + sequence) * cache_elems(), .capacity = kept()};
  }

  /// Keeps keys and values of the rows, and attends: all rows of a new sequence, or one row of each.
  void attend(int64_t layer, std::span<const int> sequences, std::span<const int64_t> at, bool begins, const float* qkv,
              float* out) {
    const float scale = 1.0f / std::sqrt(static_cast<float>(b.head_dim()));
    if (begins) return attend_all(layer, sequences.front(), std::ssize(at), scale, qkv, out);
    attending.clear();
    const int64_t window = o.window_of(layer);
    for (size_t r = 0; r < at.size(); ++r)
      attending.push_back({.cache = cached(layer, sequences[r]),
                           .begin = window > 0 ? std::max<int64_t>(0, at[r] + 1 - window) : 0,
                           .token = at[r]});
    kernels::OneTokenAttention args{.qkv = qkv,
                                    .out = out,
                                    .rows = attending,
                                    .heads = b.heads(),
                                    .kv_heads = b.kv_heads(),
                                    .head_dim = b.head_dim(),
                                    .scale = scale};
    args.scores = rows_of(statistics, kernels::attention_scores(args, device.kind()), 1);
    kernels::one_token_attention(context, args);
  }
  void attend_all(int64_t layer, int sequence, int64_t rows, float scale, const float* qkv, float* out) {
    const int64_t width = b.qkv_width();
    const float *const k = qkv + b.attention_width(), *const v = k + kv_width() / 2;
    kernels::keep_keys(context, {.k = k,
                                 .v = v,
                                 .to = cached(layer, sequence),
                                 .rows = rows,
                                 .row_stride = width,
                                 .kv_heads = b.kv_heads(),
                                 .head_dim = b.head_dim()});
    kernels::attention_forward(context, {.q = qkv,
                                         .k = k,
                                         .v = v,
                                         .out = out,
                                         .lse = rows_of(statistics, b.heads() * rows, 1),
                                         .batch = 1,
                                         .tokens = rows,
                                         .heads = b.heads(),
                                         .kv_heads = b.kv_heads(),
                                         .head_dim = b.head_dim(),
                                         .q_stride = width,
                                         .kv_stride = width,
                                         .out_stride = b.attention_width(),
                                         .scale = scale,
                                         .window = o.window_of(layer) < rows ? o.window_of(layer) : 0});
  }

  void mlp(const BlockParameters& y, const float* x, int64_t rows, float* delta) {
    float *const up = rows_of(up_out, rows, y.up.out), *const active = rows_of(activated, rows, y.down.in);
    product(x, y.up, rows, up);
    if (family.gated)
      kernels::swiglu_forward(context, {.gate_up = up, .y = active, .rows = rows, .width = y.down.in});
    else
      kernels::gelu_forward(context, {.x = up, .y = active, .elems = rows * y.up.out});
    partial_product(active, y.down, rows, delta);
  }

  /// `begins`: all rows are of sequences[0], from its first token on; otherwise row r is of sequences[r]. at:
  /// positions. `first`: the index of sequences[0] for `take`.
  void run(std::span<const int> sequences, std::span<const int32_t> ids, std::span<const int64_t> at, bool begins,
           size_t first, const TakeLogits& take) {
    const RunsDelayedParts latency_first;
    const int64_t wanted = begins ? 1 : std::ssize(ids);
    float* logits = nullptr;
    device.run([&] { logits = forward(sequences, ids, at, begins, wanted); });
    const std::span<float> rows = of_all_ranks(device.to_host(logits, wanted * b.vocab_rows()), wanted);
    const int64_t width = std::ssize(rows) / wanted;
    device.host_threads().parallel_for(wanted, 1, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r)
        take(first + static_cast<size_t>(r),
             rows.subspan(static_cast<size_t>(r * width), static_cast<size_t>(o.vocab)));
    });
  }

  /// Rows of logits with the parts of the vocabulary that other ranks have.
  std::span<float> of_all_ranks(std::span<float> parts, int64_t rows) {
    if (o.tensor == 1) return parts;
    const auto part = parts.size() / static_cast<size_t>(rows), whole = part * static_cast<size_t>(o.tensor);
    gathered.resize(whole * static_cast<size_t>(rows));
    for (size_t r = 0; r < static_cast<size_t>(rows); ++r)
      setup.gather(parts.subspan(r * part, part), std::span(gathered).subspan(r * whole, whole));
    return gathered;
  }

  /// Returns the logits [wanted, vocab_rows] in the device's memory.
  float* forward(std::span<const int> sequences, std::span<const int32_t> ids, std::span<const int64_t> at, bool begins,
                 int64_t wanted) {
    const int64_t rows = std::ssize(ids), D = o.width;
    ids_and_places.assign(ids.begin(), ids.end());
    ids_and_places.insert(ids_and_places.end(), at.begin(), at.end());
    const int32_t *const ids_there = device.ids(ids_in, ids_and_places), *const places = ids_there + rows;
    float *const x = rows_of(residual, rows, D), *const normed = rows_of(norm_out, rows, D),
                 *const qkv = rows_of(qkv_out, rows, b.qkv_width()),
                 *const attended = rows_of(attention_out, rows, b.attention_width()),
                 *const delta = rows_of(layer_out, rows, D);
    embed(ids_there, places, rows, x);
    const float* const turns = angles_of(places, rows, begins);
    for (int64_t l = 0; l < o.layers; ++l) {
      const BlockParameters& y = blocks[static_cast<size_t>(l)];
      norm(x, l > 0 ? delta : nullptr, y.norm_1, rows, normed);
      float* const raw = y.head_norms.exist() ? rows_of(qkv_raw, rows, b.qkv_width()) : qkv;
      product(normed, y.qkv, rows, raw);
      if (y.head_norms.exist())
        kernels::head_norm_forward(context, {.x = raw,
                                             .q_weight = weight(y.head_norms.q_weight),
                                             .k_weight = weight(y.head_norms.k_weight),
                                             .y = qkv,
                                             .inv_rms = rows_of(statistics, rows, b.heads() + b.kv_heads()),
                                             .rows = rows,
                                             .heads = b.heads(),
                                             .kv_heads = b.kv_heads(),
                                             .head_dim = b.head_dim(),
                                             .eps = o.norm_eps});
      if (family.rotary) rotate(qkv, rows, turns);
      attend(l, sequences, at, begins, qkv, attended);
      partial_product(attended, y.out, rows, delta);
      norm(x, delta, y.norm_2, rows, normed);
      mlp(y, normed, rows, delta);
    }
    norm(x, delta, final_norm, rows, normed);
    const int64_t vocab = b.vocab_rows();
    float* const logits = rows_of(logits_out, wanted, vocab);
    for (int64_t r = 0; r < wanted; r += kernels::kFewRows)
      product(normed + (rows - wanted + r) * D, {.weight = head, .in = D, .out = vocab},
              std::min<int64_t>(kernels::kFewRows, wanted - r), logits + r * vocab);
    return logits;
  }

  /// Calls take(bytes) for the weights of a step: all but a table that only the embedding reads.
  template <typename Take>
  void for_weights(const Take& take) {
    for (uint32_t p = 0; p < held.size(); ++p)
      if ((p != table || head == table) && static_cast<int64_t>(p) != positions) take(weight(p), held[p].size_bytes);
  }

  GenerationSetup setup;
  ModelOptions o;
  Architecture family;
  Buffers buffers;
  SpecBuilder b;
  GenerationDevice device;
  LaunchContext& context;
  uint32_t table = 0, head = 0;
  int64_t positions = -1;
  std::vector<BlockParameters> blocks;
  Norm final_norm;
  struct Held {
    int64_t begin_bytes, size_bytes;
  };
  std::vector<Held> held;  // of parameters, in `memory`
  std::unique_ptr<Allocation> memory;
  std::unique_ptr<Allocation> cache;  // [layers, sequences] of KeyCache
  std::vector<int64_t> lengths;
  std::vector<kernels::Attending> attending;
  std::unique_ptr<Allocation> angles;  // of rotary embeddings: [capacity, head_dim]
  std::vector<int32_t> ids_and_places;
  std::vector<float> gathered;  // logits of all ranks
  GenerationDevice::Scratch ids_in, narrow_rows, angles_of_rows, wide_weight, statistics, residual, norm_out, qkv_raw,
      qkv_out, attention_out, layer_out, up_out, activated, logits_out;
};

Generation::Generation(const ModelOptions& options, GenerationSetup setup)
    : state_(std::make_unique<State>(options, std::move(setup))) {}
Generation::~Generation() = default;
Generation::Generation(Generation&&) noexcept = default;

void Generation::begin(int sequence, std::span<const int32_t> ids, const TakeLogits& take) {
  SLIP_ASSERT(!ids.empty() && std::ssize(ids) <= state_->setup.capacity);
  std::vector<int64_t> at(ids.size());
  for (size_t i = 0; i < at.size(); ++i) at[i] = static_cast<int64_t>(i);
  state_->lengths[static_cast<size_t>(sequence)] = std::ssize(ids);
  state_->run(std::span(&sequence, 1), ids, at, true, 0, take);
}

void Generation::step(std::span<const int> sequences, std::span<const int32_t> ids, const TakeLogits& take) {
  SLIP_ASSERT(sequences.size() == ids.size());
  for (size_t first = 0; first < ids.size(); first += kernels::kFewRows) {
    const size_t count = std::min<size_t>(kernels::kFewRows, ids.size() - first);
    std::vector<int64_t> at;
    for (const int sequence : sequences.subspan(first, count)) {
      int64_t& length = state_->lengths[static_cast<size_t>(sequence)];
      SLIP_ASSERT(length < state_->setup.capacity);
      at.push_back(length++);
    }
    state_->run(sequences.subspan(first, count), ids.subspan(first, count), at, false, first, take);
  }
}

int64_t Generation::tokens(int sequence) const { return state_->lengths[static_cast<size_t>(sequence)]; }

int64_t Generation::weight_bytes() const {
  int64_t sum = 0;
  state_->for_weights([&](const std::byte*, int64_t size_bytes) { sum += size_bytes; });
  return sum;
}

int64_t Generation::cache_bytes(int sequence) const {
  const State& s = *state_;
  int64_t seen = 0;  // tokens, over all layers
  for (int64_t layer = 0; layer < s.o.layers; ++layer) {
    const int64_t window = s.o.window_of(layer);
    seen += window > 0 ? std::min(tokens(sequence), window) : tokens(sequence);
  }
  return seen * s.kv_width() * size_of(DType::f32);
}

double Generation::read_seconds() const {
  if (state_->device.kind() != DeviceKind::cpu) return 0;
  const RunsDelayedParts as_a_step;
  const int64_t begin_ns = monotonic_ns();
  state_->for_weights([&](const std::byte* at, int64_t size_bytes) {
    double sum = 0;
    kernels::read_all(state_->context,
                      {.at = reinterpret_cast<const float*>(at), .elems = size_bytes / 4, .sum = &sum});
  });
  return static_cast<double>(monotonic_ns() - begin_ns) / 1e9;
}

}  // namespace slipstream::models
