// SPDX-License-Identifier: Apache-2.0
// Slices, chains and documents of token sequences.

#include "engine/data/datasets/token_source.h"

#include <algorithm>

#include "engine/base/check.h"

namespace slipstream::data {
namespace {

class Slice final : public TokenSource {
 public:
  Slice(std::shared_ptr<const TokenSource> source, int64_t begin, int64_t count)
      : source_(std::move(source)), begin_(begin), count_(count) {}
  int64_t count() const override { return count_; }
  bool has_documents() const override { return source_->has_documents(); }
  void read(int64_t begin, std::span<int32_t> out, std::vector<int64_t>* documents) const override {
    const auto size = static_cast<int64_t>(out.size());
    SLIP_ASSERT(begin >= 0 && size <= count_ && begin <= count_ - size);
    source_->read(begin_ + begin, out, documents);
  }
  void prefetch(int64_t begin, int64_t count) const override { source_->prefetch(begin_ + begin, count); }

 private:
  std::shared_ptr<const TokenSource> source_;
  int64_t begin_;
  int64_t count_;
};

class Chain final : public TokenSource {
 public:
  explicit Chain(std::vector<std::shared_ptr<const TokenSource>> parts) : parts_(std::move(parts)) {
    for (const auto& part : parts_) ends_.push_back((ends_.empty() ? 0 : ends_.back()) + part->count());
  }
  int64_t count() const override { return ends_.back(); }
  bool has_documents() const override {
    return std::all_of(parts_.begin(), parts_.end(), [](const auto& part) { return part->has_documents(); });
  }
  void read(int64_t begin, std::span<int32_t> out, std::vector<int64_t>* documents) const override {
    SLIP_ASSERT(begin >= 0 && static_cast<int64_t>(out.size()) <= count() - begin);
    const int64_t whole_begin = begin;
    auto part = static_cast<size_t>(std::upper_bound(ends_.begin(), ends_.end(), begin) - ends_.begin());
    while (!out.empty()) {
      const int64_t first = ends_[part] - parts_[part]->count();
      const auto take = std::min(out.size(), static_cast<size_t>(ends_[part] - begin));
      const size_t before = documents != nullptr ? documents->size() : 0;
      parts_[part]->read(begin - first, out.first(take), documents);
      for (size_t i = before; documents != nullptr && i < documents->size(); ++i)
        (*documents)[i] += begin - whole_begin;
      out = out.subspan(take);
      begin += static_cast<int64_t>(take);
      ++part;
    }
  }
  void prefetch(int64_t begin, int64_t count) const override {
    auto part = static_cast<size_t>(std::upper_bound(ends_.begin(), ends_.end(), begin) - ends_.begin());
    for (; count > 0 && part < parts_.size(); ++part) {
      const int64_t take = std::min(count, ends_[part] - begin);
      parts_[part]->prefetch(begin - (ends_[part] - parts_[part]->count()), take);
      begin += take;
      count -= take;
    }
  }

 private:
  std::vector<std::shared_ptr<const TokenSource>> parts_;
  std::vector<int64_t> ends_;
};

class OneDocument final : public TokenSource {
 public:
  OneDocument(std::shared_ptr<const TokenSource> source, int32_t end_of_text)
      : source_(std::move(source)), end_of_text_(end_of_text) {}
  int64_t count() const override { return source_->count() + (end_of_text_ >= 0 ? 1 : 0); }
  bool has_documents() const override { return true; }
  void read(int64_t begin, std::span<int32_t> out, std::vector<int64_t>* documents) const override {
    if (out.empty()) return;
    if (begin == 0 && documents != nullptr) documents->push_back(0);
    const auto inside = static_cast<size_t>(source_->count() - begin);
    source_->read(begin, out.first(std::min(out.size(), inside)), nullptr);
    if (out.size() > inside) out.back() = end_of_text_;
  }
  void prefetch(int64_t begin, int64_t count) const override {
    source_->prefetch(begin, std::min(count, source_->count() - begin));
  }

 private:
  std::shared_ptr<const TokenSource> source_;
  int32_t end_of_text_;
};

}  // namespace

std::shared_ptr<const TokenSource> document_of(std::shared_ptr<const TokenSource> source, int32_t end_of_text) {
  return std::make_shared<OneDocument>(std::move(source), end_of_text);
}

std::shared_ptr<const TokenSource> slice(std::shared_ptr<const TokenSource> source, int64_t begin, int64_t count) {
  SLIP_ASSERT(begin >= 0 && count >= 0 && count <= source->count() && begin <= source->count() - count);
  return std::make_shared<Slice>(std::move(source), begin, count);
}

std::shared_ptr<const TokenSource> chain(std::vector<std::shared_ptr<const TokenSource>> parts) {
  SLIP_ASSERT(!parts.empty());
  return parts.size() == 1 ? parts.front() : std::make_shared<Chain>(std::move(parts));
}

}  // namespace slipstream::data
