// SPDX-License-Identifier: Apache-2.0
// Checks a placement and inverts it.

#include "engine/plan/schedules/stage_placement.h"

#include <algorithm>
#include <cstdlib>

#include "engine/base/check.h"

namespace slipstream {

StagePlacement::StagePlacement(std::vector<int> stage_of) : stage_of_(std::move(stage_of)) {
  const int stages = 1 + *std::max_element(stage_of_.begin(), stage_of_.end());
  parts_of_.resize(static_cast<size_t>(stages));
  for (int part = 0; part < parts(); ++part) {
    const int stage = this->stage_of(part), next = this->stage_of((part + 1) % parts());
    parts_of_[static_cast<size_t>(stage)].push_back(part);
    const int ahead = (next - stage + stages) % stages, hop = ahead == stages - 1 && ahead > 1 ? -1 : ahead;
    if (part + 1 < parts() && hop > 1)
      throw ConfigError(
          "[pipeline] part {} of the model is on stage {} and part {} on stage {} of {}. Place consecutive parts on "
          "one stage or on neighbours.",
          part, stage, part + 1, next, stages);
    hop_after_.push_back(hop);
  }
  for (int stage = 0; stage < stages; ++stage)
    if (const size_t own = parts_of_[static_cast<size_t>(stage)].size(); own * parts_of_.size() != stage_of_.size())
      throw ConfigError("[pipeline] stage {} has {} of {} parts of the model. Give each of {} stages the same number.",
                        stage, own, parts(), stages);
  if (this->stage_of(0) != 0)
    throw ConfigError("[pipeline] the first part of the model is on stage {}. Place it on stage 0.", this->stage_of(0));
}

StagePlacement StagePlacement::round(int stages, int chunks) {
  std::vector<int> stage_of;
  for (int part = 0; part < stages * chunks; ++part) stage_of.push_back(part % stages);
  return StagePlacement(std::move(stage_of));
}

StagePlacement StagePlacement::fold(int stages, int chunks) {
  std::vector<int> stage_of;
  for (int part = 0; part < stages * chunks; ++part)
    stage_of.push_back(part / stages % 2 == 0 ? part % stages : stages - 1 - part % stages);
  return StagePlacement(std::move(stage_of));
}

int StagePlacement::hops() const {
  return static_cast<int>(std::count_if(hop_after_.begin(), hop_after_.end() - 1, [](int hop) { return hop != 0; }));
}

bool StagePlacement::is_near(int part, int stage, int distance) const {
  const std::vector<int>& own = parts_of_[static_cast<size_t>(stage)];
  return std::any_of(own.begin(), own.end(), [&](int each) { return std::abs(each - part) <= distance; });
}

}  // namespace slipstream
