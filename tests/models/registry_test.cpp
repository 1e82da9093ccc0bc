// SPDX-License-Identifier: Apache-2.0
// The page of supported models is that of the registry.

#include <cstdlib>
#include <fstream>
#include <iterator>

#include "models/model.h"
#include "tests/paths.h"
#include "tests/test.hpp"

using namespace slipstream;

TEST_CASE("models: docs/reference/models.md is current", "[models]") {
  const std::string path = source_dir() + "/docs/reference/models.md";
  if (std::getenv("SLIPSTREAM_UPDATE_DOCS"))
    std::ofstream(path, std::ios::binary) << models::supported_models_markdown();
  INFO("run this test with SLIPSTREAM_UPDATE_DOCS=1 to write the page");
  std::ifstream file(path, std::ios::binary);
  CHECK(std::string(std::istreambuf_iterator<char>(file), {}) == models::supported_models_markdown());
}
