// SPDX-License-Identifier: Apache-2.0
// Counts the ids of all documents once, and encodes the documents that are requested.

#include "engine/data/datasets/json_lines.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "engine/base/check.h"
#include "engine/base/files.h"
#include "engine/base/hash.h"
#include "engine/data/datasets/document_parts.h"

namespace slipstream::data {
namespace {

constexpr int64_t kReadBytes = 1 << 16;
constexpr int64_t kMarkIds = 256;  // the least ids between marks; on average, a read decodes half as many in addition

}  // namespace

JsonLineTokens::JsonLineTokens(std::shared_ptr<const Tokenizer> tokenizer, std::shared_ptr<const TextFile> lines,
                               int threads, std::string key)
    : tokenizer_(std::move(tokenizer)),
      lines_(std::move(lines)),
      key_(std::move(key)),
      end_of_text_(tokenizer_->special().end_of_text) {
  Xxh3 hash;
  lines_->for_pieces([&](std::string_view piece, int64_t) { hash.update(piece.data(), std::ssize(piece)); });
  hash_ = hash.hex();
  int64_t ids = 0, mark_ids = kMarkIds;
  const auto take = [&](const DocumentPart& part, int64_t) {
    if (part.skipped) return;
    if (marks_.empty() || ids - marks_.back().id >= mark_ids) marks_.push_back({ids, part.begin});
    if (std::ssize(marks_) == TextTokens::kMarksMax) {
      for (size_t i = 0; 2 * i < marks_.size(); ++i) marks_[i] = marks_[2 * i];
      marks_.resize(marks_.size() / 2);
      mark_ids *= 2;
    }
    ids += std::ssize(part.ids) + (end_of_text_ >= 0 ? 1 : 0);
  };
  const DocumentOptions options{
      .path = lines_->path(), .json_lines = true, .text_key = key_, .separator = "", .threads = threads};
  try {
    documents_ = encode_documents(lines_->from_begin(), *tokenizer_, options, {}, take);
  } catch (const DataError& error) {
    throw_with_path(error, lines_->path());
  }
  if (ids == 0)
    throw DataError("[data] {} has no tokens, need at least one document with text. {}", files::shown(lines_->path()),
                    documents_.first_problem().empty() ? "Use another file." : documents_.first_problem());
  marks_.push_back({ids, lines_->size_bytes()});
  marks_.shrink_to_fit();
}

std::vector<JsonLineTokens::Mark>::const_iterator JsonLineTokens::before(int64_t begin) const {
  return std::upper_bound(marks_.begin(), marks_.end(), begin,
                          [](int64_t id, const Mark& mark) { return id < mark.id; }) -
         1;
}

std::vector<JsonLineTokens::Mark>::const_iterator JsonLineTokens::after(int64_t end) const {
  return std::lower_bound(marks_.begin(), marks_.end(), end, [](const Mark& mark, int64_t id) { return mark.id < id; });
}

void JsonLineTokens::prefetch(int64_t begin, int64_t count) const {
  const int64_t byte = before(begin)->byte;
  lines_->prefetch(byte, after(begin + count)->byte - byte);
}

void JsonLineTokens::read(int64_t begin, std::span<int32_t> out, std::vector<int64_t>* documents) const {
  const auto size = static_cast<int64_t>(out.size());
  SLIP_ASSERT(begin >= 0 && size <= count() && begin <= count() - size);
  if (size == 0) return;
  const Mark first = *before(begin);
  int64_t id = first.id, byte = first.byte;  // the position of the next line
  int64_t read_bytes = byte;
  /// The file may have changed, so that more bytes may be needed.
  const int64_t wanted_bytes = after(begin + size)->byte;
  std::string bytes;
  size_t used = 0;  // the bytes of `bytes` that are used
  while (id < begin + size) {
    const std::string_view rest = std::string_view(bytes).substr(used);
    const size_t end = rest.find('\n');
    if (end == std::string::npos && read_bytes < lines_->size_bytes()) {
      bytes.erase(0, std::exchange(used, 0));
      const int64_t left = (read_bytes < wanted_bytes ? wanted_bytes : lines_->size_bytes()) - read_bytes;
      const int64_t more = std::min(std::max(kReadBytes, std::ssize(bytes)), left);
      bytes += lines_->read(read_bytes, read_bytes + more);
      read_bytes += more;
      continue;
    }
    if (rest.empty())
      throw DataError(
          "[data] {} has {} tokens, but had {} when it was opened. It was changed while in use. Restore it and start "
          "again.",
          files::shown(lines_->path()), id, count());
    const std::string_view line = rest.substr(0, end);
    if (const JsonLine read = is_blank_line(line) ? JsonLine{} : read_json_line(line, byte, key_);
        !is_blank_line(line) && read.problem.empty()) {
      std::vector<int32_t> ids = tokenizer_->encode(read.text);
      if (end_of_text_ >= 0) ids.push_back(end_of_text_);
      if (documents != nullptr && !ids.empty() && id >= begin) documents->push_back(id - begin);
      for (int64_t i = std::max<int64_t>(0, begin - id); i < std::ssize(ids) && id + i < begin + size; ++i)
        out[static_cast<size_t>(id + i - begin)] = ids[static_cast<size_t>(i)];
      id += std::ssize(ids);
    }
    const size_t taken = std::min(rest.size(), line.size() + 1);
    byte += static_cast<int64_t>(taken);
    used += taken;
  }
}

}  // namespace slipstream::data
