// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which pipeline stage has which part of the model. No other code has this relation.

#include <vector>

namespace slipstream {

/// Every stage has the same number of parts of the model. They are its chunks, in the order of the model. The next part
/// is either on the same stage, so that no transfer leads to it, or on a neighbour in the ring of stages.
class StagePlacement {
 public:
  StagePlacement() = default;  // without parts
  /// `stage_of` is by part. Throws: ConfigError unless it satisfies the rule above and the first part is on stage 0.
  explicit StagePlacement(std::vector<int> stage_of);
  /// The parts go round the stages: chunk c of stage s is part c x stages + s.
  static StagePlacement round(int stages, int chunks);
  /// The parts go down the stages and back up, as a V: the second chunk of stage s is part 2 x stages - 1 - s.
  static StagePlacement fold(int stages, int chunks);

  int parts() const { return static_cast<int>(stage_of_.size()); }
  int stage_of(int part) const { return stage_of_[static_cast<size_t>(part)]; }
  int part(int stage, int chunk) const { return parts_of_[static_cast<size_t>(stage)][static_cast<size_t>(chunk)]; }
  /// Returns true if the first and the last part, with the embedding and the head, are on different stages.
  bool ends_apart() const { return stage_of_.front() != stage_of_.back(); }
  /// Returns the offset to the stage of the next part: 1 or -1, or 0 on the same stage.
  int hop_after(int part) const { return hop_after_[static_cast<size_t>(part)]; }
  /// Returns the number of parts whose successor is on another stage.
  int hops() const;
  /// Returns true if `part` is on `stage`, or at most `distance` parts away from a part on it.
  bool is_near(int part, int stage, int distance) const;

 private:
  std::vector<int> stage_of_, hop_after_;   // by part
  std::vector<std::vector<int>> parts_of_;  // by stage and chunk
};

}  // namespace slipstream
