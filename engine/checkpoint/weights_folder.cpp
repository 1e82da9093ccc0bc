// SPDX-License-Identifier: Apache-2.0
// Opens and writes the files of weights of a Hugging Face folder.

#include "engine/checkpoint/weights_folder.h"

#include <algorithm>
#include <filesystem>
#include <unordered_set>

#include "engine/base/check.h"
#include "engine/base/document.h"

namespace slipstream::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kJsonBytesMax = 64 << 20;

bool exists(const std::string& path) {
  std::error_code error;
  return fs::exists(path, error);
}

Json read_object(const std::string& path) {
  const std::string text = files::read_file(path, files::Owner::checkpoint, kJsonBytesMax);
  return parse_object({.text = text, .where = files::shown(path), .owner = files::Owner::checkpoint});
}

/// The file of every tensor by the index.
std::vector<std::pair<std::string, std::string>> weight_map(const std::string& path) {
  const Json index = read_object(path);
  const Json* map = index.find("weight_map");
  if (map == nullptr || !map->is_object())
    throw CheckpointError("[checkpoint] {} has no object \"weight_map\". Restore the file.", files::shown(path));
  std::vector<std::pair<std::string, std::string>> files;
  for (const auto& [tensor, file] : map->as_object()) {
    const bool plain = file.is_string() && !file.as_string().empty() && file.as_string().find('/') == std::string::npos;
    if (!plain)
      throw CheckpointError("[checkpoint] {} maps {} to {}, need the name of a file beside it. Restore the file.",
                            files::shown(path), files::shown(tensor), files::printable(file.dump(), 100));
    files.emplace_back(tensor, file.as_string());
  }
  return files;
}

/// Throws for the folder of a distributed checkpoint of PyTorch. The script reads it, because its index is a pickle.
void refuse_pickled(const std::string& dir) {
  const std::string index = dir + "/.metadata";
  if (!exists(index)) return;
  if (exists(dir + "/metadata.json"))
    throw CheckpointError(
        "[checkpoint] {} is a distributed checkpoint of Megatron-LM. Run scripts/dcp_to_safetensors.py {} OUT, and "
        "give "
        "the folder OUT.",
        files::shown(dir), files::shown(dir));
  throw CheckpointError(
      "[checkpoint] {} is a distributed checkpoint of PyTorch with a pickled index, .metadata. Run "
      "scripts/dcp_to_safetensors.py {} OUT --config CONFIG_JSON, and give the folder OUT.",
      files::shown(dir), files::shown(dir));
}

}  // namespace

bool has_weights(const std::string& dir) {
  return exists(dir + "/" + kWeightsFile) || exists(dir + "/" + kIndexFile) || !files_of_pieces(dir).empty();
}

std::string find_weights(const std::string& path) {
  for (const char* inside : {"", "/checkpoints/final", "/final"})
    if (has_weights(path + inside)) return path + inside;
  refuse_pickled(path);
  throw CheckpointError(
      "[checkpoint] {} has no {} and no {}, and neither has its checkpoints/final. Give the folder of a run or of its "
      "weights.",
      files::shown(path), kWeightsFile, kIndexFile);
}

int64_t count_tensors(const std::string& dir) {
  const bool in_one_file = exists(dir + "/" + kWeightsFile);
  if (const std::string index = dir + "/" + kIndexFile; !in_one_file && exists(index))
    return std::ssize(weight_map(index));
  std::unordered_set<std::string> names;
  for (const std::string& file : in_one_file ? std::vector<std::string>{kWeightsFile} : files_of_pieces(dir)) {
    const SafetensorsFile opened(dir + "/" + file);
    for (const TensorInfo& info : opened.tensors()) names.insert(info.name);
  }
  return std::ssize(names);
}

Json read_config(const std::string& dir) {
  if (!exists(dir + "/" + kConfigFile) && !files_of_pieces(dir).empty())
    throw CheckpointError(
        "[checkpoint] {} has pieces of weights but no {}. Copy the file of the model into the folder.",
        files::shown(dir), kConfigFile);
  return read_object(dir + "/" + kConfigFile);
}

WeightsFolder::WeightsFolder(std::string dir) : dir_(std::move(dir)) {
  if (!has_weights(dir_))
    throw CheckpointError("[checkpoint] {} has neither {} nor {}. Give a folder of weights in the Hugging Face format.",
                          files::shown(dir_), kWeightsFile, kIndexFile);
  config_ = read_config(dir_);
  if (exists(dir_ + "/" + kWeightsFile)) {
    open({kWeightsFile});
    for (const TensorInfo& info : files_[0]->tensors()) tensors_.emplace_back(*files_[0], info);
  } else if (exists(dir_ + "/" + kIndexFile)) {
    add_indexed();
  } else {
    in_pieces_ = true;
    open(files_of_pieces(dir_));
    tensors_ = join_pieces(files_);
  }
  for (size_t i = 0; i < tensors_.size(); ++i) index_of_.emplace(tensors_[i].name(), i);
}

void WeightsFolder::open(const std::vector<std::string>& names) {
  for (const std::string& name : names) files_.push_back(std::make_unique<SafetensorsFile>(dir_ + "/" + name));
}

void WeightsFolder::add_indexed() {
  const std::string index = dir_ + "/" + kIndexFile;
  const auto map = weight_map(index);
  std::vector<std::string> names;
  for (const auto& [tensor, file] : map) names.push_back(file);
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  std::string missing;
  for (const std::string& name : names)
    if (!exists(dir_ + "/" + name)) missing += (missing.empty() ? "" : ", ") + files::printable(name, 80);
  if (!missing.empty())
    throw CheckpointError("[checkpoint] {} lacks files that its index names: {}. Copy them into the folder.",
                          files::shown(dir_), files::printable(missing, 1000));
  open(names);
  std::unordered_map<std::string, std::string> file_of;
  for (const auto& [tensor, file] : map) {
    const auto at = std::lower_bound(names.begin(), names.end(), file) - names.begin();
    if (files_[static_cast<size_t>(at)]->find(tensor) == nullptr)
      throw CheckpointError("[checkpoint] {} maps {} to {}, which does not contain it. Restore both files.",
                            files::shown(index), files::shown(tensor), files::shown(file));
    file_of[tensor] = file;
  }
  for (size_t i = 0; i < files_.size(); ++i)
    for (const TensorInfo& info : files_[i]->tensors())
      if (const auto known = file_of.find(info.name); known != file_of.end() && known->second == names[i])
        tensors_.emplace_back(*files_[i], info);
}

std::string WeightsFolder::config_path() const { return dir_ + "/" + kConfigFile; }

const FolderTensor* WeightsFolder::find(const std::string& name) const {
  const auto found = index_of_.find(name);
  return found == index_of_.end() ? nullptr : &tensors_[found->second];
}

SavedFolder write_weights(const std::string& dir, std::vector<TensorToSave> tensors, int64_t file_bytes) {
  const auto size = [](const TensorToSave& tensor) {
    int64_t elems = 1;
    for (const int64_t dim : tensor.shape) elems *= dim;
    return bytes_of(elems, tensor.dtype);
  };
  int64_t total_bytes = 0;
  std::vector<std::vector<TensorToSave>> files(1);
  int64_t filled_bytes = 0;
  for (TensorToSave& tensor : tensors) {
    const int64_t bytes = size(tensor);
    if (file_bytes > 0 && filled_bytes > 0 && filled_bytes + bytes > file_bytes) {
      files.emplace_back();
      filled_bytes = 0;
    }
    filled_bytes += bytes;
    total_bytes += bytes;
    files.back().push_back(std::move(tensor));
  }
  SavedFolder saved{.files = std::ssize(files), .size_bytes = 0};
  if (files.size() == 1) {
    saved.size_bytes = write_safetensors(dir + "/" + kWeightsFile, std::move(files[0])).size_bytes;
    return saved;
  }
  Json::Object map;
  for (size_t i = 0; i < files.size(); ++i) {
    const std::string name = fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, files.size());
    for (const TensorToSave& tensor : files[i]) map.emplace_back(tensor.name, Json(name));
    saved.size_bytes += write_safetensors(dir + "/" + name, std::move(files[i])).size_bytes;
  }
  Json index = Json::object();
  index["metadata"]["total_size"] = Json(total_bytes);
  index["weight_map"] = Json(std::move(map));
  files::write_file(dir + "/" + kIndexFile, index.dump(2) + "\n");
  return saved;
}

}  // namespace slipstream::checkpoint
