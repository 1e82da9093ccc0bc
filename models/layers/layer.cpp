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

std::vector<Linear> declare_split_outputs(SpecBuilder& b, const std::string& prefix, int layer, const Weights& weights,
                                          int64_t in, const std::vector<Outputs>& products) {
  std::vector<Linear> all;
  const auto declare = [&](const Outputs& of, bool matrix) {
    const bool one = of.names.size() == 1;
    std::vector<NamedTensor> tensors;
    int64_t begin_elems = 0;
    for (size_t i = 0; i < of.names.size(); ++i) {
      const int64_t out = one ? std::accumulate(of.sizes.begin(), of.sizes.end(), int64_t{0}) : of.sizes[i];
      NamedTensor tensor{.name = prefix + of.names[i] + (matrix ? ".weight" : ".bias"),
                         .shape = matrix ? std::vector{out, in} : std::vector{out},
                         .begin_elems = begin_elems,
                         .transposed_on_disk = matrix && weights.transposed};
      if (!of.whole) tensor = b.held(std::move(tensor), 0, one ? static_cast<int>(of.sizes.size()) : 1);
      begin_elems += tensor.elems();
      tensors.push_back(std::move(tensor));
    }
    return b.parameter(
        {.tensors = std::move(tensors), .layer = layer, .init = matrix ? weights.init : Init{}, .decay = matrix});
  };
  for (const Outputs& of : products) {
    all.push_back({.weight = declare(of, true), .in = in});
    all.back().out = b.spec().parameters.back().elems / in;
  }
  for (size_t i = 0; i < products.size() && weights.bias; ++i) all[i].bias = declare(products[i], false);
  return all;
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
