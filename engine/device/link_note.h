// SPDX-License-Identifier: Apache-2.0
#pragma once
// Lets a communication work, on a stream's thread, report the time of its own link for the span that the stream writes.

#include <cstdint>
#include <utility>

namespace slipstream {

namespace detail {
inline thread_local int64_t noted_link_ns = -1;
}

/// A work calls this with the time for which this rank's bytes were on their way although all members had entered.
inline void note_link_ns(int64_t ns) { detail::noted_link_ns = ns; }

/// The stream calls this after the work. Returns -1 if the work left no note.
inline int64_t take_link_note_ns() { return std::exchange(detail::noted_link_ns, -1); }

}  // namespace slipstream
