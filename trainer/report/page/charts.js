// SPDX-License-Identifier: Apache-2.0
// Curves over steps: lines with their spread, and stacked areas. Arrow keys move the cursor from column to column.
'use strict';

const MARKS = {
  checkpoint: ['Checkpoint', 'var(--c2)'], skipped: ['Skipped update', 'var(--c5)'], straggler: ['Straggler', 'var(--c8)'],
  stall: ['Stall', 'var(--c4)'], fault: ['Fault', 'var(--c4)'], relaunch: ['Relaunch', 'var(--c1)'], event: ['Event', 'var(--c9)'],
};

/// Returns the path of a line with gaps where there is no value. A point without neighbours gets a dot.
function linePath(points) {
  let path = '', open = false;
  points.forEach(([x, y], i) => {
    if (y === null) { open = false; return; }
    path += `${open ? 'L' : 'M'}${x.toFixed(1)} ${y.toFixed(1)}`;
    const next = points[i + 1];
    if (!open && (!next || next[1] === null)) path += 'h.01';
    open = true;
  });
  return path;
}
function bandPath(upper, lower) {
  let path = '', from = -1;
  const close = end => {
    if (from < 0 || end - from < 1) { from = -1; return; }
    const there = upper.slice(from, end), back = lower.slice(from, end).reverse();
    path += 'M' + [...there, ...back].map(([x, y]) => `${x.toFixed(1)} ${y.toFixed(1)}`).join('L') + 'Z';
    from = -1;
  };
  upper.forEach((point, i) => { if (point[1] === null) close(i); else if (from < 0) from = i; });
  close(upper.length);
  return path;
}

/// options: {title, unit, format, exact (of read values), series, marks, stacked, log, height}; a series: {name, color, starts, last, mean, min,
/// max, dots}. All series of a stacked chart have the same columns.
function chart(options) {
  const format = options.format || digits, exact = options.exact || format, height = options.height || 210;
  const all = options.series.filter(one => one.mean.some(is));
  if (!all.length) return null;
  const plot = h('div', {class: 'plot'}), readout = h('p', {class: 'readout', 'aria-live': 'polite'});
  const first = Math.min(...all.map(one => one.starts[0])), last = Math.max(...all.map(one => one.last));
  // Stacked values add up from the first series.
  const stack = [];
  if (options.stacked) {
    const sums = all[0].mean.map(() => 0);
    for (const one of all) {
      const below = sums.slice();
      one.mean.forEach((value, i) => { sums[i] += is(value) ? value : 0; });
      stack.push([below, sums.slice()]);
    }
  }
  let high = -Infinity, low = Infinity;
  const see = value => { if (is(value)) { high = Math.max(high, value); low = Math.min(low, value); } };
  if (options.stacked) { low = 0; stack[stack.length - 1][1].forEach(see); }
  for (const one of all) if (!options.stacked) for (const values of [one.mean, one.min, one.max]) (values || []).forEach(see);
  (options.over || []).forEach(one => one.mean.forEach(see));
  const log = options.log && low > 0 && high / low > 30;
  if (options.zero && !log) low = Math.min(0, low);
  if (high === low) { high += Math.abs(high) * .1 || 1; low -= low === 0 ? 0 : Math.abs(low) * .1; }
  const up = value => log ? Math.log10(value) : value;
  if (!log) { const places = ticks(low, high, 4), step = places.length > 1 ? places[1] - places[0] : 0;
    if (step) { low = Math.min(low, Math.floor(low / step + 1e-9) * step); high = Math.max(high, Math.ceil(high / step - 1e-9) * step); } }

  let place = null, cursor = null, at = -1;
  const longest = all.reduce((a, b) => b.starts.length > a.starts.length ? b : a);
  const text = i => {
    const step = longest.starts[i], next = longest.starts[i + 1] ?? longest.last + 1;
    const range = next - step > 1 ? `steps ${step} to ${next - 1}` : `step ${step}`;
    const values = [...all, ...(options.over || [])].map(one => {
      let k = one.starts.findLastIndex(start => start <= step);
      if (one.dots) { k = -1; one.mean.forEach((value, j) => { if (is(value) && one.starts[j] >= step && one.starts[j] < next) k = j; }); }
      if (k < 0 || !is(one.mean[k])) return null;
      const spread = one.min && is(one.min[k]) && one.min[k] !== one.max[k] ? ` (${exact(one.min[k])} to ${exact(one.max[k])})` : '';
      return `${one.name} ${exact(one.mean[k])}${spread}`;
    }).filter(value => value);
    return `${range}: ${values.join(', ')}`;
  };
  const select = i => {
    if (!place) return;
    at = Math.max(0, Math.min(longest.starts.length - 1, i));
    const x = place(longest.starts[at]);
    cursor.setAttribute('x1', x); cursor.setAttribute('x2', x); cursor.removeAttribute('visibility');
    readout.textContent = text(at);
  };
  const draw = width => {
    const left = 46, right = 10, top = 8, bottom = 22, wide = width - left - right, tall = height - top - bottom;
    place = step => left + (last > first ? (step - first) / (last - first) : .5) * wide;
    const y = value => is(value) ? top + tall * (1 - (up(value) - up(low)) / (up(high) - up(low))) : null;
    const picture = s('svg', {height, viewBox: `0 0 ${width} ${height}`, role: 'img', tabindex: 0,
      'aria-label': `${options.title}, ${all.map(one => one.name).join(', ')} over steps ${first} to ${last}. Arrow keys read the values; a table follows.`,
      on: {keydown: event => {
        const moves = {ArrowLeft: at - 1, ArrowRight: at + 1, PageUp: at - 20, PageDown: at + 20, Home: 0, End: longest.starts.length - 1};
        if (!(event.key in moves)) return;
        event.preventDefault(); select(moves[event.key]);
      }, focus: () => { if (at < 0) select(longest.starts.length - 1); },
      pointermove: event => {
        const box = picture.getBoundingClientRect();
        const step = first + (event.clientX - box.left - left) / Math.max(1, wide) * (last - first);
        select(longest.starts.findLastIndex(start => start <= step + (last - first) / Math.max(1, wide) / 2));
      }}});
    const places = log ? ticks(Math.ceil(up(low) - 1e-9), Math.floor(up(high) + 1e-9), 4).filter(Number.isInteger).map(p => 10 ** p) : ticks(low, high, 4);
    for (const value of places) picture.append(
      s('line', {class: 'gridline', x1: left, x2: width - right, y1: y(value), y2: y(value)}),
      s('text', {x: left - 7, y: y(value) + 4, 'text-anchor': 'end'}, format(value)));
    for (const step of ticks(first, last, wide / 90)) if (Number.isInteger(step)) picture.append(
      s('text', {x: place(step), y: height - 6, 'text-anchor': 'middle'}, count(step)));
    picture.append(s('line', {class: 'axis', x1: left, x2: width - right, y1: top + tall, y2: top + tall}));
    all.forEach((one, k) => {
      const xs = one.starts.map(place);
      if (options.stacked) {
        const ends = one.mean.length === 1 ? [left, width - right] : xs;
        const [below, above] = one.mean.length === 1 ? stack[k].map(row => [row[0], row[0]]) : stack[k];
        picture.append(s('path', {d: bandPath(ends.map((x, i) => [x, y(above[i])]), ends.map((x, i) => [x, y(below[i])])), fill: one.color}));
        return;
      }
      if (one.min) picture.append(s('path', {d: bandPath(xs.map((x, i) => [x, y(one.max[i])]), xs.map((x, i) => [x, y(one.min[i])])), fill: one.color, opacity: .22}));
      if (one.dots) one.mean.forEach((value, i) => { if (is(value)) picture.append(s('circle', {cx: xs[i], cy: y(value), r: 3.2, fill: one.color})); });
      const points = one.mean.map((value, i) => [xs[i], y(value)]);
      picture.append(s('path', {d: linePath(one.dots ? points.filter(point => point[1] !== null) : points), fill: 'none', stroke: one.color,
        'stroke-width': one.dots ? 1.2 : 1.6, 'stroke-linejoin': 'round', 'stroke-linecap': 'round'}));
    });
    for (const one of options.over || []) picture.append(s('path', {d: linePath(one.starts.map((step, i) => [place(step), y(one.mean[i])])),
      fill: 'none', stroke: one.color, 'stroke-width': 1.6, 'stroke-dasharray': '5 4'}));
    for (const mark of options.marks || []) if (is(mark.step) && mark.step >= first && mark.step <= last) {
      const x = place(mark.step), [name, paint] = MARKS[mark.kind] || MARKS.event, quiet = mark.kind === 'checkpoint';
      picture.append(s('g', {}, s('title', {}, `${name}: ${mark.text}`),
        quiet ? null : s('line', {x1: x, x2: x, y1: top, y2: top + tall, stroke: paint, 'stroke-width': 1.5, 'stroke-dasharray': '4 3'}),
        s('path', {d: `M${x - 4} ${top + tall + 1}h8l-4 -7z`, fill: paint})));
    }
    cursor = s('line', {class: 'cursor', y1: top, y2: top + tall, visibility: 'hidden'});
    picture.append(cursor);
    showPicture(plot, picture);
    if (at >= 0) select(at);
  };
  whenSized(plot, draw);
  const shown = [...all, ...(options.over || [])];
  const kinds = [...new Set((options.marks || []).filter(mark => is(mark.step)).map(mark => mark.kind))].filter(kind => MARKS[kind]);
  const key = shown.length > 1 || kinds.length ? legend([...(shown.length > 1 || options.named ? shown.map(one => [one.name, one.color, !all.includes(one) ? 'dashed' : options.stacked ? '' : one.dots ? 'dots' : 'line']) : []),
    ...kinds.map(kind => MARKS[kind])]) : null;
  const every = Math.max(1, Math.ceil(longest.starts.length / 40));
  const rows = longest.starts.map((step, i) => i).filter(i => i % every === 0 || i === longest.starts.length - 1).map(i => {
    const step = longest.starts[i], next = longest.starts[Math.min(longest.starts.length, i + every)] ?? longest.last + 1;
    return [step, ...shown.map(one => {
      const found = one.starts.findIndex((start, j) => start >= step && start < next && is(one.mean[j]));
      return found < 0 ? '' : data(one.mean[found], exact(one.mean[found]));
    })];
  });
  return h('figure', {}, h('h3', {}, options.title, options.unit ? h('span', {class: 'subtitle'}, `, ${options.unit}`) : null),
    plot, key, readout, fold('Table of values', table(options.title, [{name: 'step'}, ...shown.map(one => ({name: one.name, n: true}))], rows)));
}

/// Returns the series `name` of a run for chart(), or null if the run has none.
function seriesOf(run, name, label, paint, extra) {
  const curves = run.curves, found = curves && curves.series[name];
  return found && found.mean.some(is) ? {name: label, color: paint, starts: curves.starts, last: curves.last, ...found, ...extra} : null;
}
