// SPDX-License-Identifier: Apache-2.0
#pragma once
// Named places at which a test makes the process fail, as a power failure, the kernel or a broken device would.

#include <string_view>

namespace slipstream {

// Requests have the form SLIPSTREAM_FAIL_POINT=PLACE[:TASK][@RANK][#COUNT][=FAULT].
// Makes this process fail if the environment asks for it: at a place, in the task with this name or with this part of
// its name before a dot (default: any task), on a rank of log_setup() (default: any rank), once the place was passed
// COUNT times (default: none). FAULT is `kill` (SIGKILL, the default), `stop` (SIGSTOP) or a number of milliseconds to
// sleep.
void fail_point(std::string_view place, std::string_view task = {});

/// Reads the same request for a fault that the caller itself produces. Returns true if it is due.
bool fails_at(std::string_view place, std::string_view task = {});

/// Returns true if any fault is asked for. Callers use it where they pass too often to read the environment each time.
bool has_fail_point();

}  // namespace slipstream
