// SPDX-License-Identifier: Apache-2.0
// Fuzzes the reader of safetensors files, and of those with pieces of tensors.

#include "engine/checkpoint/safetensors.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include "engine/checkpoint/folder_tensor.h"
#include "tests/fuzz/targets.h"

namespace slipstream::fuzz {
namespace {

void use(const checkpoint::SafetensorsFile& file, int64_t file_bytes) {
  int64_t end_bytes = file.tensors().empty() ? file_bytes : file.tensors()[0].begin_bytes;
  require(end_bytes >= 8, "the first tensor begins in the size of the header");
  std::vector<char> bytes;
  std::vector<float> floats;
  for (const checkpoint::TensorInfo& tensor : file.tensors()) {
    require(tensor.begin_bytes == end_bytes && tensor.size_bytes >= 0, "a tensor begins after or before its place");
    require(tensor.size_bytes <= file_bytes - end_bytes, "a tensor ends after the file");
    end_bytes += tensor.size_bytes;
    require(file.find(tensor.name) == &tensor, "a tensor is not found by its name");
    bytes.resize(static_cast<size_t>(tensor.size_bytes));
    file.read(tensor, 0, bytes.data(), tensor.size_bytes);
    if (tensor.dtype != "F32" && tensor.dtype != "BF16") continue;
    require(tensor.elems() * (tensor.dtype == "F32" ? 4 : 2) == tensor.size_bytes, "a tensor has a wrong size");
    floats.resize(static_cast<size_t>(tensor.elems()));
    file.read_floats(tensor, floats);
  }
  require(end_bytes == file_bytes, "bytes follow the last tensor");
}

bool has_places(const checkpoint::SafetensorsFile& file) {
  return std::any_of(file.metadata().begin(), file.metadata().end(),
                     [](const auto& member) { return member.first == "DCP_SHARDING_INFO"; });
}

/// The pieces of one file must be whole tensors.
void use_pieces(const checkpoint::SafetensorsFile& file, const std::vector<checkpoint::FolderTensor>& tensors) {
  require(tensors.size() == file.tensors().size(), "a tensor is lost");
  std::vector<float> whole, joined;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const checkpoint::TensorInfo& info = file.tensors()[i];
    require(tensors[i].name() == info.name && tensors[i].elems() == info.elems(), "a tensor has other elements");
    if (info.elems() == 0) continue;  // an empty tensor may begin anywhere
    require(tensors[i].shape() == info.shape, "a tensor has another shape");
    if (info.dtype != "F32" && info.dtype != "BF16" && info.dtype != "F16") continue;
    whole.resize(static_cast<size_t>(info.elems()));
    joined.assign(whole.size(), -1);
    file.read_floats(info, whole);
    tensors[i].read_floats(0, joined);
    require(std::memcmp(whole.data(), joined.data(), whole.size() * sizeof(float)) == 0, "a tensor has other values");
  }
}

}  // namespace

Outcome safetensors(std::string_view input) {
  return outcome_of(input.size(), [&] {
    std::vector<std::unique_ptr<checkpoint::SafetensorsFile>> files;
    files.push_back(std::make_unique<checkpoint::SafetensorsFile>(input_file("weights.safetensors", input)));
    must_succeed([&] { use(*files[0], static_cast<int64_t>(input.size())); });
    if (!has_places(*files[0])) return;
    const std::vector<checkpoint::FolderTensor> tensors = checkpoint::join_pieces(files);
    must_succeed([&] { use_pieces(*files[0], tensors); });
  });
}

}  // namespace slipstream::fuzz

SLIP_FUZZ_ENTRY(slipstream::fuzz::safetensors);
