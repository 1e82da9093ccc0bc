// SPDX-License-Identifier: Apache-2.0
#pragma once
// Named places at which a test makes the process fail, as a power failure, the kernel or a broken device would.

namespace slipstream {

/// Kills this process with SIGKILL if the environment asks for it: SLIPSTREAM_FAIL_POINT=NAME[@RANK][#COUNT] names the
/// place, the rank (of log_setup(); default: any) and how many passages precede the kill (default: none).
void fail_point(const char* name);

/// The same request, for a fault other than a kill: true if it is due.
bool fails_at(const char* name);

}  // namespace slipstream
