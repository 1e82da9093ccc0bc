// SPDX-License-Identifier: Apache-2.0
// Recognizes the contents of a file by its first bytes, and chains the readers of its bytes.

#include "engine/data/datasets/text_input.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include "engine/base/check.h"
#include "engine/base/utf8.h"
#include "engine/data/datasets/containers.h"

namespace slipstream::data {
namespace {

constexpr std::string_view kBlank = " \t\r\n";

/// A reader whose first bytes can be inspected before they are read.
class Peekable {
 public:
  explicit Peekable(files::ReadBytes read) : read_(std::move(read)) {}

  std::string_view peek() {
    std::string more(kFirstBytes, '\0');
    while (waiting_.size() < kFirstBytes) {
      const int64_t got = read_(more.data(), std::ssize(more));
      if (got == 0) break;
      waiting_.append(more, 0, static_cast<size_t>(got));
    }
    return waiting_;
  }
  void put_back(std::string bytes) {
    waiting_.erase(0, std::exchange(at_, 0));
    waiting_.insert(0, bytes);
  }
  int64_t read(char* out, int64_t size_bytes) {
    const size_t again = std::min(waiting_.size() - at_, static_cast<size_t>(size_bytes));
    std::memcpy(out, waiting_.data() + at_, again);
    at_ += again;
    if (at_ == waiting_.size()) waiting_.clear(), at_ = 0;
    auto done = static_cast<int64_t>(again);
    while (done < size_bytes) {
      const int64_t got = read_(out + done, size_bytes - done);
      if (got == 0) break;
      done += got;
    }
    return done;
  }

 private:
  files::ReadBytes read_;
  std::string waiting_;
  size_t at_ = 0;  // the bytes of `waiting_` that have been read
};

int64_t read_standard_input(char* out, int64_t size_bytes) {
  for (;;) {
    const ssize_t got = ::read(STDIN_FILENO, out, static_cast<size_t>(std::min<int64_t>(size_bytes, 1 << 30)));
    if (got >= 0) return got;
    if (errno != EINTR)
      throw DataError("[data] standard input cannot be read: {}. Give the path of a file.", std::strerror(errno));
  }
}

/// Returns the text without the blanks and the byte-order mark before it.
std::string_view without_blanks(std::string_view text) {
  if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);
  text.remove_prefix(std::min(text.size(), text.find_first_not_of(kBlank)));
  return text;
}

bool begins_with(std::string_view text, char first, char second) {
  text = without_blanks(text);
  return text.starts_with(first) && without_blanks(text.substr(1)).starts_with(second);
}

std::string_view name_without_packing(std::string_view path) {
  for (const std::string_view end : {".gz", ".zst"})
    if (path.ends_with(end)) path.remove_suffix(end.size());
  return path;
}

}  // namespace

struct TextInput::State {
  std::string path;
  DataFormat named = DataFormat::automatic, format = DataFormat::text;
  std::optional<files::InputFile> file;  // none: standard input
  int64_t file_bytes_read = 0;
  Packing packing = Packing::none;
  std::optional<Peekable> stored, text;  // the bytes of the file, and the same after unpacking
};

TextInput::TextInput(const std::string& path, DataFormat named) : state_(std::make_unique<State>()) {
  State& state = *state_;
  const bool is_input = names_standard_input(path);
  state.path = is_input ? "standard input" : path;
  state.named = named;
  if (!is_input) state.file.emplace(path, files::Owner::data);
  state.stored.emplace([&state](char* out, int64_t size_bytes) {
    int64_t got = 0;
    if (state.file) {
      got = std::min(size_bytes, state.file->size_bytes() - state.file_bytes_read);
      state.file->read(state.file_bytes_read, out, got);
    } else {
      got = read_standard_input(out, size_bytes);
    }
    state.file_bytes_read += got;
    return got;
  });
  state.packing = packing_of(state.stored->peek());
  state.text.emplace(unpacked(
      state.packing, [&state](char* out, int64_t size_bytes) { return state.stored->read(out, size_bytes); },
      state.path));
  const std::string_view begin = state.text->peek();
  const std::string shown = files::shown(state.path);
  if (begin.empty()) throw DataError("[data] {} is empty, need text. Use a file that is not empty.", shown);
  if (named != DataFormat::automatic) state.format = named;
  if (named == DataFormat::text) return;
  if (const std::string found = container_of(begin, path); !found.empty())
    throw DataError("[data] {}{}.", found, state.packing == Packing::none ? "" : " (after unpacking it once)");
  if (begins_with(begin, '[', '{'))
    throw DataError(
        "[data] {} is a JSON array, need one object per line. Convert it: jq -c '.[]' {} > text.jsonl. If it is a "
        "plain "
        "text, name its format: data.format = \"text\", or --format text of tokenize and eval.",
        shown, files::shown(path));
  if (named == DataFormat::automatic &&
      (name_without_packing(path).ends_with(".jsonl") || begins_with(begin, '{', '"')))
    state.format = DataFormat::jsonl;
}

TextInput::TextInput(TextInput&&) noexcept = default;
TextInput::~TextInput() = default;

const std::string& TextInput::path() const { return state_->path; }
DataFormat TextInput::format() const { return state_->format; }
bool TextInput::takes_any_bytes() const { return state_->named == DataFormat::text; }
int64_t TextInput::read(char* out, int64_t size_bytes) { return state_->text->read(out, size_bytes); }
void TextInput::put_back(std::string bytes) { state_->text->put_back(std::move(bytes)); }
int64_t TextInput::file_bytes_read() const { return state_->file_bytes_read; }
int64_t TextInput::file_bytes() const { return state_->file ? state_->file->size_bytes() : 0; }
bool TextInput::is_plain_file() const { return state_->file && state_->packing == Packing::none; }

files::InputFile TextInput::as_file() && {
  if (is_plain_file()) return std::move(*state_->file);
  return {state_->path, files::Owner::data, [this](char* out, int64_t size_bytes) { return read(out, size_bytes); }};
}

void require_text(std::string_view text, int64_t begin, bool utf8, bool ends) {
  size_t wrong = text.find('\0');
  if (utf8) {
    const size_t good = valid_utf8_prefix(text.substr(0, wrong));
    const bool cut = good < text.size() && !ends && broken_at(text, good).open;
    if (good < std::min(text.size(), wrong) && !cut) wrong = good;
  }
  if (wrong == std::string_view::npos) return;
  throw DataError(
      "[data] this is no text: byte {} is 0x{:02x}, {}. Give UTF-8 text, or name the format to take all bytes as they "
      "are: data.format = \"text\", or --format text of tokenize and eval.",
      begin + static_cast<int64_t>(wrong), static_cast<uint8_t>(text[wrong]),
      text[wrong] == '\0' ? "a NUL" : "which is not UTF-8");
}

}  // namespace slipstream::data
