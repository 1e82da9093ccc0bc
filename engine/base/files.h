// SPDX-License-Identifier: Apache-2.0
#pragma once
// Files on disk. Reads check every size. A written file appears under its final name complete or not at all.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace slipstream::files {

/// Writes the next `size_bytes` bytes to `out`, or fewer at the end. Returns their number.
using ReadBytes = std::function<int64_t(char* out, int64_t size_bytes)>;

/// The owner of a file selects the error of a failed read: DataError or CheckpointError.
enum class Owner : uint8_t { data, checkpoint };

/// Throws: DataError or CheckpointError whose text is "[data] " or "[checkpoint] " followed by `sentence`.
[[noreturn]] void refuse(Owner owner, const std::string& sentence);

/// Returns `text` for error messages: in double quotes, cut at 255 bytes, with control characters and broken UTF-8 as
/// hexadecimal digits. Pure.
std::string shown(std::string_view text);
/// Returns the same without quotes. A longer text is cut at `limit_bytes` and ends with "..". Pure.
std::string printable(std::string_view text, size_t limit_bytes);

/// A regular file opened for reading, with offsets of 64 bits. Several threads may read from it at once.
class InputFile {
 public:
  /// Throws: the owner's error if the path is missing, not a regular file, or not readable.
  InputFile(const std::string& path, Owner owner);
  /// Blocks. Copies all that `next` reads to a nameless file in $TMPDIR, or /tmp. Its space is free again when this
  /// object ends. `path` names the file in errors. Throws: ResourceError if the folder cannot be written or is full;
  /// errors of `next`.
  InputFile(const std::string& path, Owner owner, const ReadBytes& next);
  InputFile(InputFile&& other) noexcept;
  InputFile& operator=(InputFile&&) = delete;
  ~InputFile();

  /// Blocks. Reads exactly `size_bytes` bytes from `offset_bytes` into `out`.
  /// Throws: the owner's error if the file ends too early or the disk fails.
  void read(int64_t offset_bytes, void* out, int64_t size_bytes) const;
  /// Tells the disk that these bytes will be read soon. Returns before they are in memory.
  void prefetch(int64_t offset_bytes, int64_t size_bytes) const;
  /// Returns the size that the file had when it was opened.
  int64_t size_bytes() const { return size_bytes_; }
  const std::string& path() const { return path_; }

 private:
  InputFile(const std::string& path, Owner owner, int descriptor)
      : path_(path), owner_(owner), descriptor_(descriptor) {}

  std::string path_;
  Owner owner_;
  int descriptor_ = -1;
  int64_t size_bytes_ = 0;
};

/// Blocks. Returns the whole file as bytes.
/// Throws: the owner's error as InputFile does, and for a file of more than `limit_bytes`.
std::string read_file(const std::string& path, Owner owner, int64_t limit_bytes);

/// A file written under a temporary name in the folder of `path`, which gets its final name in commit().
/// Without commit() the destructor removes it, and an older file at `path` stays as it was.
class OutputFile {
 public:
  /// Throws: ResourceError if the folder is missing or cannot be written.
  explicit OutputFile(const std::string& path);
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  ~OutputFile();

  /// Blocks. Throws: ResourceError if the disk is full or fails.
  void write(const void* bytes, int64_t size_bytes);
  /// Blocks. Brings the data to disk, renames the file, and brings the folder's entry to disk. May be called once.
  void commit();

 private:
  std::string path_;
  std::string temporary_;
  int descriptor_ = -1;
};

/// Blocks. Writes `bytes` as one committed OutputFile.
void write_file(const std::string& path, std::string_view bytes);

/// Blocks. Makes renames inside `folder` survive a power failure. Throws: ResourceError.
void sync_folder(const std::string& folder);

/// Returns the folder part of `path`, or "." if it has none. Pure.
std::string folder_of(const std::string& path);

}  // namespace slipstream::files
