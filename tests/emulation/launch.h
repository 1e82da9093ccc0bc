// SPDX-License-Identifier: Apache-2.0
#pragma once
// The emulated counterpart of kernels/cuda/launch.h: a launch passes the grid to emulation::enqueue.

#include <cuda_runtime.h>

#include <source_location>
#include <string>
#include <string_view>
#include <tuple>

#include "engine/device/work.h"

namespace slipstream::kernels {

/// A stream that remembers where it was named, for the emulator's errors.
struct Site {
  Site(cudaStream_t stream_, const std::source_location& at_ = std::source_location::current())
      : stream(stream_), at(at_) {}  // NOLINT: implicit
  cudaStream_t stream;
  std::source_location at;
};

inline cudaStream_t stream_of(const LaunchContext& context) { return context.native_stream; }
inline void cuda_check(cudaError_t, const char*) {}
inline size_t shared_memory_bytes() { return emulation::shared_memory_bytes(); }
inline int multiprocessors() { return emulation::kMultiprocessors; }
inline int compute_capability() { return emulation::compute_capability(); }

/// As many as the compiler may give a kernel with the launch bounds (threads, 1).
template <typename... Parameters>
int registers_of(void (*)(Parameters...), int threads) {
  return emulation::launch_registers(static_cast<size_t>(threads));
}

/// The kernel in the text of a launch's arguments: the second one, without its template arguments.
inline std::string kernel_of(std::string_view text) {
  size_t at = 0;
  for (int depth = 0; at < text.size() && (depth > 0 || text[at] != ','); ++at)
    depth += (text[at] == '(' || text[at] == '{') - (text[at] == ')' || text[at] == '}');
  at = text.find_first_not_of(", ", at);
  return at == text.npos ? "" : std::string(text.substr(at, text.find_first_of("<,", at) - at));
}

template <typename... Parameters, typename... Args>
void launch_named(const char* text, Site site, void (*kernel)(Parameters...), dim3 grid, dim3 block,
                  size_t shared_bytes, const Args&... args) {
  const std::tuple<Parameters...> values(static_cast<Parameters>(args)...);
  emulation::enqueue(site.stream, [=, at = site.at] {
    emulation::run(
        {grid.x, grid.y, grid.z}, {block.x, block.y, block.z}, shared_bytes, [&] { std::apply(kernel, values); }, at,
        kernel_of(text));
  });
}

}  // namespace slipstream::kernels

// Errors name the kernel, and a pointer to a function has no name.
#define launch(...) launch_named(#__VA_ARGS__, __VA_ARGS__)
