// SPDX-License-Identifier: Apache-2.0
// The table of NCCL's settings, read strictly: an unknown word is an error that lists the known words.

#include "comm/nccl/nccl_table.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/base/check.h"
#include "engine/base/files.h"
#include "engine/base/json.h"
#include "engine/base/units.h"

namespace slipstream::comm {
namespace {

constexpr int64_t kLimitBytes = int64_t{1} << 20;
const std::vector<std::string> kAlgorithms = {"tree",      "ring", "collnet_direct", "collnet_chain", "nvls",
                                              "nvls_tree", "pat"};
const std::vector<std::string> kProtocols = {"ll", "ll128", "simple"};
const std::vector<std::string> kPolicies = {"default", "efficiency", "zero"};
const std::vector<std::string> kVerbs = {"all_reduce", "reduce_scatter", "all_gather"};
constexpr Op kOps[] = {Op::all_reduce, Op::reduce_scatter, Op::all_gather};

size_t index_of(const std::vector<std::string>& words, const Json& value, const std::string& what) {
  const std::string& word = value.as_string(what);
  const auto found = std::find(words.begin(), words.end(), word);
  if (found == words.end())
    throw ConfigError("{} is {}, need one of {}.", what, files::shown(word), fmt::join(words, ", "));
  return static_cast<size_t>(found - words.begin());
}

int count_of(const Json& value, const std::string& what, int64_t least, int64_t most) {
  const int64_t count = value.as_int(what);
  if (count < least || count > most) throw ConfigError("{} is {}, need {} to {}.", what, count, least, most);
  return static_cast<int>(count);
}

NcclChoice choice_of(const Json& entry, const std::string& what) {
  NcclChoice choice;
  choice.op = kOps[index_of(kVerbs, entry.at("verb"), what + ".verb")];
  choice.algorithm = static_cast<NcclAlgorithm>(index_of(kAlgorithms, entry.at("algorithm"), what + ".algorithm"));
  choice.protocol = static_cast<NcclProtocol>(index_of(kProtocols, entry.at("protocol"), what + ".protocol"));
  for (const auto& [key, value] : entry.as_object(what)) {
    if (key == "up_to")
      choice.up_to_bytes = parse_bytes(value.as_string(what + ".up_to"));
    else if (key != "verb" && key != "algorithm" && key != "protocol")
      throw ConfigError("{}: unknown key {}. The keys are verb, up_to, algorithm and protocol.", what,
                        files::shown(key));
  }
  return choice;
}

NcclChannel channel_of(const Json& entry, const std::string& what) {
  NcclChannel channel;
  for (const auto& [key, value] : entry.as_object(what)) {
    const std::string at = what + "." + key;
    if (key == "min_ctas")
      channel.min_ctas = count_of(value, at, 1, 64);
    else if (key == "max_ctas")
      channel.max_ctas = count_of(value, at, 1, 64);
    else if (key == "cluster_size")
      channel.cluster_size = count_of(value, at, 0, 8);
    else if (key == "traffic_class")
      channel.traffic_class = count_of(value, at, 0, 255);
    else if (key == "policy")
      channel.policy = static_cast<NcclPolicy>(index_of(kPolicies, value, at));
    else if (key == "choices")
      for (const Json& choice : value.as_array(at))
        channel.choices.push_back(choice_of(choice, fmt::format("{}[{}]", at, channel.choices.size())));
    else
      throw ConfigError(
          "{}: unknown key {}. The keys are min_ctas, max_ctas, cluster_size, traffic_class, policy and choices.", what,
          files::shown(key));
  }
  if (channel.max_ctas > 0 && channel.min_ctas > channel.max_ctas)
    throw ConfigError("{}: min_ctas {} exceeds max_ctas {}.", what, channel.min_ctas, channel.max_ctas);
  return channel;
}

}  // namespace

std::string name_of(NcclAlgorithm algorithm) { return kAlgorithms[static_cast<size_t>(algorithm)]; }
std::string name_of(NcclPolicy policy) { return kPolicies.at(static_cast<size_t>(policy)); }
std::string name_of(NcclProtocol protocol) { return kProtocols[static_cast<size_t>(protocol)]; }

std::optional<NcclChoice> NcclChannel::choice(Op op, int64_t bytes) const {
  std::optional<NcclChoice> best;
  for (const NcclChoice& c : choices)
    if (c.op == op && bytes <= c.up_to_bytes && (!best || c.up_to_bytes < best->up_to_bytes)) best = c;
  return best;
}

NcclTable NcclTable::parse(const std::string& text, const std::string& source) {
  NcclTable table;
  if (text.empty()) return table;
  try {
    const Json file = Json::parse(text, source);
    for (const auto& [key, value] : file.as_object(source)) {
      if (key != "channels")
        throw ConfigError("{}: unknown key {}. The only key is channels.", source, files::shown(key));
      for (const auto& [name, entry] : value.as_object(source))
        table.channels_[name] = channel_of(entry, source + ": " + name);
    }
  } catch (const DataError& error) {
    throw ConfigError("[comm] comm.nccl: {}", error.what());
  }
  return table;
}

std::string NcclTable::read_text(const std::string& path) {
  if (path.empty()) return {};
  try {
    return files::read_file(path, files::Owner::data, kLimitBytes);
  } catch (const DataError& error) {
    throw ConfigError("[comm] comm.nccl = {} cannot be read: {}", path, error.what());
  }
}

const NcclChannel& NcclTable::of(const std::string& channel) const {
  static const NcclChannel none;
  auto found = channels_.find(channel);
  if (found == channels_.end()) found = channels_.find("*");
  return found == channels_.end() ? none : found->second;
}

}  // namespace slipstream::comm
