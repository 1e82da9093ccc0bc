// SPDX-License-Identifier: Apache-2.0
// The table of model families.

#include <array>

#include "engine/base/check.h"
#include "models/gpt2/gpt2.h"
#include "models/llama/llama.h"
#include "models/model.h"

namespace slipstream::models {
namespace {

struct Row {
  Family family;
  ModelSpec (*build)(const ModelOptions&, Buffers&);
};

constexpr std::array<Row, 2> kFamilies{{{Family::gpt2, build_gpt2}, {Family::llama, build_llama}}};

}  // namespace

ModelSpec build_model(const ModelOptions& options, Buffers& buffers) {
  if (options.width % options.heads != 0)
    throw ConfigError("[model] heads {} must divide width {}.", options.heads, options.width);
  if (options.tokens > options.context)
    throw ConfigError(
        "[model] train.sequence_length {} exceeds model.context {}. Lower train.sequence_length, or raise "
        "model.context.",
        options.tokens, options.context);
  // The rules of the run file (engine/config/validate.h).
  SLIP_ASSERT(options.heads % options.tensor == 0 && options.kv_heads % options.tensor == 0 &&
              options.ffn_width % options.tensor == 0);
  SLIP_ASSERT(!options.sequence_parallel || options.batch * options.tokens % options.tensor == 0);
  for (const Row& row : kFamilies)
    if (row.family == options.family) return row.build(options, buffers);
  throw InternalError("[model] the model family has no row in models/registry.cpp.");
}

}  // namespace slipstream::models
