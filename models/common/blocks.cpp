// SPDX-License-Identifier: Apache-2.0
// Converts one line of a model into a work with kernel, cost, reads and writes.

#include "models/common/blocks.h"

#include <algorithm>
#include <cmath>

#include "engine/base/check.h"
#include "engine/base/units.h"
#include "kernels/common/dropout_mask.h"
#include "kernels/cross_entropy/sharded_cross_entropy.h"
#include "kernels/embedding/embedding.h"
#include "kernels/gelu/gelu.h"
#include "kernels/layer_norm/layer_norm.h"
#include "kernels/matmul/matmul.h"
#include "kernels/step_scalars/step_scalars.h"

namespace slipstream::models {
namespace {

constexpr uint8_t kEmbeddingUse = 1;  // the use of a table; the head's is 0
constexpr Meaning kWeightGradient{.rule = Rule::weight_gradient, .results = 0, .adds = Adds::as_planned};

}  // namespace

std::vector<Slice> with(std::vector<Slice> slices, const Slice& more) {
  if (more.size_bytes > 0) slices.push_back(more);
  return slices;
}

SpecBuilder::SpecBuilder(const ModelOptions& options, Buffers& buffers) : options_(options), buffers_(buffers) {
  spec_.dtype = options.dtype;
  spec_.layers = static_cast<int>(options.layers);
  spec_.batch = options.batch;
  spec_.tokens = options.tokens;
  spec_.vocab = options.vocab;
  spec_.logits_stride = vocab_rows();
  buffers_.micro_batches = options.micro_batches;
  const int64_t half = rows() * size_of(DType::i32);
  const int64_t tokens_bytes = (options.documents ? 3 : 2) * half,
                numbers_bytes = options.dropout.any() ? options.batch * int64_t{sizeof(kernels::DropoutSample)} : 0,
                batch_bytes = tokens_bytes + numbers_bytes;
  batch_next_ = batch_buffer("batch.next", batch_bytes, Instances::per_micro_batch);
  batch_current_ = batch_buffer("batch.current", batch_bytes, Instances::per_micro_batch);
  ids_ = {batch_current_.buffer, 0, half};
  targets_ = {batch_current_.buffer, half, half};
  if (options.documents) document_begins_ = {batch_current_.buffer, 2 * half, half};
  spec_.documents = options.documents;
  sequence_numbers_ = {batch_current_.buffer, tokens_bytes, numbers_bytes};
  spec_.numbers_sequences = numbers_bytes > 0;
  spec_.ids = batch_current_.buffer;
  logits_ = scratch("logits", bytes_of(head_chunks().front().count * vocab_rows(), options.dtype));
  if (shared())
    loss_parts_ =
        scratch("loss.parts", options.tensor * rows() * kernels::kCrossEntropyPartElems * size_of(DType::f64));
  row_losses_ = scratch("row_losses", bytes_of(rows(), DType::f32));
  loss_part_ = scratch("loss.micro_batch", size_of(DType::f64));
  loss_ = scratch("loss", size_of(DType::f64));
  spec_.logits = logits_.buffer;
  spec_.row_losses = row_losses_.buffer;
  spec_.loss = loss_.buffer;
  norm_workspace_ = scratch("norm.workspace",
                            bytes_of(kernels::layer_norm_backward_workspace_elems(rows(), options.width), DType::f32));
  attention_workspace_ =
      scratch("attention.workspace",
              bytes_of(kernels::attention_backward_workspace_elems(attention_gradient_shape({}, 0)), DType::f32));
}

Slice SpecBuilder::kept(const std::string& name, int64_t size_bytes) {
  if (!options_.trains) return scratch(name, size_bytes);
  // The cut into stages gives it an instance per slot, if a later pass reads it.
  return buffers_.whole(buffers_.add({.name = name, .size_bytes = size_bytes, .owner = Owner::activations}));
}

Slice SpecBuilder::scratch(const std::string& name, int64_t size_bytes) {
  const auto found = scratch_.find(name);
  if (found == scratch_.end()) {
    const BufferId added = buffers_.add({.name = name, .size_bytes = size_bytes, .owner = Owner::scratch});
    return buffers_.whole(scratch_[name] = added);
  }
  buffers_.set_size(found->second, std::max(size_bytes, buffers_[found->second].size_bytes));
  return {found->second, 0, size_bytes};
}

Slice SpecBuilder::batch_buffer(const std::string& name, int64_t size_bytes, Instances instances) {
  return buffers_.whole(
      buffers_.add({.name = name, .size_bytes = size_bytes, .owner = Owner::batch, .instances = instances}));
}

uint32_t SpecBuilder::parameter(ParameterSpec parameter) {
  parameter.elems = 0;
  for (const NamedTensor& tensor : parameter.tensors) parameter.elems += tensor.elems();
  // These are views, to which the planner later assigns memory.
  const std::string name = parameter.name() + (parameter.is_copy ? ".copy" : "");
  const BufferSpec view{.name = name,
                        .size_bytes = bytes_of(parameter.elems, options_.dtype),
                        .owner = Owner::parameters,
                        .is_view = true};
  parameter.value = buffers_.add(view);
  parameter.gradient = buffers_.add({.name = name + ".gradient",
                                     .size_bytes = bytes_of(parameter.elems, DType::f32),
                                     .owner = Owner::gradients,
                                     .is_view = true});
  spec_.parameters.push_back(std::move(parameter));
  return static_cast<uint32_t>(spec_.parameters.size() - 1);
}

uint32_t SpecBuilder::parameter(const std::string& name, std::vector<int64_t> shape, int layer, Init init,
                                bool transposed) {
  const bool decay = shape.size() >= 2;
  return parameter(ParameterSpec{
      .tensors = {{name, std::move(shape), 0, transposed}}, .layer = layer, .init = init, .decay = decay});
}

uint32_t SpecBuilder::head_table(uint32_t table, const std::string& name, Init init) {
  if (options_.tie_embeddings && !tied_apart()) return table;
  const auto after_layers = static_cast<int>(options_.layers);
  if (!options_.tie_embeddings) return vocab_parameter(name, after_layers, init);
  ParameterSpec copy = spec_.parameters[table];
  copy.layer = after_layers;
  copy.is_copy = true;
  return parameter(std::move(copy));
}

bool SpecBuilder::cut_before(int64_t layer) const {
  return std::find(options_.cuts.begin(), options_.cuts.end(), layer) != options_.cuts.end();
}

void SpecBuilder::begin(const std::string& name, int layer) {
  spec_.pieces.push_back({.name = name, .layer = layer});
  for (std::vector<uint32_t>* list : lists_) list->push_back(current());
}

void SpecBuilder::work(const std::string& name, Cost cost, std::vector<Slice> reads, std::vector<Slice> writes,
                       const Meaning& meaning, std::function<void(LaunchContext&)> fn) {
  const int layer = spec_.pieces.empty() ? -1 : spec_.pieces.back().layer;
  for (KernelCost& kernel : cost.kernels) kernel.in_layer = layer >= 0 && layer < options_.layers;
  (replaying_ ? spec_.replays : spec_.pieces.back().works)
      .push_back({name, cost, std::move(reads), std::move(writes), std::move(fn), {}, meaning});
}

void SpecBuilder::ready(uint32_t parameter) { ready(parameter, 0, spec_.parameters[parameter].elems); }

void SpecBuilder::ready(uint32_t parameter, int64_t begin_elems, int64_t elems) {
  spec_.pieces.back().ready.push_back({parameter, begin_elems, elems});
}

void SpecBuilder::add_linear(Slice x, const Linear& w, Slice y, Slice pre_gelu, bool bias_once) {
  const Slice weight = weight_of(w), bias = bias_of(w);  // all ranks read it, so that their plans are equal
  const kernels::MatmulForward shape{
      .rows = rows_of(y, w.out), .in = w.in, .out = w.out, .dtype = options_.dtype, .padding = w.padding};
  Meaning meaning{.rule = Rule::product};
  if (pre_gelu.size_bytes > 0) meaning.results = 2;
  if (bias.size_bytes > 0 && bias_once) meaning.once = 2;
  work("matmul", kernels::matmul_forward_cost(shape), with({x, weight}, bias), with({y}, pre_gelu), meaning,
       [=, adds_bias = adds_once_operand(meaning)](LaunchContext& c) {
         kernels::MatmulForward args = shape;
         args.x = c.at(x);
         args.weight = c.at(weight);
         args.bias = bias.size_bytes > 0 && adds_bias ? c.at(bias) : nullptr;
         args.y = c.at(y);
         args.pre_activation = pre_gelu.size_bytes > 0 ? c.at(pre_gelu) : nullptr;
         kernels::matmul_forward(c, args);
       });
}

void SpecBuilder::linear_input_gradient(Slice dy, const Linear& w, Slice dx, Slice pre_gelu, const Linear& before) {
  const Slice weight = weight_of(w), db = summed_bias(before);
  const bool of_gelu = pre_gelu.size_bytes > 0;
  const kernels::MatmulBackwardInput shape{
      .rows = rows_of(dx, w.in), .in = w.in, .out = w.out, .dtype = options_.dtype, .padding = w.padding};
  Cost cost = kernels::matmul_backward_input_cost(shape);
  // The cost is that of two passes, because only some GPUs and shapes do it in one.
  if (of_gelu) cost += kernels::gelu_backward_cost({.elems = shape.rows * w.in, .dtype = options_.dtype});
  Meaning meaning{.rule = Rule::input_gradient, .adds = Adds::as_planned};
  if (db.size_bytes > 0) meaning.sums = 1;
  work(of_gelu ? "matmul_gelu_gradient" : "matmul_input_gradient", cost, with(with({dy, weight}, pre_gelu), db),
       with({dx}, db), meaning, [=](LaunchContext& c) {
         kernels::MatmulBackwardInput args = shape;
         args.dy = c.at(dy);
         args.weight = c.at(weight);
         args.dx = c.at(dx);
         args.pre_activation = of_gelu ? c.at(pre_gelu) : nullptr;
         args.dbias = db.size_bytes > 0 ? c.as<float>(db) : nullptr;
         args.accumulate_bias = adds(meaning, c);
         kernels::matmul_backward_input(c, args);
       });
}

void SpecBuilder::linear_weight_gradient(Slice x, Slice dy, const Linear& w) {
  const Slice dw = gradient(w.weight);
  const Slice db = w.bias < 0 || !w.sums_dy ? Slice{} : gradient(static_cast<uint32_t>(w.bias));
  const kernels::MatmulBackwardWeight shape{
      .rows = rows_of(x, w.in), .in = w.in, .out = w.out, .dtype = options_.dtype};
  Meaning meaning = kWeightGradient;
  meaning.sums = db.size_bytes > 0 ? 2 : 1;
  work("matmul_weight_gradient", kernels::matmul_backward_weight_cost(shape), with({x, dy, dw}, db), with({dw}, db),
       meaning, [=](LaunchContext& c) {
         kernels::MatmulBackwardWeight args = shape;
         args.x = c.at(x);
         args.dy = c.at(dy);
         args.dweight = c.as<float>(dw);
         args.dbias = db.size_bytes > 0 ? c.as<float>(db) : nullptr;
         args.accumulate = adds(meaning, c);
         kernels::matmul_backward_weight(c, args);
       });
  ready(w.weight);
  if (w.bias >= 0) ready(static_cast<uint32_t>(w.bias));
}

void SpecBuilder::take_batch() {
  begin("take_batch", -1);
  const int64_t size_bytes = buffers_.stride_bytes(batch_next_.buffer) * buffers_.micro_batches;
  const Slice next{batch_next_.buffer, 0, size_bytes};
  const Slice current{batch_current_.buffer, 0, size_bytes};
  work("take_batch", {0, 2 * size_bytes}, {next}, {current}, {.rule = Rule::copy}, [=](LaunchContext& c) {
    kernels::copy(c, {.from = c.at(next), .to = c.at(current), .size_bytes = size_bytes});
  });
}

void SpecBuilder::embed(uint32_t table, int64_t positions, Slice x, Slice partial) {
  const Slice ids = ids_;
  const Slice t = value(table);
  Slice p = positions < 0 ? Slice{} : value(static_cast<uint32_t>(positions));
  const Slice places = p.size_bytes > 0 ? document_positions() : Slice{};
  if (p.size_bytes > 0 && places.size_bytes == 0 && options_.context_ranks > 1) p = own_positions(p);
  const Slice y = own_tokens() ? partial : x;
  Meaning meaning{.rule = Rule::lookup};
  if (p.size_bytes > 0) meaning.once = 2;  // only one rank adds positions to the sum over ranks
  const kernels::EmbeddingForward shape{.batch = options_.batch,
                                        .tokens = options_.tokens,
                                        .width = options_.width,
                                        .dtype = options_.dtype,
                                        .vocab = vocab_held(),
                                        .first = vocab_begin(),
                                        .part = shared(),
                                        .position_rows = options_.context};
  work("embedding", kernels::embedding_forward_cost(shape), with(with({ids, t}, p), places), {y}, meaning,
       [=, adds_positions = adds_once_operand(meaning)](LaunchContext& c) {
         kernels::EmbeddingForward args = shape;
         args.ids = c.as<int32_t>(ids);
         args.table = c.at(t);
         args.positions = p.size_bytes > 0 && adds_positions ? c.at(p) : nullptr;
         if (places.size_bytes > 0) args.position_ids = c.as<int32_t>(places);
         args.y = c.at(y);
         kernels::embedding_forward(c, args);
       });
  for (int i = 0; i < chunks(); ++i) reduce(y, {i, chunks()}, y == x ? Slice{} : x);
}

void SpecBuilder::embed_gradient(uint32_t table, int64_t positions, Slice dx) {
  const Slice ids = ids_;
  const int64_t width = options_.width, vocab = vocab_rows();
  if (positions >= 0) position_gradient(static_cast<uint32_t>(positions), dx);
  TiedEmbedding& tied = spec_.tied;
  tied.split = options_.tie_embeddings && options_.split_tied_embedding && !tied_apart();
  tied.parameter = table;
  tied.width = width;
  tied.vocab = vocab;
  tied.capacity = rows();
  tied.ready_piece = current();
  // With several micro-batches, their rows would first have to be merged, so the dense table travels instead. Otherwise
  // receiving the rows of all ranks is compared with an all_reduce of the table, which moves it twice (note 0003). The
  // padding of a whole table does not count: the two choices add in different orders, and padding must not decide
  // between them.
  tied.as_rows = tied.split && options_.micro_batches == 1 &&
                 options_.ranks * rows() * (4 * width + 4) < 2 * (vocab - vocab_padding()) * width * 4;
  if (tied.as_rows) {
    tied.row_ids = buffers_.add(
        {.name = "embedding.row_ids", .size_bytes = options_.ranks * rows() * 4, .owner = Owner::gradients});
    tied.rows = buffers_.add(
        {.name = "embedding.rows", .size_bytes = options_.ranks * rows() * width * 4, .owner = Owner::gradients});
    // The planner rebinds these two buffers to this rank's part of the gathered buffers.
    const BufferId my_ids = buffers_.add(
        {.name = "embedding.row_ids.mine", .size_bytes = rows() * 4, .owner = Owner::gradients, .is_view = true});
    const BufferId my_rows = buffers_.add(
        {.name = "embedding.rows.mine", .size_bytes = rows() * width * 4, .owner = Owner::gradients, .is_view = true});
    const Slice row_ids = buffers_.whole(my_ids), packed = buffers_.whole(my_rows);
    const kernels::EmbeddingRowsPack shape{.capacity = rows(),
                                           .tokens_total = rows(),
                                           .width = width,
                                           .dtype = options_.dtype,
                                           .first = vocab_begin(),
                                           .vocab = vocab_held(),
                                           .part = shared()};
    work("embedding_rows", kernels::embedding_rows_pack_cost(shape), {ids, dx}, {row_ids, packed},
         {.rule = Rule::scatter, .sums = 1, .rows_of = 1, .use = kEmbeddingUse}, [=](LaunchContext& c) {
           kernels::EmbeddingRowsPack args = shape;
           args.ids = c.as<int32_t>(ids);
           args.dy = c.at(dx);
           args.row_ids = c.as<int32_t>(row_ids);
           args.rows = c.as<float>(packed);
           kernels::embedding_rows_pack(c, args);
         });
    return;
  }
  Slice target = gradient(table);
  if (tied.split) {
    tied.dense =
        buffers_.add({.name = "embedding.gradient", .size_bytes = vocab * width * 4, .owner = Owner::gradients});
    target = buffers_.whole(tied.dense);
  }
  // Without a split, the head has already written this step's gradient.
  const bool onto_head = options_.tie_embeddings && !tied.split && !tied_apart();
  const Meaning meaning{.rule = Rule::scatter,
                        .results = 0,
                        .sums = 1,
                        .rows_of = 1,
                        .adds = onto_head ? Adds::always : Adds::as_planned,
                        .use = kEmbeddingUse};
  const kernels::EmbeddingBackward shape{.rows = rows(),
                                         .width = width,
                                         .vocab = vocab,
                                         .dtype = options_.dtype,
                                         .first = vocab_begin(),
                                         .part = shared()};
  work("embedding_gradient", kernels::embedding_backward_cost(shape), {ids, dx, target}, {target}, meaning,
       [=](LaunchContext& c) {
         kernels::EmbeddingBackward args = shape;
         args.ids = c.as<int32_t>(ids);
         args.dy = c.at(dx);
         args.dtable = c.as<float>(target);
         args.accumulate = adds(meaning, c);
         kernels::embedding_backward(c, args);
       });
  if (!tied.split) ready(table);
}

ModelSpec SpecBuilder::finish(std::string description) {
  spec_.description = std::move(description);
  return std::move(spec_);
}

}  // namespace slipstream::models
