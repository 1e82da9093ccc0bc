// SPDX-License-Identifier: Apache-2.0
// Declares the parameters of norms and products under their names in a Hugging Face folder.

#include "models/layers/layer.h"

#include <numeric>

namespace slipstream::models {

Norm declare_norm(SpecBuilder& b, const std::string& prefix, int layer, const NormKind& kind) {
  const auto parameter = [&](const char* suffix, Init::Kind init) {
    return b.parameter(prefix + kind.name + suffix, {b.options().width}, layer, {init, 0});
  };
  Norm n{.weight = parameter(".weight", Init::Kind::ones)};
  if (kind.centred) n.bias = parameter(".bias", Init::Kind::zeros);
  return n;
}

uint32_t declare_outputs(SpecBuilder& b, const std::string& prefix, int layer, const Weights& weights,
                         const std::vector<int64_t>& parts, int64_t in, bool whole) {
  const bool matrix = in > 0, one = weights.names.size() == 1;
  std::vector<NamedTensor> tensors;
  int64_t begin_elems = 0;
  for (size_t i = 0; i < weights.names.size(); ++i) {
    const int64_t out = one ? std::accumulate(parts.begin(), parts.end(), int64_t{0}) : parts[i];
    NamedTensor tensor{.name = prefix + weights.names[i] + (matrix ? ".weight" : ".bias"),
                       .shape = matrix ? std::vector{out, in} : std::vector{out},
                       .begin_elems = begin_elems,
                       .transposed_on_disk = matrix && weights.transposed};
    if (!whole) tensor = b.held(std::move(tensor), 0, one ? static_cast<int>(parts.size()) : 1);
    begin_elems += tensor.elems();
    tensors.push_back(std::move(tensor));
  }
  return b.parameter(
      {.tensors = std::move(tensors), .layer = layer, .init = matrix ? weights.init : Init{}, .decay = matrix});
}

Linear declare_split_output(SpecBuilder& b, const std::string& prefix, int layer, const Weights& weights, int64_t in,
                            const std::vector<int64_t>& parts) {
  Linear w{.weight = declare_outputs(b, prefix, layer, weights, parts, in), .in = in};
  if (weights.bias) w.bias = declare_outputs(b, prefix, layer, weights, parts, 0);
  w.out = std::accumulate(parts.begin(), parts.end(), int64_t{0}) / b.options().tensor;
  return w;
}

Linear declare_split_input(SpecBuilder& b, const std::string& prefix, int layer, const Weights& weights, int64_t in,
                           int64_t out) {
  const std::string name = prefix + weights.names.front();
  NamedTensor tensor{.name = name + ".weight", .shape = {out, in}, .transposed_on_disk = weights.transposed};
  Linear w{.in = in / b.options().tensor, .out = out};
  w.weight =
      b.parameter({.tensors = {b.held(std::move(tensor), 1)}, .layer = layer, .init = weights.init, .decay = true});
  if (weights.bias) w.bias = b.parameter(name + ".bias", {out}, layer, {});
  return w;
}

}  // namespace slipstream::models
