// SPDX-License-Identifier: Apache-2.0
#pragma once
// Decides whether a kernel may begin while the kernel before it in its stream ends (kernels/cuda/launch.h).

namespace slipstream::kernels {

/// True on a GPU of this compute capability times 10, unless SLIPSTREAM_EARLY_LAUNCH=off; run.json records it. GPUs
/// before 9.0 cannot do it. Throws: ConfigError if the variable has another value than on and off.
bool early_launch(int capability);

/// Throws: ConfigError if SLIPSTREAM_EARLY_LAUNCH has another value than on and off.
void require_early_launch();

}  // namespace slipstream::kernels
