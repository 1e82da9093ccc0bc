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

/// Names of buffers, by what a work did to them that it did not declare.
struct Findings {
  std::set<std::string> changed, read, read_before_writing;
  static std::string list(const std::set<std::string>& names) {
    std::string text;
    for (const std::string& n : names) text += n + " ";
    return text;
  }
};

class Examiner {
 public:
  Examiner(const equivalence::Layout& layout)
      : layout_(layout), owned_(equivalence::make_job(layout, 0)), job_(*owned_),
        rank_(std::move(owned_), make_cpu_device(), communicators(), {}, equivalence::detail::loader(layout_, 0, staged_)),
        stream_(rank_.device().make_stream({.name = "examiner"})) {
    rank_.initialise(3);
    const cli::LoadBatch load = equivalence::detail::loader(layout_, 0, staged_);
    bound_ = communicators();
    std::vector<comm::Communicator*> verbs;
    for (const auto& communicator : bound_) verbs.push_back(communicator.get());
    for (const Plan* plan : {&job_.prime, &job_.train, &job_.evaluate}) works_.push_back(cli::bind_works(job_, *plan, {}, verbs, load));
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
  const Job& job() const { return job_; }

  /// Runs a work alone, in the ways that the first lines of this file name, and leaves its result in memory.
  Findings examine(const Work& work, const Frame& frame, const SpineItem* item) {
    ++examined_;
    const auto reads = marks(work.reads, item), writes = marks(work.writes, item);
    const Image before = save();
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
    Findings findings;
    for (size_t i = 0; i < all_.size(); ++i) {
      const std::string& buffer = job_.buffers[all_[i].buffer].name;
      for (size_t at = 0; at < a[i].size(); ++at) {
        if (!writes[i][at]) {
          if (a[i][at] != before[i][at] || (undeclared(i, at) && b[i][at] != std::byte{0xff})) findings.changed.insert(buffer);
          continue;
        }
        if (a[i][at] != b[i][at]) findings.read.insert(buffer);
        const bool untouched = a[i][at] == std::byte{0x3c} && c[i][at] == std::byte{0x3e};
        if (a[i][at] != c[i][at] && !untouched) findings.read_before_writing.insert(buffer);
      }
    }
    keep_staged_ = true;
    launch(work, frame);
    return findings;
  }
  Frame frame(ItemId item, const SpineItem* spine) {
    return {.memory = &rank_.memory(), .item = item, .step = ++launches_, .micro_batch = spine ? spine->micro_batch : 0,
            .slot = spine ? spine->slot : 0};
  }

 private:
  std::vector<std::unique_ptr<comm::Communicator>> communicators() const {
    std::vector<std::unique_ptr<comm::Communicator>> communicators;
    for (const Channel& channel : job_.channels)
      communicators.push_back(channel.axis == Axis::self ? nullptr : std::move(comm::make_thread_world(layout_.ranks)[0]));
    return communicators;
  }

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

  void check(const std::string& name, const Work& work, const Frame& frame, const SpineItem* item) {
    INFO(layout_.name << ": " << name << " / " << work.name);
    const Findings findings = examine(work, frame, item);
    CHECK(Findings::list(findings.changed) == "");
    CHECK(Findings::list(findings.read) == "");
    CHECK(Findings::list(findings.read_before_writing) == "");
  }

  /// Communication needs its peers, and has a contract suite of its own: the bytes of others stay what they were.
  void walk(const Plan& plan, const BoundWorks& works) {
    for (ItemId id : plan.order) {
      const Item& item = plan[id];
      if (is_communication(item.op)) continue;
      const SpineItem* spine = plan.is_spine(id) ? &plan.spine[id] : nullptr;
      if (item.op != Op::compute) {
        check(item.name, works[id], frame(id, spine), nullptr);
        continue;
      }
      for (const Work& work : job_.model.pieces[spine->piece].works) check(item.name, work, frame(id, spine), spine);
    }
  }

  equivalence::Layout layout_;
  std::unique_ptr<Job> owned_;
  const Job& job_;
  int64_t staged_ = 0;
  cli::Rank rank_;
  std::unique_ptr<Stream> stream_;
  std::vector<std::unique_ptr<comm::Communicator>> bound_;
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

TEST_CASE("works beside several ranks touch what they declare", "[models]") {
  for (int micro_batches : {1, 2}) {
    equivalence::Layout layout = shrink(equivalence::tiny_gpt2(), micro_batches, DType::f32);
    layout.ranks = 2;
    layout.wire_dtype = DType::bf16;
    Examiner(layout).run();
  }
}

TEST_CASE("the examiner sees what is not declared", "[models]") {
  Examiner examiner(shrink(equivalence::tiny_gpt2(), 1, DType::f32));
  const Buffers& buffers = examiner.job().buffers;
  const Slice from = buffers.whole(buffers.find("delta")), to = buffers.whole(buffers.find("d_residual"));
  const auto copy = [=](LaunchContext& c) {
    for (int64_t i = 0; i < 4; ++i) c.as<float>(to)[i] = c.as<float>(from)[i] + 1;
  };
  const auto add = [=](LaunchContext& c) { *c.as<float>(to) += *c.as<float>(from) + 1; };
  const auto findings = [&](std::vector<Slice> reads, std::vector<Slice> writes, std::function<void(LaunchContext&)> fn) {
    const Work work{.name = "control", .reads = std::move(reads), .writes = std::move(writes), .fn = std::move(fn)};
    return examiner.examine(work, examiner.frame(0, nullptr), nullptr);
  };
  const Findings declared = findings({from}, {to}, copy);
  CHECK((declared.changed.empty() && declared.read.empty() && declared.read_before_writing.empty()));
  CHECK(findings({from}, {}, copy).changed.contains("d_residual"));
  CHECK(findings({from}, {{to.buffer, 0, 15}}, copy).changed.contains("d_residual"));
  CHECK(findings({}, {to}, copy).read.contains("d_residual"));
  CHECK(findings({{from.buffer, 4, 12}}, {to}, copy).read.contains("d_residual"));
  CHECK(findings({from}, {to}, add).read_before_writing.contains("d_residual"));
  CHECK(findings({from, to}, {to}, add).read_before_writing.empty());
}
