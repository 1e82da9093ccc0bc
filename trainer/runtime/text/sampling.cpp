// SPDX-License-Identifier: Apache-2.0
// Ranges of the flags that choose among tokens.

#include "trainer/runtime/text/sampling.h"

#include "engine/base/check.h"

namespace slipstream::runtime {

void check_sampling(const SamplingOptions& o) {
  if (!(o.temperature >= 0)) throw ConfigError("--temperature {} must be at least 0.", o.temperature);
  if (o.top_k < 0) throw ConfigError("--top-k {} must be at least 0 (0: all tokens).", o.top_k);
  if (!(o.top_p > 0 && o.top_p <= 1)) throw ConfigError("--top-p {} must be above 0 and at most 1.", o.top_p);
  if (!(o.min_p >= 0 && o.min_p <= 1)) throw ConfigError("--min-p {} must be from 0 to 1.", o.min_p);
  if (!(o.repetition_penalty > 0 && o.repetition_penalty <= 100))
    throw ConfigError("--repetition-penalty {} must be above 0 and at most 100 (1: none).", o.repetition_penalty);
}

}  // namespace slipstream::runtime
