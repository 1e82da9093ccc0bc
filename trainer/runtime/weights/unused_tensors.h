// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tensors of a folder that the model makes itself: a tied head, masks and rotary frequencies. They must have the
// model's values.

#include <string>

#include "engine/checkpoint/folder_tensor.h"
#include "models/model.h"

namespace slipstream::runtime {

/// Returns true for constants that older versions of the library saved. Pure.
bool is_constant(const std::string& name);

/// Blocks. Returns an empty text if a constant has the values that the model computes, otherwise a sentence without its
/// end.
std::string problem_of_constant(const checkpoint::FolderTensor& tensor, const models::ModelOptions& model);

/// Blocks. Does the same for the head of a model whose head is its table of tokens.
std::string problem_of_tied(const checkpoint::FolderTensor& head, const checkpoint::FolderTensor& table);

}  // namespace slipstream::runtime
