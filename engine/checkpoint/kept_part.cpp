// SPDX-License-Identifier: Apache-2.0
// Lays out parts in memory. A process may be killed at any instruction, so nothing counts without its own hash.

#include "engine/checkpoint/kept_part.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <sstream>
#include <string_view>

#include "engine/base/check.h"
#include "engine/base/hash.h"
#include "engine/base/units.h"

namespace slipstream::checkpoint {
namespace {

constexpr int64_t kPageBytes = 4096, kStartAt = kPageBytes / 2, kMarks = 8, kMarkBytes = kPageBytes;
constexpr size_t kHashDigits = 32;
constexpr char kMagic[8] = {'s', 'l', 'i', 'p', 'p', 'a', 'r', '1'};
constexpr char kStartMagic[8] = {'s', 'l', 'i', 'p', 's', 't', 'a', '1'};
constexpr char kSlotMagic[8] = {'s', 'l', 'i', 'p', 's', 'l', 't', '1'};

// Each of these structs ends with a hash of the bytes before it.
struct Head {
  char magic[8];
  int64_t rank, ranks, slots, slot_bytes, arrays_bytes, text_bytes;
  char text_hash[kHashDigits];
  char hash[kHashDigits];
};
struct Start {
  char magic[8];
  char name[16];
  char hash[kHashDigits];
};
struct SlotHeader {
  char magic[8];
  int64_t step, arrays_bytes;
  char arrays_hash[kHashDigits];
  char hash[kHashDigits];
};
struct Mark {
  static constexpr int64_t kMost = 2 * 128;  // losses and norms
  int64_t step, skips, count;
  std::array<double, 4> results;
  double values[kMost];
  char hash[kHashDigits];
};
static_assert(sizeof(Head) <= kStartAt && sizeof(Start) <= kPageBytes - kStartAt &&
              sizeof(SlotHeader) <= KeptPart::kSlotHeaderBytes && sizeof(Mark) <= kMarkBytes);

void copy_hash(char* to, const std::string& hex) { std::memcpy(to, hex.data(), kHashDigits); }

template <typename Record>
std::string hash_of(const Record& record) {
  return data::xxh3_128_hex(&record, offsetof(Record, hash));
}

template <typename Record>
void write(std::byte* to, Record record) {
  copy_hash(record.hash, hash_of(record));
  std::memcpy(to, &record, sizeof record);
}

template <typename Record>
std::optional<Record> read(const std::byte* from) {
  Record record;
  std::memcpy(&record, from, sizeof record);
  if (hash_of(record) != std::string_view(record.hash, kHashDigits)) return {};
  return record;
}

int64_t slots_at() { return kPageBytes + kMarks * kMarkBytes; }

}  // namespace

std::string kept_text(const Manifest& manifest, const std::vector<std::pair<Box, int64_t>>& boxes) {
  std::string text = text_of(manifest);
  for (const auto& [box, offset] : boxes) text += fmt::format("{} {}\n", offset, name_of(box));
  return text;
}

void seal_slot(std::byte* header, int64_t step, std::span<const std::byte> arrays) {
  SlotHeader slot{.step = step, .arrays_bytes = std::ssize(arrays)};
  std::memcpy(slot.magic, kSlotMagic, sizeof slot.magic);
  copy_hash(slot.arrays_hash, data::xxh3_128_hex(arrays.data(), std::ssize(arrays)));
  write(header, slot);
}

int64_t KeptPart::size_bytes(const KeptShape& shape) {
  const int64_t text_bytes = std::ssize(shape.text);
  return slots_at() + shape.slots * shape.slot_bytes + ceil_div(text_bytes, kPageBytes) * kPageBytes;
}

KeptPart KeptPart::format(std::span<std::byte> memory, const KeptShape& shape) {
  SLIP_ASSERT(std::ssize(memory) == size_bytes(shape));
  SLIP_ASSERT(kSlotHeaderBytes + shape.arrays_bytes <= shape.slot_bytes);
  std::memcpy(memory.data() + slots_at() + shape.slots * shape.slot_bytes, shape.text.data(), shape.text.size());
  Head head{.rank = shape.rank,
            .ranks = shape.ranks,
            .slots = shape.slots,
            .slot_bytes = shape.slot_bytes,
            .arrays_bytes = shape.arrays_bytes,
            .text_bytes = std::ssize(shape.text)};
  std::memcpy(head.magic, kMagic, sizeof head.magic);
  copy_hash(head.text_hash, data::xxh3_128_hex(shape.text.data(), std::ssize(shape.text)));
  write(memory.data(), head);
  return *open(memory);
}

std::optional<KeptPart> KeptPart::open(std::span<std::byte> memory) {
  if (std::ssize(memory) < slots_at()) return {};
  const std::optional<Head> head = read<Head>(memory.data());
  if (!head || std::memcmp(head->magic, kMagic, sizeof kMagic) != 0 || head->slots < 1 || head->slots > 64 ||
      head->rank < 0 || head->rank >= head->ranks || head->ranks > INT32_MAX || head->slot_bytes < kSlotHeaderBytes ||
      head->arrays_bytes < 0 || head->arrays_bytes > head->slot_bytes - kSlotHeaderBytes || head->text_bytes < 0)
    return {};
  const int64_t room = std::ssize(memory) - slots_at();
  if (head->slot_bytes > room / head->slots || head->text_bytes > room - head->slots * head->slot_bytes) return {};
  const auto* text = reinterpret_cast<const char*>(memory.data() + slots_at() + head->slots * head->slot_bytes);
  if (data::xxh3_128_hex(text, head->text_bytes) != std::string_view(head->text_hash, kHashDigits)) return {};
  KeptPart part;
  part.start_ = memory.data() + kStartAt;
  part.marks_ = memory.data() + kPageBytes;
  part.slots_ = memory.data() + slots_at();
  part.shape_ = {.rank = static_cast<int>(head->rank),
                 .ranks = static_cast<int>(head->ranks),
                 .slots = static_cast<int>(head->slots),
                 .slot_bytes = head->slot_bytes,
                 .arrays_bytes = head->arrays_bytes,
                 .text = std::string(text, static_cast<size_t>(head->text_bytes))};
  return part;
}

std::optional<int64_t> KeptPart::step_of(int slot) const {
  const std::optional<SlotHeader> header = read<SlotHeader>(slots_ + slot * shape_.slot_bytes);
  if (!header || std::memcmp(header->magic, kSlotMagic, sizeof kSlotMagic) != 0 || header->step < 1 ||
      header->arrays_bytes != shape_.arrays_bytes)
    return {};
  return header->step;
}

bool KeptPart::verifies(int slot) const {
  const std::optional<SlotHeader> header = read<SlotHeader>(slots_ + slot * shape_.slot_bytes);
  return header && step_of(slot) &&
         data::xxh3_128_hex(arrays(slot), shape_.arrays_bytes) == std::string_view(header->arrays_hash, kHashDigits);
}

void KeptPart::forget_after(int64_t step) {
  for (int slot = 0; slot < shape_.slots; ++slot)
    if (step_of(slot).value_or(0) > step) std::memset(slots_ + slot * shape_.slot_bytes, 0, sizeof(SlotHeader));
  for (int64_t m = 0; m < kMarks; ++m)
    if (const std::optional<Mark> mark = read<Mark>(marks_ + m * kMarkBytes); mark && mark->step > step)
      std::memset(marks_ + m * kMarkBytes, 0, sizeof(Mark));
}

void KeptPart::set_start(const std::string& start) {
  Start record{};
  SLIP_ASSERT(start.size() == sizeof record.name);
  std::memcpy(record.magic, kStartMagic, sizeof record.magic);
  std::memcpy(record.name, start.data(), start.size());
  write(start_, record);
}

std::string KeptPart::start() const {
  const std::optional<Start> record = read<Start>(start_);
  if (!record || std::memcmp(record->magic, kStartMagic, sizeof kStartMagic) != 0) return {};
  return {record->name, sizeof record->name};
}

void KeptPart::mark(int64_t step, const KeptMark& known) {
  const NumericsHistory& history = known.history;
  Mark mark{.step = step, .skips = history.skips, .count = std::ssize(history.losses), .results = known.results};
  SLIP_ASSERT(history.losses.size() == history.norms.size() && 2 * mark.count <= Mark::kMost);
  std::copy(history.losses.begin(), history.losses.end(), mark.values);
  std::copy(history.norms.begin(), history.norms.end(), mark.values + mark.count);
  // The new mark replaces the oldest one.
  const auto step_at = [this](int64_t m) {
    const std::optional<Mark> found = read<Mark>(marks_ + m * kMarkBytes);
    return found ? found->step : -1;
  };
  int64_t oldest = 0;
  for (int64_t m = 1; m < kMarks; ++m)
    if (step_at(m) < step_at(oldest)) oldest = m;
  write(marks_ + oldest * kMarkBytes, mark);
}

std::optional<KeptMark> KeptPart::mark_of(int64_t step) const {
  for (int64_t m = 0; m < kMarks; ++m) {
    const std::optional<Mark> mark = read<Mark>(marks_ + m * kMarkBytes);
    if (!mark || mark->step != step || mark->count < 0 || 2 * mark->count > Mark::kMost) continue;
    const double* const norms = mark->values + mark->count;
    return KeptMark{
        .history = {.skips = mark->skips, .losses = {mark->values, norms}, .norms = {norms, norms + mark->count}},
        .results = mark->results};
  }
  return {};
}

std::string KeptPart::manifest_text() const { return shape_.text.substr(0, shape_.text.find('\n') + 1); }

std::vector<std::pair<Box, int64_t>> KeptPart::boxes() const {
  std::vector<std::pair<Box, int64_t>> boxes;
  std::istringstream lines(shape_.text);
  std::string line;
  for (std::getline(lines, line); std::getline(lines, line);) {
    const size_t space = line.find(' ');
    int64_t offset = -1;
    std::from_chars(line.data(), line.data() + std::min(space, line.size()), offset);
    const std::optional<Box> box = space == std::string::npos ? std::nullopt : box_of(line.substr(space + 1));
    if (!box || offset < 0 || 4 * box->elems() > shape_.arrays_bytes - offset)
      throw CheckpointError("[checkpoint] the memory of rank {} has no box {}.", shape_.rank, line);
    boxes.emplace_back(*box, offset);
  }
  return boxes;
}

}  // namespace slipstream::checkpoint
