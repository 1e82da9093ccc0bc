// SPDX-License-Identifier: Apache-2.0
// The comparisons are on a GPU.

#include "tests/golden/device.h"
#include "tests/gpu/cuda/card.h"

namespace slipstream::golden {
namespace {

const bool has_card = test::require_card();

}  // namespace

std::unique_ptr<Device> make_device() { return make_cuda_device(0); }

}  // namespace slipstream::golden
