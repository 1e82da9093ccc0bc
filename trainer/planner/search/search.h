// SPDX-License-Identifier: Apache-2.0
#pragma once
// Finds the layout with the shortest rehearsed step from bounds of all layouts and rehearsals of those that can win.

#include <cstdint>
#include <string>
#include <vector>

#include "trainer/planner/forecast/planned.h"
#include "trainer/planner/search/layout_bounds.h"
#include "trainer/planner/search/layouts.h"

namespace slipstream::planner {

struct SearchOptions {
  std::vector<SearchedKey> keys;
  double seconds = 60;      // no bound and no rehearsal begins later; 0: no limit
  int threads = 0;          // 0: the number of cores
  bool exhaustive = false;  // rehearses every layout that fits, to check the bounds
};

enum class Outcome : uint8_t { open, refused, too_large, slower, rehearsed };

struct SearchedLayout {
  std::vector<std::string> sets;
  Outcome outcome = Outcome::open;  // open: no time was left
  LayoutBound bound;
  double step_ms = 0;        // rehearsed
  int64_t memory_bytes = 0;  // rehearsed, or a lower bound
  std::string refusal;       // the sentence of the rule
};

/// A layout with narrower types on the wire.
struct NarrowerWire {
  size_t layout = 0;              // an index into SearchResult::layouts
  std::vector<std::string> sets;  // in addition to those of the layout
  double step_ms = 0;             // rehearsed
};

constexpr size_t kShownLayouts = 20;

struct SearchResult {
  std::vector<SearchedLayout> layouts;  // first the rehearsed ones, the fastest first; then the others by bound
  std::vector<ResolvedConfig> configs;  // those of the first layouts, at most kShownLayouts
  size_t rehearsed = 0;                 // the number of rehearsed layouts
  std::vector<NarrowerWire> wires;  // for the first layouts, the fastest first; empty if `keys` names one of their keys
  bool is_certain = false;          // no other layout can be faster, because none is open
  double seconds = 0;
  int64_t global_batch = 0;
  double flops = 0;  // operations of the model in a step
  Drawn drawn;

  size_t count(Outcome outcome) const;
};

struct Rehearsed {
  double step_ms = -1;  // negative: the configuration does not fit
  int64_t memory_bytes = 0;
};
/// Rehearses the step of one configuration as a search does: with the update on the compute stream, steps launched task
/// by task, and few micro-batches of long steps. Pure. Throws: ConfigError, PlanError.
Rehearsed rehearse_config(const Drawn& drawn, const ResolvedConfig& config);

/// Returns the totals of the rehearsed step, to compare layouts. Pure. Throws: as rehearse_config().
StepTotals totals_of_config(const Drawn& drawn, const ResolvedConfig& config);

/// Returns the drawn run with `sets`, which come from layouts_of() or a user. Throws: ConfigError.
ResolvedConfig resolved_with(const WrittenRun& written, const ResolvedConfig& drawn,
                             const std::vector<std::string>& sets);

/// Searches with the run file's global batch. The first layout of the result is the winner. Reads files. Blocks.
/// Throws: ConfigError; ResourceError with the smallest need if no layout fits.
SearchResult search(const PlanRequest& request, const SearchOptions& options);

/// Returns narrower types for the run's values on the wire, as arguments of --set, the most precise first: gradients as
/// bfloat16, or as int8 with one scale for 128 values; ZeRO's parameters as int8. Pure.
std::vector<std::vector<std::string>> narrower_wires(const ResolvedConfig& config);

/// Rehearses the first layouts of `result` with each of their narrower types. Returns those whose step is at least half
/// a percent shorter than that of their layout, the fastest first. They round what travels, so they change the
/// training, and a search does not mix them with layouts that keep it. Pure.
std::vector<NarrowerWire> rehearse_narrower_wires(const SearchResult& result, const WrittenRun& written, int threads);

/// Prints the first `rows` layouts to stdout, each with the reason why the first one is faster, and the reasons of the
/// others.
void print_search(const SearchResult& result, size_t rows);
void print_search_json(const SearchResult& result, size_t rows);

/// Writes the run files of the first `rows` layouts as FOLDER/1.toml and so on. Throws: ConfigError.
void write_winners(const PlanRequest& request, const SearchResult& result, const std::string& folder, size_t rows);

}  // namespace slipstream::planner
