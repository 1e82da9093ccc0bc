// SPDX-License-Identifier: Apache-2.0
#pragma once
// Writes weights as PyTorch's ranks do: each its boxes of the tensors in a safetensors file of its own.

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/core.h>
#include <fmt/ranges.h>

namespace slipstream::tests {

struct Box {
  std::vector<int64_t> offsets, size;
};

inline int64_t product(const std::vector<int64_t>& size) {
  int64_t elems = 1;
  for (const int64_t dim : size) elems *= dim;
  return elems;
}

/// The bytes of a box of a row-major tensor, element by element.
inline std::string cut(std::string_view tensor, const std::vector<int64_t>& shape, int64_t elem_bytes, const Box& box) {
  std::string bytes;
  for (int64_t i = 0; i < product(box.size); ++i) {
    int64_t rest = i, at = 0, stride = 1;
    for (size_t axis = shape.size(); axis-- > 0;) {
      at += (box.offsets[axis] + rest % box.size[axis]) * stride;
      rest /= box.size[axis];
      stride *= shape[axis];
    }
    bytes += tensor.substr(static_cast<size_t>(at * elem_bytes), static_cast<size_t>(elem_bytes));
  }
  return bytes;
}

/// The file of a rank.
class PieceFile {
 public:
  void add(const std::string& name, const std::string& dtype, const Box& box, const std::string& bytes) {
    places_ += fmt::format("{}\\\"{}\\\": {{\\\"saved_offsets\\\": [{}]}}", places_.empty() ? "" : ", ", name,
                           fmt::join(box.offsets, ", "));
    add_unplaced(name, dtype, box.size, bytes);
  }
  /// Adds a piece without its place.
  void add_unplaced(const std::string& name, const std::string& dtype, const std::vector<int64_t>& size,
                    const std::string& bytes) {
    tensors_ += fmt::format(",\"{}\":{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}", name, dtype,
                            fmt::join(size, ","), data_.size(), data_.size() + bytes.size());
    data_ += bytes;
  }
  std::string bytes() const {
    return with_metadata(R"("DCP_SHARDING_INFO":"{)" + places_ + R"(}","DCP_VERSION":"1.0")");
  }
  /// The bytes of the file with other members of the metadata.
  std::string with_metadata(const std::string& members) const {
    const std::string header = R"({"__metadata__":{"format":"pt",)" + members + "}" + tensors_ + "}";
    const uint64_t header_bytes = header.size();
    std::string size(8, '\0');
    std::memcpy(size.data(), &header_bytes, 8);
    return size + header + data_;
  }

 private:
  std::string places_, tensors_, data_;
};

inline std::string piece_file_name(int rank) {
  return fmt::format("shard-{:05}-model-00001-of-00001.safetensors", rank);
}

}  // namespace slipstream::tests
