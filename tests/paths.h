// SPDX-License-Identifier: Apache-2.0
#pragma once
// The folders and programs of this build. Only one object contains them, so that the other objects are the same in
// every checkout and come from the compiler cache.

#include <string>

namespace slipstream {

const std::string& source_dir();
const std::string& slipstream_program();
const std::string& fake_gpu_program();
/// tests/faults/preload.cpp, for LD_PRELOAD.
const std::string& faults_library();

}  // namespace slipstream
