// SPDX-License-Identifier: Apache-2.0
#pragma once
// Named places at which a test makes the process fail, as a power failure, the kernel or a broken device would.

#include <string_view>

namespace slipstream {

// SLIPSTREAM_FAIL_POINT=PLACE[:TASK][@RANK][#COUNT][=FAULT]
/// Makes this process fail if the environment asks for it: at a place, in a task by its name or the part before a dot
/// (default: any), on a rank of log_setup() (default: any), after COUNT passages (default: none). FAULT is `kill`
/// (SIGKILL, the default), `stop` (SIGSTOP) or a number of milliseconds to sleep.
void fail_point(std::string_view place, std::string_view task = {});

/// The same request, for a fault of the caller's: true if it is due.
bool fails_at(std::string_view place, std::string_view task = {});

/// Is a fault asked for? For callers that pass too often for a look into the environment each time.
bool has_fail_point();

}  // namespace slipstream
