// SPDX-License-Identifier: Apache-2.0
#pragma once
// A communication work on a stream's thread leaves the time of its own link for the span that the stream writes.

#include <cstdint>
#include <utility>

namespace slipstream {

namespace detail {
inline thread_local int64_t noted_link_ns = -1;
}

/// Called by a work: for so long, this rank's bytes were on their way although all members had entered.
inline void note_link_ns(int64_t ns) { detail::noted_link_ns = ns; }

/// Called by the stream behind the work; -1 if the work left no note.
inline int64_t take_link_note_ns() { return std::exchange(detail::noted_link_ns, -1); }

}  // namespace slipstream
