// SPDX-License-Identifier: Apache-2.0
// More open files than the soft limit allows, and the refusal at the hard limit.

#include "engine/base/files.h"

#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <list>

#include "engine/base/check.h"
#include "tests/test.hpp"

using namespace slipstream;

namespace {

rlim_t open_files() {
  rlim_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) ++count;
  return count;
}

}  // namespace

TEST_CASE("files: the hard limit of open files counts, and it is named when it is reached", "[files]") {
  std::string path = (std::filesystem::temp_directory_path() / "files-XXXXXX").string();
  const int made = mkstemp(path.data());
  REQUIRE(made >= 0);
  close(made);
  rlimit given{};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &given) == 0);
  const rlim_t open = open_files();
  REQUIRE(given.rlim_max > open + 100);
  const rlimit low{open + 10, open + 100};  // permanent: only root can raise the hard limit again
  REQUIRE(setrlimit(RLIMIT_NOFILE, &low) == 0);
  std::list<files::InputFile> many;
  std::string refusal;
  for (int i = 0; i < 200 && refusal.empty(); ++i) try {
      many.emplace_back(path, files::Owner::checkpoint);
    } catch (const ResourceError& error) {
      refusal = error.what();
    }
  CHECK(many.size() > 50);
  CHECK(many.size() < 110);
  CHECK(refusal.find("as many open files as it may") != std::string::npos);
  many.clear();
  std::filesystem::remove(path);
}
