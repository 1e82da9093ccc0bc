// SPDX-License-Identifier: Apache-2.0
// Keeps a descriptor of a folder. Paths below /proc/self/fd reach the folder itself, as openat(2) does, and work with
// every function that takes a path.

#include "engine/base/folder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>

#include "engine/base/check.h"

namespace slipstream::files {
namespace {

constexpr std::string_view kDescriptors = "/proc/self/fd/";

/// Blocks. Returns the target of a link, or an empty text if there is no such link.
std::string target_of(const std::string& link) {
  char target[PATH_MAX];
  const ssize_t size = ::readlink(link.c_str(), target, sizeof target);
  return size <= 0 ? std::string() : std::string(target, static_cast<size_t>(size));
}

}  // namespace

Folder::Folder(const std::string& path)
    : path_(path), descriptor_(::open(path.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC)) {
  if (descriptor_ < 0)
    throw ResourceError("[disk] the folder {} cannot be opened: {}. All hosts of a run need it.", path,
                        std::strerror(errno));
}

Folder::~Folder() { ::close(descriptor_); }

std::string Folder::at(std::string_view name) const {
  const std::string link = fmt::format("{}{}", kDescriptors, descriptor_);
  const std::string folder = ::access(link.c_str(), F_OK) == 0 || !target_of(link).empty() ? link : path_;
  return name.empty() ? folder : fmt::format("{}/{}", folder, name);
}

std::string Folder::change() const {
  struct stat own {
  }, named{};
  if (::fstat(descriptor_, &own) != 0) return {};
  const bool exists = ::stat(path_.c_str(), &named) == 0;
  if (exists ? named.st_dev == own.st_dev && named.st_ino == own.st_ino : errno != ENOENT && errno != ENOTDIR)
    return {};
  const std::string now = target_of(fmt::format("{}{}", kDescriptors, descriptor_));
  struct stat at_target {};
  if (!now.empty() && ::stat(now.c_str(), &at_target) == 0 && at_target.st_dev == own.st_dev &&
      at_target.st_ino == own.st_ino)
    return "was moved to " + now;
  return exists ? "was removed, and another folder has its name" : "was removed";
}

std::string real_name(std::string_view path) {
  if (!path.starts_with(kDescriptors)) return std::string(path);
  const size_t end = std::min(path.find('/', kDescriptors.size()), path.size());
  const std::string folder = target_of(std::string(path.substr(0, end)));
  return folder.empty() ? std::string(path) : folder + std::string(path.substr(end));
}

}  // namespace slipstream::files
