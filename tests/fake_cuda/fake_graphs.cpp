// SPDX-License-Identifier: Apache-2.0
// Stream capture and its rules, as the CUDA programming guide states them. A graph has only the order of each stream
// and of the waits between them, so a missing wait shows, as on a GPU.

#include <algorithm>

#include "tests/fake_cuda/machine.h"

using namespace slipstream::fake_cuda::detail;

namespace {

/// Runs every lane on a separate thread, and returns when all have ended.
void run(const std::vector<Lane>& lanes, bool keeps_node_priority) {
  std::mutex here;
  std::condition_variable ended;
  size_t count = 0;
  for (const Lane& lane : lanes)
    for (const Lane::Node& node : lane.nodes) count = std::max(count, node.number + 1);
  std::vector<bool> done(count), awaited(count);  // `awaited`: by another lane
  for (const Lane& lane : lanes) {
    Nodes own;
    for (const Lane::Node& node : lane.nodes) {
      for (size_t earlier : node.behind)
        if (own.count(earlier) == 0) awaited[earlier] = true;
      own.insert(node.number);
    }
  }
  const auto run_lane = [&, launched_with = running_priority](const Lane& lane) {
    running_priority = keeps_node_priority ? lane.priority : launched_with;
    for (const Lane::Node& node : lane.nodes) {
      std::unique_lock lock(here);
      ended.wait(lock, [&] {
        return std::all_of(node.behind.begin(), node.behind.end(), [&](size_t earlier) { return done[earlier]; });
      });
      lock.unlock();
      node.op();
      lock.lock();
      done[node.number] = true;
      if (awaited[node.number]) ended.notify_all();
    }
  };
  std::vector<std::thread> threads;
  for (const Lane& lane : lanes) threads.emplace_back(run_lane, std::cref(lane));
  for (std::thread& thread : threads) thread.join();
}

}  // namespace

uint64_t slipstream::fake_cuda::capture_of(cudaStream_t stream) {
  const std::lock_guard lock(mutex);
  return stream->capture ? stream->capture->number : 0;
}
void slipstream::fake_cuda::with_every_launch(cudaStream_t stream, std::function<void()> function) {
  const std::lock_guard lock(mutex);
  stream->capture->at_launches.push_back(std::move(function));
}
void slipstream::fake_cuda::name_commands(std::string work) { work_name = std::move(work); }
std::vector<slipstream::fake_cuda::GraphNode> slipstream::fake_cuda::captured_nodes() {
  const std::lock_guard lock(mutex);
  return last_captured;
}

extern "C" {

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  FAKE_ENTER("cudaStreamBeginCapture");
  if (current_settings.captures_until_lost-- <= 0) return leave(lost = cudaErrorDevicesUnavailable);
  if (current_settings.captures_until_stuck-- <= 0) {
    lock.unlock();
    while (true) std::this_thread::sleep_for(std::chrono::seconds(1));
  }
  if (open_capture || stream->capture) return leave(cudaErrorIllegalState);
  open_capture = std::make_shared<Capture>();
  open_capture->number = ++captures_begun;
  open_capture->origin = stream;
  open_capture->mode = mode;
  open_capture->thread = std::this_thread::get_id();
  stream->capture = open_capture;
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  FAKE_ENTER("cudaStreamIsCapturing");
  *status = !stream->capture           ? cudaStreamCaptureStatusNone
            : stream->capture->spoiled ? cudaStreamCaptureStatusInvalidated
                                       : cudaStreamCaptureStatusActive;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  FAKE_ENTER("cudaStreamEndCapture");
  *graph = nullptr;
  const std::shared_ptr<Capture> capture = stream->capture;
  if (!capture || capture->origin != stream) return leave(cudaErrorStreamCaptureUnmatched);
  bool unjoined = false;
  for (const auto& [captured, commands] : capture->commands) {
    captured->capture.reset();
    unjoined |= captured != stream && capture->joined_commands[captured] != commands;
  }
  stream->capture.reset();
  open_capture.reset();
  std::vector<Lane> lanes;
  for (auto& [captured, lane] : std::exchange(capture->lanes, {}))  // events of the capture outlive the capture
    lanes.push_back(std::move(lane));
  if (capture->spoiled || current_settings.captures-- <= 0) return leave(cudaErrorStreamCaptureInvalidated);
  if (unjoined) return leave(cudaErrorStreamCaptureUnjoined);
  last_captured.assign(capture->nodes, {});
  for (const Lane& lane : lanes)
    for (const Lane::Node& node : lane.nodes) last_captured[node.number] = {node.work, node.behind, node.begins_early};
  *graph = new CUgraph_st{std::move(lanes), std::exchange(capture->at_launches, {})};
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long flags) {
  FAKE_ENTER("cudaGraphInstantiate");
  *exec = new CUgraphExec_st{(flags & cudaGraphInstantiateFlagUseNodePriority) != 0, *graph};
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  FAKE_ENTER("cudaGraphLaunch");
  for (const Op& function : exec->graph.at_launches) function();
  return leave(push_when_free(lock, stream,
                              [lanes = exec->graph.lanes, keeps = exec->keeps_node_priority] { run(lanes, keeps); }));
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  delete exec;
  return cudaSuccess;
}

}  // extern "C"
