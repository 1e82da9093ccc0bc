// SPDX-License-Identifier: Apache-2.0
#pragma once
// Results of CUDA calls as sentences: one check that throws, and one for destructors that logs.

#include <cuda_runtime_api.h>

#include <string>

namespace slipstream::cuda {

/// Returns if `result` is success; else clears the thread's last error and throws a ResourceError with the call, its
/// place, CUDA's own words and what to do.
void check(cudaError_t result, const char* expression, const char* file, int line);

/// Throws as check for a call that another floor made: `what` was done when `result` came.
[[noreturn]] void fail(cudaError_t result, const std::string& what);

/// As check, for destructors: logs instead of throwing. Silent when the driver has already gone, as at the end of main,
/// and after check or fail has thrown.
void check_quietly(cudaError_t result, const char* expression, const char* file, int line) noexcept;

/// Is `result` success? "Not ready" is false and is cleared, so that the next check does not find it. Throws as check.
bool is_ready(cudaError_t result, const char* expression, const char* file, int line);

}  // namespace slipstream::cuda

#define SLIP_CUDA(call) ::slipstream::cuda::check((call), #call, __FILE__, __LINE__)
#define SLIP_CUDA_QUIETLY(call) ::slipstream::cuda::check_quietly((call), #call, __FILE__, __LINE__)
#define SLIP_CUDA_READY(call) ::slipstream::cuda::is_ready((call), #call, __FILE__, __LINE__)
