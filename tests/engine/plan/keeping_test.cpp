// SPDX-License-Identifier: Apache-2.0
// The holders of second copies, and the slots of snapshots.

#include "engine/plan/keeping.h"

#include <algorithm>
#include <set>
#include <vector>

#include "tests/test.hpp"

using namespace slipstream;

TEST_CASE("every rank has one holder and holds one rank, on another node wherever that is possible", "[keeping]") {
  for (int ranks = 1; ranks <= 64; ++ranks)
    for (int per_node = 1; per_node <= 65; ++per_node) {
      CAPTURE(ranks, per_node);
      const int offset = holder_offset(ranks, per_node);
      std::set<int> holders;
      std::vector<int> on_node(static_cast<size_t>(ranks), 0);
      int same = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const int holder = (rank + offset) % ranks;
        CHECK((holder != rank || ranks == 1));
        holders.insert(holder);
        ++on_node[static_cast<size_t>(rank / per_node)];
        same += rank / per_node == holder / per_node;
      }
      CHECK(std::ssize(holders) == ranks);
      // A node's ranks need as many ranks on other nodes.
      const int most = *std::max_element(on_node.begin(), on_node.end());
      CHECK(same == std::max(0, 2 * most - ranks));
    }
}

TEST_CASE("a snapshot stays until the next one is complete and its results are read", "[keeping]") {
  const Keeping keeping{.slots = 2};
  for (int64_t interval = 1; interval <= 5; ++interval)
    for (int64_t begins = 4 * interval; begins <= 12 * interval; begins += interval) {
      // The snapshot after step `begins` begins after the agreement on the one before it, in step begins + 1. The
      // results of step k are read while step k + 1 runs.
      const int64_t complete = begins - interval, running = begins + 1;
      CAPTURE(interval, begins);
      CHECK(complete + 1 < running);
      CHECK(kept_slot(keeping, interval, complete) != kept_slot(keeping, interval, begins));
      CHECK(running - 1 - complete == interval);  // the completed steps that a loss of ranks costs
    }
}
