// SPDX-License-Identifier: Apache-2.0
#pragma once
// A handle on a folder that keeps naming the same folder when its path is renamed or replaced.

#include <string>
#include <string_view>

namespace slipstream::files {

class Folder {
 public:
  /// Blocks. Opens the folder. Throws: ResourceError if there is no folder at `path`.
  explicit Folder(const std::string& path);
  ~Folder();
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  const std::string& path() const { return path_; }
  /// Returns a path to `name` inside this very folder. It is valid for calls of this process while this object exists.
  /// Without /proc it is the ordinary path. shown() and real_name() turn it back into the folder's present name.
  std::string at(std::string_view name = {}) const;
  /// Blocks. Returns what happened to the path: "was moved to ..", "was removed", or "is another folder now". Returns
  /// an empty text if the path still names this folder, or if the disk does not answer.
  std::string change() const;

 private:
  std::string path_;
  int descriptor_ = -1;
};

/// Blocks. Returns `path`, or the present name of a path that Folder::at() has returned.
std::string real_name(std::string_view path);

}  // namespace slipstream::files
