// SPDX-License-Identifier: Apache-2.0
// Finds the tensors of a file of llm.c and transposes its matrices.

#include "trainer/runtime/weights/llm_c_checkpoint.h"

#include <algorithm>
#include <cstring>

#include "engine/base/check.h"
#include "engine/base/json.h"
#include "engine/base/units.h"

namespace slipstream::runtime {
namespace {

constexpr int64_t kHeaderBytes = 1024;
constexpr int32_t kMagic = 20240326;
constexpr int64_t kPieceElems = 1 << 18;
constexpr int32_t kGpt2Vocab = 50257, kEndOfText = 50256;

struct Header {
  int32_t magic, version, context, vocab, layers, heads, width, padded_vocab;
};

/// Passes `values` on in the written type.
void sink_floats(std::vector<float>& values, DType dtype, const checkpoint::TensorSink& sink) {
  if (dtype == DType::f32) return sink(values.data(), std::ssize(values) * 4);
  std::vector<bfloat16> rounded(values.size());
  std::transform(values.begin(), values.end(), rounded.begin(), [](float value) { return bfloat16(value); });
  sink(rounded.data(), std::ssize(rounded) * 2);
}

}  // namespace

LlmCCheckpoint::LlmCCheckpoint(const std::string& path) : file_(path, files::Owner::checkpoint) {
  const std::string shown = files::shown(path);
  Header h{};
  if (file_.size_bytes() < kHeaderBytes)
    throw CheckpointError("[checkpoint] {} has {} bytes, need the header of llm.c of {}. Give a folder of weights.",
                          shown, file_.size_bytes(), kHeaderBytes);
  file_.read(0, &h, sizeof h);
  if (h.magic != kMagic || (h.version != 3 && h.version != 5))
    throw CheckpointError(
        "[checkpoint] {} begins with the numbers {} and {}, need {} and 3 (float32) or 5 (bfloat16) of llm.c. Give a "
        "checkpoint of GPT-2, or a folder of weights.",
        shown, h.magic, h.version, kMagic);
  const auto need = [&](const char* name, int64_t value, int64_t least, int64_t most) {
    if (value < least || value > most)
      throw CheckpointError("[checkpoint] {} has {} = {}, need {} to {}. Write it again with llm.c.", shown, name,
                            value, least, most);
  };
  need("context", h.context, 1, 1 << 24);
  need("vocab_size", h.vocab, 1, 1 << 24);
  need("layers", h.layers, 1, 65536);
  need("width", h.width, 1, 1 << 20);
  need("heads", h.heads, 1, h.width);
  need("padded_vocab_size", h.padded_vocab, h.vocab, 1 << 25);
  if (h.width % h.heads != 0)
    throw CheckpointError("[checkpoint] {} has heads = {}, need a divisor of width = {}. Write it again with llm.c.",
                          shown, h.heads, h.width);
  dtype_ = h.version == 3 ? DType::f32 : DType::bf16;
  padded_vocab_ = h.padded_vocab;
  // The elements stay below 2^61: layers x 12 width^2 is at most 2^16 x 12 x 2^40.
  const int64_t width = h.width,
                elems = (padded_vocab_ + h.context + 2) * width + h.layers * (12 * width * width + 13 * width);
  if (const int64_t bytes = file_.size_bytes() - kHeaderBytes;
      bytes / size_of(dtype_) != elems || bytes % size_of(dtype_))
    throw CheckpointError(
        "[checkpoint] {} has {} bytes after its header, need {} elements of {} bytes for its sizes. It was truncated "
        "or "
        "replaced.",
        shown, bytes, elems, size_of(dtype_));
  const std::string id = h.vocab == kGpt2Vocab ? fmt::format("{}", kEndOfText) : "null";
  const Json config = Json::parse(fmt::format(
      R"({{"model_type": "gpt2", "vocab_size": {}, "n_positions": {}, "n_embd": {}, "n_layer": {}, "n_head": {},
          "activation_function": "gelu_new", "layer_norm_epsilon": 1e-05, "bos_token_id": {}, "eos_token_id": {}}})",
      h.vocab, h.context, h.width, h.layers, h.heads, id, id));
  model_ = models::read_hugging_face_config(config, shown, INT64_MAX);  // the file has the size of its layers
  add_tensors();
}

void LlmCCheckpoint::add_tensors() {
  const models::ModelOptions& o = model_.options;
  const int64_t width = o.width;
  int64_t at = 0;
  places_["transformer.wte.weight"] = {at, {o.vocab, width}};
  at += padded_vocab_ * width;
  places_["transformer.wpe.weight"] = {at, {o.context, width}};
  at += o.context * width;
  // A tensor of one layer: rows and columns in llm.c, with 0 columns for a vector.
  struct Kind {
    const char* name;
    int64_t rows, columns;
  };
  for (const auto& [name, rows, columns] :
       {Kind{"ln_1.weight", width, 0}, Kind{"ln_1.bias", width, 0}, Kind{"attn.c_attn.weight", 3 * width, width},
        Kind{"attn.c_attn.bias", 3 * width, 0}, Kind{"attn.c_proj.weight", width, width},
        Kind{"attn.c_proj.bias", width, 0}, Kind{"ln_2.weight", width, 0}, Kind{"ln_2.bias", width, 0},
        Kind{"mlp.c_fc.weight", 4 * width, width}, Kind{"mlp.c_fc.bias", 4 * width, 0},
        Kind{"mlp.c_proj.weight", width, 4 * width}, Kind{"mlp.c_proj.bias", width, 0}})
    for (int64_t layer = 0; layer < o.layers; ++layer) {
      Place place{.begin_elems = at, .shape = {rows}};
      if (columns > 0) place = {at, {columns, rows}, true};
      places_[fmt::format("transformer.h.{}.{}", layer, name)] = std::move(place);
      at += rows * std::max<int64_t>(1, columns);
    }
  for (const char* name : {"transformer.ln_f.weight", "transformer.ln_f.bias"}) {
    places_[name] = {at, {width}};
    at += width;
  }
}

void LlmCCheckpoint::write(const Place& place, DType dtype, const checkpoint::TensorSink& sink) const {
  const int64_t elem_bytes = size_of(dtype_), elems = place.shape[0] * (place.shape.size() > 1 ? place.shape[1] : 1);
  const auto read = [&](int64_t begin, int64_t count, std::vector<char>& bytes) {
    bytes.resize(static_cast<size_t>(count * elem_bytes));
    file_.read(kHeaderBytes + (place.begin_elems + begin) * elem_bytes, bytes.data(), count * elem_bytes);
  };
  const auto value = [&](const std::vector<char>& bytes, int64_t index) {
    if (dtype_ == DType::f32) {
      float v = 0;
      std::memcpy(&v, bytes.data() + 4 * index, 4);
      return v;
    }
    bfloat16 v;
    std::memcpy(&v, bytes.data() + 2 * index, 2);
    return static_cast<float>(v);
  };
  std::vector<char> bytes;
  if (place.transposed) read(0, elems, bytes);
  const int64_t columns = place.transposed ? place.shape[1] : 0;
  std::vector<float> values;
  for (int64_t begin = 0; begin < elems; begin += kPieceElems) {
    const int64_t count = std::min(kPieceElems, elems - begin);
    if (!place.transposed) read(begin, count, bytes);
    values.resize(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) {
      const int64_t to = begin + i;
      const int64_t from = place.transposed ? to % columns * place.shape[0] + to / columns : i;
      values[static_cast<size_t>(i)] = value(bytes, from);
    }
    sink_floats(values, dtype, sink);
  }
}

std::vector<checkpoint::TensorToSave> LlmCCheckpoint::tensors(const std::vector<std::string>& names,
                                                              DType dtype) const {
  std::vector<checkpoint::TensorToSave> tensors;
  for (const std::string& name : names) {
    const auto found = places_.find(name);
    if (found == places_.end())
      throw CheckpointError("[checkpoint] {} has no tensor {}. Give a checkpoint of GPT-2.", files::shown(file_.path()),
                            name);
    tensors.push_back({.name = name,
                       .dtype = dtype,
                       .shape = found->second.shape,
                       .write = [this, &place = found->second, dtype](const checkpoint::TensorSink& sink) {
                         write(place, dtype, sink);
                       }});
  }
  return tensors;
}

}  // namespace slipstream::runtime
