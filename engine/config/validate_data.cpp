// SPDX-License-Identifier: Apache-2.0
// Compares sources with their weights and formats.

#include "engine/config/validate.h"

#include <algorithm>

#include "engine/base/check.h"

namespace slipstream {

void validate_data(const RunConfig& config) {
  const Data& data = config.data;
  if (!data.sources.empty() && !data.train.empty())
    throw ConfigError("data.train and data.sources are both set. Keep data.train for one source, or data.sources.");
  if (!data.weights.empty() && data.weights.size() != data.sources.size())
    throw ConfigError("data.weights has {} numbers for {} data.sources. Give one weight per source.",
                      data.weights.size(), data.sources.size());
  if (!data.formats.empty() && data.formats.size() != data.sources.size())
    throw ConfigError("data.formats has {} words for {} data.sources. Give one format per source.", data.formats.size(),
                      data.sources.size());
  if (!data.weights.empty() && std::all_of(data.weights.begin(), data.weights.end(), [](double w) { return w == 0; }))
    throw ConfigError("data.weights: all {} are 0, need a sum above 0. Change them.", data.weights.size());
}

}  // namespace slipstream
