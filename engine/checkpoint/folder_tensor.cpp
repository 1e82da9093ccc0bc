// SPDX-License-Identifier: Apache-2.0
// Joins the pieces of tensors. Offsets come from files, so each one is checked before it is used in arithmetic.

#include "engine/checkpoint/folder_tensor.h"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <string_view>
#include <unordered_map>
#include <utility>

#include <fmt/ranges.h>

#include "engine/base/check.h"
#include "engine/base/document.h"

namespace slipstream::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kOffsetsKey = "DCP_SHARDING_INFO", kVersionKey = "DCP_VERSION";

/// Returns "[0:4, 2:8] in FILE".
std::string shown(const TensorPiece& piece) {
  std::string ranges;
  for (size_t axis = 0; axis < piece.offsets.size(); ++axis)
    ranges += fmt::format("{}{}:{}", axis > 0 ? ", " : "", piece.offsets[axis],
                          piece.offsets[axis] + piece.info->shape[axis]);
  return fmt::format("[{}] in {}", ranges, files::shown(piece.file->path()));
}

[[noreturn]] void refuse(const TensorPiece& piece, const std::string& problem, std::string_view remedy) {
  throw CheckpointError("[checkpoint] tensor {} of {} {}. {}", files::shown(piece.info->name),
                        files::shown(piece.file->path()), problem, remedy);
}

bool overlap(const TensorPiece& a, const TensorPiece& b) {
  for (size_t axis = 0; axis < a.offsets.size(); ++axis) {
    const int64_t begin = std::max(a.offsets[axis], b.offsets[axis]),
                  end = std::min(a.offsets[axis] + a.info->shape[axis], b.offsets[axis] + b.info->shape[axis]);
    if (begin >= end) return false;
  }
  return true;
}

const std::string* metadata_of(const SafetensorsFile& file, std::string_view key) {
  for (const auto& [name, text] : file.metadata())
    if (name == key) return &text;
  return nullptr;
}

/// Returns the pieces in a file.
std::vector<TensorPiece> pieces_of(const SafetensorsFile& file) {
  const std::string path = files::shown(file.path());
  const std::string* text = metadata_of(file, kOffsetsKey);
  if (text == nullptr)
    throw CheckpointError("[checkpoint] {} has no \"{}\" in its metadata, which places its tensors. Save it again.",
                          path, kOffsetsKey);
  if (const std::string* version = metadata_of(file, kVersionKey); version != nullptr && *version != "1.0")
    throw CheckpointError("[checkpoint] {} has {} = {}, need 1.0. Save the weights as whole tensors.", path,
                          kVersionKey, files::shown(*version));
  const Document document{
      .text = *text, .where = fmt::format("{} of {}", kOffsetsKey, path), .owner = files::Owner::checkpoint};
  const Json root = parse_object(document);
  std::unordered_map<std::string_view, const Json*> places;
  for (const auto& [name, place] : root.as_object()) places.emplace(name, &place);
  std::vector<TensorPiece> pieces;
  for (const TensorInfo& info : file.tensors()) {
    const auto place = places.find(info.name);
    if (place == places.end())
      files::refuse(document.owner, fmt::format("{} lacks the tensor {} of the file. Save it again.", document.where,
                                                files::shown(info.name)));
    const auto offsets =
        Fields(document, *place->second, "the value of " + files::shown(info.name)).naturals("saved_offsets");
    pieces.push_back({.file = &file, .info = &info, .offsets = {offsets.begin(), offsets.end()}});
  }
  return pieces;
}

}  // namespace

FolderTensor::FolderTensor(const SafetensorsFile& file, const TensorInfo& info)
    : FolderTensor(std::vector<TensorPiece>{
          {.file = &file, .info = &info, .offsets = std::vector<int64_t>(info.shape.size(), 0)}}) {}

FolderTensor::FolderTensor(std::vector<TensorPiece> pieces) : pieces_(std::move(pieces)) {
  SLIP_ASSERT(!pieces_.empty());
  check_pieces();
  lay_out_runs();
}

const std::string& FolderTensor::name() const { return pieces_[0].info->name; }
const std::string& FolderTensor::dtype() const { return pieces_[0].info->dtype; }
const std::string& FolderTensor::path() const { return pieces_[0].file->path(); }

/// Sets shape_ and elems_. Refuses pieces that overlap, and pieces that have fewer elements together than the shape:
/// they leave a gap.
void FolderTensor::check_pieces() {
  const TensorInfo& first = *pieces_[0].info;
  shape_.assign(first.shape.size(), 0);
  int64_t held_elems = 0;  // the bytes of each piece are in a file, so that their sum fits
  for (const TensorPiece& piece : pieces_) {
    const std::vector<int64_t>& size = piece.info->shape;
    if (piece.info->dtype != first.dtype || size.size() != first.shape.size())
      refuse(piece,
             fmt::format("is {} with {} dimensions, but {} with {} in {}", piece.info->dtype, size.size(), first.dtype,
                         first.shape.size(), files::shown(pieces_[0].file->path())),
             "The folder mixes files of several saves; keep those of one.");
    if (piece.offsets.size() != size.size())
      refuse(piece, fmt::format("has {} saved_offsets for {} dimensions", piece.offsets.size(), size.size()),
             "Save it again.");
    for (size_t axis = 0; axis < size.size(); ++axis) {
      int64_t end = 0;
      if (__builtin_add_overflow(piece.offsets[axis], size[axis], &end))
        refuse(piece,
               fmt::format("begins at {} of dimension {} and has {} there, more than 64 bits can count",
                           piece.offsets[axis], axis, size[axis]),
               "Save it again.");
      shape_[axis] = std::max(shape_[axis], end);
    }
    held_elems += piece.info->elems();
  }
  elems_ = 1;
  for (const int64_t dim : shape_)
    if (__builtin_mul_overflow(elems_, dim, &elems_))
      refuse(pieces_[0],
             fmt::format("has the shape [{}] by its pieces, more elements than 64 bits can count",
                         fmt::join(shape_, ", ")),
             "Save it again.");
  std::stable_sort(pieces_.begin(), pieces_.end(),
                   [](const TensorPiece& a, const TensorPiece& b) { return a.offsets < b.offsets; });
  for (auto a = pieces_.begin(); a != pieces_.end(); ++a)
    for (auto b = std::next(a); b != pieces_.end(); ++b) {
      if (!shape_.empty() && b->offsets[0] >= a->offsets[0] + a->info->shape[0]) break;
      if (overlap(*a, *b))
        throw CheckpointError(
            "[checkpoint] tensor {} has pieces that overlap: {} and {}. The folder mixes files of several saves; keep "
            "those of one.",
            files::shown(name()), shown(*a), shown(*b));
    }
  if (held_elems != elems_)
    throw CheckpointError(
        "[checkpoint] tensor {} has {} of {} values of its shape [{}] in pieces from {} to {} ({}). Copy the files of "
        "all ranks into the folder.",
        files::shown(name()), held_elems, elems_, fmt::join(shape_, ", "), shown(pieces_.front()),
        shown(pieces_.back()), pieces_.size());
}

void FolderTensor::lay_out_runs() {
  if (elems_ == 0) return;  // the strides of [0, 2^62, 4] would overflow
  strides_.assign(shape_.size(), 1);
  for (size_t axis = shape_.size(); axis > 1; --axis) strides_[axis - 2] = strides_[axis - 1] * shape_[axis - 1];
  for (size_t p = 0; p < pieces_.size(); ++p) {
    const std::vector<int64_t>& size = pieces_[p].info->shape;
    Runs runs{.piece = p, .axis = size.size(), .count = 1, .elems = 1};
    while (runs.axis > 0) {
      runs.elems *= size[--runs.axis];
      if (size[runs.axis] != shape_[runs.axis]) break;
    }
    for (size_t axis = 0; axis < runs.axis; ++axis) runs.count *= size[axis];
    if (runs.count == 0 || runs.elems == 0) continue;
    runs.begin = begin_of(runs, 0);
    runs.end = begin_of(runs, runs.count - 1) + runs.elems;
    runs_.push_back(runs);
  }
}

int64_t FolderTensor::begin_of(const Runs& runs, int64_t run) const {
  const TensorPiece& piece = pieces_[runs.piece];
  int64_t begin = shape_.empty() ? 0 : piece.offsets[runs.axis] * strides_[runs.axis];
  for (size_t axis = runs.axis; axis-- > 0;) {
    begin += (piece.offsets[axis] + run % piece.info->shape[axis]) * strides_[axis];
    run /= piece.info->shape[axis];
  }
  return begin;
}

void FolderTensor::read_floats(int64_t first, std::span<float> out) const {
  const int64_t end = first + std::ssize(out);
  SLIP_ASSERT(first >= 0 && end <= elems_);
  for (const Runs& runs : runs_) {
    if (runs.end <= first || runs.begin >= end) continue;
    int64_t run = 0;  // after the search: the first run that ends after `first`
    for (int64_t last = runs.count - 1; run < last;) {
      const int64_t middle = run + (last - run) / 2;
      if (begin_of(runs, middle) + runs.elems > first)
        last = middle;
      else
        run = middle + 1;
    }
    for (; run < runs.count; ++run) {
      const int64_t begin = begin_of(runs, run), from = std::max(first, begin), to = std::min(end, begin + runs.elems);
      if (begin >= end) break;
      const TensorPiece& piece = pieces_[runs.piece];
      piece.file->read_floats(*piece.info, run * runs.elems + from - begin,
                              out.subspan(static_cast<size_t>(from - first), static_cast<size_t>(to - from)));
    }
  }
}

std::vector<FolderTensor> join_pieces(std::span<const std::unique_ptr<SafetensorsFile>> files) {
  std::unordered_map<std::string, size_t> index_of;
  std::vector<std::vector<TensorPiece>> pieces;
  for (const auto& file : files)
    for (TensorPiece& piece : pieces_of(*file)) {
      const auto [at, fresh] = index_of.try_emplace(piece.info->name, pieces.size());
      if (fresh) pieces.emplace_back();
      pieces[at->second].push_back(std::move(piece));
    }
  std::vector<FolderTensor> tensors;
  tensors.reserve(pieces.size());
  for (auto& of_tensor : pieces) tensors.emplace_back(std::move(of_tensor));
  return tensors;
}

std::vector<std::string> files_of_pieces(const std::string& dir) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator at(dir, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (name.starts_with("shard-") && name.ends_with(".safetensors")) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace slipstream::checkpoint
