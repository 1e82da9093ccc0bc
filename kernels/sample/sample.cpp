// SPDX-License-Identifier: Apache-2.0
// The checks of the choice of tokens, its options as whole numbers, and the dispatch.

#include "kernels/sample/sample.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/base/check.h"
#include "kernels/common/checks.h"
#include "kernels/sample/sample_rule.h"

namespace slipstream::kernels {

SamplingNumbers numbers_of(const Sample& args) {
  const SamplingOptions& o = args.options;
  SamplingNumbers numbers{.penalty = o.repetition_penalty, .words = token_set_words(args.vocab)};
  if (o.temperature > 0)  // so that the likeliest token keeps its weight
    numbers.factor = static_cast<float>(std::min<double>(M_LOG2E / o.temperature, std::numeric_limits<float>::max()));
  if (o.top_k < args.vocab) numbers.top_k = static_cast<uint64_t>(o.top_k);
  if (o.top_p < 1) numbers.top_p = std::max<uint64_t>(1, static_cast<uint64_t>(std::ldexp(o.top_p, 64)));
  numbers.min_weight = static_cast<uint64_t>(std::ceil(std::ldexp(o.min_p, kWeightBits)));
  return numbers;
}

void sample(LaunchContext& context, const Sample& args) {
  constexpr std::string_view op = "sample";
  constexpr int64_t kVocabMost = 1 << 23;  // so many weights sum to less than 2^64
  const SamplingOptions& o = args.options;
  require_at_least(op, "rows", args.rows, 0);
  require_at_least(op, "vocab", args.vocab, 1);
  require_at_least(op, "stride", args.stride, args.vocab);
  require_at_least(op, "top_k", o.top_k, 0);
  if (args.vocab > kVocabMost) throw ShapeError("[{}] vocab is {}, need at most {}.", op, args.vocab, kVocabMost);
  // Beyond this, the distance of holes from the other logits would shrink to that of a likely token.
  if (!(o.temperature >= 0 && o.temperature <= 1e6))
    throw ShapeError("[{}] temperature is {}, need 0 to 1e6.", op, o.temperature);
  if (!(o.top_p > 0 && o.top_p <= 1))
    throw ShapeError("[{}] top_p is {}, need more than 0 and at most 1.", op, o.top_p);
  if (!(o.min_p >= 0 && o.min_p <= 1)) throw ShapeError("[{}] min_p is {}, need 0 to 1.", op, o.min_p);
  if (!(o.repetition_penalty > 0))
    throw ShapeError("[{}] repetition_penalty is {}, need more than 0.", op, o.repetition_penalty);
  if (args.rows == 0) return;
  require_pointers(op, {args.logits, args.sequences, args.text, args.chosen});
  if (o.repetition_penalty != 1 && args.seen == nullptr)
    throw ShapeError("[{}] a repetition_penalty of {} needs the tokens of each text in seen.", op,
                     o.repetition_penalty);
  if (context.kind == DeviceKind::sim) no_kernel(op, context.kind);
  if (context.kind == DeviceKind::cuda) return sample_cuda(context, args);
  SLIP_CALL_ISA(sample_cpu(context, args));
}

void next_rows(LaunchContext& context, const NextRows& args) {
  constexpr std::string_view op = "next_rows";
  require_at_least(op, "rows", args.rows, 0);
  if (args.rows == 0) return;
  require_pointers(op, {args.sequences, args.text, args.ids, args.places});
  if (context.kind == DeviceKind::sim) no_kernel(op, context.kind);
  if (context.kind == DeviceKind::cuda) return next_rows_cuda(context, args);
  for (int64_t r = 0; r < args.rows; ++r) {
    const TextState& text = args.text[args.sequences[r]];
    args.ids[r] = text.id;
    args.places[r] = text.token;
  }
}

}  // namespace slipstream::kernels
