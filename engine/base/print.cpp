// SPDX-License-Identifier: Apache-2.0
// Writes results to stdout through the buffer of C's library.

#include "engine/base/print.h"

#include <cstdio>

#include "engine/base/check.h"

namespace slipstream {
namespace {

void require_written(bool written) {
  if (!written)
    throw ResourceError(
        "[output] standard output cannot be written: its disk is full, or the program that reads it has ended. Part of "
        "the output is missing. Write it to a disk with space, or read it to its end.");
}

}  // namespace

void print_text(std::string_view text) {
  require_written(std::fwrite(text.data(), 1, text.size(), stdout) == text.size());
}

void flush_printed() { require_written(std::fflush(stdout) == 0 && std::ferror(stdout) == 0); }

}  // namespace slipstream
