// SPDX-License-Identifier: Apache-2.0
#pragma once
// Named places at which a test makes one rank late, as a slow part or a busy host would.

#include <cstdint>
#include <string_view>

namespace slipstream {

// SLIPSTREAM_DELAY=PLACE@RANK#FIRST[-LAST]:MILLISECONDS[,..], with the rank of log_setup() and training steps
/// True if the environment asks for any delay.
bool delays_asked();

/// Nanoseconds asked for `place` in `step` of this rank, once per step; 0 otherwise. Callable from any thread.
int64_t take_delay_ns(std::string_view place, int64_t step);

/// Blocks. Sleeps for take_delay_ns().
void delay_point(std::string_view place, int64_t step);

/// Blocks. Computes for take_delay_ns() of the thread's own time.
void busy_delay_point(std::string_view place, int64_t step);

}  // namespace slipstream
