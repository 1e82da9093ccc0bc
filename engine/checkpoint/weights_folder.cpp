// SPDX-License-Identifier: Apache-2.0
// Opens and writes the files of weights of a Hugging Face folder.

#include "engine/checkpoint/weights_folder.h"

#include <algorithm>
#include <filesystem>
#include <unordered_set>

#include "engine/base/check.h"
#include "engine/base/document.h"
#include "engine/base/hash.h"
#include "engine/base/log.h"
#include "engine/checkpoint/state_file.h"
#include "engine/checkpoint/store.h"

namespace slipstream::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kJsonBytesMax = 64 << 20;
constexpr size_t kHashDigits = 32;
constexpr const char* kHowToDropHashes =
    "Restore it from a copy of the folder. If the change is intended, delete hashes.xxh128.";

bool exists(const std::string& path) {
  std::error_code error;
  return fs::exists(path, error);
}

Json read_object(const std::string& path) {
  const std::string text = files::read_file(path, files::Owner::checkpoint, kJsonBytesMax);
  return parse_object({.text = text, .where = files::shown(path), .owner = files::Owner::checkpoint});
}

Manifest read_manifest(const std::string& dir) {
  const std::string path = dir + "/" + kManifestFile;
  return parse_manifest(files::read_file(path, files::Owner::checkpoint, kJsonBytesMax), files::shown(path));
}

/// Returns hashes by the names of files; empty without kHashesFile.
std::unordered_map<std::string, std::string> read_hashes(const std::string& dir) {
  const std::string path = dir + "/" + kHashesFile;
  std::unordered_map<std::string, std::string> hashes;
  if (!exists(path)) return hashes;
  const std::string text = files::read_file(path, files::Owner::checkpoint, kJsonBytesMax);
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string line = text.substr(at, end - at);
    const bool valid = end < text.size() && line.size() > kHashDigits + 2 && line.substr(kHashDigits, 2) == "  " &&
                       line.find_first_not_of("0123456789abcdef") == kHashDigits;
    if (!valid)
      throw CheckpointError(
          "[checkpoint] {} has the line {}, need 32 hexadecimal digits, 2 spaces, a name and the end of the line. {}",
          files::shown(path), files::shown(line), kHowToDropHashes);
    hashes[line.substr(kHashDigits + 2)] = line.substr(0, kHashDigits);
    at = end + 1;
  }
  if (hashes.empty()) throw CheckpointError("[checkpoint] {} has no hash. {}", files::shown(path), kHowToDropHashes);
  return hashes;
}

/// Returns the file of every tensor, as the index lists them.
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

/// Throws for the folder of a distributed checkpoint of PyTorch. A script reads such a folder, because its index is a
/// pickle.
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

/// Throws for a folder with weights in another format.
void refuse_other_formats(const std::string& dir) {
  struct Format {
    std::string_view begin, end, what;
  };
  constexpr Format kFormats[] = {{"pytorch_model", ".bin", "PyTorch's pickles"},
                                 {"consolidated", ".pth", "PyTorch's pickles"},
                                 {"", ".gguf", "weights of llama.cpp"},
                                 {"tf_model", ".h5", "weights of TensorFlow"},
                                 {"flax_model", ".msgpack", "weights of Flax"}};
  std::error_code error;
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(dir, error)) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  for (const Format& format : kFormats) {
    std::vector<std::string> found;
    std::copy_if(names.begin(), names.end(), std::back_inserter(found),
                 [&](const std::string& name) { return name.starts_with(format.begin) && name.ends_with(format.end); });
    if (found.empty()) continue;
    const std::string path = dir + "/" + found[0];
    const bool one_pickle = found[0] == "pytorch_model.bin";
    const std::string how =
        one_pickle ? fmt::format(
                         "Convert it: python3 -c 'import torch, safetensors.torch as s; s.save_file({{k: v.clone() for "
                         "k, v in torch.load(\"{}\", weights_only=True).items()}}, \"{}/{}\")'",
                         path, dir, kWeightsFile)
                   : fmt::format(
                         "Load the folder with transformers (AutoModelForCausalLM.from_pretrained{}) and save it with "
                         "save_pretrained, which writes {}",
                         format.end == ".gguf" ? ", gguf_file = " + files::shown(found[0]) : "", kWeightsFile);
    throw CheckpointError(
        "[checkpoint] {} has {}{} ({}), but no {}. {}.", files::shown(dir), files::printable(found[0], 80),
        found.size() > 1 ? fmt::format(" and {} more", found.size() - 1) : "", format.what, kWeightsFile, how);
  }
}

}  // namespace

bool has_weights(const std::string& dir) {
  return exists(dir + "/" + kWeightsFile) || exists(dir + "/" + kIndexFile) || exists(dir + "/" + kManifestFile) ||
         !files_of_pieces(dir).empty();
}

std::string find_weights(const std::string& path) {
  for (const char* inside : {"", "/checkpoints/final", "/final"})
    if (has_weights(path + inside)) return path + inside;
  for (const char* inside : {"/checkpoints", ""})
    for (const Found& found : find_checkpoints(path + inside))
      if (found.manifest) return found.path;
  refuse_pickled(path);
  refuse_other_formats(path);
  throw CheckpointError(
      "[checkpoint] {} has no {} and no {}, and neither has its checkpoints/final. Give the folder of a run or of its "
      "weights.",
      files::shown(path), kWeightsFile, kIndexFile);
}

/// Returns the folder of the model beside a checkpoint: for step-00000120.old-1, which a later run has moved,
/// model.old-1.
std::string model_dir_of(const std::string& dir) {
  if (!exists(dir + "/" + kManifestFile) || exists(dir + "/" + kConfigFile)) return dir;
  const fs::path path = fs::absolute(dir).lexically_normal();
  const fs::path folder = path.filename().empty() ? path.parent_path() : path;
  const std::string name = folder.filename(), steps = name_of_step(0);
  const std::string moved = name.size() > steps.size() ? name.substr(steps.size()) : "";
  const std::string model = folder.parent_path() / (kModelDir + moved);
  if (!exists(model + "/" + kConfigFile))
    throw CheckpointError(
        "[checkpoint] {} needs {}, which holds config.json and the tokenizer of its run. Copy that folder, too, or "
        "resume the run once: it writes the folder.",
        files::shown(dir), files::shown(model));
  return model;
}

int64_t count_tensors(const std::string& dir) {
  if (exists(dir + "/" + kManifestFile)) return std::ssize(read_manifest(dir).tensors);
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

Json read_config(const std::string& given) {
  const std::string dir = model_dir_of(given);
  if (!exists(dir + "/" + kConfigFile) && !files_of_pieces(dir).empty())
    throw CheckpointError(
        "[checkpoint] {} has pieces of weights but no {}. Copy the file of the model into the folder.",
        files::shown(dir), kConfigFile);
  return read_object(dir + "/" + kConfigFile);
}

WeightsFolder::WeightsFolder(std::string dir, HashShare share) : dir_(std::move(dir)) {
  if (!has_weights(dir_)) refuse_other_formats(dir_);
  if (!has_weights(dir_))
    throw CheckpointError("[checkpoint] {} has neither {} nor {}. Give a folder of weights in the Hugging Face format.",
                          files::shown(dir_), kWeightsFile, kIndexFile);
  model_dir_ = model_dir_of(dir_);
  config_ = read_config(dir_);
  if (!exists(dir_ + "/" + kManifestFile)) hashes_ = read_hashes(dir_);
  if (exists(dir_ + "/" + kManifestFile)) {
    add_saved();
  } else if (exists(dir_ + "/" + kWeightsFile)) {
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
  if (!has_hashes() || share.count == 0) return;
  compare_hashes(share);
  if (share.index == 0 && !is_checkpoint_) warn_of_changed_texts();
}

void WeightsFolder::compare_hashes(HashShare share) const {
  for (size_t i = 0; i < files_.size(); ++i) {
    const SafetensorsFile& file = *files_[i];
    const auto need = hashes_.find(fs::path(file.path()).filename());
    if (need == hashes_.end())
      throw CheckpointError("[checkpoint] {} has no hash in {}. {}", files::shown(file.path()), kHashesFile,
                            kHowToDropHashes);
    if (i % static_cast<size_t>(share.count) != static_cast<size_t>(share.index)) continue;
    if (const std::string hash = file.hash(); hash != need->second)
      throw CheckpointError("[checkpoint] {} is damaged: it has the hash {}, need {}. {}", files::shown(file.path()),
                            hash, need->second, is_checkpoint_ ? "Give another checkpoint." : kHowToDropHashes);
  }
}

void WeightsFolder::warn_of_changed_texts() const {
  for (const auto& [name, hash] : hashes_) {
    const std::string path = dir_ + "/" + name;
    if (name.ends_with(".safetensors") || !exists(path)) continue;
    const std::string bytes = files::read_file(path, files::Owner::checkpoint, int64_t{1} << 30);
    if (data::xxh3_128_hex(bytes.data(), std::ssize(bytes)) != hash)
      log_warn("[checkpoint] {} was changed after it was saved. {}", files::shown(path), kHowToDropHashes);
  }
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

void WeightsFolder::add_saved() {
  is_checkpoint_ = true;
  const Manifest manifest = read_manifest(dir_);
  if (const std::string problem = size_problem_of(dir_, manifest.files); !problem.empty())
    throw CheckpointError("[checkpoint] {} is damaged: {} Give another checkpoint.", files::shown(dir_), problem);
  std::vector<std::string> names;
  for (const StateFile& file : manifest.files) names.push_back(file.name), hashes_[file.name] = file.hash;
  open(names);
  const auto refuse = [&](const std::string& tensor, const std::string& problem) {
    throw CheckpointError("[checkpoint] {} is damaged: its weights of {} {}. Give another checkpoint.",
                          files::shown(dir_), files::shown(tensor), problem);
  };
  std::unordered_map<std::string, const std::vector<int64_t>*> shapes;
  for (const LogicalTensor& tensor : manifest.tensors) shapes.emplace(tensor.name, &tensor.shape);
  std::unordered_map<std::string, std::vector<TensorPiece>> pieces;
  for (const auto& file : files_)
    for (const TensorInfo& info : file->tensors()) {
      const std::optional<Box> box = box_of(info.name);
      if (!box || box->array != kWeight) continue;
      const auto shape = shapes.find(box->tensor);
      if (shape == shapes.end() || info.dtype != "F32" || info.shape != std::vector<int64_t>{box->rows, box->columns})
        refuse(box->tensor, fmt::format("differ from the manifest in {}", files::shown(file->path())));
      boxes_.push_back(info);
      boxes_.back().name = box->tensor;
      std::vector<int64_t> offsets{box->row, box->column};
      // The file stores a vector with one column.
      if (shape->second->size() == 1) offsets.resize(1), boxes_.back().shape.resize(1);
      pieces[box->tensor].push_back({.file = file.get(), .info = &boxes_.back(), .offsets = std::move(offsets)});
    }
  for (const LogicalTensor& tensor : manifest.tensors) {
    if (!pieces.contains(tensor.name)) refuse(tensor.name, "are missing");
    tensors_.emplace_back(std::move(pieces[tensor.name]));
    if (tensors_.back().shape() != tensor.shape) refuse(tensor.name, "are incomplete");
  }
}

std::string WeightsFolder::config_path() const { return model_dir_ + "/" + kConfigFile; }

const FolderTensor* WeightsFolder::find(const std::string& name) const {
  const auto found = index_of_.find(name);
  return found == index_of_.end() ? nullptr : &tensors_[found->second];
}

StateFile write_text(const std::string& dir, const std::string& name, const std::string& bytes) {
  files::write_file(dir + "/" + name, bytes);
  return {.name = name, .size_bytes = std::ssize(bytes), .hash = data::xxh3_128_hex(bytes.data(), std::ssize(bytes))};
}

void write_hashes(const std::string& dir, const std::vector<StateFile>& files) {
  std::string lines;
  for (const StateFile& file : files) lines += fmt::format("{}  {}\n", file.hash, file.name);
  files::write_file(dir + "/" + kHashesFile, lines);
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
  SavedFolder saved{.files = std::ssize(files)};
  const auto write = [&](const std::string& name, std::vector<TensorToSave> of_file) {
    const WrittenFile file = write_safetensors(dir + "/" + name, std::move(of_file));
    saved.size_bytes += file.size_bytes;
    saved.written.push_back({.name = name, .size_bytes = file.size_bytes, .hash = file.hash});
  };
  if (files.size() == 1) {
    write(kWeightsFile, std::move(files[0]));
    return saved;
  }
  Json::Object map;
  for (size_t i = 0; i < files.size(); ++i) {
    const std::string name = fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, files.size());
    for (const TensorToSave& tensor : files[i]) map.emplace_back(tensor.name, Json(name));
    write(name, std::move(files[i]));
  }
  Json index = Json::object();
  index["metadata"]["total_size"] = Json(total_bytes);
  index["weight_map"] = Json(std::move(map));
  saved.written.push_back(write_text(dir, kIndexFile, index.dump(2) + "\n"));
  return saved;
}

}  // namespace slipstream::checkpoint
