// SPDX-License-Identifier: Apache-2.0
#pragma once
// Answers questions about a plan: whether an item waits for another one, and what would begin earlier if an item took
// no time.

#include <cstdint>
#include <string>
#include <vector>

#include "comm/rehearse/waits.h"
#include "trainer/planner/forecast/planned.h"

namespace slipstream::planner {

/// An item of the training plan on the first rank of its stage.
struct NamedItem {
  std::string name;  // with the stage after an at sign if several stages have an item with this name
  int stage = 0;
  ItemId item = 0;
};

/// `text` is the name of an item, or the name with its stage. Throws: ConfigError with the nearest name, or with the
/// stages to choose from.
NamedItem find_item(const Planned& planned, const std::string& text);

struct WaitAnswer {
  NamedItem later, earlier;
  int steps_before = 0;  // 0: `later` waits for `earlier` of its own step; 1: for that of the previous step
  std::vector<comm::WaitStep> chain;  // begins with `later`; empty: it does not wait
  std::vector<NamedItem> names;       // the names of the chain's items
};

/// Pure. Returns the wait within a step if there is one, else the wait across two steps.
WaitAnswer ask_wait(const Planned& planned, const NamedItem& later, const NamedItem& earlier);

struct EarlierItem {
  NamedItem item;
  double earlier_ms = 0;  // inside its step
};

struct FreedAnswer {
  NamedItem freed;
  double took_ms = 0, step_ms = 0, freed_step_ms = 0;
  std::vector<EarlierItem> items;  // the items that begin earlier in the step, the largest gain first
};

/// Pure. Rehearses the step again with an item that takes no time on all ranks of its stage.
/// Throws: PlanError in a deadlock.
FreedAnswer ask_freed(const Planned& planned, const NamedItem& freed);

/// These print to stdout.
void print_answer(const WaitAnswer& answer, bool json);
void print_answer(const FreedAnswer& answer, bool json);

}  // namespace slipstream::planner
