// SPDX-License-Identifier: Apache-2.0
// Reads integers of any width as ids.

#include "engine/data/datasets/raw_tokens.h"

#include <algorithm>
#include <cstring>

#include "engine/base/check.h"
#include "engine/base/hash.h"
#include "engine/base/units.h"

namespace slipstream::data {
namespace {

constexpr int64_t kChunkElems = 1 << 18;
constexpr int64_t kFewIds = 16;  // so few ids may have any pattern

/// Returns the first index whose value is outside of [0, vocab_size), or -1 if there is none.
template <typename T>
int64_t widen_as(const char* bytes, int64_t vocab_size, std::span<int32_t> out) {
  int64_t wrong = -1;
  // `bytes` may be the end of `out`: element i is read before the write of the bytes 4i to 4i+3 reaches it.
  for (size_t i = 0; i < out.size(); ++i) {
    T id{};
    std::memcpy(&id, bytes + i * sizeof(T), sizeof(T));
    const auto wide = static_cast<uint64_t>(static_cast<int64_t>(id));  // a negative id becomes huge
    if (wide >= static_cast<uint64_t>(vocab_size)) [[unlikely]] {
      if (wrong < 0) wrong = static_cast<int64_t>(i);
    }
    out[i] = static_cast<int32_t>(wide);
  }
  return wrong;
}

/// Returns true if one of the values at odd positions, the upper halves of wider ids, is not 0.
template <typename T>
bool any_odd(const char* bytes, int64_t count) {
  T any = 0;
  for (int64_t i = 1; i < count; i += 2) {
    T value{};
    std::memcpy(&value, bytes + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
    any |= value;
  }
  return any != 0;
}

int64_t value_at(IdType type, const char* at) {
  const auto as = [&]<typename T>(T value) {
    std::memcpy(&value, at, sizeof value);
    return static_cast<int64_t>(value);
  };
  switch (type) {
    case IdType::u8:
      return as(uint8_t{});
    case IdType::u16:
      return as(uint16_t{});
    case IdType::i16:
      return as(int16_t{});
    case IdType::u32:
      return as(uint32_t{});
    case IdType::i32:
      return as(int32_t{});
    case IdType::i64:
      return as(int64_t{});
  }
  return 0;
}

}  // namespace

RawTokens::RawTokens(files::InputFile file, RawTokensOptions options)
    : file_(std::move(file)), options_(std::move(options)) {
  SLIP_ASSERT(options_.count >= 1 && options_.vocab_size >= 1);
  SLIP_ASSERT(options_.offset_bytes >= 0 && options_.offset_bytes <= file_.size_bytes());
  if (options_.type == IdType::u16 && options_.vocab_size > 1 << 16)
    throw DataError(
        "[data] the {} {} has ids of 2 bytes, which end at 65535, but the vocabulary has {} ids. It belongs to another "
        "tokenizer, or its ids have 4 bytes. {}",
        options_.noun, files::shown(file_.path()), options_.vocab_size, options_.advice);
  SLIP_ASSERT(options_.count <= (file_.size_bytes() - options_.offset_bytes) / size_of(options_.type));
}

void RawTokens::prefetch(int64_t begin, int64_t count) const {
  const int64_t width_bytes = size_of(options_.type);
  file_.prefetch(options_.offset_bytes + begin * width_bytes, count * width_bytes);
}

void RawTokens::widen(const char* bytes, int64_t begin, std::span<int32_t> out) const {
  const auto widened = [&] {
    switch (options_.type) {
      case IdType::u8:
        return widen_as<uint8_t>(bytes, options_.vocab_size, out);
      case IdType::u16:
        return widen_as<uint16_t>(bytes, options_.vocab_size, out);
      case IdType::i16:
        return widen_as<int16_t>(bytes, options_.vocab_size, out);
      case IdType::u32:
        return widen_as<uint32_t>(bytes, options_.vocab_size, out);
      case IdType::i32:
        return widen_as<int32_t>(bytes, options_.vocab_size, out);
      case IdType::i64:
        return widen_as<int64_t>(bytes, options_.vocab_size, out);
    }
    return int64_t{-1};
  };
  const int64_t wrong = widened();
  if (wrong < 0) return;
  const int64_t byte = options_.offset_bytes + (begin + wrong) * size_of(options_.type);
  char found[8] = {};
  file_.read(byte, found, size_of(options_.type));
  throw DataError(
      "[data] the {} {} has the id {} at token {} (byte {}), need less than vocab_size = {}. It belongs to another "
      "tokenizer or is damaged. {}",
      options_.noun, files::shown(file_.path()), value_at(options_.type, found), begin + wrong, byte,
      options_.vocab_size, options_.advice);
}

void RawTokens::read(int64_t begin, std::span<int32_t> out, std::vector<int64_t>* documents) const {
  const auto size = static_cast<int64_t>(out.size());
  SLIP_ASSERT(begin >= 0 && size <= options_.count && begin <= options_.count - size);
  const int64_t width_bytes = size_of(options_.type), from = options_.offset_bytes + begin * width_bytes;
  if (width_bytes <= 4) {
    // Narrow ids are read into the end of `out` and widened from there, without a second buffer.
    char* const bytes = reinterpret_cast<char*>(out.data()) + (4 - width_bytes) * size;
    file_.read(from, bytes, width_bytes * size);
    widen(bytes, begin, out);
  } else {
    std::vector<char> bytes(static_cast<size_t>(width_bytes * std::min(size, kChunkElems)));
    for (int64_t done = 0; done < size; done += kChunkElems) {
      const int64_t part = std::min(kChunkElems, size - done);
      file_.read(from + done * width_bytes, bytes.data(), part * width_bytes);
      widen(bytes.data(), begin + done, out.subspan(static_cast<size_t>(done), static_cast<size_t>(part)));
    }
  }
  if (documents != nullptr && options_.documents) options_.documents->find(begin, begin + size, *documents);
}

std::string RawTokens::hash(bool checks) const {
  Xxh3 hash;
  const int64_t width_bytes = size_of(options_.type);
  std::vector<char> bytes(static_cast<size_t>(std::min(file_.size_bytes(), kChunkElems * width_bytes)));
  for (int64_t done = 0; done < options_.offset_bytes;) {
    const int64_t part = std::min(std::ssize(bytes), options_.offset_bytes - done);
    file_.read(done, bytes.data(), part);
    hash.update(bytes.data(), part);
    done += part;
  }
  bool odd = options_.records_width || (options_.type != IdType::u16 && options_.type != IdType::u32);
  std::vector<int32_t> ids(static_cast<size_t>(checks ? std::min(options_.count, kChunkElems) : 0));
  for (int64_t begin = 0; begin < options_.count; begin += kChunkElems) {
    const int64_t size = std::min(kChunkElems, options_.count - begin);
    file_.read(options_.offset_bytes + begin * width_bytes, bytes.data(), size * width_bytes);
    hash.update(bytes.data(), size * width_bytes);
    static_assert(kChunkElems % 2 == 0);
    if (!odd)
      odd =
          options_.type == IdType::u16 ? any_odd<uint16_t>(bytes.data(), size) : any_odd<uint32_t>(bytes.data(), size);
    if (checks) widen(bytes.data(), begin, std::span(ids).first(static_cast<size_t>(size)));
  }
  if (!odd && options_.count % 2 == 0 && options_.count >= kFewIds)
    throw DataError(
        "[data] the {} {} has 0 at every second of its {} places for ids of {} bytes, so it has {} ids of {} bytes. {}",
        options_.noun, files::shown(file_.path()), options_.count, width_bytes, options_.count / 2, 2 * width_bytes,
        options_.advice);
  return hash.hex();
}

}  // namespace slipstream::data
