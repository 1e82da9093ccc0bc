// SPDX-License-Identifier: Apache-2.0
// The build passes the absolute paths.

#include "tests/paths.h"

#include <cstdlib>

namespace slipstream {

const std::string& source_dir() {
  static const std::string path = SOURCE_DIR;
  return path;
}
const std::string& golden_dir() {
  const char* moved = std::getenv("SLIPSTREAM_GOLDEN_DIR");
  static const std::string path = moved ? moved : source_dir() + "/tests/golden";
  return path;
}
const std::string& shared_dir() {
  const char* elsewhere = std::getenv("SLIP_SHARED_DIR");
  static const std::string path = elsewhere ? elsewhere : source_dir() + "/../shared";
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
const std::string& mpirun_program() {
  static const std::string path = MPIRUN;
  return path;
}
const std::string& project_version() {
  static const std::string version = PROJECT_VERSION;
  return version;
}

}  // namespace slipstream
