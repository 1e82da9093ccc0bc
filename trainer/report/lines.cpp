// SPDX-License-Identifier: Apache-2.0
// Reads files of lines that a run may still be writing, or that a disk has damaged.

#include "trainer/report/lines.h"

#include <sys/stat.h>
#include <cstdio>
#include <memory>

#include "engine/base/check.h"
#include "engine/base/plural.h"

namespace slipstream::report {

bool each_line(const std::string& path, const std::function<void(std::string_view line, bool ended)>& take) {
  struct stat facts;
  if (::stat(path.c_str(), &facts) != 0 || !S_ISREG(facts.st_mode)) return false;  // opening a pipe would wait
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"), std::fclose);
  if (!file) return false;
  std::vector<char> buffer(size_t{1} << 16);
  std::string line;
  bool is_long = false;
  const auto add = [&](std::string_view part) {
    if (line.size() + part.size() > kLongestLine) is_long = true;
    if (is_long)
      line.clear();
    else
      line += part;
  };
  for (size_t count; (count = std::fread(buffer.data(), 1, buffer.size(), file.get())) > 0;) {
    std::string_view rest(buffer.data(), count);
    for (size_t end; (end = rest.find('\n')) != std::string_view::npos; rest.remove_prefix(end + 1)) {
      add(rest.substr(0, end));
      take(line, true);
      line.clear();
      is_long = false;
    }
    add(rest);
  }
  if (!line.empty() || is_long) take(line, false);
  return true;
}

bool each_object(const std::string& path, const std::string& name, Missing& missing,
                 const std::function<void(const Json& line)>& take) {
  int64_t number = 0, damaged = 0, first_damaged = 0;
  bool is_written = false;
  const bool exists = each_line(path, [&](std::string_view line, bool ended) {
    ++number;
    try {
      const Json object = Json::parse(line, name);
      object.as_object();
      take(object);
    } catch (const DataError&) {
      if (!ended) {
        is_written = true;
        return;
      }
      if (++damaged == 1) first_damaged = number;
    }
  });
  if (damaged > 0)
    missing.push_back(
        fmt::format("{} has {} that cannot be read, the first of them line {}. The report leaves them out.", name,
                    counted(damaged, "line"), first_damaged));
  if (is_written)
    missing.push_back(
        fmt::format("{} ends with an incomplete line: the run is still writing it, or was killed.", name));
  return exists;
}

}  // namespace slipstream::report
