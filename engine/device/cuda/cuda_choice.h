// SPDX-License-Identifier: Apache-2.0
#pragma once
// Assigns a GPU to each rank, or reports why there is none.

#include <string>
#include <vector>

namespace slipstream {

/// The GPUs visible to this process, which CUDA_VISIBLE_DEVICES may restrict.
struct CudaDevices {
  std::vector<std::string> ids;  // by index: one name per physical GPU (or slice of one), the same in every process
  std::string reason;            // why there are none, without a full stop; empty if there are some

  int count() const { return static_cast<int>(ids.size()); }
};

/// Blocks while the driver starts. Never throws: `reason` tells about a missing build, driver or GPU and about an old
/// driver.
CudaDevices find_cuda_devices();

/// Properties of one GPU. Rates are the specified ones and not measured.
struct CudaGpu {
  std::string name;
  int capability = 0;  // 90 is 9.0
  int multiprocessors = 0;
  int64_t clock_khz = 0;
  int64_t bytes_per_second = 0;  // the rate of its memory
  int64_t memory_bytes = 0;
  int64_t free_bytes = 0;  // at the time of the call; other processes may use the GPU too
  int driver = 0;          // the CUDA version that the driver supports: 12090 is 12.9
};

/// Blocks while the GPU's context starts. Throws: ResourceError.
CudaGpu describe_cuda_device(int index);

/// Returns true if SLIPSTREAM_SHARE_GPU=1 lets several ranks use one GPU. This mode is for tests: it is correct, but
/// slow.
bool gpus_are_shared();

/// Pure. Returns the index of the GPU of the `local_rank`-th rank on its host. If the launcher shows each rank one GPU
/// of its own, every rank takes index 0. Throws: ResourceError with the reason when there is none.
int cuda_device_of(const CudaDevices& devices, int local_rank);

/// Pure. `ids` has the GPU of each rank on one host, by local rank. Throws: ResourceError when two ranks have the same
/// GPU and `shared` is false.
void require_own_gpus(const std::vector<std::string>& ids, bool shared);

}  // namespace slipstream
