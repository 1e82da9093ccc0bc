// SPDX-License-Identifier: Apache-2.0
#pragma once
// Helpers for tests of files: a temporary folder, bytes in and out, the text of an error.

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <string>
#include <typeinfo>

#include "engine/base/check.h"

namespace slipstream::tests {

class TempFolder {
 public:
  TempFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "slipstream-test-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("mkdtemp failed for " + pattern);
    path_ = pattern;
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }
  /// Names in the folder that this class did not create.
  size_t entries() const {
    const auto all = std::filesystem::directory_iterator(path_);
    return static_cast<size_t>(std::distance(begin(all), end(all)));
  }

 private:
  std::string path_;
};

/// Removes an older file first: ext4 flushes a file that is cut to nothing and rewritten, 4 ms each time.
inline void put(const std::string& path, const std::string& bytes) {
  std::filesystem::remove(path);
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

inline std::string bytes_in(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

/// The message that `act` throws as an E; otherwise a text that describes what happened instead.
template <typename E, typename Act>
std::string sentence(const Act& act) {
  try {
    act();
  } catch (const E& error) {
    return error.what();
  } catch (const std::exception& error) {
    return std::string("another type: ") + typeid(error).name() + ": " + error.what();
  }
  return "nothing was thrown";
}

inline bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace slipstream::tests

/// `act` throws a `Type` whose message contains all of the parts.
#define CHECK_REFUSED(Type, act, ...)                                                         \
  do {                                                                                        \
    const std::string message = ::slipstream::tests::sentence<Type>([&] { act; });            \
    INFO(message);                                                                            \
    for (const std::string& must_contain : std::initializer_list<std::string>{__VA_ARGS__}) { \
      INFO("must contain: " << must_contain);                                                 \
      CHECK(::slipstream::tests::has(message, must_contain));                                 \
    }                                                                                         \
  } while (false)
