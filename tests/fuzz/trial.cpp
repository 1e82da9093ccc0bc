// SPDX-License-Identifier: Apache-2.0
// Judges readers, and counts the memory that they request.

#include "tests/fuzz/trial.h"

#include <malloc.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <filesystem>
#include <fstream>
#include <new>

#include "engine/base/utf8.h"

namespace {

int64_t live_bytes = 0;
int64_t peak_bytes = 0;

void* taken(size_t size) noexcept {
  void* const memory = std::malloc(std::max<size_t>(size, 1));
  if (memory != nullptr) {
    live_bytes += static_cast<int64_t>(malloc_usable_size(memory));
    peak_bytes = std::max(peak_bytes, live_bytes);
  }
  return memory;
}

void* taken_or_thrown(size_t size) {
  void* const memory = taken(size);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

void given_back(void* memory) noexcept {
  if (memory != nullptr) live_bytes -= static_cast<int64_t>(malloc_usable_size(memory));
  std::free(memory);
}

}  // namespace

// The readers run on one thread, so that the counters need no atomics.
void* operator new(size_t size) { return taken_or_thrown(size); }
void* operator new[](size_t size) { return taken_or_thrown(size); }
void* operator new(size_t size, const std::nothrow_t&) noexcept { return taken(size); }
void* operator new[](size_t size, const std::nothrow_t&) noexcept { return taken(size); }
void operator delete(void* memory) noexcept { given_back(memory); }
void operator delete[](void* memory) noexcept { given_back(memory); }
void operator delete(void* memory, size_t) noexcept { given_back(memory); }
void operator delete[](void* memory, size_t) noexcept { given_back(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { given_back(memory); }
void operator delete[](void* memory, const std::nothrow_t&) noexcept { given_back(memory); }

namespace slipstream::fuzz {
namespace {

// The reader of run files holds 1 MiB. A short key or value of JSON or TOML becomes a node of some hundred bytes.
constexpr int64_t kMemoryBytes = 8 << 20, kMemoryPerByte = 512;
constexpr size_t kSentenceBytesMax = 2000;

/// Describes the error in a sentence; empty if it is one printable sentence.
std::string sentence_problem(std::string_view sentence) {
  if (sentence.empty()) return "the error has no sentence";
  if (sentence.size() > kSentenceBytesMax)
    return fmt::format("the error has {} bytes: {}..", sentence.size(), sentence.substr(0, 200));
  for (size_t at = 0; at < sentence.size();) {
    const CodePoint point = next_code_point(sentence, at);
    if (point.size_bytes == 0 || point.value < 0x20 || point.value == 0x7f)
      return fmt::format("the error has the byte 0x{:02x}: {}", static_cast<uint8_t>(sentence[at]), sentence);
    at += static_cast<size_t>(point.size_bytes);
  }
  if (sentence.back() != '.' && sentence.back() != '?') return fmt::format("the error does not end: {}", sentence);
  return "";
}

/// In memory where the system has such a folder. Removed at the end of the process.
struct Folder {
  std::string path;
  Folder() {
    const std::filesystem::path memory = "/dev/shm";
    const bool chosen = ::getenv("TMPDIR") != nullptr || ::access(memory.c_str(), W_OK) != 0;
    path = ((chosen ? std::filesystem::temp_directory_path() : memory) / "slipstream-fuzz-XXXXXX").string();
    if (::mkdtemp(path.data()) == nullptr) throw std::bad_alloc();
  }
  ~Folder() {
    std::error_code error;
    std::filesystem::remove_all(path, error);
  }
};

}  // namespace

Outcome outcome_of(size_t input_bytes, const std::function<void()>& read) {
  Outcome outcome;
  const int64_t before_bytes = live_bytes;
  peak_bytes = live_bytes;
  try {
    read();
    outcome.accepted = true;
  } catch (const Error& error) {
    outcome.code = error.code();
    outcome.sentence = error.what();
    outcome.breach = error.code() == ExitCode::bug ? outcome.sentence : sentence_problem(outcome.sentence);
  } catch (const std::exception& error) {
    outcome.breach = fmt::format("an exception without a code: {}", error.what());
  }
  const int64_t limit_bytes = kMemoryBytes + kMemoryPerByte * static_cast<int64_t>(input_bytes);
  if (const int64_t held_bytes = peak_bytes - before_bytes; held_bytes > limit_bytes && outcome.breach.empty())
    outcome.breach =
        fmt::format("{} bytes of memory for an input of {}, need at most {}", held_bytes, input_bytes, limit_bytes);
  return outcome;
}

Outcome first_of(const std::vector<Outcome>& outcomes) {
  Outcome first = outcomes.at(0);
  for (const Outcome& outcome : outcomes)
    if (first.breach.empty()) first.breach = outcome.breach;
  return first;
}

void require(bool property, const char* sentence) {
  if (!property) throw std::logic_error(sentence);
}

void must_succeed(const std::function<void()>& use) {
  try {
    use();
  } catch (const Error& error) {
    throw std::logic_error(fmt::format("accepted, but later refused: {}", error.what()));
  }
}

std::string input_file(const std::string& name, std::string_view bytes) {
  static const Folder folder;
  const std::string path = folder.path + "/" + name;
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  file.close();
  require(file.good(), "the folder of the inputs is full");
  return path;
}

}  // namespace slipstream::fuzz
