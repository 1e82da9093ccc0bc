// SPDX-License-Identifier: Apache-2.0
#pragma once
// A folder that stays the same one when its path gets another name, or names another folder.

#include <string>
#include <string_view>

namespace slipstream::files {

class Folder {
 public:
  /// Blocks. Opens the folder. Throws: ResourceError if there is none at `path`.
  explicit Folder(const std::string& path);
  ~Folder();
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  const std::string& path() const { return path_; }
  /// A path to `name` in this very folder, for calls of this process while this object exists; without /proc, the
  /// ordinary path. shown() and real_name() turn it back into the folder's present name.
  std::string at(std::string_view name = {}) const;
  /// Blocks. The change of the path: "was moved to ..", "was removed", or "is another folder now"; empty if it
  /// still names this folder, or if the disk does not answer.
  std::string change() const;

 private:
  std::string path_;
  int descriptor_ = -1;
};

/// Blocks. The path, or the present name of one that Folder::at() has returned.
std::string real_name(std::string_view path);

}  // namespace slipstream::files
