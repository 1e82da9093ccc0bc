// SPDX-License-Identifier: Apache-2.0
// Hashes the read-only segments of the running executable.

#include "trainer/runtime/run_folder/version.h"

#include <link.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "engine/base/check.h"
#include "engine/base/hash.h"

namespace slipstream::runtime {
namespace {

using ProgramHeader = ElfW(Phdr);

/// The bytes [begin, end) of memory.
struct Range {
  const std::byte* begin = nullptr;
  const std::byte* end = nullptr;
};

Range range_of(const dl_phdr_info& program, const ProgramHeader& header) {
  const auto* begin = reinterpret_cast<const std::byte*>(program.dlpi_addr + header.p_vaddr);
  return {begin, begin + header.p_filesz};
}

/// Returns the file's headers and notes. Stripping changes the headers, and a note may hold an id of the linker, which
/// depends on debug information.
std::vector<Range> passed_over(const dl_phdr_info& program) {
  std::vector<Range> ranges;
  for (int i = 0; i < program.dlpi_phnum; ++i) {
    const ProgramHeader& header = program.dlpi_phdr[i];
    if (header.p_type == PT_NOTE) ranges.push_back(range_of(program, header));
    if (header.p_type == PT_LOAD && header.p_offset == 0)
      ranges.push_back({range_of(program, header).begin,
                        reinterpret_cast<const std::byte*>(program.dlpi_phdr + program.dlpi_phnum)});
  }
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
  return ranges;
}

/// The first program that dl_iterate_phdr() visits is the executable.
int hash_executable(dl_phdr_info* program, size_t, void* hash) {
  const std::vector<Range> skipped = passed_over(*program);
  for (int i = 0; i < program->dlpi_phnum; ++i) {
    const ProgramHeader& header = program->dlpi_phdr[i];
    if (header.p_type != PT_LOAD || (header.p_flags & PF_W) != 0 || (header.p_flags & PF_R) == 0) continue;
    Range rest = range_of(*program, header);
    const auto take = [&](const std::byte* end) {
      if (rest.begin < end) static_cast<data::Xxh3*>(hash)->update(rest.begin, end - rest.begin);
    };
    for (const Range& skip : skipped) {
      if (skip.end <= rest.begin || skip.begin >= rest.end) continue;
      take(skip.begin);
      rest.begin = std::max(rest.begin, skip.end);
    }
    take(rest.end);
  }
  return 1;  // no further programs are visited
}

std::string hash_of_executable() {
  data::Xxh3 hash;
  SLIP_ASSERT(dl_iterate_phdr(hash_executable, &hash) == 1);
  return hash.hex().substr(0, 16);
}

}  // namespace

const std::string& build_id() {
  static const std::string id = hash_of_executable();
  return id;
}

}  // namespace slipstream::runtime
