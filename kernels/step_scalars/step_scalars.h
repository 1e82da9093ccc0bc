// SPDX-License-Identifier: Apache-2.0
#pragma once
// The small works of a step: single numbers that stay on the device, copies, and uploads from the host.
//
// On cpu each is a plain loop or memcpy on the stream's thread. On cuda the numbers are kernels of one thread, so that
// the host never waits for a value inside a step.
//
// Shapes: single numbers, except the sums of a clip [count] and the bytes of copy, zero and upload.
// Cost: each number or byte is read and written once; the plan charges them where it appends these works.
// Source: the clip factor is that of torch.nn.utils.clip_grad_norm_ (Pascanu, Mikolov, Bengio 2013, algorithm 1).

#include <array>
#include <cstdint>
#include <functional>
#include <memory>

#include "engine/device/work.h"

namespace slipstream::kernels {

/// *total = (accumulate ? *total : 0) + *part. This adds the losses of the micro-batches up to that of the step.
struct AddLoss {
  const double* part = nullptr;
  double* total = nullptr;
  bool accumulate = false;
};

/// The gradient norm and its clip factor, as torch.nn.utils.clip_grad_norm_:
///   norm[0] = sqrt(sums[0] + ... + sums[count - 1]), added in order
///   *factor = float(min(1, max_norm / (norm[0] + 1e-6)))
/// and the verdict on the step:
///   norm[1] = number, counted from 1, of the first sum that is not finite; 0: all are
///   norm[2] = with `loss`, 1 if the norm or the loss is not finite or exceeds its limit; otherwise 0
/// If norm[2] is 1, *factor = kSkipUpdate: updates leave parameters and states as they are.
struct Clip {
  const double* sums = nullptr;  // [count] sums of squares
  int64_t count = 0;
  double max_norm = 1;     // infinity: the factor is 1
  double* norm = nullptr;  // [3]
  float* factor = nullptr;
  const double* loss = nullptr;   // optional
  const float* limits = nullptr;  // [2], with `loss`: of the norm and of the loss
};
/// A clip factor below 0 makes an update keep what it would write.
inline constexpr float kSkipUpdate = -1.0f;

/// slot[0] = *loss; slot[1 + i] = norm[i].
struct Report {
  const double* loss = nullptr;
  const double* norm = nullptr;  // [3]
  double* slot = nullptr;        // [4]
};

/// to[i] = from[i]. The ranges may not overlap. On cuda, either may be host memory of Device::allocate_host.
struct Copy {
  const void* from = nullptr;
  void* to = nullptr;
  int64_t size_bytes = 0;
};

/// Sets bytes: to[i] = 0.
struct Zero {
  void* to = nullptr;
  int64_t size_bytes = 0;
};

/// The pinned memory of one uploading work on cuda, allocated at its first run; empty on cpu. It is made once, when
/// works are bound.
class UploadStaging {
 public:
  virtual ~UploadStaging() = default;
};
/// Pure. Allocates nothing until it is used.
std::shared_ptr<UploadStaging> make_upload_staging();

/// Bytes that the host produces during the step. `fill` writes to the pointers that it receives, one per part. On cpu
/// these are the parts themselves, and upload() calls `fill`. On cuda prepare_upload() calls it on pinned memory of the
/// step (modulo kStepPeriod, so that the host may run ahead), and upload() enqueues the copies.
struct Upload {
  static constexpr int kParts = 2;
  struct Part {
    std::byte* to = nullptr;
    int64_t size_bytes = 0;
  };
  std::array<Part, kParts> parts;
  std::function<void(const std::array<std::byte*, kParts>&)> fill;
  std::shared_ptr<UploadStaging> staging;
};

/// Enqueue on cuda, block on cpu. Throw: ShapeError (null operand, negative size), ResourceError (device).
void add_loss(LaunchContext& context, const AddLoss& args);
void clip(LaunchContext& context, const Clip& args);
void report(LaunchContext& context, const Report& args);
void copy(LaunchContext& context, const Copy& args);
void zero(LaunchContext& context, const Zero& args);
void upload(LaunchContext& context, const Upload& args);
/// The host's part of an upload on cuda, for Work::prepare. It waits only for copies of kStepPeriod steps ago. Does
/// nothing on cpu.
void prepare_upload(LaunchContext& context, const Upload& args);

}  // namespace slipstream::kernels
