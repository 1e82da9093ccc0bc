// SPDX-License-Identifier: Apache-2.0
// Fuzzes the reader of safetensors files.

#include "engine/checkpoint/safetensors.h"

#include "tests/fuzz/targets.h"

namespace slipstream::fuzz {
namespace {

void use(const checkpoint::SafetensorsFile& file, int64_t file_bytes) {
  int64_t end_bytes = file.tensors().empty() ? file_bytes : file.tensors()[0].begin_bytes;
  require(end_bytes >= 8, "the first tensor begins in the size of the header");
  std::vector<char> bytes;
  std::vector<float> floats;
  for (const checkpoint::TensorInfo& tensor : file.tensors()) {
    require(tensor.begin_bytes == end_bytes && tensor.size_bytes >= 0, "a tensor begins behind or before its place");
    require(tensor.size_bytes <= file_bytes - end_bytes, "a tensor ends behind the file");
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

}  // namespace

Outcome safetensors(std::string_view input) {
  return outcome_of(input.size(), [&] {
    const checkpoint::SafetensorsFile file(input_file("weights.safetensors", input));
    must_succeed([&] { use(file, static_cast<int64_t>(input.size())); });
  });
}

}  // namespace slipstream::fuzz

SLIP_FUZZ_ENTRY(slipstream::fuzz::safetensors);
