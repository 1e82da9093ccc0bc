// SPDX-License-Identifier: Apache-2.0
// Copies on a CUDA stream, and the ring of pinned memory that the host fills ahead of them.

#include <algorithm>

#include "engine/device/cuda/cuda_check.h"
#include "kernels/step_scalars/step_scalars_devices.h"

namespace slipstream::kernels {
namespace {

class CudaStaging final : public UploadStaging {
 public:
  ~CudaStaging() override {
    for (const Piece& piece : pieces_) {
      if (piece.copied) SLIP_CUDA_QUIETLY(cudaEventSynchronize(piece.copied));
      if (piece.copied) SLIP_CUDA_QUIETLY(cudaEventDestroy(piece.copied));
      if (piece.host) SLIP_CUDA_QUIETLY(cudaFreeHost(piece.host));
    }
  }

  /// The host's part, which fills the piece of `step`.
  void prepare(uint32_t step, const Upload& args) {
    Piece& piece = pieces_[step % kStepPeriod];
    const auto offsets = offsets_of(args);
    make_room(piece, offsets.back());
    std::array<std::byte*, Upload::kParts> to{};
    for (size_t p = 0; p < args.parts.size(); ++p) to[p] = piece.host + offsets[p];
    args.fill(to);
  }

  /// The stream's part, which copies the piece of `step` to the device.
  void copy(uint32_t step, const Upload& args, cudaStream_t stream) {
    const Piece& piece = pieces_[step % kStepPeriod];
    const auto offsets = offsets_of(args);
    for (size_t p = 0; p < args.parts.size(); ++p)
      if (args.parts[p].size_bytes > 0)
        SLIP_CUDA(cudaMemcpyAsync(args.parts[p].to, piece.host + offsets[p],
                                  static_cast<size_t>(args.parts[p].size_bytes), cudaMemcpyHostToDevice, stream));
    // A graph needs no event, because prepare() is called again only after its last run has ended (see Graph::launch).
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    SLIP_CUDA(cudaStreamIsCapturing(stream, &status));
    if (status == cudaStreamCaptureStatusNone) SLIP_CUDA(cudaEventRecord(piece.copied, stream));
  }

 private:
  struct Piece {
    std::byte* host = nullptr;
    int64_t size_bytes = 0;
    cudaEvent_t copied = nullptr;
  };

  /// The offset of each part in a piece, and the total size.
  static std::array<int64_t, Upload::kParts + 1> offsets_of(const Upload& args) {
    std::array<int64_t, Upload::kParts + 1> offsets{};
    for (size_t p = 0; p < args.parts.size(); ++p)
      offsets[p + 1] = offsets[p] + (args.parts[p].size_bytes + 255) / 256 * 256;
    return offsets;
  }

  /// Allocates at the first use of a piece. Later uses find its last copy done, unless the caller runs further ahead.
  static void make_room(Piece& piece, int64_t size_bytes) {
    if (piece.copied && !SLIP_CUDA_READY(cudaEventQuery(piece.copied))) SLIP_CUDA(cudaEventSynchronize(piece.copied));
    if (!piece.copied)
      SLIP_CUDA(cudaEventCreateWithFlags(&piece.copied, cudaEventBlockingSync | cudaEventDisableTiming));
    if (piece.size_bytes >= size_bytes && piece.host) return;
    if (piece.host) SLIP_CUDA(cudaFreeHost(piece.host));
    piece.host = nullptr;
    void* host = nullptr;
    SLIP_CUDA(cudaHostAlloc(&host, static_cast<size_t>(std::max<int64_t>(size_bytes, 1)), cudaHostAllocDefault));
    piece.host = static_cast<std::byte*>(host);
    piece.size_bytes = size_bytes;
  }

  std::array<Piece, kStepPeriod> pieces_;
};

}  // namespace

std::shared_ptr<UploadStaging> make_upload_staging() { return std::make_shared<CudaStaging>(); }

void copy_cuda(LaunchContext& context, const Copy& args) {
  SLIP_CUDA(cudaMemcpyAsync(args.to, args.from, static_cast<size_t>(args.size_bytes), cudaMemcpyDefault,
                            static_cast<cudaStream_t>(context.native_stream)));
}

void zero_cuda(LaunchContext& context, const Zero& args) {
  SLIP_CUDA(cudaMemsetAsync(args.to, 0, static_cast<size_t>(args.size_bytes),
                            static_cast<cudaStream_t>(context.native_stream)));
}

void prepare_upload_cuda(LaunchContext& context, const Upload& args) {
  static_cast<CudaStaging&>(*args.staging).prepare(context.frame->step, args);
}

void upload_cuda(LaunchContext& context, const Upload& args) {
  static_cast<CudaStaging&>(*args.staging)
      .copy(context.frame->step, args, static_cast<cudaStream_t>(context.native_stream));
}

}  // namespace slipstream::kernels
