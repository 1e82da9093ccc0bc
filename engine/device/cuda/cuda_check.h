// SPDX-License-Identifier: Apache-2.0
#pragma once
// Turns results of CUDA calls into error messages. One check throws, the other one logs and is for destructors.

#include <cuda_runtime_api.h>

#include <string>

namespace slipstream::cuda {

/// Returns if `result` is success; otherwise clears the thread's last error and throws a ResourceError with the call,
/// its source line, CUDA's own message and a remedy.
void check(cudaError_t result, const char* expression, const char* file, int line);

/// Throws like check() for a call in another layer. `what` names the operation that returned `result`.
[[noreturn]] void fail(cudaError_t result, const std::string& what);

/// Does the same for destructors, but logs instead of throwing. Logs nothing after the driver has shut down, as at the
/// end of main(), or after check() or fail() has thrown.
void check_quietly(cudaError_t result, const char* expression, const char* file, int line) noexcept;

/// Returns true if `result` is success. "Not ready" returns false and is cleared, so that the next check does not see
/// it. Throws like check().
bool is_ready(cudaError_t result, const char* expression, const char* file, int line);

}  // namespace slipstream::cuda

#define SLIP_CUDA(call) ::slipstream::cuda::check((call), #call, __FILE__, __LINE__)
#define SLIP_CUDA_QUIETLY(call) ::slipstream::cuda::check_quietly((call), #call, __FILE__, __LINE__)
#define SLIP_CUDA_READY(call) ::slipstream::cuda::is_ready((call), #call, __FILE__, __LINE__)
