// SPDX-License-Identifier: Apache-2.0
// The choice is arithmetic on names, so that its code is the same with and without CUDA.

#include "engine/device/cuda/cuda_choice.h"

#include <cstdlib>
#include <set>
#include <string_view>

#include "engine/base/check.h"

namespace slipstream {

bool gpus_are_shared() {
  const char* value = std::getenv("SLIPSTREAM_SHARE_GPU");
  return value && std::string_view(value) == "1";
}

int cuda_device_of(const CudaDevices& devices, int local_rank) {
  SLIP_ASSERT(local_rank >= 0);
  if (devices.count() == 0)
    throw ResourceError(
        "[cuda] no GPU can be used: {}. Use the CPU instead: device.kind = \"cpu\", or generate --device cpu.",
        devices.reason);
  return local_rank % devices.count();
}

void require_own_gpus(const std::vector<std::string>& ids, bool shared) {
  if (shared) return;
  const std::set<std::string> distinct(ids.begin(), ids.end());
  if (distinct.size() == ids.size()) return;
  for (size_t a = 0; a < ids.size(); ++a)
    for (size_t b = a + 1; b < ids.size(); ++b)
      if (ids[a] == ids[b])
        throw ResourceError(
            "[cuda] {} ranks on this host have {} GPU{}: ranks {} and {} would both use {}. Start at most {} "
            "rank{} per host, show more GPUs in CUDA_VISIBLE_DEVICES, or set SLIPSTREAM_SHARE_GPU=1 to test "
            "with several ranks on one GPU.",
            ids.size(), distinct.size(), distinct.size() == 1 ? "" : "s", a, b, ids[a], distinct.size(),
            distinct.size() == 1 ? "" : "s");
}

}  // namespace slipstream
