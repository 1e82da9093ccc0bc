// SPDX-License-Identifier: Apache-2.0
// The reference page of a run's files is that of the program.

#include "trainer/runtime/run_folder/records.h"

#include <cstdlib>
#include <fstream>
#include <iterator>

#include "tests/paths.h"
#include "tests/test.hpp"

using namespace slipstream;

TEST_CASE("docs/reference/metrics.md is current", "[records]") {
  const std::string path = source_dir() + "/docs/reference/metrics.md", text = runtime::records_reference_markdown();
  if (std::getenv("SLIPSTREAM_UPDATE_DOCS")) std::ofstream(path, std::ios::binary) << text;
  std::ifstream file(path, std::ios::binary);
  INFO("run this test with SLIPSTREAM_UPDATE_DOCS=1 to write the page");
  CHECK(std::string{std::istreambuf_iterator<char>(file), {}} == text);
}
