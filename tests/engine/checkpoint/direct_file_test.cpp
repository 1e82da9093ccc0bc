// SPDX-License-Identifier: Apache-2.0
// Files of any size are read back through aligned buffers, and an unfinished file leaves nothing.

#include <sys/resource.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <vector>

#include "engine/checkpoint/direct_file.h"
#include "tests/engine/data/disk.h"
#include "tests/test.hpp"

using namespace slipstream;
using namespace slipstream::checkpoint;
using namespace slipstream::tests;

namespace {

std::vector<char> random_bytes(int64_t size_bytes, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<char> bytes(static_cast<size_t>(size_bytes));
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

/// Writes the bytes in pieces of random sizes.
void write(DirectWriter& file, const std::vector<char>& bytes, uint64_t seed) {
  std::mt19937_64 random(seed);
  for (size_t at = 0; at < bytes.size();) {
    const size_t take = std::min<size_t>(bytes.size() - at, 1 + random() % 700'000);
    file.write(bytes.data() + at, static_cast<int64_t>(take));
    at += take;
  }
}

std::vector<char> read_by_stream(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

TEST_CASE("direct files: without memory for a buffer, the error has its size and what to do", "[checkpoint]") {
  const TempFolder folder;
  std::ofstream(folder / "f") << "bytes";
  const auto read = [&] { read_through(folder / "f", [](std::span<const std::byte>) {}); };
  CHECK_NOTHROW(read());
  rlimit before{};
  REQUIRE(getrlimit(RLIMIT_AS, &before) == 0);
  rlimit low = before;
  low.rlim_cur = 1;  // less than the process has: it gets no further mapping
  REQUIRE(setrlimit(RLIMIT_AS, &low) == 0);
  std::string error;
  try {
    read();
  } catch (const ResourceError& refused) {
    error = refused.what();
  }
  REQUIRE(setrlimit(RLIMIT_AS, &before) == 0);
  CHECK(error ==
        "[memory] a checkpoint needs 4.0 MiB for a buffer, but this process gets none: Cannot allocate memory. Free "
        "memory on this host, or raise the limit of this process's memory (ulimit -v).");
}

TEST_CASE("direct files: any size reads back, with and without threads", "[checkpoint]") {
  const TempFolder folder;
  const std::string path = folder / "f";
  constexpr int64_t kBuffer = int64_t{4} << 20;
  for (const int64_t size_bytes : {int64_t{0}, int64_t{1}, int64_t{4095}, int64_t{4096}, int64_t{4097}, kBuffer - 1,
                                   kBuffer, kBuffer + 1, 3 * kBuffer, 6 * kBuffer + 12345})
    for (const int threads : {0, 1, 3}) {
      CAPTURE(size_bytes, threads);
      const std::vector<char> bytes = random_bytes(size_bytes, 7);
      {
        DirectWriter file(path, size_bytes, threads);
        write(file, bytes, 8);
        file.commit();
      }
      CHECK(read_by_stream(path) == bytes);
      std::vector<char> got;
      read_through(path, [&](std::span<const std::byte> part) {
        const auto* const from = reinterpret_cast<const char*>(part.data());
        got.insert(got.end(), from, from + part.size());
      });
      CHECK(got == bytes);
      CHECK(folder.entries() == 1);
    }
}

TEST_CASE("direct files: what is not committed or not read ends without a trace", "[checkpoint]") {
  const TempFolder folder;
  const std::string path = folder / "f";
  put(path, "older");
  const std::vector<char> bytes = random_bytes(20'000'000, 9);
  for (const int threads : {0, 3}) {
    DirectWriter file(path, std::ssize(bytes), threads);
    write(file, bytes, 10);
  }
  CHECK(bytes_in(path) == "older");
  CHECK(folder.entries() == 1);
  CHECK_REFUSED(ResourceError, DirectWriter(folder / "no/f", 1, 0), "cannot be written");
  CHECK_REFUSED(CheckpointError, read_through(folder / "no", [](std::span<const std::byte>) {}), "does not exist");
  CHECK_REFUSED(CheckpointError, read_through(folder.path(), [](std::span<const std::byte>) {}), "a folder");
  DirectWriter file(path, std::ssize(bytes), 3);
  write(file, bytes, 11);
  file.commit();
  int parts = 0;
  CHECK_THROWS_AS(read_through(path,
                               [&](std::span<const std::byte>) {
                                 if (++parts == 2) throw CheckpointError("stop");
                               }),
                  CheckpointError);
  CHECK(parts == 2);
}
