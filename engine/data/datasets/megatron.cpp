// SPDX-License-Identifier: Apache-2.0
// Reads the index of a token file of Megatron-LM piece by piece.

#include "engine/data/datasets/megatron.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "engine/base/check.h"
#include "engine/base/files.h"
#include "engine/base/hash.h"

namespace slipstream::data {
namespace {

constexpr char kMagic[] = "MMIDIDX\0";  // 9 bytes
constexpr int64_t kHeaderBytes = 9 + 8 + 1 + 8 + 8;

/// The values of one array of the file in their order.
template <typename T>
class Values {
 public:
  Values(const files::InputFile& file, int64_t offset_bytes, int64_t count)
      : file_(file), offset_bytes_(offset_bytes), left_(count) {}
  T next() {
    if (at_ == chunk_.size()) {
      chunk_.resize(static_cast<size_t>(std::min<int64_t>(left_, 1 << 16)));
      SLIP_ASSERT(!chunk_.empty());
      const auto size_bytes = static_cast<int64_t>(chunk_.size() * sizeof(T));
      file_.read(offset_bytes_, chunk_.data(), size_bytes);
      offset_bytes_ += size_bytes;
      left_ -= std::ssize(chunk_);
      at_ = 0;
    }
    return chunk_[at_++];
  }

 private:
  const files::InputFile& file_;
  int64_t offset_bytes_;
  int64_t left_;
  std::vector<T> chunk_;
  size_t at_ = 0;
};

class Reader {
 public:
  Reader(const std::string& path, const std::string& tokens_path)
      : file_(path, files::Owner::data), tokens_path_(tokens_path) {}

  MegatronIndex read() {
    read_header();
    const files::InputFile tokens(tokens_path_, files::Owner::data);
    const int64_t tokens_bytes = tokens.size_bytes(), width_bytes = size_of(type_);
    Values<int32_t> lengths(file_, kHeaderBytes, sequences_);
    Values<int64_t> offsets(file_, kHeaderBytes + 4 * sequences_, sequences_);
    Values<int64_t> documents(file_, kHeaderBytes + 12 * sequences_, documents_);
    std::vector<int64_t> begins;
    int64_t count = 0, document = 0, begin_of_next = documents.next();
    if (begin_of_next != 0) fail("has its first document at sequence {}, need 0", begin_of_next);
    for (int64_t sequence = 0; sequence <= sequences_; ++sequence) {
      for (; begin_of_next == sequence && document + 1 < documents_; ++document) {
        // A document without tokens begins where the next one begins.
        if (begins.empty() || begins.back() != count) begins.push_back(count);
        const int64_t next = documents.next();
        if (next < begin_of_next || next > sequences_)
          fail("has document {} at sequence {}, need {} to {}", document + 1, next, begin_of_next, sequences_);
        begin_of_next = next;
      }
      if (sequence == sequences_) break;
      const int64_t length = lengths.next(), offset = offsets.next();
      if (length < 0 || length > tokens_bytes / width_bytes - count)
        fail("has {} tokens in sequence {}, but {} has room for {} after the {} before", length, sequence,
             files::shown(tokens_path_), tokens_bytes / width_bytes - count, count);
      if (offset != count * width_bytes)
        fail("has sequence {} at byte {}, need {}, the end of the one before", sequence, offset, count * width_bytes);
      count += length;
    }
    if (begin_of_next != sequences_ || document + 1 != documents_)
      fail_without_end(fmt::format("ends its documents at sequence {}, need {}", begin_of_next, sequences_));
    if (count == 0 || count * width_bytes != tokens_bytes)
      fail("has {} tokens of {} bytes, but {} has {} bytes", count, width_bytes, files::shown(tokens_path_),
           tokens_bytes);
    if (begins.back() == count) begins.pop_back();  // documents without tokens at the end of the file
    return {.type = type_, .count = count, .documents = make_document_index(std::move(begins)), .hash = hash()};
  }

 private:
  template <typename... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
    throw DataError("[data] the index {} {}. Write it again with Megatron-LM.", files::shown(file_.path()),
                    fmt::format(format, std::forward<Args>(args)...));
  }

  [[noreturn]] void fail_without_end(const std::string& problem) const {
    throw DataError(
        "[data] the index {} {}: its last document has no end. Write it again, and call end_document() of "
        "Megatron-LM's IndexedDatasetBuilder after every document.",
        files::shown(file_.path()), problem);
  }

  void read_header() {
    if (file_.size_bytes() < kHeaderBytes)
      fail("has {} bytes, need its header of {}", file_.size_bytes(), kHeaderBytes);
    char header[kHeaderBytes];
    file_.read(0, header, kHeaderBytes);
    uint64_t version = 0, sequences = 0, documents = 0;
    std::memcpy(&version, header + 9, 8);
    std::memcpy(&sequences, header + 18, 8);
    std::memcpy(&documents, header + 26, 8);
    if (std::memcmp(header, kMagic, 9) != 0) fail("does not begin with MMIDIDX and two zero bytes");
    if (version != 1) fail("has version {}, need 1", version);
    type_ = type_of(static_cast<uint8_t>(header[17]));
    // The division has two steps, because a product of the counts may not fit into 64 bits. A list of modes, 1 byte per
    // sequence, may follow.
    const auto rest = static_cast<uint64_t>(file_.size_bytes() - kHeaderBytes);
    const bool fits = sequences <= rest / 12 && documents <= (rest - 12 * sequences) / 8;
    const uint64_t left = fits ? rest - 12 * sequences - 8 * documents : 1;
    if (!fits || (left != 0 && left != sequences))
      fail("has {} bytes after its header, need 12 for each of {} sequences and 8 for each of {} ends of documents",
           rest, sequences, documents);
    if (sequences < 1) fail("has no sequences, need at least 1");
    if (documents < 2) fail_without_end(fmt::format("has {} ends of documents, need at least 2", documents));
    sequences_ = static_cast<int64_t>(sequences);
    documents_ = static_cast<int64_t>(documents);
  }

  IdType type_of(int code) const {
    switch (code) {
      case 1:
        return IdType::u8;
      case 3:
        return IdType::i16;
      case 4:
        return IdType::i32;
      case 5:
        return IdType::i64;
      case 8:
        return IdType::u16;
      default:
        fail("has ids of type {}, need 1 (uint8), 3 (int16), 4 (int32), 5 (int64) or 8 (uint16)", code);
    }
  }

  std::string hash() const {
    Xxh3 hash;
    hash.update(file_, 0, file_.size_bytes());
    return hash.hex();
  }

  files::InputFile file_;
  std::string tokens_path_;
  IdType type_ = IdType::u16;
  int64_t sequences_ = 0, documents_ = 0;
};

}  // namespace

MegatronIndex read_megatron_index(const std::string& path, const std::string& tokens_path) {
  return Reader(path, tokens_path).read();
}

}  // namespace slipstream::data
