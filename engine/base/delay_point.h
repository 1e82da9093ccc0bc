// SPDX-License-Identifier: Apache-2.0
#pragma once
// Named places at which a test makes one rank late, as a slow component or a busy host would.

#include <cstdint>
#include <string_view>

namespace slipstream {

// Requests have the form SLIPSTREAM_DELAY=PLACE@RANK#FIRST[-LAST]:MILLISECONDS[,..]. RANK is the rank of log_setup(),
// FIRST and LAST are training steps.
// Returns true if the environment asks for any delay.
bool delays_asked();

/// Returns the nanoseconds that are asked for `place` in `step` of this rank, once per step, and 0 otherwise. Any
/// thread may call it.
int64_t take_delay_ns(std::string_view place, int64_t step);

/// Blocks. Sleeps for take_delay_ns().
void delay_point(std::string_view place, int64_t step);

/// Blocks. Computes until the thread itself has used take_delay_ns() of a core's time.
void busy_delay_point(std::string_view place, int64_t step);

}  // namespace slipstream
