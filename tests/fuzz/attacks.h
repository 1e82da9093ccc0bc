// SPDX-License-Identifier: Apache-2.0
#pragma once
// The attacks of the corpus and what each must yield.

#include <string>
#include <vector>

#include "engine/base/check.h"

namespace slipstream::fuzz {

struct Attack {
  std::string target;  // of kTargets
  std::string file;    // in its corpus
  ExitCode code;
  std::string part;  // of the sentence
};
const std::vector<Attack>& attacks();

}  // namespace slipstream::fuzz
