// SPDX-License-Identifier: Apache-2.0
// Searches the beginnings of documents in memory and on disk.

#include "engine/data/datasets/document_index.h"

#include <algorithm>

#include "engine/base/check.h"

namespace slipstream::data {
namespace {

constexpr int64_t kBlock = 512;  // the indices of one read

class Resident final : public DocumentIndex {
 public:
  explicit Resident(std::vector<int64_t> begins) : begins_(std::move(begins)) {}
  void find(int64_t begin, int64_t end, std::vector<int64_t>& documents) const override {
    for (auto at = std::lower_bound(begins_.begin(), begins_.end(), begin); at != begins_.end() && *at < end; ++at)
      documents.push_back(*at - begin);
  }
  int64_t resident_bytes() const override { return std::ssize(begins_) * 8; }

 private:
  std::vector<int64_t> begins_;
};

class OnDisk final : public DocumentIndex {
 public:
  OnDisk(const std::string& path, uint64_t documents, int64_t tokens, bool checks)
      : file_(path, files::Owner::data), tokens_(tokens) {
    if (file_.size_bytes() % 8 != 0 || static_cast<uint64_t>(file_.size_bytes()) / 8 != documents)
      throw DataError(
          "[data] {} has {} bytes, need 8 for each of the {} documents of its sidecar. Write the shard again with "
          "slipstream tokenize.",
          files::shown(path), file_.size_bytes(), documents);
    count_ = static_cast<int64_t>(documents);
    std::vector<uint64_t> block;
    uint64_t least = 0;
    for (int64_t at = 0; at < count_; at += kBlock) {
      load(at, checks ? kBlock : 1, block);
      for (size_t i = 0; i < block.size(); ++i) {
        check(at + static_cast<int64_t>(i), block[i], least);
        least = block[i] + 1;
      }
      firsts_.push_back(static_cast<int64_t>(block[0]));
    }
  }

  void find(int64_t begin, int64_t end, std::vector<int64_t>& documents) const override {
    auto first = std::upper_bound(firsts_.begin(), firsts_.end(), begin);
    if (first != firsts_.begin()) --first;
    std::vector<uint64_t> block;
    for (; first != firsts_.end() && *first < end; ++first) {
      const int64_t at = (first - firsts_.begin()) * kBlock;
      load(at, kBlock, block);
      uint64_t least = static_cast<uint64_t>(*first);
      for (size_t i = 0; i < block.size(); ++i) {
        check(at + static_cast<int64_t>(i), block[i], least);
        least = block[i] + 1;
        const auto token = static_cast<int64_t>(block[i]);
        if (token >= begin && token < end) documents.push_back(token - begin);
      }
    }
  }
  int64_t resident_bytes() const override { return std::ssize(firsts_) * 8; }

 private:
  void load(int64_t at, int64_t size, std::vector<uint64_t>& block) const {
    block.resize(static_cast<size_t>(std::min(size, count_ - at)));
    file_.read(at * 8, block.data(), std::ssize(block) * 8);
  }
  void check(int64_t document, uint64_t token, uint64_t least) const {
    if (token >= least && token < static_cast<uint64_t>(tokens_)) return;
    throw DataError(
        "[data] in {} document {} begins at token {}, need {} to {}. Write the shard again with slipstream tokenize.",
        files::shown(file_.path()), document, token, least, tokens_ - 1);
  }

  files::InputFile file_;
  int64_t tokens_, count_ = 0;
  std::vector<int64_t> firsts_;  // the first index of every block
};

}  // namespace

std::shared_ptr<const DocumentIndex> make_document_index(std::vector<int64_t> begins) {
  SLIP_ASSERT(std::is_sorted(begins.begin(), begins.end()));
  return std::make_shared<Resident>(std::move(begins));
}

std::shared_ptr<const DocumentIndex> open_document_index(const std::string& path, uint64_t documents, int64_t tokens,
                                                         bool checks) {
  return std::make_shared<OnDisk>(path, documents, tokens, checks);
}

}  // namespace slipstream::data
