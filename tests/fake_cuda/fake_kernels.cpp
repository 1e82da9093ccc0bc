// SPDX-License-Identifier: Apache-2.0
// Kernels that begin before the kernel before them in their stream has ended, as early as the CUDA programming guide
// allows ("Programmatic Dependent Launch"): each runs on its own thread from the moment at which the one before it lets
// it begin. An edge of a graph has this form only between a kernel and the next one of its stream.

#include "tests/fake_cuda/machine.h"

namespace slipstream::fake_cuda {

struct detail::Grid {
  Op body;
  std::shared_ptr<Grid> before, after;  // set only where the later one may begin early
  bool has_begun = false, lets_begin = false, has_ended = false;
  std::thread thread;
};

namespace {

using namespace detail;

thread_local std::shared_ptr<Grid> running;

/// Call it under the lock.
void begin(const std::shared_ptr<Grid>& grid) {
  if (std::exchange(grid->has_begun, true)) return;
  grid->thread = std::thread([grid] {
    running = grid;
    grid->body();
    running.reset();
  });
}

/// Takes the kernel's place in the order of its stream: the kernel has ended when this returns.
void run(const std::shared_ptr<Grid>& grid) {
  {
    const std::lock_guard lock(mutex);
    begin(grid);
  }
  grid->thread.join();
  const std::lock_guard lock(mutex);
  grid->has_ended = true;
  grid->before.reset();
  if (grid->after) begin(grid->after);
  changed.notify_all();
}

}  // namespace

void wait_for_earlier_kernels() {
  std::unique_lock lock(mutex);
  const std::shared_ptr<Grid> before = running ? running->before : nullptr;
  if (before) changed.wait(lock, [&] { return before->has_ended; });
}
void let_next_kernel_begin() {
  const std::lock_guard lock(mutex);
  if (!running) return;
  running->lets_begin = true;
  if (running->after) begin(running->after);
}

}  // namespace slipstream::fake_cuda

using namespace slipstream::fake_cuda;
using namespace slipstream::fake_cuda::detail;

extern "C" {

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* function, void** arguments) {
  FAKE_ENTER("cudaLaunchKernelExC");
  Op body = [call = reinterpret_cast<void (*)(void*)>(const_cast<void*>(function)),
             argument = *static_cast<void**>(arguments[0])] { call(argument); };
  const cudaStream_t stream = config->stream;
  bool may_begin_early = false;
  for (unsigned i = 0; i < config->numAttrs; ++i)
    may_begin_early |= config->attrs[i].id == cudaLaunchAttributeProgrammaticStreamSerialization &&
                       config->attrs[i].val.programmaticStreamSerializationAllowed;
  if (stream->capture) {
    if (const cudaError_t pushed = push(stream, std::move(body)); pushed != cudaSuccess) return leave(pushed);
    std::vector<Lane::Node>& nodes = stream->capture->lanes[stream].nodes;
    nodes.back().is_kernel = true;
    if (may_begin_early && nodes.size() > 1) {
      const Lane::Node& before = nodes[nodes.size() - 2];
      nodes.back().begins_early = before.is_kernel && nodes.back().behind == Nodes{before.number};
    }
    return cudaSuccess;
  }
  auto grid = std::make_shared<Grid>();
  grid->body = std::move(body);
  const std::shared_ptr<Grid> before = stream->newest;
  if (const cudaError_t pushed = push(stream, [grid] { run(grid); }); pushed != cudaSuccess) return leave(pushed);
  stream->newest = grid;
  if (!may_begin_early || !before || before->has_ended) return cudaSuccess;
  grid->before = before;
  before->after = grid;
  if (before->lets_begin) begin(grid);
  return cudaSuccess;
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  *attributes = {};
  attributes->ptxVersion = attributes->binaryVersion = current_settings.kernels_compiled_for;
  return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) { return cudaSuccess; }

}  // extern "C"
