// SPDX-License-Identifier: Apache-2.0
// The GPU of each rank, and the errors that are given when there is none.

#include <cstdlib>

#include "engine/base/check.h"
#include "engine/device/cuda/cuda_choice.h"
#include "tests/fake_cuda/fake_cuda.h"
#include "tests/test.hpp"

using namespace slipstream;
using Catch::Contains;

TEST_CASE("ranks of a host take its GPUs in turn") {
  fake_cuda::reset();
  fake_cuda::settings().devices = 3;
  const CudaDevices devices = find_cuda_devices();
  REQUIRE(devices.count() == 3);
  CHECK(devices.reason.empty());
  CHECK(devices.ids[0] != devices.ids[1]);
  CHECK(cuda_device_of(devices, 0) == 0);
  CHECK(cuda_device_of(devices, 2) == 2);
  CHECK_NOTHROW(require_own_gpus(devices.ids, false));
}

TEST_CASE("a GPU per process from the launcher is served") {
  const CudaDevices mine{.ids = {"GPU-b"}, .reason = {}};
  CHECK(cuda_device_of(mine, 3) == 0);
  CHECK_NOTHROW(require_own_gpus({"GPU-a", "GPU-b", "GPU-c"}, false));
}

TEST_CASE("more ranks than GPUs give one error unless sharing is enabled") {
  const std::vector<std::string> ids = {"GPU-a", "GPU-b", "GPU-a", "GPU-b"};
  CHECK_THROWS_WITH(require_own_gpus(ids, false), Contains("4 ranks on this host have 2 GPUs") &&
                                                      Contains("ranks 0 and 2") && Contains("SLIPSTREAM_SHARE_GPU=1"));
  CHECK_THROWS_AS(require_own_gpus(ids, false), ResourceError);
  CHECK_NOTHROW(require_own_gpus(ids, true));
}

TEST_CASE("every cause of a missing GPU has its own message") {
  fake_cuda::reset();
  SECTION("no driver") {
    fake_cuda::settings().driver = 0;
    CHECK_THAT(find_cuda_devices().reason, Contains("no NVIDIA driver"));
  }
  SECTION("an old driver") {
    fake_cuda::settings().driver = 12040;
    CHECK_THAT(find_cuda_devices().reason, Contains("supports CUDA 12.4") && Contains("needs"));
  }
  SECTION("no GPU") {
    unsetenv("CUDA_VISIBLE_DEVICES");
    fake_cuda::settings().devices = 0;
    CHECK_THAT(find_cuda_devices().reason, Contains("no GPU"));
  }
  SECTION("no visible GPU") {
    setenv("CUDA_VISIBLE_DEVICES", "7", 1);
    fake_cuda::settings().devices = 0;
    CHECK_THAT(find_cuda_devices().reason, Contains("CUDA_VISIBLE_DEVICES=7"));
    unsetenv("CUDA_VISIBLE_DEVICES");
  }
  SECTION("something else") {
    fake_cuda::fail_next("cudaGetDeviceCount", cudaErrorUnknown);
    CHECK_THAT(find_cuda_devices().reason, Contains("CUDA cannot start"));
  }
  CudaDevices none = find_cuda_devices();
  if (none.count() == 0) {
    CHECK_THROWS_WITH(cuda_device_of(none, 0),
                      Contains(none.reason) && Contains("device.kind = \"cpu\"") && Contains("--device cpu"));
  }
}
