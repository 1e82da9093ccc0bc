// SPDX-License-Identifier: Apache-2.0
#pragma once
// Names for profilers: a range per step, one around every launch, and the name of every stream. They cost nothing
// without a profiler.

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>

#if __has_include(<nvtx3/nvToolsExtCudaRt.h>)
#include <nvtx3/nvToolsExt.h>
#include <nvtx3/nvToolsExtCudaRt.h>
#define SLIP_HAS_NVTX 1
#else
#define SLIP_HAS_NVTX 0
#endif

namespace slipstream::cuda {

#if SLIP_HAS_NVTX
class Range {
 public:
  explicit Range(const std::string& name) { nvtxRangePushA(name.c_str()); }
  ~Range() { nvtxRangePop(); }
  Range(const Range&) = delete;
  Range& operator=(const Range&) = delete;
};
inline void begin_range(const std::string& name) { nvtxRangePushA(name.c_str()); }
inline void end_range() { nvtxRangePop(); }
inline void name_stream(cudaStream_t stream, const std::string& name) { nvtxNameCudaStreamA(stream, name.c_str()); }
#else
class Range {
 public:
  explicit Range(const std::string&) {}
};
inline void begin_range(const std::string&) {}
inline void end_range() {}
inline void name_stream(cudaStream_t, const std::string&) {}
#endif

/// A range per step, from its first launch to the first launch of the next step. Launches nest in it. Only the issuing
/// thread uses it.
class StepRange {
 public:
  /// `step` 0 means that no step is running.
  void enter(uint32_t step) {
    if (step == step_) return;
    if (step_ != 0) end_range();
    if (step != 0) begin_range("step " + std::to_string(step));
    step_ = step;
  }

 private:
  uint32_t step_ = 0;
};

}  // namespace slipstream::cuda
