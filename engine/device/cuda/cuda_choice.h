// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which GPU a rank uses, and the sentence when it uses none.

#include <string>
#include <vector>

namespace slipstream {

/// The GPUs that this process sees, which CUDA_VISIBLE_DEVICES may have narrowed.
struct CudaDevices {
  std::vector<std::string> ids;  // by index: one name per physical GPU (or slice of one), the same in every process
  std::string reason;            // when there are none: why, without a full stop; else empty

  int count() const { return static_cast<int>(ids.size()); }
};

/// Blocks (the driver starts). Never throws: no build, no driver, an old driver and no GPU are reasons.
CudaDevices find_cuda_devices();

/// What one of them is. Rates are its own claims, not measured.
struct CudaGpu {
  std::string name;
  int capability = 0;  // 90 is 9.0
  int multiprocessors = 0;
  int64_t clock_khz = 0;
  int64_t bytes_per_second = 0;  // of its memory
  int64_t memory_bytes = 0;
  int64_t free_bytes = 0;  // now; others may use the GPU too
  int driver = 0;          // the CUDA that the driver serves: 12090 is 12.9
};

/// Blocks (the GPU's context starts). Throws: ResourceError.
CudaGpu describe_cuda_device(int index);

/// Is SLIPSTREAM_SHARE_GPU=1: several ranks may use one GPU? A test mode: correct, and slow.
bool gpus_are_shared();

/// Index of the GPU of a rank that is the `local_rank`-th of its host. A launcher that shows each rank one GPU of its
/// own is served too: then every rank takes index 0. Pure. Throws: ResourceError with the reason when there is none.
int cuda_device_of(const CudaDevices& devices, int local_rank);

/// `ids`: the GPU taken by each rank of one host, by local rank. Pure.
/// Throws: ResourceError when two ranks have the same one and `shared` is false.
void require_own_gpus(const std::vector<std::string>& ids, bool shared);

}  // namespace slipstream
