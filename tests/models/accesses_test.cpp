// SPDX-License-Identifier: Apache-2.0
// What works declare is what they touch: nothing else changes, and nothing else matters.
//
// Every work of a training step and of an evaluation runs alone, three times from the same memory: (A) as it is, (B) with
// everything poisoned that it does not declare to read, (C) with what it only writes poisoned otherwise. It must leave
// undeclared bytes alone, and its results must be the same bytes each time.

#include <cstring>
#include <set>

#include "cli/rank.h"
#include "tests/equivalence/trained.h"
#include "tests/test.hpp"

using namespace slipstream;

namespace {

struct Range {
  std::byte* begin;
  std::byte* end;
  BufferId buffer;
};

class Examiner {
 public:
  Examiner(const equivalence::Layout& layout)
      : layout_(layout), owned_(equivalence::make_job(layout, 0)), job_(*owned_),
        none_(job_.channels.size()),
        rank_(std::move(owned_), make_cpu_device(), std::move(none_), {}, equivalence::detail::loader(layout_, 0, staged_)),
        stream_(rank_.device().make_stream({.name = "examiner"})) {
    rank_.initialise(3);
    const std::vector<comm::Communicator*> communicators(job_.channels.size(), nullptr);
    const cli::LoadBatch load = equivalence::detail::loader(layout_, 0, staged_);
    for (const Plan* plan : {&job_.prime, &job_.train, &job_.evaluate})
      works_.push_back(cli::bind_works(job_, *plan, {}, communicators, load));
    for (BufferId b = 0; b < job_.buffers.size(); ++b)
      if (!job_.buffers[b].is_view)
        all_.push_back({rank_.memory().entry(b).base, rank_.memory().entry(b).base + job_.buffers.instances(b) * job_.buffers.stride_bytes(b), b});
  }

  void run() {
    walk(job_.prime, works_[0]);
    for (int step = 0; step < 2; ++step) walk(job_.train, works_[1]);
    walk(job_.evaluate, works_[2]);
  }
  int examined() const { return examined_; }

 private:
  using Image = std::vector<std::vector<std::byte>>;

  Image save() const {
    Image image;
    for (const Range& r : all_) image.emplace_back(r.begin, r.end);
    return image;
  }
  void restore(const Image& image) {
    for (size_t i = 0; i < all_.size(); ++i) std::memcpy(all_[i].begin, image[i].data(), image[i].size());
  }

  /// One flag per byte of every buffer with storage.
  std::vector<std::vector<char>> marks(const std::vector<Slice>& slices, const SpineItem* item) const {
    std::vector<std::vector<char>> marks;
    for (const Range& r : all_) marks.emplace_back(static_cast<size_t>(r.end - r.begin), 0);
    for (const Slice& slice : slices) {
      const Slice at = item ? job_.buffers.resolve(slice, item->rebinds, item->micro_batch, item->slot) : slice;
      for (size_t i = 0; i < all_.size(); ++i)
        if (all_[i].buffer == at.buffer) std::fill_n(marks[i].begin() + at.begin_bytes, at.size_bytes, 1);
    }
    return marks;
  }

  template <typename Chosen>
  void poison(std::byte value, Chosen chosen) {
    for (size_t i = 0; i < all_.size(); ++i)
      for (size_t at = 0; at < static_cast<size_t>(all_[i].end - all_[i].begin); ++at)
        if (chosen(i, at)) all_[i].begin[at] = value;
  }

  void launch(const Work& work, const Frame& frame) {
    // Staging counts its calls; every examination of it must see the same one.
    const int64_t staged = staged_;
    stream_->launch(work, frame);
    stream_->synchronize();
    if (work.name == "load_next_batch" && !keep_staged_) staged_ = staged;
  }

  void examine(const std::string& name, const Work& work, const Frame& frame, const SpineItem* item) {
    INFO(layout_.name << ": " << name << " / " << work.name);
    ++examined_;
    const auto reads = marks(work.reads, item), writes = marks(work.writes, item);
    const Image before = save();
    // A buffer that only some bytes of are read may be scattered into: those stay as they are.
    const auto write_only = [&](size_t i, size_t at) { return writes[i][at] && !reads[i][at]; };
    const auto undeclared = [&](size_t i, size_t at) { return !writes[i][at] && !reads[i][at]; };
    keep_staged_ = false;
    poison(std::byte{0x3c}, write_only);
    launch(work, frame);
    const Image a = save();
    restore(before);
    poison(std::byte{0x3c}, write_only);
    poison(std::byte{0xff}, undeclared);
    launch(work, frame);
    const Image b = save();
    restore(before);
    poison(std::byte{0x3e}, write_only);
    launch(work, frame);
    const Image c = save();
    restore(before);
    std::set<std::string> changed, hidden_reads, reads_before_writing;
    for (size_t i = 0; i < all_.size(); ++i) {
      const std::string& buffer = job_.buffers[all_[i].buffer].name;
      for (size_t at = 0; at < a[i].size(); ++at) {
        if (!writes[i][at]) {
          if (a[i][at] != before[i][at] || (undeclared(i, at) && b[i][at] != std::byte{0xff})) changed.insert(buffer);
          continue;
        }
        if (a[i][at] != b[i][at]) hidden_reads.insert(buffer);
        const bool untouched = a[i][at] == std::byte{0x3c} && c[i][at] == std::byte{0x3e};
        if (a[i][at] != c[i][at] && !untouched) reads_before_writing.insert(buffer);
      }
    }
    const auto list = [](const std::set<std::string>& names) {
      std::string text;
      for (const std::string& n : names) text += n + " ";
      return text;
    };
    CHECK(list(changed) == "");
    CHECK(list(hidden_reads) == "");
    CHECK(list(reads_before_writing) == "");
    keep_staged_ = true;
    launch(work, frame);
  }

  void walk(const Plan& plan, const BoundWorks& works) {
    for (ItemId id : plan.order) {
      const Item& item = plan[id];
      const SpineItem* spine = plan.is_spine(id) ? &plan.spine[id] : nullptr;
      const Frame frame{.memory = &rank_.memory(), .item = id, .step = ++launches_, .micro_batch = spine ? spine->micro_batch : 0,
                        .slot = spine ? spine->slot : 0};
      if (item.op != Op::compute) {
        examine(item.name, works[id], frame, nullptr);
        continue;
      }
      for (const Work& work : job_.model.pieces[spine->piece].works) examine(item.name, work, frame, spine);
    }
  }

  equivalence::Layout layout_;
  std::unique_ptr<Job> owned_;
  const Job& job_;
  std::vector<std::unique_ptr<comm::Communicator>> none_;
  int64_t staged_ = 0;
  cli::Rank rank_;
  std::unique_ptr<Stream> stream_;
  std::vector<BoundWorks> works_;
  std::vector<Range> all_;
  uint32_t launches_ = 0;
  int examined_ = 0;
  bool keep_staged_ = false;
};

equivalence::Layout shrink(models::ModelOptions model, int micro_batches, DType dtype) {
  model.width = model.family == models::Family::gpt2 ? 8 : 16;
  model.ffn_width = 20;
  model.tokens = model.context = 5;
  model.vocab = micro_batches == 1 ? 67 : 19;
  model.dtype = dtype;
  return {.name = std::string(model.family == models::Family::gpt2 ? "gpt2 " : "llama ") + std::string(name_of(dtype)), .model = model,
          .micro_batch = 2, .micro_batches = micro_batches, .bucket_bytes = 512, .first_bucket_bytes = 256};
}

}  // namespace

TEST_CASE("works touch what they declare and nothing else", "[models]") {
  for (DType dtype : {DType::f32, DType::bf16})
    for (int micro_batches : {1, 2}) {
      Examiner gpt2(shrink(equivalence::tiny_gpt2(), micro_batches, dtype));
      gpt2.run();
      CHECK(gpt2.examined() > 100);
      Examiner llama(shrink(equivalence::tiny_llama(), micro_batches, dtype));
      llama.run();
      CHECK(llama.examined() > 100);
    }
  equivalence::Layout unsplit = shrink(equivalence::tiny_gpt2(), 1, DType::f32);
  unsplit.model.split_tied_embedding = false;
  unsplit.max_norm = 0;
  unsplit.optimizer_per_bucket = false;
  Examiner(unsplit).run();
  equivalence::Layout tied = shrink(equivalence::tiny_llama(), 2, DType::f32);
  tied.model.tie_embeddings = true;
  tied.update_on_spine = false;
  Examiner(tied).run();
}
