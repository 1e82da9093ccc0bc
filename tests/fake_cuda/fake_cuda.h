// SPDX-License-Identifier: Apache-2.0
#pragma once
// A fake of the CUDA runtime calls that the program uses: streams are host threads, device memory is host memory.
//
// It keeps the documented rules that matter for order: a wait captures the record that is latest at its call, "not
// ready" is left as the last error, a host function may not call CUDA, elapsed time is float milliseconds between two
// completed timing events, fresh memory is garbage, and what is illegal during capture fails and spoils the capture.

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <vector>

namespace slipstream::fake_cuda {

/// Properties of the machine, and mistakes that are made on purpose.
struct Settings {
  int devices = 2;
  int driver = 13000;  // 0: there is no driver
  int capability = 90;
  int kernels_compiled_for = 90;  // architecture of the code of kernels
  int runtime = CUDART_VERSION;
  int64_t memory_bytes = int64_t{8} << 30;   // memory of a device
  double clock_ppm = 0;                      // by so much the GPU's clock is faster than the host's, from reset() on
  bool drop_waits = false;                   // mutation: cudaStreamWaitEvent does nothing
  bool drop_captured_waits = false;          // mutation: a graph knows no order between its streams
  bool record_elsewhere = false;             // mutation: ordering events complete at once, as on an idle stream
  bool guard_memory = false;                 // device memory can be touched only while a command of a stream runs
  size_t queue_limit = SIZE_MAX;             // commands that a stream takes before calls block
  int64_t lost_after = INT64_MAX;            // commands that enqueue() takes before the GPU is lost
  int64_t captures = INT64_MAX;              // captures that succeed; later ones end as if a call in them was illegal
  int64_t captures_until_lost = INT64_MAX;   // captures that begin; with the next one the GPU is lost
  int64_t captures_until_stuck = INT64_MAX;  // captures that begin; the next call never returns
};

/// Objects that exist now, and calls since reset().
struct Counts {
  int streams = 0, events = 0, blocks = 0, pinned_blocks = 0;  // alive
  int host_waits = 0;                                          // calls that wait for the device
  int records = 0, waits = 0;
};

/// Like a kernel launch: `command` runs in the order of `stream`, with access to device memory. Its exception is
/// printed and becomes the error of every later call, as after a kernel that faulted.
cudaError_t enqueue(cudaStream_t stream, std::function<void()> command);
/// Does the same from a library's own thread: a full queue does not block the caller.
cudaError_t enqueue_from_elsewhere(cudaStream_t stream, std::function<void()> command);
/// Enqueues a command of the fake itself in the order of `stream`: it runs on a lost GPU too, and without access to
/// device memory.
void enqueue_always(cudaStream_t stream, std::function<void()> command);

/// Does what griddepcontrol.wait and .launch_dependents do, in the function of a launched kernel, which takes one
/// pointer.
void wait_for_earlier_kernels();
void let_next_kernel_begin();

/// Blocks until every stream has run what was enqueued.
void wait_for_all();

/// The priority of the stream of a running command; in a graph, that of the node or of the stream that launched the
/// graph.
int priority_now();

/// The capture that `stream` is in, counted from 1; 0 if it is in none.
uint64_t capture_of(cudaStream_t stream);
/// Every launch of the graph that `stream` is captured for calls `function`, in the order of these calls. It may not
/// call CUDA.
void with_every_launch(cudaStream_t stream, std::function<void()> function);

/// Marks everything that this thread captures from now on as part of `work`.
void name_commands(std::string work);
/// A command of a graph, with the numbers of its direct predecessors. Commands are numbered in the order of their
/// calls.
struct GraphNode {
  std::string work;  // empty for commands of no work, such as the record of an event
  std::set<size_t> behind;
  bool begins_early = false;  // a kernel whose only predecessor is the kernel just before it in its stream
};
/// Nodes of the most recently captured graph.
std::vector<GraphNode> captured_nodes();

/// Restores the settings as declared above, sets counts of calls to zero and forgets pending failures. Nothing may be
/// alive.
void reset();
Settings& settings();
Counts counts();
/// The next call of `function` returns `error` and does nothing.
void fail_next(const std::string& function, cudaError_t error);
/// Allocates memory that a library takes from the driver in pieces of 2 MiB, without the runtime: cudaFree refuses it.
/// Freeing memory that a stream still uses faults, and the GPU is lost.
cudaError_t take_of_driver(void** block, size_t bytes);
cudaError_t give_back_to_driver(void* block);
/// Called with every block that is about to be freed; may not call CUDA.
std::function<void(const void* block, int64_t bytes)>& before_free();

}  // namespace slipstream::fake_cuda
