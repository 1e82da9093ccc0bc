// SPDX-License-Identifier: Apache-2.0
#pragma once
// Names for profilers: a range around every launch, and the name of every stream. Costs nothing without a profiler.

#include <cuda_runtime_api.h>

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
inline void name_stream(cudaStream_t stream, const std::string& name) { nvtxNameCudaStreamA(stream, name.c_str()); }
#else
class Range {
 public:
  explicit Range(const std::string&) {}
};
inline void name_stream(cudaStream_t, const std::string&) {}
#endif

}  // namespace slipstream::cuda
