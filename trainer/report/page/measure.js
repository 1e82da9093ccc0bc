// SPDX-License-Identifier: Apache-2.0
// What a part of the timeline contains, the search for events, and the legend of their colours.
'use strict';

/// Returns the events of a row between two times, what they cover there, and the waits among them. A communication
/// counts as a wait while it waits for its last member.
function totalOf(row, from, to) {
  const total = {events: 0, busy: 0, waits: 0, gaps: 0};
  for (const span of row.spans) {
    const inside = (a, b) => Math.max(0, Math.min(b, to) - Math.max(a, from)), ns = inside(span.begin, span.end);
    if (span.begin >= to || span.end <= from) continue;
    const kind = span.name[KIND], waits = inside(span.begin, span.begin + span.waits);
    if (kind === GAP) { total.gaps += ns; continue; }
    ++total.events;
    total.waits += kind === WAIT ? ns : waits;
    total.busy += kind === WAIT ? 0 : ns - waits;
  }
  return total;
}

/// Returns the elements below the timeline for a measured range.
function totalsOf(rows, [from, to], step, begin, {zoom, clear}) {
  const long = to - from, time = ns => [data(ns / 1e6, duration(ns)), ` (${percent(ns / long)})`];
  const body = rows.map(row => [row, totalOf(row, from, to)]).filter(([, total]) => total.events > 0 || total.gaps > 0)
    .map(([row, {events, busy, waits, gaps}]) => [`rank ${row.rank.rank}, ${row.channel}`, events, time(busy), waits > 0 ? time(waits) : '-', gaps > 0 ? time(gaps) : '-']);
  return [h('p', {class: 'readout', role: 'status'}, 'Measured: ', h('b', {}, data(long / 1e6, duration(long))), ` from ${duration(begin)} ${step}`),
    h('p', {class: 'tools'}, h('button', {type: 'button', on: {click: zoom}}, 'Zoom to it'), h('button', {type: 'button', on: {click: clear}}, 'Clear')),
    table('Totals in the measured range', [{name: 'row'}, {name: 'events', n: true}, {name: 'busy', n: true}, {name: 'waits', n: true}, {name: 'gaps of the host', n: true}], body)];
}

/// Returns the events whose names or tasks have all words of `text`, by time.
function matching(rows, text) {
  const words = text.toLowerCase().split(/\s+/).filter(word => word), known = new Map();
  if (!words.length) return [];
  const fits = name => {
    if (!known.has(name)) known.set(name, words.every(word => `${name[NAME]} ${name[OP]} ${name[AWAITED]}`.toLowerCase().includes(word)));
    return known.get(name);
  };
  return rows.flatMap(row => row.spans.filter(span => fits(span.name))).sort((a, b) => a.begin - b.begin);
}

/// Makes the search field: Enter and Shift + Enter go from match to match. find(set or null) marks the matches.
function finderOf(rows, {find, select, sentence}) {
  let found = [], at = -1;
  const status = h('span', {class: 'found', role: 'status'});
  const tell = () => {
    const total = found.reduce((sum, span) => sum + span.end - span.begin, 0);
    status.textContent = !field.value.trim() ? '' : !found.length ? 'no event' : `${at >= 0 ? `${at + 1} of ` : ''}${count(found.length)} event${found.length === 1 ? '' : 's'}, ${duration(total)}`;
  };
  const next = by => {
    if (!found.length) return;
    at = at < 0 ? (by > 0 ? 0 : found.length - 1) : (at + by + found.length) % found.length;
    select(found[at]);
    tell();
  };
  const field = h('input', {type: 'search', placeholder: 'Search events', 'aria-label': 'Search events by words of their names', on: {
    input: () => { found = matching(rows, field.value); at = -1; find(found.length ? new Set(found) : null); tell(); },
    keydown: event => {
      if (event.key === 'Enter') { event.preventDefault(); next(event.shiftKey ? -1 : 1); }
      if (event.key === 'Escape') { field.value = ''; found = []; at = -1; find(null); tell(); }
    }}});
  return {parts: [field, status], focus: () => field.focus(), next, sentence};
}

/// Returns the colours of the rows' events.
function legendOf(rows) {
  const spans = rows.flatMap(row => row.spans.map(span => [row, span]));
  const some = test => spans.some(([row, span]) => test(span, row));
  const kinds = new Set(rows.filter(row => !row.compute).map(row => purpose(row.channel)));
  const waits = new Set(spans.filter(([row, span]) => row.compute && span.name[KIND] === WAIT).map(([, span]) => purpose(span.name[OF])));
  const used = new Set(spans.filter(([row, span]) => row.compute && span.name[KIND] === KERNEL).map(([row, span]) => paintOf(span.name, row.channel)));
  return [...[['forward', 'var(--forward)'], ['backward', 'var(--backward)'], ['norm and update', 'var(--update)']].filter(([, paint]) => used.has(paint)),
    ...Object.keys(PURPOSES).filter(kind => kinds.has(kind)).map(kind => [PURPOSES[kind], `var(--${kind})`]),
    some(span => span.waits > 0) && ['transfer waits for another rank', 'var(--soft)', 'hatched'],
    some((span, row) => !row.compute && span.name[KIND] === WAIT) && ['channel waits for compute', 'var(--wait-local)', 'line'],
    ...Object.keys(PURPOSES).filter(kind => waits.has(kind)).map(kind => [`compute waits for ${PURPOSES[kind]}`, `var(--wait-${kind})`]),
    some(span => span.name[KIND] === GAP) && ['gaps of the host', 'var(--gap)']].filter(one => one);
}
