// SPDX-License-Identifier: Apache-2.0
#pragma once
// The weights of a model that generates texts, in the memory of its device.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "engine/base/dtype.h"
#include "engine/plan/model_spec.h"
#include "models/common/blocks.h"
#include "models/common/generation_device.h"

namespace slipstream::models {

/// Owns one allocation for all parameters, so that the kernel gives huge pages to small matrices, too.
class GenerationWeights {
 public:
  /// Reads the elements [begin, begin + out.size()) of the part of a tensor that this rank holds.
  using Read = std::function<void(const NamedTensor& tensor, int64_t begin, std::span<float> out)>;

  /// Blocks while it reads the parameters of `model`. Matrices are kept in `dtype`, and vectors in f32. Throws:
  /// ResourceError without memory; what `read` throws.
  GenerationWeights(GenerationDevice& device, SpecBuilder& model, DType dtype, const Read& read);

  /// Returns the memory of a parameter by its index in ModelSpec::parameters.
  const std::byte* at(int64_t parameter) const { return memory_->data() + begin_bytes(parameter); }
  int64_t size_bytes(int64_t parameter) const { return held_[static_cast<size_t>(parameter)].size_bytes; }
  int64_t count() const { return std::ssize(held_); }

 private:
  struct Held {
    int64_t begin_bytes, size_bytes;
  };
  int64_t begin_bytes(int64_t parameter) const { return held_[static_cast<size_t>(parameter)].begin_bytes; }

  std::vector<Held> held_;  // by parameter; ranges of `memory_`
  std::unique_ptr<Allocation> memory_;
};

}  // namespace slipstream::models
