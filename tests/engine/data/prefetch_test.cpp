// SPDX-License-Identifier: Apache-2.0
// Bytes that are requested from the disk: those of the ids that are read next, and few others.

#include <fcntl.h>
#include <sys/mman.h>

#include <chrono>
#include <functional>
#include <thread>
#include <vector>

#include "engine/data/datasets/json_lines.h"
#include "engine/data/datasets/raw_tokens.h"
#include "engine/data/datasets/text.h"
#include "engine/data/tokenizers/make_tokenizer.h"
#include "tests/engine/data/disk.h"
#include "tests/test.hpp"

using namespace slipstream;
using namespace slipstream::data;
using namespace slipstream::tests;

namespace {

constexpr int64_t kPageBytes = 4096;

/// The pages of a file that are in the page cache.
class Pages {
 public:
  explicit Pages(const std::string& path)
      : size_bytes_(std::filesystem::file_size(path)), file_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    map_ = ::mmap(nullptr, size_bytes_, PROT_READ, MAP_SHARED, file_, 0);
    REQUIRE(map_ != MAP_FAILED);
    ::fsync(file_);
  }
  ~Pages() {
    ::munmap(map_, size_bytes_);
    ::close(file_);
  }
  void drop() const { ::posix_fadvise(file_, 0, 0, POSIX_FADV_DONTNEED); }
  std::vector<bool> cached() const {
    std::vector<unsigned char> flags((size_bytes_ + kPageBytes - 1) / kPageBytes);
    REQUIRE(::mincore(map_, size_bytes_, flags.data()) == 0);
    std::vector<bool> pages;
    for (const unsigned char flag : flags) pages.push_back((flag & 1) != 0);
    return pages;
  }
  int64_t count() const {
    const std::vector<bool> pages = cached();
    return std::count(pages.begin(), pages.end(), true);
  }

 private:
  size_t size_bytes_;
  int file_;
  void* map_ = nullptr;
};

std::string words(size_t size_bytes) {
  std::string text;
  for (uint32_t state = 1; text.size() < size_bytes; state = state * 1664525u + 1013904223u)
    text += static_cast<char>('a' + (state >> 24) % 26), text += (state >> 16) % 6 == 0 ? " " : "e";
  return text;
}

struct Kind {
  std::string name, content;
  std::function<std::shared_ptr<const TokenSource>(const std::string& path)> open;
  /// The place at which an id's text begins.
  std::function<int64_t(int64_t id)> byte_of;
};

}  // namespace

TEST_CASE("prefetch: the pages of the requested ids arrive, and no more than a few others", "[data]") {
  constexpr size_t kBytes = 4 << 20;
  const std::string text = words(kBytes);
  std::string lines;
  constexpr int64_t kLine = 250;  // characters of a document
  for (size_t at = 0; at + kLine <= text.size(); at += kLine)
    lines += "{\"text\": \"" + text.substr(at, kLine) + "\"}\n";
  const int64_t line_bytes = static_cast<int64_t>(lines.find('\n')) + 1;
  const auto chars = make_tokenizer("chars", text);
  const std::vector<Kind> kinds = {
      {"ids of two bytes", text,
       [](const std::string& path) {
         return std::make_shared<RawTokens>(
             files::InputFile(path, files::Owner::data),
             RawTokensOptions{.type = IdType::u16, .count = kBytes / 2, .vocab_size = 65536});
       },
       [](int64_t id) { return 2 * id; }},
      {"text as bytes", text,
       [](const std::string& path) {
         return std::make_shared<TextTokens>(make_tokenizer("bytes", ""), std::make_shared<TextFile>(path));
       },
       [](int64_t id) { return id; }},
      {"text as characters", text,
       [&](const std::string& path) { return std::make_shared<TextTokens>(chars, std::make_shared<TextFile>(path)); },
       [](int64_t id) { return id; }},
      {"JSON lines as characters", lines,
       [&](const std::string& path) {
         return std::make_shared<JsonLineTokens>(chars, std::make_shared<TextFile>(path), 1);
       },
       [&](int64_t id) { return id / kLine * line_bytes; }}};
  for (const Kind& kind : kinds) {
    INFO(kind.name);
    TempFolder folder;
    put(folder / "data", kind.content);
    const std::shared_ptr<const TokenSource> source = kind.open(folder / "data");
    const Pages pages(folder / "data");
    for (const auto& [begin, count] : {std::pair<int64_t, int64_t>{777'777, 1025}, {1'500'000, 5000}}) {
      CAPTURE(begin, count);
      pages.drop();
      if (pages.count() > 0) {
        WARN("SKIPPED: pages of " << folder.path() << " cannot be dropped");
        return;
      }
      source->prefetch(begin, 0);
      source->prefetch(begin, count);
      const int64_t first = kind.byte_of(begin) / kPageBytes, last = kind.byte_of(begin + count - 1) / kPageBytes;
      const auto have_come = [&] {
        const std::vector<bool> cached = pages.cached();
        return std::all_of(cached.begin() + first, cached.begin() + last + 1, [](bool page) { return page; });
      };
      for (int i = 0; i < 2000 && !have_come(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      CHECK(have_come());
      CHECK(pages.count() <= last - first + 1 + (1 << 17) / kPageBytes);
    }
  }
}
