// SPDX-License-Identifier: Apache-2.0
// Writes and reads manifests.

#include "engine/checkpoint/manifest.h"

#include <limits>
#include <set>

#include "engine/base/check.h"
#include "engine/base/document.h"
#include "engine/base/hash.h"

namespace slipstream::checkpoint {
namespace {

constexpr std::string_view kHead = R"({"xxh3":")", kMiddle = R"(","manifest":)", kTail = "}\n";
constexpr size_t kHashDigits = 32;

[[noreturn]] void damaged(const std::string& where, const std::string& problem) {
  throw CheckpointError("[checkpoint] {} is not a valid manifest: {}. Use another checkpoint.", where, problem);
}

std::string hash_of(std::string_view body) {
  return data::xxh3_128_hex(body.data(), static_cast<int64_t>(body.size()));
}

int64_t int64_of(const Fields& fields, std::string_view key) {
  const uint64_t value = fields.natural(key);
  if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
    fields.fail(fmt::format("{} is too large", key));
  return static_cast<int64_t>(value);
}

const Json::Array& array_of(const Fields& fields, const Json& object, std::string_view key) {
  const Json* value = object.find(key);
  if (value == nullptr || !value->is_array()) fields.fail(fmt::format("has no array {}", key));
  return value->as_array();
}

Json strings_json(const std::vector<std::string>& texts) {
  Json array = Json::array();
  for (const std::string& text : texts) array.push_back(text);
  return array;
}

Json numbers_json(const std::vector<double>& numbers) {
  Json array = Json::array();
  for (const double number : numbers) array.push_back(number);  // null if it is not finite
  return array;
}

std::vector<double> numbers_of(const Fields& fields, const Json& object, std::string_view key) {
  std::vector<double> numbers;
  for (const Json& value : array_of(fields, object, key)) {
    if (!value.is_null() && !value.is_number()) fields.fail(fmt::format("has {} in {}", value.type_name(), key));
    numbers.push_back(value.is_null() ? std::numeric_limits<double>::quiet_NaN() : value.as_double());
  }
  return numbers;
}

/// Returns true for a name inside the folder that is no path out of it.
bool is_plain_name(const std::string& name) {
  return !name.empty() && name.size() <= 255 && name.find('/') == std::string::npos && name[0] != '.' &&
         name.find('\0') == std::string::npos;
}

/// Throws: CheckpointError.
std::vector<LogicalTensor> tensors_of(const Document& document, const Json& root, const Fields& fields) {
  std::vector<LogicalTensor> tensors;
  std::set<std::string> names;
  for (const Json& entry : array_of(fields, root, "tensors")) {
    const Fields tensor(document, entry, "a tensor of the manifest");
    LogicalTensor& to = tensors.emplace_back();
    to.name = tensor.string("name");
    to.arrays = tensor.strings("arrays");
    int64_t elems = 1;
    for (const uint64_t dim : tensor.naturals("shape")) {
      if (dim > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()) ||
          __builtin_mul_overflow(elems, static_cast<int64_t>(dim), &elems))
        tensor.fail(fmt::format("{} has more elements than 64 bits can count", files::shown(to.name)));
      to.shape.push_back(static_cast<int64_t>(dim));
    }
    if (!names.insert(to.name).second) tensor.fail(fmt::format("{} is listed twice", files::shown(to.name)));
  }
  return tensors;
}

/// Throws: CheckpointError.
std::vector<StateFile> files_of(const Document& document, const Json& root, const Fields& fields) {
  std::vector<StateFile> all;
  std::set<std::string> names;
  for (const Json& entry : array_of(fields, root, "files")) {
    const Fields file(document, entry, "a file of the manifest");
    all.push_back({.name = file.string("name"), .size_bytes = int64_of(file, "bytes"), .hash = file.string("xxh3")});
    const std::string& name = all.back().name;
    if (!is_plain_name(name)) file.fail(fmt::format("{} is not the name of a file of the folder", files::shown(name)));
    if (!names.insert(name).second) file.fail(fmt::format("{} is listed twice", files::shown(name)));
  }
  return all;
}

}  // namespace

std::string text_of(const Manifest& m) {
  Json body = Json::object();
  body["version"] = kManifestVersion;
  body["step"] = m.step;
  body["program"] = m.program;
  body["written"] = m.written;
  body["ranks"] = m.ranks;
  body["layout"] = m.layout;
  body["memory_layout"] = m.memory_layout;
  body["global_batch_size"] = m.global_batch_size;
  body["vocab"] = m.vocab;
  body["data_hash"] = m.data_hash;
  if (m.skipped_batches > 0) body["skipped_batches"] = m.skipped_batches;
  if (m.numerics != NumericsHistory{}) {
    Json& numerics = body["numerics"] = Json::object();
    numerics["skips"] = m.numerics.skips;
    numerics["losses"] = numbers_json(m.numerics.losses);
    numerics["norms"] = numbers_json(m.numerics.norms);
  }
  body["config"] = Json::object();
  for (const auto& [key, value] : m.config) body["config"][key] = value;
  body["tensors"] = Json::array();
  for (const LogicalTensor& tensor : m.tensors) {
    Json entry = Json::object();
    entry["name"] = tensor.name;
    entry["shape"] = Json::array();
    for (const int64_t dim : tensor.shape) entry["shape"].push_back(dim);
    entry["arrays"] = strings_json(tensor.arrays);
    body["tensors"].push_back(std::move(entry));
  }
  body["files"] = Json::array();
  for (const StateFile& file : m.files) {
    Json entry = Json::object();
    entry["name"] = file.name;
    entry["bytes"] = file.size_bytes;
    entry["xxh3"] = file.hash;
    body["files"].push_back(std::move(entry));
  }
  const std::string text = body.dump();
  return fmt::format("{}{}{}{}{}", kHead, hash_of(text), kMiddle, text, kTail);
}

Manifest parse_manifest(std::string_view text, const std::string& where) {
  const size_t around = kHead.size() + kHashDigits + kMiddle.size();
  if (text.size() < around + kTail.size() || !text.starts_with(kHead) ||
      text.substr(kHead.size() + kHashDigits, kMiddle.size()) != kMiddle || !text.ends_with(kTail))
    damaged(where, fmt::format("its {} bytes do not have the form of one", text.size()));
  const std::string_view body = text.substr(around, text.size() - around - kTail.size());
  const std::string_view stated = text.substr(kHead.size(), kHashDigits);
  if (const std::string actual = hash_of(body); actual != stated)
    damaged(where, fmt::format("its content has the hash {}, need {}", actual, files::shown(stated)));
  const Document document{.text = body, .where = where, .owner = files::Owner::checkpoint};
  const Json root = parse_object(document);
  const Fields fields(document, root, "the manifest");
  if (const int64_t version = int64_of(fields, "version"); version != kManifestVersion)
    throw CheckpointError(
        "[checkpoint] {} has version {} of the format, this program reads version {}. Use the program that wrote it "
        "({}).",
        where, version, kManifestVersion, files::shown(fields.string("program")));
  Manifest m{.step = int64_of(fields, "step"),
             .program = fields.string("program"),
             .written = fields.string("written"),
             .ranks = int64_of(fields, "ranks"),
             .layout = fields.string("layout"),
             .memory_layout = fields.string("memory_layout"),
             .global_batch_size = int64_of(fields, "global_batch_size"),
             .vocab = int64_of(fields, "vocab"),
             .data_hash = fields.string("data_hash"),
             .config = {},
             .tensors = {},
             .files = {}};
  if (fields.has("skipped_batches")) m.skipped_batches = int64_of(fields, "skipped_batches");
  if (const Json* const found = root.find("numerics")) {
    const Fields numerics(document, *found, "the numerics of the manifest");
    m.numerics = {.skips = int64_of(numerics, "skips"),
                  .losses = numbers_of(numerics, *found, "losses"),
                  .norms = numbers_of(numerics, *found, "norms")};
    if (m.numerics.losses.size() != m.numerics.norms.size())
      numerics.fail(fmt::format("has {} losses and {} norms", m.numerics.losses.size(), m.numerics.norms.size()));
  }
  const Json* const config = root.find("config");
  if (config == nullptr || !config->is_object()) fields.fail("has no object config");
  for (const auto& [key, value] : config->as_object()) {
    if (!value.is_string())
      fields.fail(fmt::format("has {} as {}, need a string", value.type_name(), files::shown(key)));
    m.config.emplace_back(key, value.as_string());
  }
  m.tensors = tensors_of(document, root, fields);
  m.files = files_of(document, root, fields);
  return m;
}

}  // namespace slipstream::checkpoint
