// SPDX-License-Identifier: Apache-2.0
// Every kernel of a GPT-2 124M step on a GPU (and those of Llama), at sizes beyond the cache, with the GPU's own copy
// and product for comparison.
//
// Data is random: products of zeros run faster. A causal attention counts half the operations, backward 2.5 times
// forward, as its papers do. Times come from CUDA events around enough calls to fill a turn: the median of the turns,
// and the spread between the fastest and the slowest.
//
// usage: gpu_kernels_bench [CSV [trial | OP]]. Rows "op,shape,us,spread,tflops,gbytes" go to the file CSV:
// scripts/bench_gpu_pytorch.py prints PyTorch's next to them. With OP, only ops whose names contain this text are
// measured.

#include <cuda_runtime_api.h>
#include <fmt/core.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "engine/base/philox.h"
#include "engine/device/cuda/cuda_check.h"
#include "kernels/cuda/workspace.h"
#include "tests/gpu/cuda/card.h"
#include "trainer/bench/op_cases.h"

using namespace slipstream;
using bench::OpCase;

namespace {

/// Sizes of GPT-2 124M, or of a trial in which a kernel takes the host's time (tests/fake_gpu).
struct Sizes {
  int turns = 7;
  double turn_ms = 20;
  int64_t batch = 32, tokens = 1024, width = 768, hidden = 3072, vocab = 50304, ids = 50257, heads = 12;
  int64_t copy_bytes = int64_t{1} << 30, square = 8192, parameters = 124'475'904;  // with a table of `vocab` rows
};
constexpr Sizes kTrial{.turns = 1,
                       .turn_ms = 1e-3,
                       .batch = 4,
                       .tokens = 8,
                       .width = 64,
                       .hidden = 64,
                       .vocab = 64,
                       .ids = 61,
                       .heads = 1,
                       .copy_bytes = 4096,
                       .square = 32,
                       .parameters = 4099};

class CardBench final : bench::OpCases {
 public:
  /// Measures the ops whose names hold `only`. Prints to standard output, and rows to the file `csv` unless it is null.
  CardBench(const char* csv, const Sizes& sizes, std::string only)
      : sizes_(sizes), only_(std::move(only)), csv_(csv ? std::fopen(csv, "w") : nullptr) {
    SLIP_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    SLIP_CUDA(cudaEventCreateWithFlags(&begin_, cudaEventDefault));
    SLIP_CUDA(cudaEventCreateWithFlags(&end_, cudaEventDefault));
    kernels::prepare_stream(stream_);
    context_.kind = DeviceKind::cuda;
    context_.native_stream = stream_;
    if (csv_) std::fprintf(csv_, "op,shape,us,spread,tflops,gbytes\n");
  }
  ~CardBench() override {
    release();
    kernels::release_stream(stream_);
    if (csv_) std::fclose(csv_);
  }
  CardBench(const CardBench&) = delete;
  CardBench& operator=(const CardBench&) = delete;

  void run() {
    const Sizes& s = sizes_;
    const int64_t rows = s.batch * s.tokens;
    // By importance, because a call may end early; attention, whose kernels wait for each other, after the ops that
    // cannot hang.
    copy();
    products({.name = "", .rows = s.square, .in = s.square, .out = s.square, .forward_alone = true});
    layer_norm(rows, s.width);
    rms_norm(rows, 2 * s.width);
    embedding(s.batch, s.tokens, s.width, s.vocab, s.ids);
    loss(rows / 4, s.ids, s.vocab);
    update(s.parameters, true);
    activations(rows, s.hidden);
    experts(rows, s.width, s.hidden / 2, 8, 2);
    residuals(s.batch, s.tokens, s.hidden);
    rope(s.batch, s.tokens, s.hidden / 64, 64, s.hidden);
    attention(s.batch, s.tokens, s.heads, s.heads, 64, true);
    attention(s.batch / 4, s.tokens, 4 * s.heads, s.heads, 64, true);
    const auto layer = [](const char* name, int64_t tokens, int64_t in, int64_t out) {
      return Layer{.name = name, .rows = tokens, .in = in, .out = out, .bias = true, .accumulate = true};
    };
    Layer up = layer("up", rows, s.width, s.hidden), head = layer("head", rows / 4, s.width, s.vocab);
    up.gelu = true, head.bias = false;
    for (const Layer& each : {layer("qkv", rows, s.width, 3 * s.width), layer("projection", rows, s.width, s.width), up,
                              layer("down", rows, s.hidden, s.width), head})
      products(each);
    attention(s.batch / 4, 2 * s.tokens, s.heads, s.heads, 128, true);
  }

 private:
  void copy() {
    const int64_t bytes = sizes_.copy_bytes;
    void *from = OpCases::values(bytes / 2), *to = take(bytes);
    measure({.op = "copy", .shape = fmt::format("{} MiB", bytes >> 20), .cost = {0, 2 * bytes}, .run = [&] {
               SLIP_CUDA(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToDevice, stream_));
             }});
    free_all();
  }

  bool wanted(const std::string& op) override { return op.find(only_) != std::string::npos; }
  void* take(int64_t size_bytes) override {
    void* memory = nullptr;
    SLIP_CUDA(cudaMalloc(&memory, static_cast<size_t>(size_bytes)));
    taken_.push_back(memory);
    return memory;
  }
  void release() {
    for (void* memory : taken_) SLIP_CUDA_QUIETLY(cudaFree(memory));
    taken_.clear();
  }
  void free_all() override { release(); }
  void upload(void* to, const void* from, int64_t size_bytes) override {
    SLIP_CUDA(cudaMemcpyAsync(to, from, static_cast<size_t>(size_bytes), cudaMemcpyHostToDevice, stream_));
    SLIP_CUDA(cudaStreamSynchronize(stream_));
  }
  void* values(int64_t elems, DType dtype, float scale) override {
    return dtype == DType::f32 ? repeated<float>(elems, scale) : repeated<bfloat16>(elems, scale);
  }
  /// About normal, repeating after a few megabytes.
  template <typename T>
  void* repeated(int64_t elems, float scale) {
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
  int32_t* ids(int64_t count, int64_t below) override {
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
  /// Prints one row.
  void measure(const OpCase& op) override {
    if (!wanted(op.op)) return;
    for (int i = 0; i < 3; ++i) op.run();
    const int calls = std::clamp(static_cast<int>(sizes_.turn_ms / std::max(1e-3f, ms_of(1, op.run))), 1, 2000);
    std::vector<double> us;
    for (int turn = 0; turn < sizes_.turns; ++turn) us.push_back(1e3 * ms_of(calls, op.run) / calls);
    std::sort(us.begin(), us.end());
    const double median = us[us.size() / 2], spread = us.back() / us.front() - 1;
    const double flops = op.flops > 0 ? op.flops : static_cast<double>(op.cost.flops);
    const double tflops = flops / median / 1e6, gbytes = static_cast<double>(op.cost.bytes) / median / 1e3;
    if (op.op == "copy") copy_gbytes_ = gbytes;
    std::printf("%-24s %-26s %10.1f us +-%4.1f %%  %8.1f TFLOP/s  %7.0f GB/s", op.op.c_str(), op.shape.c_str(), median,
                100 * spread, tflops, gbytes);
    if (copy_gbytes_ > 0) std::printf("  %4.0f %% of copy", 100 * gbytes / copy_gbytes_);
    std::printf("\n");
    std::fflush(stdout);
    if (csv_) {
      std::fprintf(csv_, "%s,%s,%.6g,%.3g,%.6g,%.6g\n", op.op.c_str(), op.shape.c_str(), median, spread, tflops,
                   gbytes);
      std::fflush(csv_);
    }
  }

  const Sizes sizes_;
  const std::string only_;
  std::FILE* csv_;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
  double copy_gbytes_ = 0;  // of the GPU's own copy; 0: not measured yet
  std::vector<void*> taken_;
};

}  // namespace

int main(int argc, char** argv) {
  test::require_card();
  try {
    const std::string how = argc > 2 ? argv[2] : "";
    const bool trial = how == "trial";
    CardBench(argc > 1 ? argv[1] : nullptr, trial ? kTrial : Sizes{}, trial ? "" : how).run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
