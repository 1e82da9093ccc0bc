// SPDX-License-Identifier: Apache-2.0
// The file of timed algorithms, which is read strictly and written as a whole.

#include "kernels/cuda/algorithms.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <filesystem>

#include "engine/base/check.h"
#include "engine/base/files.h"
#include "engine/base/json.h"

namespace slipstream::kernels {
namespace {

constexpr int64_t kFormat = 1;
constexpr int64_t kLimitBytes = int64_t{64} << 20;
constexpr const char* kEpilogues[] = {"plain",
                                      "bias",
                                      "gelu",
                                      "gelu bias",
                                      "gelu gradient",
                                      "bias gradient",
                                      "gelu gradient before sums",
                                      "gelu and bias gradient"};

std::string hex_of(const AlgorithmBits& bits) {
  std::string text;
  for (uint64_t word : bits) text += fmt::format("{:016x}", word);
  return text;
}

AlgorithmBits bits_of(const std::string& text, const std::string& what) {
  AlgorithmBits bits = {};
  if (text.size() != 16 * bits.size())
    throw DataError("{}: an algorithm has {} digits, need {}.", what, text.size(), 16 * bits.size());
  for (size_t w = 0; w < bits.size(); ++w) {
    const char* begin = text.data() + 16 * w;
    if (std::from_chars(begin, begin + 16, bits[w], 16).ptr != begin + 16)
      throw DataError("{}: an algorithm is not hexadecimal.", what);
  }
  return bits;
}

}  // namespace

std::string text_of(const ProductShape& p) {
  return fmt::format("{}x{}x{} {}{} {} to {}, ld {} {} {}, {}{}, aligned {}{}", p.m, p.n, p.k,
                     p.a_transposed ? 'T' : 'N', p.b_transposed ? 'T' : 'N', name_of(p.in), name_of(p.out), p.a_ld,
                     p.b_ld, p.d_ld, kEpilogues[static_cast<size_t>(p.epilogue)], p.accumulate ? ", added" : "",
                     p.alignment_bytes,
                     p.multiprocessors > 0 ? fmt::format(", {} multiprocessors", p.multiprocessors) : "");
}

AlgorithmTable AlgorithmTable::parse(const std::string& text, const std::string& source, const GemmLibrary& library) {
  const Json file = Json::parse(text, source);
  const int64_t format = file.at("format").as_int(source), version = file.at("cublaslt").as_int(source);
  const std::string& card = file.at("card").as_string(source);
  if (format != kFormat) throw DataError("{} has format {}, this program reads {}.", source, format, kFormat);
  if (card != library.card)
    throw DataError("{} is for the GPU {}, this one is {}.", source, files::shown(card), library.card);
  if (version != library.version)
    throw DataError("{} is for cuBLASLt {}, this one is {}.", source, version, library.version);
  AlgorithmTable table(library);
  for (const auto& [key, entry] : file.at("products").as_object(source)) {
    const std::string what = source + ": " + files::shown(key);
    TimedAlgorithm timed{.algorithm = bits_of(entry.at("algorithm").as_string(what), what),
                         .us = entry.at("us").as_double(what),
                         .first_us = entry.at("first_us").as_double(what)};
    if (const Json* apart = entry.find("apart_us")) timed.apart_us = apart->as_double(what);
    if (!(timed.us > 0) || !(timed.first_us > 0) || !(timed.apart_us >= 0))
      throw DataError("{}: times must be positive.", what);
    table.entries_[key] = timed;
  }
  return table;
}

std::string AlgorithmTable::text() const {
  Json file = Json::object();
  file["format"] = kFormat;
  file["card"] = library_.card;
  file["cublaslt"] = library_.version;
  Json& products = file["products"] = Json::object();
  for (const auto& [key, timed] : entries_) {
    Json& entry = products[key];
    entry["us"] = timed.us;
    entry["first_us"] = timed.first_us;
    if (timed.apart_us > 0) entry["apart_us"] = timed.apart_us;
    entry["algorithm"] = hex_of(timed.algorithm);
  }
  return file.dump(1) + "\n";
}

const TimedAlgorithm* AlgorithmTable::find(const ProductShape& product) const {
  if (entries_.empty()) return nullptr;
  ProductShape whole = product;
  whole.multiprocessors = 0;
  const auto found = entries_.find(text_of(whole));
  return found == entries_.end() ? nullptr : &found->second;
}

std::vector<ProductShape> by_flops(const std::map<ProductShape, ChosenAlgorithm>& chosen) {
  using Counted = std::pair<double, ProductShape>;
  std::vector<Counted> counted;
  for (const auto& [p, algorithm] : chosen)
    counted.emplace_back(2.0 * static_cast<double>(p.m) * static_cast<double>(p.n) * static_cast<double>(p.k) *
                             static_cast<double>(std::max<int64_t>(1, algorithm.calls)),
                         p);
  std::stable_sort(counted.begin(), counted.end(), [](const Counted& a, const Counted& b) {
    return a.first != b.first ? a.first > b.first : a.second.epilogue < b.second.epilogue;
  });
  std::vector<ProductShape> products;
  for (const Counted& one : counted) products.push_back(one.second);
  return products;
}

std::string algorithms_path(const std::string& asked, const GemmLibrary& library) {
  if (asked != "auto") return asked;
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  if ((!cache || !*cache) && (!home || !*home)) return "";
  std::string name;
  for (char c : library.card)
    name += std::isalnum(static_cast<unsigned char>(c)) ? static_cast<char>(std::tolower(static_cast<unsigned char>(c)))
                                                        : '-';
  return fmt::format("{}/slipstream/{}-cublaslt-{}.json",
                     cache && *cache ? std::string(cache) : std::string(home) + "/.cache", name, library.version);
}

AlgorithmTable read_algorithms(const std::string& path, const GemmLibrary& library, std::string& warning) {
  std::error_code error;
  if (path.empty() || !std::filesystem::exists(path, error)) return AlgorithmTable(library);
  try {
    return AlgorithmTable::parse(files::read_file(path, files::Owner::data, kLimitBytes), path, library);
  } catch (const Error& refused) {
    warning = fmt::format(
        "[cuda] device.algorithms is ignored: {} Products use cuBLASLt's first choice; slipstream bench products "
        "makes a new table.",
        refused.what());
    return AlgorithmTable(library);
  }
}

void write_algorithms(const std::string& path, const AlgorithmTable& table) {
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  std::error_code error;
  if (!folder.empty()) std::filesystem::create_directories(folder, error);
  if (error)
    throw ResourceError("[cuda] {} cannot be made: {}. Set device.algorithms to a path that can be written.",
                        folder.string(), error.message());
  files::OutputFile file(path);
  const std::string text = table.text();
  file.write(text.data(), static_cast<int64_t>(text.size()));
  file.commit();
}

}  // namespace slipstream::kernels
