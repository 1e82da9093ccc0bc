// SPDX-License-Identifier: Apache-2.0
// Reads and writes safetensors. Every size is checked before it is used in arithmetic.

#include "engine/checkpoint/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <utility>

#include "engine/base/check.h"
#include "engine/base/document.h"
#include "engine/base/hash.h"
#include "engine/base/units.h"
#include "engine/base/utf8.h"
#include "engine/checkpoint/direct_file.h"

namespace slipstream::checkpoint {

namespace {

constexpr uint64_t kHeaderBytesMax = 100'000'000;
constexpr size_t kNameBytesMax = 1024;
constexpr size_t kDimsMax = 64;
constexpr int64_t kChunkBytes = 1 << 20;

struct KnownType {
  std::string_view name;
  uint64_t bits;
};

constexpr KnownType kTypes[] = {{"BOOL", 8},        {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"U8", 8},
                                {"I8", 8},          {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8},
                                {"F8_E5M2FNUZ", 8}, {"I16", 16},    {"U16", 16},    {"F16", 16},    {"BF16", 16},
                                {"I32", 32},        {"U32", 32},    {"F32", 32},    {"C64", 64},    {"F64", 64},
                                {"I64", 64},        {"U64", 64}};

[[noreturn]] void broken(const std::string& path, const std::string& problem) {
  throw CheckpointError("[checkpoint] {} is not a valid safetensors file: {}. Restore it or save the weights again.",
                        files::shown(path), problem);
}

/// One tensor of the header. Only its JSON types have been checked.
struct Entry {
  std::string name;
  std::string dtype;
  std::vector<uint64_t> shape;
  uint64_t begin_bytes = 0;  // offset in the buffer that follows the header
  uint64_t end_bytes = 0;
};

struct Header {
  std::vector<Entry> entries;                                 // in the order of the file
  std::vector<std::pair<std::string, std::string>> metadata;  // the contents of "__metadata__"
};

std::string quoted(const std::string& text) { return Json(text).dump(); }

/// Returns compact JSON, metadata first, without padding. It equals the reference library's output byte for byte.
std::string header_text(const Header& header) {
  std::string out = "{";
  const auto open = [&](const std::string& key) {
    out += fmt::format("{}{}:{{", out.size() > 1 ? "," : "", quoted(key));
  };
  if (!header.metadata.empty()) {
    open("__metadata__");
    for (size_t i = 0; i < header.metadata.size(); ++i)
      out +=
          fmt::format("{}{}:{}", i > 0 ? "," : "", quoted(header.metadata[i].first), quoted(header.metadata[i].second));
    out += "}";
  }
  for (const Entry& entry : header.entries) {
    open(entry.name);
    out += fmt::format("\"dtype\":{},\"shape\":[", quoted(entry.dtype));
    for (size_t i = 0; i < entry.shape.size(); ++i) out += fmt::format("{}{}", i > 0 ? "," : "", entry.shape[i]);
    out += fmt::format("],\"data_offsets\":[{},{}]}}", entry.begin_bytes, entry.end_bytes);
  }
  return out + "}";
}

Header parse_header(const Document& document) {
  const Json root = parse_object(document);
  Header header;
  header.entries.reserve(root.as_object().size());
  for (const auto& [name, value] : root.as_object()) {
    const Fields fields(document, value, "the value of " + files::shown(name));
    if (name == "__metadata__") {
      for (const auto& [key, text] : value.as_object()) {
        if (!text.is_string()) fields.fail(fmt::format("has {} in \"__metadata__\", need a string", text.type_name()));
        header.metadata.emplace_back(key, text.as_string());
      }
      continue;
    }
    fields.allow_only({"dtype", "shape", "data_offsets"});
    const std::vector<uint64_t> offsets = fields.naturals("data_offsets");
    if (offsets.size() != 2)
      fields.fail(fmt::format("has {} data_offsets for {}, need 2", offsets.size(), files::shown(name)));
    header.entries.push_back({.name = name,
                              .dtype = fields.string("dtype"),
                              .shape = fields.naturals("shape"),
                              .begin_bytes = offsets[0],
                              .end_bytes = offsets[1]});
  }
  return header;
}

/// Returns the error in a tensor's name, or an empty text if the name is valid.
std::string name_problem(std::string_view name) {
  if (name.empty() || name.size() > kNameBytesMax)
    return fmt::format("a tensor's name has {} bytes, need 1 to {}", name.size(), kNameBytesMax);
  for (size_t at = 0; at < name.size();) {
    const CodePoint point = next_code_point(name, at);
    if (point.size_bytes == 0 || point.value < 0x20 || point.value == 0x7f)
      return fmt::format("the tensor's name {} has a control character", files::shown(name));
    at += static_cast<size_t>(point.size_bytes);
  }
  return "";
}

/// Returns the bytes of one tensor by its type and shape. Refuses sizes beyond 64 bits.
uint64_t bytes_by_shape(const std::string& path, const Entry& entry) {
  const auto type =
      std::find_if(std::begin(kTypes), std::end(kTypes), [&](const KnownType& t) { return t.name == entry.dtype; });
  if (type == std::end(kTypes))
    broken(path, fmt::format("tensor {} has the unknown type {}", files::shown(entry.name), files::shown(entry.dtype)));
  if (entry.shape.size() > kDimsMax)
    broken(path, fmt::format("tensor {} has {} dimensions, need at most {}", files::shown(entry.name),
                             entry.shape.size(), kDimsMax));
  uint64_t bits = type->bits;
  for (const uint64_t dim : entry.shape) {
    // Each dimension is checked too: [0, 2^64 - 1] has no elements, but int64 cannot hold its shape.
    if (dim > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()) || __builtin_mul_overflow(bits, dim, &bits))
      broken(path,
             fmt::format("the shape of tensor {} has more elements than 64 bits can count", files::shown(entry.name)));
  }
  if (bits % 8 != 0)
    broken(path, fmt::format("tensor {} of {} bits does not fill whole bytes", files::shown(entry.name), bits));
  return bits / 8;
}

/// Returns the entries sorted by position. Together they must cover the buffer of `buffer_bytes` without holes or
/// overlaps.
std::vector<TensorInfo> checked_tensors(const std::string& path, std::vector<Entry> entries, uint64_t header_end_bytes,
                                        uint64_t buffer_bytes) {
  std::stable_sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) {
    return std::pair(a.begin_bytes, a.end_bytes) < std::pair(b.begin_bytes, b.end_bytes);
  });
  std::vector<TensorInfo> tensors;
  tensors.reserve(entries.size());
  uint64_t covered_bytes = 0;
  for (const Entry& entry : entries) {
    if (const std::string problem = name_problem(entry.name); !problem.empty()) broken(path, problem);
    if (entry.begin_bytes != covered_bytes)
      broken(path, fmt::format("tensor {} begins at byte {}, need {}, the end of the previous tensor",
                               files::shown(entry.name), entry.begin_bytes, covered_bytes));
    if (entry.end_bytes < entry.begin_bytes || entry.end_bytes > buffer_bytes)
      broken(path, fmt::format("tensor {} covers the bytes {} to {} of a buffer of {}", files::shown(entry.name),
                               entry.begin_bytes, entry.end_bytes, buffer_bytes));
    const uint64_t size_bytes = bytes_by_shape(path, entry);
    if (entry.end_bytes - entry.begin_bytes != size_bytes)
      broken(path, fmt::format("tensor {} has {} bytes, need {} by its shape and type {}", files::shown(entry.name),
                               entry.end_bytes - entry.begin_bytes, size_bytes, entry.dtype));
    covered_bytes = entry.end_bytes;
    tensors.push_back({.name = entry.name,
                       .dtype = entry.dtype,
                       .shape = std::vector<int64_t>(entry.shape.begin(), entry.shape.end()),
                       .begin_bytes = static_cast<int64_t>(header_end_bytes + entry.begin_bytes),
                       .size_bytes = static_cast<int64_t>(size_bytes)});
  }
  if (covered_bytes != buffer_bytes)
    broken(path, fmt::format("its tensors cover {} bytes, but {} follow the header", covered_bytes, buffer_bytes));
  return tensors;
}

const char* file_type(DType dtype) {
  SLIP_ASSERT(dtype == DType::f32 || dtype == DType::bf16);
  return dtype == DType::f32 ? "F32" : "BF16";
}

/// Converts IEEE 754 binary16.
float float_of_half(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16, exponent = bits >> 10 & 0x1f,
                 fraction = bits & 0x3ff;
  if (exponent == 0) {  // zero, or a subnormal number
    const float size = static_cast<float>(fraction) * 0x1p-24f;
    return sign == 0 ? size : -size;
  }
  const uint32_t raised = exponent == 31 ? 255 : exponent + 112;
  return std::bit_cast<float>(sign | raised << 23 | fraction << 13);
}

int64_t elems_of(const std::vector<int64_t>& shape) {
  int64_t elems = 1;
  for (const int64_t dim : shape) elems *= dim;
  return elems;
}

}  // namespace

int64_t TensorInfo::elems() const { return elems_of(shape); }

SafetensorsFile::SafetensorsFile(const std::string& path) : file_(path, files::Owner::checkpoint) {
  const auto size_bytes = static_cast<uint64_t>(file_.size_bytes());
  if (size_bytes < 8) broken(path, fmt::format("it has {} bytes, need at least 8 for the header size", size_bytes));
  uint64_t header_bytes = 0;
  file_.read(0, &header_bytes, 8);
  if (header_bytes > kHeaderBytesMax || header_bytes > size_bytes - 8)
    broken(path, fmt::format("its header would have {} bytes, need at most {} (the file has {} bytes)", header_bytes,
                             std::min(kHeaderBytesMax, size_bytes - 8), size_bytes));
  std::string text(header_bytes, '\0');
  file_.read(8, text.data(), static_cast<int64_t>(header_bytes));
  Header header =
      parse_header({.text = text, .where = "the header of " + files::shown(path), .owner = files::Owner::checkpoint});
  tensors_ = checked_tensors(path, std::move(header.entries), 8 + header_bytes, size_bytes - 8 - header_bytes);
  metadata_ = std::move(header.metadata);
  for (size_t i = 0; i < tensors_.size(); ++i) index_of_.emplace(tensors_[i].name, i);
}

const TensorInfo* SafetensorsFile::find(std::string_view name) const {
  const auto at = index_of_.find(std::string(name));
  return at == index_of_.end() ? nullptr : &tensors_[at->second];
}

const TensorInfo& SafetensorsFile::get(std::string_view name) const {
  if (const TensorInfo* tensor = find(name)) return *tensor;
  throw CheckpointError(
      "[checkpoint] {} has {} tensors, but not {}. It belongs to another model. Use the config.json of this file.",
      files::shown(path()), tensors_.size(), files::shown(name));
}

void SafetensorsFile::read(const TensorInfo& tensor, int64_t offset_bytes, void* out, int64_t size_bytes) const {
  SLIP_ASSERT(offset_bytes >= 0 && size_bytes >= 0 && offset_bytes <= tensor.size_bytes - size_bytes);
  file_.read(tensor.begin_bytes + offset_bytes, out, size_bytes);
}

std::string SafetensorsFile::hash() const {
  data::Xxh3 hash;
  hash.update(file_, 0, file_.size_bytes());
  return hash.hex();
}

void SafetensorsFile::read_floats(const TensorInfo& tensor, std::span<float> out) const {
  SLIP_ASSERT(static_cast<int64_t>(out.size()) == tensor.elems());
  read_floats(tensor, 0, out);
}

void SafetensorsFile::read_floats(const TensorInfo& tensor, int64_t first, std::span<float> out) const {
  if (tensor.dtype == "F32") return read(tensor, 4 * first, out.data(), 4 * std::ssize(out));
  if (tensor.dtype == "BOOL" || tensor.dtype == "U8") {
    std::vector<uint8_t> bytes(out.size());
    read(tensor, first, bytes.data(), std::ssize(bytes));
    std::copy(bytes.begin(), bytes.end(), out.begin());
    return;
  }
  const bool half = tensor.dtype == "F16";
  if (!half && tensor.dtype != "BF16")
    throw CheckpointError(
        "[checkpoint] tensor {} of {} has the type {}, need F32, BF16, F16, U8 or BOOL. Convert it first.",
        files::shown(tensor.name), files::shown(path()), tensor.dtype);
  std::vector<uint16_t> chunk(std::min<size_t>(kChunkBytes / 2, out.size()));
  for (size_t done = 0; done < out.size();) {
    const size_t take = std::min(chunk.size(), out.size() - done);
    read(tensor, 2 * (first + static_cast<int64_t>(done)), chunk.data(), static_cast<int64_t>(2 * take));
    for (size_t i = 0; i < take; ++i)
      out[done + i] = half ? float_of_half(chunk[i]) : std::bit_cast<float>(static_cast<uint32_t>(chunk[i]) << 16);
    done += take;
  }
}

namespace {

/// The tensors in the order of the file, and the bytes of the file before them.
struct FileLayout {
  std::string head;
  int64_t tensor_bytes = 0;
};

FileLayout lay_out(std::vector<TensorToSave>& tensors) {
  std::sort(tensors.begin(), tensors.end(), [](const TensorToSave& a, const TensorToSave& b) {
    return std::pair(-size_of(a.dtype), std::string_view(a.name)) <
           std::pair(-size_of(b.dtype), std::string_view(b.name));
  });
  // transformers refuses a file whose metadata lacks "format".
  Header header{.entries = {}, .metadata = {{"format", "pt"}}};
  int64_t end_bytes = 0;
  std::vector<std::string_view> names;
  for (const TensorToSave& tensor : tensors) {
    SLIP_ASSERT(name_problem(tensor.name).empty() && tensor.name != "__metadata__");
    SLIP_ASSERT(std::all_of(tensor.shape.begin(), tensor.shape.end(), [](int64_t dim) { return dim >= 0; }));
    names.push_back(tensor.name);
    const int64_t begin_bytes = end_bytes;
    end_bytes += bytes_of(elems_of(tensor.shape), tensor.dtype);
    header.entries.push_back({.name = tensor.name,
                              .dtype = file_type(tensor.dtype),
                              .shape = std::vector<uint64_t>(tensor.shape.begin(), tensor.shape.end()),
                              .begin_bytes = static_cast<uint64_t>(begin_bytes),
                              .end_bytes = static_cast<uint64_t>(end_bytes)});
  }
  std::sort(names.begin(), names.end());
  SLIP_ASSERT(std::adjacent_find(names.begin(), names.end()) == names.end());

  std::string text = header_text(header);
  text.resize(static_cast<size_t>(round_up(static_cast<int64_t>(text.size()), 8)), ' ');
  const uint64_t header_bytes = text.size();
  SLIP_ASSERT(header_bytes <= kHeaderBytesMax);
  std::string head(reinterpret_cast<const char*>(&header_bytes), 8);
  return {.head = head + text, .tensor_bytes = end_bytes};
}

template <typename File>
WrittenFile write_to(File& file, const FileLayout& layout, const std::vector<TensorToSave>& tensors) {
  data::Xxh3 hash;
  const auto put = [&](const void* bytes, int64_t size_bytes) {
    hash.update(bytes, size_bytes);
    file.write(bytes, size_bytes);
  };
  put(layout.head.data(), std::ssize(layout.head));
  for (const TensorToSave& tensor : tensors) {
    int64_t left_bytes = bytes_of(elems_of(tensor.shape), tensor.dtype);
    tensor.write([&](const void* bytes, int64_t size_bytes) {
      SLIP_ASSERT(size_bytes >= 0 && size_bytes <= left_bytes);
      put(bytes, size_bytes);
      left_bytes -= size_bytes;
    });
    if (left_bytes != 0)
      throw InternalError("[bug] tensor {} was written with {} bytes too few.", files::shown(tensor.name), left_bytes);
  }
  file.commit();
  return {.size_bytes = std::ssize(layout.head) + layout.tensor_bytes, .hash = hash.hex()};
}

}  // namespace

WrittenFile write_safetensors(const std::string& path, std::vector<TensorToSave> tensors) {
  const FileLayout layout = lay_out(tensors);
  files::OutputFile file(path);
  return write_to(file, layout, tensors);
}

WrittenFile write_safetensors_direct(const std::string& path, std::vector<TensorToSave> tensors, int threads) {
  const FileLayout layout = lay_out(tensors);
  DirectWriter file(path, std::ssize(layout.head) + layout.tensor_bytes, threads);
  return write_to(file, layout, tensors);
}

}  // namespace slipstream::checkpoint
