// SPDX-License-Identifier: Apache-2.0
#pragma once
// The weights of GPT-2 in a file of llm.c.
//
// The file begins with 256 int32: 20240326, version (3: float32, 5: bfloat16), context, vocabulary, layers, heads,
// width, padded vocabulary. Then follow wte, wpe, and, for all layers together, ln_1, c_attn, c_proj, ln_2, c_fc and
// c_proj of the MLP, each with the weights before the biases, and at last ln_f. Matrices are [out, in]. Source:
// github.com/karpathy/llm.c, train_gpt2.py, write_model.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "engine/base/files.h"
#include "engine/checkpoint/safetensors.h"
#include "models/hugging_face.h"

namespace slipstream::runtime {

class LlmCCheckpoint {
 public:
  /// Blocks. Reads the header. Throws: CheckpointError if it is another kind of file, a size is not in range, or the
  /// number of bytes does not follow from the sizes.
  explicit LlmCCheckpoint(const std::string& path);

  const models::HuggingFaceModel& model() const { return model_; }
  /// Returns the type of the file's elements.
  DType dtype() const { return dtype_; }
  /// Returns the tensors `names` of the Hugging Face format, to be written as `dtype`. They borrow this object. Memory
  /// holds one matrix of a layer. Throws: CheckpointError for a name that GPT-2 lacks.
  std::vector<checkpoint::TensorToSave> tensors(const std::vector<std::string>& names, DType dtype) const;

 private:
  struct Place {
    int64_t begin_elems = 0;
    std::vector<int64_t> shape;  // in the Hugging Face format
    bool transposed = false;
  };
  void add_tensors();
  void write(const Place& place, DType dtype, const checkpoint::TensorSink& sink) const;

  files::InputFile file_;
  models::HuggingFaceModel model_;
  DType dtype_ = DType::f32;
  int64_t padded_vocab_ = 0;
  std::map<std::string, Place> places_;
};

}  // namespace slipstream::runtime
