// SPDX-License-Identifier: Apache-2.0
// Writes and reads boxes of tensors.

#include "engine/checkpoint/state_file.h"

#include <algorithm>
#include <charconv>
#include <cstring>

#include "engine/base/check.h"
#include "engine/base/fail_point.h"
#include "engine/base/hash.h"
#include "engine/base/units.h"
#include "engine/checkpoint/direct_file.h"

namespace slipstream::checkpoint {
namespace {

// A piece of this size stays in a core's cache while it is copied, tested and hashed.
constexpr int64_t kPieceElems = 256 * kKiB / static_cast<int64_t>(sizeof(float));
constexpr int kWriters = 3;  // the writers of a save that training waits for

/// Removes "NUMBER" and the character after it from the front of `text`. Returns none if `text` does not begin so.
std::optional<int64_t> take_number(std::string_view& text, char then) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number < 0 || end == text.data() + text.size() || *end != then) return {};
  text.remove_prefix(static_cast<size_t>(end - text.data()) + 1);
  return number;
}

}  // namespace

std::string name_of(const Box& b) {
  return fmt::format("{}:{}[{}:{},{}:{}]", b.array, b.tensor, b.row, b.row + b.rows, b.column, b.column + b.columns);
}

std::optional<Box> box_of(std::string_view name) {
  const size_t colon = name.find(':'), bracket = name.rfind('[');
  if (colon == std::string_view::npos || bracket == std::string_view::npos || colon == 0 || bracket <= colon + 1)
    return {};
  std::string_view ranges = name.substr(bracket + 1);
  const auto row = take_number(ranges, ':'), row_end = row ? take_number(ranges, ',') : std::nullopt,
             column = row_end ? take_number(ranges, ':') : std::nullopt,
             column_end = column ? take_number(ranges, ']') : std::nullopt;
  if (!column_end || !ranges.empty() || *row_end <= *row || *column_end <= *column) return {};
  return Box{.tensor = std::string(name.substr(colon + 1, bracket - colon - 1)),
             .array = std::string(name.substr(0, colon)),
             .row = *row,
             .column = *column,
             .rows = *row_end - *row,
             .columns = *column_end - *column};
}

std::pair<int64_t, int64_t> matrix_of(const std::vector<int64_t>& shape) {
  if (shape.empty()) return {1, 1};
  int64_t columns = 1;
  for (size_t d = 1; d < shape.size(); ++d) columns *= shape[d];
  return {shape[0], columns};
}

StateFile write_state_file(const std::string& folder, const std::string& name, std::vector<BoxToSave> boxes,
                           WriterPace* pace) {
  std::vector<TensorToSave> tensors;
  std::vector<float> piece(kPieceElems);
  if (pace != nullptr) pace->begin();
  for (BoxToSave& each : boxes)
    tensors.push_back({.name = name_of(each.box),
                       .dtype = DType::f32,
                       .shape = {each.box.rows, each.box.columns},
                       .write = [&](const TensorSink& sink) {
                         for (int64_t at = 0; at < each.box.elems(); at += kPieceElems) {
                           const int64_t take = std::min(kPieceElems, each.box.elems() - at);
                           const int64_t size_bytes = take * static_cast<int64_t>(sizeof(float));
                           each.read(at, std::span(piece).first(static_cast<size_t>(take)));
                           sink(piece.data(), size_bytes);
                           if (pace != nullptr) pace->keep(size_bytes);
                         }
                         fail_point("save.in_file");
                       }});
  // A paced writer leaves the cores to training, so it has no threads beside it.
  const WrittenFile written =
      write_safetensors_direct(folder + "/" + name, std::move(tensors), pace == nullptr ? kWriters : 0);
  fail_point("save.file");
  return {.name = name, .size_bytes = written.size_bytes, .hash = written.hash};
}

std::string problem_of(const std::string& folder, const StateFile& file) { return problem_of(folder, file, {}, {}); }

std::string size_problem_of(const std::string& folder, const std::vector<StateFile>& files) {
  for (const StateFile& file : files) {
    try {
      const files::InputFile input(folder + "/" + file.name, files::Owner::checkpoint);
      if (input.size_bytes() != file.size_bytes)
        return fmt::format("{} has {} bytes, need {}", file.name, input.size_bytes(), file.size_bytes);
    } catch (const CheckpointError& error) {
      return error.what();
    }
  }
  return {};
}

namespace {

/// Cuts the bytes of a file, in order, into elements of the boxes that a caller wants.
class Distributor {
 public:
  Distributor(const std::string& path, const std::vector<Box>& wanted, const TakeElems& take)
      : wanted_(wanted), take_(take) {
    if (wanted.empty()) return;
    std::map<std::pair<std::string_view, std::string_view>, std::vector<size_t>> by_array;
    for (size_t w = 0; w < wanted.size(); ++w) by_array[{wanted[w].tensor, wanted[w].array}].push_back(w);
    try {
      const SafetensorsFile file(path);
      for (const TensorInfo& info : file.tensors())
        if (const std::optional<Box> box = box_of(info.name); box && info.size_bytes == 4 * box->elems())
          if (const auto found = by_array.find({box->tensor, box->array}); found != by_array.end())
            places_.push_back({info.begin_bytes, *box, found->second});
    } catch (const CheckpointError&) {
      places_.clear();  // the hash of a damaged file differs, and StateReader refuses any other one
    }
  }

  /// Takes the next bytes.
  void add(std::span<const std::byte> bytes) {
    const int64_t begin = at_, end = at_ += std::ssize(bytes);
    for (; next_ < places_.size() && end_of(places_[next_]) <= begin; ++next_) {
    }
    for (size_t p = next_; p < places_.size() && places_[p].begin_bytes < end; ++p) {
      const auto& [begin_bytes, box, takers] = places_[p];
      const int64_t first = std::max(begin, begin_bytes), last = std::min(end, end_of(places_[p]));
      SLIP_ASSERT((first - begin_bytes) % 4 == 0 && (last - begin_bytes) % 4 == 0);
      for (const size_t w : takers)
        give(w, box, (first - begin_bytes) / 4, (last - begin_bytes) / 4, bytes.data() + (first - begin));
    }
  }

 private:
  struct Place {
    int64_t begin_bytes = 0;
    Box box;
    std::vector<size_t> takers;
  };
  static int64_t end_of(const Place& place) { return place.begin_bytes + 4 * place.box.elems(); }

  /// Passes on the elements [first, last) of a box of the file, which begin at `from`.
  void give(size_t w, const Box& box, int64_t first, int64_t last, const std::byte* from) const {
    const Box& wanted = wanted_[w];
    if (wanted.column != box.column || wanted.columns != box.columns) return;
    // The shift converts elements of the wanted box to those of this box.
    const int64_t shift = (wanted.row - box.row) * box.columns;
    const int64_t begin = std::max(first, shift), end = std::min(last, shift + wanted.elems());
    if (begin >= end) return;
    take_(w, begin - shift, {reinterpret_cast<const float*>(from) + (begin - first), static_cast<size_t>(end - begin)});
  }

  const std::vector<Box>& wanted_;
  const TakeElems& take_;
  std::vector<Place> places_;  // in the order of the file
  size_t next_ = 0;            // the first place that may still receive bytes
  int64_t at_ = 0;
};

}  // namespace

std::string problem_of(const std::string& folder, const StateFile& file, const std::vector<Box>& wanted,
                       const TakeElems& take) {
  try {
    const std::string path = folder + "/" + file.name;
    if (const std::string problem = size_problem_of(folder, {file}); !problem.empty()) return problem;
    data::Xxh3 hash;
    Distributor distributor(path, wanted, take);
    read_through(path, [&](std::span<const std::byte> bytes) {
      // Pieces of this size stay in a core's cache between the two calls.
      for (size_t at = 0; at < bytes.size(); at += 4 * kPieceElems) {
        const auto piece = bytes.subspan(at, std::min<size_t>(bytes.size() - at, 4 * kPieceElems));
        hash.update(piece.data(), std::ssize(piece));
        if (!wanted.empty()) distributor.add(piece);
      }
    });
    if (const std::string actual = hash.hex(); actual != file.hash)
      return fmt::format("{} has the hash {}, need {}", file.name, actual, file.hash);
  } catch (const CheckpointError& error) {
    return error.what();
  }
  return {};
}

StateReader::StateReader(const std::string& folder, const Manifest& manifest) : name_(folder) {
  for (const StateFile& file : manifest.files) {
    files_.push_back(std::make_unique<SafetensorsFile>(folder + "/" + file.name));
    for (const TensorInfo& info : files_.back()->tensors()) {
      const std::optional<Box> box = box_of(info.name);
      if (!box || info.dtype != "F32" || info.shape != std::vector<int64_t>{box->rows, box->columns})
        throw CheckpointError("[checkpoint] {} of {} is not a box of a tensor. Use another checkpoint.",
                              files::shown(info.name), files::shown(files_.back()->path()));
      at_[{box->tensor, box->array}].push_back(
          {*box, [file = files_.back().get(), &info](int64_t begin, void* to, int64_t size_bytes) {
             file->read(info, begin, to, size_bytes);
           }});
    }
  }
  require_whole(manifest.tensors);
}

StateReader::StateReader(std::string name, const std::vector<LogicalTensor>& tensors,
                         const std::vector<BoxesInMemory>& parts)
    : name_(std::move(name)) {
  for (const BoxesInMemory& part : parts)
    for (const auto& [box, offset] : part.boxes)
      at_[{box.tensor, box.array}].push_back(
          {box, [from = part.base ? part.base + offset : nullptr](int64_t begin, void* to, int64_t size_bytes) {
             SLIP_ASSERT(from != nullptr);
             std::memcpy(to, from + begin, static_cast<size_t>(size_bytes));
           }});
  require_whole(tensors);
}

void StateReader::require_whole(const std::vector<LogicalTensor>& tensors) {
  for (auto& [key, places] : at_)
    std::sort(places.begin(), places.end(), [](const Place& a, const Place& b) {
      return std::pair(a.box.row, a.box.column) < std::pair(b.box.row, b.box.column);
    });
  // Disjoint boxes inside a tensor cover it if their elements add up to the tensor's own.
  for (const LogicalTensor& tensor : tensors)
    for (const std::string& array : tensor.arrays) {
      const auto found = at_.find({tensor.name, array});
      const auto [rows, columns] = matrix_of(tensor.shape);
      int64_t elems = 0;
      const std::vector<Place> none;
      const std::vector<Place>& places = found == at_.end() ? none : found->second;
      for (auto place = places.begin(); place != places.end(); ++place) {
        const Box& box = place->box;
        elems += box.elems();
        for (auto other = place + 1; other != places.end() && other->box.row < box.row + box.rows; ++other)
          if (other->box.column < box.column + box.columns && box.column < other->box.column + other->box.columns)
            throw CheckpointError("[checkpoint] {} has some elements twice, in {} and in {}. Use another checkpoint.",
                                  files::shown(name_), files::shown(name_of(box)), files::shown(name_of(other->box)));
        if (box.row + box.rows > rows || box.column + box.columns > columns)
          throw CheckpointError("[checkpoint] {} has {}, which is outside the {} x {} of the tensor. Use another one.",
                                files::shown(name_), files::shown(name_of(box)), rows, columns);
      }
      if (elems != rows * columns)
        throw CheckpointError("[checkpoint] {} has {} elements of {} of {}, need {}. Use another checkpoint.",
                              files::shown(name_), elems, files::shown(array), files::shown(tensor.name),
                              rows * columns);
    }
}

void StateReader::read(const Box& wanted, std::span<float> out) const {
  SLIP_ASSERT(std::ssize(out) == wanted.elems());
  const auto found = at_.find({wanted.tensor, wanted.array});
  if (found == at_.end())
    throw CheckpointError("[checkpoint] {} has no {} of {}. It belongs to another model or optimizer.",
                          files::shown(name_), files::shown(wanted.array), files::shown(wanted.tensor));
  int64_t copied = 0;
  std::vector<float> rows_read;
  for (const Place& place : found->second) {
    const Box& box = place.box;
    if (box.row >= wanted.row + wanted.rows) break;
    const int64_t first = std::max(box.row, wanted.row), last = std::min(box.row + box.rows, wanted.row + wanted.rows);
    const int64_t left = std::max(box.column, wanted.column),
                  right = std::min(box.column + box.columns, wanted.column + wanted.columns);
    if (first >= last || left >= right) continue;
    copied += (last - first) * (right - left);
    const auto read_rows = [&](int64_t row, int64_t count, float* to) {
      place.read(4 * (row - box.row) * box.columns, to, 4 * count * box.columns);
    };
    if (box.columns == wanted.columns && right - left == box.columns) {
      read_rows(first, last - first, out.data() + (first - wanted.row) * wanted.columns);
      continue;
    }
    const int64_t at_once = std::max<int64_t>(1, kPieceElems / box.columns);
    rows_read.resize(static_cast<size_t>(std::min(at_once, last - first) * box.columns));
    for (int64_t row = first; row < last; row += at_once) {
      const int64_t count = std::min(at_once, last - row);
      read_rows(row, count, rows_read.data());
      for (int64_t r = 0; r < count; ++r)
        std::copy_n(rows_read.begin() + r * box.columns + (left - box.column), right - left,
                    out.begin() + (row + r - wanted.row) * wanted.columns + (left - wanted.column));
    }
  }
  if (copied != wanted.elems())
    throw CheckpointError("[checkpoint] {} has {} of the {} elements of {}. Use another checkpoint.",
                          files::shown(name_), copied, wanted.elems(), files::shown(name_of(wanted)));
}

}  // namespace slipstream::checkpoint
