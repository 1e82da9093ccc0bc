// SPDX-License-Identifier: Apache-2.0
// Rehearses the fastest layouts again with other types on the wire.

#include <algorithm>

#include "engine/base/check.h"
#include "engine/base/parallel.h"
#include "trainer/planner/search/search.h"

namespace slipstream::planner {
namespace {

constexpr size_t kLayouts = 6;            // the first layouts of a search
constexpr double kWorthPrinting = 0.995;  // the share of the layout's step below which a type is printed

using Sets = std::vector<std::string>;

}  // namespace

std::vector<Sets> narrower_wires(const ResolvedConfig& config) {
  const RunConfig& run = *config;
  std::vector<Sets> gradients = {{}}, parameters = {{}}, all;
  if (config.layout().replicas() > 1 && run.comm.quantize == Quantize::none) {
    if (run.comm.grad_dtype == DTypeChoice::float32) gradients.push_back({"comm.grad_dtype=bfloat16"});
    gradients.push_back({"comm.quantize=int8", "comm.grad_dtype=float32"});
  }
  if (run.zero.sharding().states && run.zero.gather_dtype != DTypeChoice::int8)
    parameters.push_back({"zero.gather_dtype=int8"});
  for (const Sets& parameter : parameters)
    for (const Sets& gradient : gradients) {
      all.push_back(gradient);
      all.back().insert(all.back().end(), parameter.begin(), parameter.end());
    }
  all.erase(all.begin());  // the first choice is what the run has
  return all;
}

std::vector<NarrowerWire> rehearse_narrower_wires(const SearchResult& result, const WrittenRun& written, int threads) {
  std::vector<NarrowerWire> tried;
  for (size_t i = 0; i < std::min(kLayouts, result.rehearsed); ++i)
    for (Sets& sets : narrower_wires(resolved_with(written, result.drawn.config, result.layouts[i].sets)))
      tried.push_back({.layout = i, .sets = std::move(sets)});
  for_each_index(tried.size(), threads, [&](size_t t) {
    Sets sets = result.layouts[tried[t].layout].sets;
    sets.insert(sets.end(), tried[t].sets.begin(), tried[t].sets.end());
    try {
      tried[t].step_ms = rehearse_config(result.drawn, resolved_with(written, result.drawn.config, sets)).step_ms;
    } catch (const Error&) {
      tried[t].step_ms = -1;  // this layout refuses the type
    }
  });
  std::erase_if(tried, [&](const NarrowerWire& wire) {
    return wire.step_ms < 0 || wire.step_ms > kWorthPrinting * result.layouts[wire.layout].step_ms;
  });
  std::stable_sort(tried.begin(), tried.end(),
                   [](const NarrowerWire& a, const NarrowerWire& b) { return a.step_ms < b.step_ms; });
  return tried;
}

}  // namespace slipstream::planner
