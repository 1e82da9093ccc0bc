// SPDX-License-Identifier: Apache-2.0
// The build passes the absolute paths.

#include "tests/paths.h"

namespace slipstream {

const std::string& source_dir() {
  static const std::string path = SOURCE_DIR;
  return path;
}
const std::string& slipstream_program() {
  static const std::string path = SLIPSTREAM_EXE;
  return path;
}
const std::string& fake_gpu_program() {
  static const std::string path = FAKE_GPU_EXE;
  return path;
}
const std::string& faults_library() {
  static const std::string path = FAULTS_LIBRARY;
  return path;
}

}  // namespace slipstream
