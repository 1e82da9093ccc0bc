// SPDX-License-Identifier: Apache-2.0
#pragma once
// The folders and programs of this build. Only one object contains them, so that the other objects are the same in
// every checkout and come from the compiler cache.

#include <string>

namespace slipstream {

const std::string& source_dir();
/// Values and tokenizers that other programs made once. A program that has moved has the folder in
/// SLIPSTREAM_GOLDEN_DIR.
const std::string& golden_dir();
/// Texts that are not part of the project, beside it. Tests that use them skip where they are absent.
const std::string& shared_dir();
const std::string& slipstream_program();
const std::string& fake_gpu_program();
/// tests/faults/preload.cpp, for LD_PRELOAD.
const std::string& faults_library();
/// The launcher of ranks; empty if this build has none.
const std::string& mpirun_program();
const std::string& project_version();

}  // namespace slipstream
