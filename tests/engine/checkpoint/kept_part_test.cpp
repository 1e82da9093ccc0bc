// SPDX-License-Identifier: Apache-2.0
// Parts of snapshots in memory: what was written is found again, and nothing else counts.

#include "engine/checkpoint/kept_part.h"

#include <cstring>

#include "tests/test.hpp"

using namespace slipstream;
using namespace slipstream::checkpoint;

namespace {

constexpr int64_t kArraysBytes = 64;

KeptShape shape_of(const std::string& config = "1") {
  Manifest manifest{.ranks = 2, .config = {{"train.steps", config}}};
  manifest.tensors = {{.name = "w", .shape = {4, 4}, .arrays = {kWeight}}};
  return {.rank = 1,
          .ranks = 2,
          .slots = 2,
          .slot_bytes = 8192,
          .arrays_bytes = kArraysBytes,
          .text = kept_text(manifest, {{Box{.tensor = "w", .array = kWeight, .rows = 4, .columns = 4}, 0}})};
}

struct Memory {
  explicit Memory(const KeptShape& shape = shape_of())
      : bytes(static_cast<size_t>(KeptPart::size_bytes(shape))), part(KeptPart::format(bytes, shape)) {}
  void write(int slot, int64_t step, int value) {
    std::byte* const header = part.slots() + slot * part.shape().slot_bytes;
    std::memset(header + KeptPart::kSlotHeaderBytes, value, kArraysBytes);
    seal_slot(header, step, {header + KeptPart::kSlotHeaderBytes, kArraysBytes});
  }
  std::vector<std::byte> bytes;
  KeptPart part;
};

}  // namespace

TEST_CASE("a part is found again with its shape, snapshots and marks", "[kept]") {
  Memory memory;
  memory.write(0, 7, 1);
  memory.write(1, 8, 2);
  const KeptMark mark{.history = {.skips = 3, .losses = {1.5, 2.5}, .norms = {0.5, 0.25}}, .results = {1, 2, 3, 4}};
  memory.part.mark(7, mark);
  const std::optional<KeptPart> found = KeptPart::open(memory.bytes);
  REQUIRE(found);
  CHECK(found->shape().rank == 1);
  CHECK(found->shape().ranks == 2);
  CHECK(found->shape().text == shape_of().text);
  CHECK(found->step_of(0) == 7);
  CHECK(found->step_of(1) == 8);
  CHECK(found->verifies(0));
  CHECK(found->verifies(1));
  CHECK(found->mark_of(7) == mark);
  CHECK(!found->mark_of(8));
  CHECK(parse_manifest(found->manifest_text(), "memory").tensors[0].name == "w");
  REQUIRE(found->boxes().size() == 1);
  CHECK(found->boxes()[0].first.elems() == 16);
}

TEST_CASE("a part names the start that owns it, whose name a changed bit makes void", "[kept]") {
  Memory memory;
  CHECK(memory.part.start().empty());
  memory.write(0, 7, 1);
  for (const std::string start : {"0123456789abcdef", "fedcba9876543210"}) {
    memory.part.set_start(start);
    const std::optional<KeptPart> found = KeptPart::open(memory.bytes);
    REQUIRE(found);
    CHECK(found->start() == start);
    CHECK(found->verifies(0));
  }
  for (const size_t at : {size_t{2048}, size_t{2056}, size_t{2071}, size_t{2072}, size_t{2103}}) {
    memory.bytes[at] ^= std::byte{1};
    CAPTURE(at);
    CHECK(memory.part.start().empty());
    memory.bytes[at] ^= std::byte{1};
  }
  CHECK(!memory.part.start().empty());
}

TEST_CASE("one changed bit of a part invalidates the head, a snapshot or a mark", "[kept]") {
  Memory memory;
  memory.write(0, 7, 1);
  memory.write(1, 8, 2);
  memory.part.mark(7, {.history = {.losses = {1.5}, .norms = {0.5}}});
  const auto sees = [&] {
    const std::optional<KeptPart> part = KeptPart::open(memory.bytes);
    if (!part) return 0;
    return 1 + 2 * part->verifies(0) + 4 * part->verifies(1) + 8 * part->mark_of(7).has_value();
  };
  REQUIRE(sees() == 15);
  int heads = 0, snapshots = 0, marks = 0;
  const auto slots = static_cast<size_t>(memory.part.slots() - memory.bytes.data());
  for (const size_t at : {size_t{0}, size_t{8}, size_t{20}, slots + 3, slots + 9, slots + 4096, slots + 4159,
                          slots + 8192 + 30, slots + 8192 + 4100, size_t{4096}, size_t{4110}, slots + 2 * 8192 + 5}) {
    memory.bytes[at] ^= std::byte{4};
    CAPTURE(at);
    const int seen = sees();
    CHECK(seen != 15);
    heads += seen == 0, snapshots += seen == 15 - 2 || seen == 15 - 4, marks += seen == 15 - 8;
    memory.bytes[at] ^= std::byte{4};
  }
  CHECK(sees() == 15);
  CHECK(heads == 4);
  CHECK(snapshots == 6);
  CHECK(marks == 2);
}

TEST_CASE("later snapshots and marks can be forgotten, and old marks give way to new ones", "[kept]") {
  Memory memory;
  memory.write(0, 7, 1);
  memory.write(1, 8, 2);
  for (int64_t step = 1; step <= 20; ++step) memory.part.mark(step, {.history = {.skips = step}});
  for (int64_t step = 13; step <= 20; ++step) CHECK(memory.part.mark_of(step)->history.skips == step);
  CHECK(!memory.part.mark_of(12));
  memory.part.forget_after(7);
  CHECK(memory.part.step_of(0) == 7);
  CHECK(!memory.part.step_of(1));
  CHECK(!memory.part.mark_of(13));
  CHECK(KeptPart::open(memory.bytes));
}

TEST_CASE("memory that is no part is refused: short, empty, or with sizes beyond it", "[kept]") {
  CHECK(!KeptPart::open({}));
  std::vector<std::byte> zeros(1 << 16);
  CHECK(!KeptPart::open(zeros));
  Memory memory;
  for (size_t size = 0; size < memory.bytes.size(); size += 4096) {
    CAPTURE(size);
    CHECK(!KeptPart::open(std::span(memory.bytes).first(size)));
  }
}
