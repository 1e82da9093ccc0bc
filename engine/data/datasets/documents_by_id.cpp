// SPDX-License-Identifier: Apache-2.0
// Finds separators among the ids that are read.

#include "engine/data/datasets/token_source.h"

#include "engine/base/check.h"

namespace slipstream::data {
namespace {

class ById final : public TokenSource {
 public:
  ById(std::shared_ptr<const TokenSource> source, int32_t id, bool begins)
      : source_(std::move(source)), id_(id), begins_(begins) {}
  int64_t count() const override { return source_->count(); }
  bool has_documents() const override { return true; }
  void prefetch(int64_t begin, int64_t count) const override { source_->prefetch(begin, count); }
  void read(int64_t begin, std::span<int32_t> out, std::vector<int64_t>* documents) const override {
    source_->read(begin, out, nullptr);
    if (documents == nullptr || out.empty()) return;
    const int64_t offset = begins_ ? 0 : 1;
    if (!begins_) {
      int32_t before = id_;
      if (begin > 0) source_->read(begin - 1, std::span(&before, 1), nullptr);
      if (before == id_) documents->push_back(0);
    }
    for (int64_t i = 0; i + offset < std::ssize(out); ++i)
      if (out[static_cast<size_t>(i)] == id_) documents->push_back(i + offset);
  }

 private:
  std::shared_ptr<const TokenSource> source_;
  int32_t id_;
  bool begins_;
};

}  // namespace

std::shared_ptr<const TokenSource> documents_by_id(std::shared_ptr<const TokenSource> source, int32_t id, bool begins) {
  SLIP_ASSERT(id >= 0);
  return std::make_shared<ById>(std::move(source), id, begins);
}

}  // namespace slipstream::data
