// SPDX-License-Identifier: Apache-2.0
// Fuzzes the reader of flight records.

#include "comm/flight.h"

#include "comm/verdict.h"
#include "tests/fuzz/targets.h"

namespace slipstream::fuzz {

Outcome flight(std::string_view input) {
  return outcome_of(input.size(), [&] {
    const comm::FlightRecord record = comm::flight_record(input, "rank0000.json");
    must_succeed([&] {
      require(comm::flight_record(comm::flight_json(record), "rank0000.json") == record,
              "the record differs from the one that its text gives");
      // The verdict lists all ranks.
      if (record.size <= 1024) require(!comm::judge({record}).sentence.empty(), "the verdict has no sentence");
      require(!comm::flight_lines({record}).empty(), "the record has no line");
    });
  });
}

}  // namespace slipstream::fuzz

SLIP_FUZZ_ENTRY(slipstream::fuzz::flight);
