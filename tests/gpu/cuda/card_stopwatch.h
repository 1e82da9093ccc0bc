// SPDX-License-Identifier: Apache-2.0
#pragma once
// GPU memory with random values, and the duration of works on it.
//
// Times come from CUDA events around enough calls to fill a turn: the median of the turns, and the spread between the
// fastest and the slowest.

#include <cuda_runtime_api.h>
#include <fmt/core.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "engine/base/dtype.h"
#include "engine/base/philox.h"
#include "engine/device/cuda/cuda_check.h"
#include "engine/device/work.h"
#include "kernels/cuda/workspace.h"

namespace slipstream::test {

class CardStopwatch {
 public:
  /// Measures the ops whose names hold `only`. Prints to standard output, and rows to the file `csv` unless it is null.
  CardStopwatch(const char* csv, int turns, double turn_ms, std::string only)
      : turns_(turns), turn_ms_(turn_ms), only_(std::move(only)), csv_(csv ? std::fopen(csv, "w") : nullptr) {
    SLIP_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    SLIP_CUDA(cudaEventCreateWithFlags(&begin_, cudaEventDefault));
    SLIP_CUDA(cudaEventCreateWithFlags(&end_, cudaEventDefault));
    kernels::prepare_stream(stream_);
    context_.kind = DeviceKind::cuda;
    context_.native_stream = stream_;
    if (csv_) std::fprintf(csv_, "op,shape,us,spread,tflops,gbytes\n");
  }
  ~CardStopwatch() {
    free_all();
    kernels::release_stream(stream_);
    if (csv_) std::fclose(csv_);
  }
  CardStopwatch(const CardStopwatch&) = delete;
  CardStopwatch& operator=(const CardStopwatch&) = delete;

 protected:
  void* take(int64_t size_bytes) {
    void* memory = nullptr;
    SLIP_CUDA(cudaMalloc(&memory, static_cast<size_t>(size_bytes)));
    taken_.push_back(memory);
    return memory;
  }
  void free_all() {
    for (void* memory : taken_) SLIP_CUDA_QUIETLY(cudaFree(memory));
    taken_.clear();
  }
  void upload(void* device, const void* host, int64_t size_bytes) {
    SLIP_CUDA(cudaMemcpyAsync(device, host, static_cast<size_t>(size_bytes), cudaMemcpyHostToDevice, stream_));
    SLIP_CUDA(cudaStreamSynchronize(stream_));
  }
  /// About normal, repeating after a few megabytes.
  template <typename T = bfloat16>
  T* values(int64_t elems, float scale = 1) {
    const int64_t piece = std::min<int64_t>(elems, (4 << 20) + 7);
    // Kept: on a host, making them takes longer than timing most kernels.
    static std::map<float, std::vector<T>> made;
    std::vector<T>& host = made[scale];
    const Philox random(1, "bench");
    for (auto i = static_cast<int64_t>(host.size()); i < piece; ++i)
      host.push_back(T(scale * random.normal(static_cast<uint64_t>(i))));
    auto* device = static_cast<T*>(take(elems * static_cast<int64_t>(sizeof(T))));
    for (int64_t at = 0; at < elems; at += piece)
      upload(device + at, host.data(), std::min(piece, elems - at) * static_cast<int64_t>(sizeof(T)));
    return device;
  }
  /// Token ids as frequent as in text (Philox::zipf).
  int32_t* ids(int64_t count, int64_t below) {
    const Philox random(2, "ids");
    std::vector<int32_t> host(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i)
      host[static_cast<size_t>(i)] =
          static_cast<int32_t>(random.zipf(static_cast<uint64_t>(i), static_cast<uint64_t>(below)));
    auto* device = static_cast<int32_t*>(take(4 * count));
    upload(device, host.data(), 4 * count);
    return device;
  }

  float ms_of(int calls, const std::function<void()>& body) {
    SLIP_CUDA(cudaEventRecord(begin_, stream_));
    for (int i = 0; i < calls; ++i) body();
    SLIP_CUDA(cudaEventRecord(end_, stream_));
    SLIP_CUDA(cudaEventSynchronize(end_));
    float ms = 0;
    SLIP_CUDA(cudaEventElapsedTime(&ms, begin_, end_));
    return ms;
  }
  /// Prints one row; returns the median in us, 0 for an op that is left out.
  double measure(const char* op, const std::string& shape, double flops, double bytes,
                 const std::function<void()>& body) {
    if (std::string(op).find(only_) == std::string::npos) return 0;
    for (int i = 0; i < 3; ++i) body();
    const int calls = std::clamp(static_cast<int>(turn_ms_ / std::max(1e-3f, ms_of(1, body))), 1, 2000);
    std::vector<double> us;
    for (int turn = 0; turn < turns_; ++turn) us.push_back(1e3 * ms_of(calls, body) / calls);
    std::sort(us.begin(), us.end());
    const double median = us[us.size() / 2], spread = us.back() / us.front() - 1;
    const double tflops = flops / median / 1e6, gbytes = bytes / median / 1e3;
    std::printf("%-24s %-26s %10.1f us +-%4.1f %%  %8.1f TFLOP/s  %7.0f GB/s", op, shape.c_str(), median, 100 * spread,
                tflops, gbytes);
    if (copy_gbytes_ > 0) std::printf("  %4.0f %% of copy", 100 * gbytes / copy_gbytes_);
    std::printf("\n");
    std::fflush(stdout);
    if (csv_) {
      std::fprintf(csv_, "%s,%s,%.6g,%.3g,%.6g,%.6g\n", op, shape.c_str(), median, spread, tflops, gbytes);
      std::fflush(csv_);
    }
    return median;
  }
  double measure(const char* op, const std::string& shape, const Cost& cost, const std::function<void()>& body) {
    return measure(op, shape, static_cast<double>(cost.flops), static_cast<double>(cost.bytes), body);
  }

  cudaStream_t stream_ = nullptr;
  LaunchContext context_;
  double copy_gbytes_ = 0;  // of the GPU's own copy; 0: not measured yet

 private:
  const int turns_;
  const double turn_ms_;
  const std::string only_;
  std::FILE* csv_;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
  std::vector<void*> taken_;
};

}  // namespace slipstream::test
