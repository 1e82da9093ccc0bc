// SPDX-License-Identifier: Apache-2.0
#pragma once
// The attacks of the corpus and what each must yield.

#include <string>
#include <vector>

#include "engine/base/check.h"

namespace slipstream::fuzz {

struct Attack {
  std::string target;  // a name in kTargets
  std::string file;    // a name in the target's corpus
  ExitCode code;
  std::string part;  // a part of the sentence
};
const std::vector<Attack>& attacks();

}  // namespace slipstream::fuzz
