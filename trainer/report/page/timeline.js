// SPDX-License-Identifier: Apache-2.0
// The timeline of the traced steps: for every rank the compute stream above its channels.
'use strict';

/// name, kind, item, awaited, channel of the awaited, op, type, operations, bytes, group
const [NAME, KIND, ITEM, AWAITED, OF, OP, DTYPE, FLOPS, BYTES, GROUP] = Array(10).keys();
const KERNEL = 0, COMMUNICATION = 1, WAIT = 2, GAP = 3;

function paintOf(name, channel) {
  if (name[KIND] === GAP) return 'var(--gap)';
  if (name[KIND] === WAIT) return `var(--wait-${purpose(name[OF])})`;
  if (channel !== 'compute') return `var(--${purpose(channel)})`;
  return /gradient|recompute/.test(name[ITEM] || name[NAME]) ? 'var(--backward)'
    : /update|clip|sum_squares|norm$|^add\./.test(name[ITEM] || name[NAME]) ? 'var(--update)' : 'var(--forward)';
}

/// Returns the events of a rank by channel, each list by time. An event has the time for which it waits at its
/// beginning.
function eventsOf(trace, rank) {
  const byChannel = rank.channels.map(() => []), all = [];
  for (let i = 0; i < rank.spans.length; i += 5) {
    const [name, channel, step, begin, ns] = rank.spans.slice(i, i + 5);
    all.push({name: trace.names[name], step, begin, end: begin + ns, waits: 0});
    byChannel[channel].push(all[all.length - 1]);
  }
  for (let i = 0; i < (rank.waits || []).length; i += 2) all[rank.waits[i]].waits = rank.waits[i + 1];
  return byChannel;
}

const GAP_NAME = ['gap of the host', GAP, '', '', '', '', '', -1, -1, 0];
/// Returns compute with its gaps as events. In a gap neither a kernel nor a wait was in progress, so the host was late.
function withGaps(spans) {
  const least = 1000, full = [];
  let end = Infinity;
  for (const span of spans) {
    if (span.begin - end >= least) full.push({name: GAP_NAME, step: span.step, begin: end, end: span.begin, waits: 0});
    full.push(span);
    end = Math.max(end === Infinity ? -Infinity : end, span.end);
  }
  return full;
}

function timeline(run) {
  const trace = run.timeline;
  const predicted = new Map(run.tasks.map(row => [`${row[0]}:${row[1]}`, row]));
  // The rows are a rank's channels that have events. Every row has its events by time.
  const rows = [], starts = new Map();
  let end = 0;
  for (const rank of trace.ranks)
    eventsOf(trace, rank).forEach((spans, c) => {
      for (const span of spans) {
        end = Math.max(end, span.end);
        if (c === 0 && span.name[KIND] !== WAIT && span.begin < (starts.get(span.step) ?? Infinity)) starts.set(span.step, span.begin);
      }
      if (spans.length) rows.push({rank, channel: rank.channels[c], spans: c === 0 ? withGaps(spans) : spans, compute: c === 0});
    });
  const steps = [...starts.keys()].sort((a, b) => a - b);
  end = Math.max(end, 2000);
  if (!steps.length) { steps.push(trace.steps[0] ?? 0); starts.set(steps[0], 0); }
  const bounds = steps.map((step, i) => [starts.get(step), i + 1 < steps.length ? starts.get(steps[i + 1]) : end]);
  let chosen = Math.floor(steps.length / 2), [from, to] = bounds[chosen], selected = null;
  let range = null, matches = null;  // what is measured, and the set of events that were searched for
  to = Math.max(to, from + 2000);

  const host = h('div', {class: 'timeline'}), detail = h('p', {class: 'readout', 'aria-live': 'polite'});
  const label = 88, top = 24, computeHeight = 26, channelHeight = 15, gap = 5, rankGap = 15;
  let width = 0;
  const xOf = ns => label + (ns - from) / (to - from) * (width - label - 4);
  const nsOf = x => from + (x - label) / Math.max(1, width - label - 4) * (to - from);

  const facts = span => {
    const name = span.name, ns = span.end - span.begin, lines = [];
    if (name[KIND] === WAIT) {
      lines.push(`waits ${duration(ns)}${name[AWAITED] ? ` for ${name[AWAITED]}` : ''}${name[OF] ? ` (${PURPOSES[purpose(name[OF])]})` : ''}`);
    } else {
      lines.push(duration(ns));
      if (name[BYTES] > 0) lines.push(`${bytes(name[BYTES])}, ${rate(name[BYTES] / ns * 1e9)}`);
      if (name[FLOPS] > 0) lines.push(`${flops(name[FLOPS] / ns * 1e9)}`);
      if (name[OP]) lines.push(`${name[OP]} of ${name[GROUP]} ranks, ${name[DTYPE]}`);
      const rates = run.rates;
      if (name[KIND] === KERNEL && rates && name[FLOPS] >= 0 && rates[0] > 0 && rates[1] > 0) {
        const bound = 1e9 * Math.max(name[FLOPS] / rates[0], name[BYTES] / rates[1]);
        if (bound > 0) lines.push(`bound ${duration(bound)} by ${name[FLOPS] / rates[0] > name[BYTES] / rates[1] ? 'compute' : 'memory'}`);
      }
      const task = predicted.get(`${span.row.rank.stage}:${name[ITEM].replace(/\/[^/]*$/, '')}`);
      if (task && name[OP]) lines.push(`predicted ${duration(task[5] / task[4])}`);
      if (span.waits > 0) lines.push(`${duration(span.waits)} of it waits for its last member`);
    }
    return [`from ${duration(span.begin - (starts.get(span.step) ?? 0))} of step ${span.step}`, ...lines];
  };
  const where = span => `rank ${span.row.rank.rank}, ${span.row.channel}`;
  const sentence = span => `${span.name[NAME]} (${where(span)}): ${facts(span).join('; ')}`;

  for (const row of rows) for (const span of row.spans) span.row = row;
  for (const row of rows) row.longest = row.spans.reduce((most, span) => Math.max(most, span.end - span.begin), 0);

  /// Returns the index of the first event that may end at or after `ns`.
  const firstAt = (row, ns) => {
    let low = 0, high = row.spans.length;
    while (low < high) { const middle = (low + high) >> 1; row.spans[middle].begin < ns ? low = middle + 1 : high = middle; }
    return low;
  };
  const place = () => {
    let y = top, rank = null;
    for (const row of rows) {
      if (rank !== null && rank !== row.rank) y += rankGap;
      rank = row.rank;
      row.y = y; row.height = row.compute ? computeHeight : channelHeight;
      y += row.height + gap;
    }
    return y + 2;
  };
  const height = place();

  const draw = () => {
    const picture = s('svg', {height, viewBox: `0 0 ${width} ${height}`, 'aria-hidden': 'true'});
    const hatched = hatchOf(picture);
    for (const ns of ticks((from - bounds[chosen][0]) / 1e6, (to - bounds[chosen][0]) / 1e6, (width - label) / 85)) {
      const x = xOf(ns * 1e6 + bounds[chosen][0]);
      picture.append(s('line', {class: 'gridline', x1: x, x2: x, y1: top - 4, y2: height}),
        s('text', {x, y: 11, 'text-anchor': x > width - 30 ? 'end' : 'middle'}, `${Number(ns.toFixed(4))} ms`));
    }
    steps.forEach((step, i) => {
      const x = xOf(bounds[i][0]);
      if (x < label - 1 || x > width) return;
      picture.append(s('line', {class: 'axis', x1: x, x2: x, y1: 14, y2: height, 'stroke-width': 1.5}),
        x < width - 50 ? s('text', {class: 'strong', x: x + 4, y: 21}, `step ${step}`) : '');
    });
    let rank = null;
    for (const row of rows) {
      if (rank !== row.rank) picture.append(s('text', {class: 'strong', x: 0, y: row.y + 11}, `rank ${row.rank.rank}`));
      picture.append(s('text', {x: label - 8, y: row.y + (rank !== row.rank && row.compute ? 23 : row.height / 2 + 4), 'text-anchor': 'end'}, row.channel));
      rank = row.rank;
      // One path for each colour. Events that share a pixel are drawn as one.
      const paths = new Map(), texts = [];
      const add = (paint, x, wide, {thin, dim, above}) => {
        const key = `${paint} ${dim ? 1 : 0} ${above ? 1 : 0}`, path = paths.get(key) || {paint, dim, above, d: '', right: -1};
        if (wide < .6 && x < path.right + .3) return;
        const tall = thin ? 3 : row.height, y = thin ? row.y + row.height / 2 - 1.5 : row.y;
        path.d += `M${x.toFixed(2)} ${y}h${Math.max(.6, wide).toFixed(2)}v${tall}h-${Math.max(.6, wide).toFixed(2)}z`;
        path.right = x + Math.max(.6, wide);
        paths.set(key, path);
      };
      for (let i = firstAt(row, from - row.longest); i < row.spans.length && row.spans[i].begin < to; ++i) {
        const span = row.spans[i];
        if (span.end < from) continue;
        const left = Math.max(label, xOf(span.begin)), right = Math.min(width, xOf(span.end)), wait = span.name[KIND] === WAIT;
        const inset = right - left > 3 ? .4 : 0, dim = matches && !matches.has(span);
        add(wait && !row.compute ? 'var(--wait-local)' : paintOf(span.name, row.channel), left + inset, right - left - 2 * inset, {thin: wait && !row.compute, dim});
        const waited = Math.min(right, xOf(span.begin + span.waits)) - left;
        if (span.waits > 0 && waited > .6) add(hatched, left + inset, waited - inset, {above: true});
        const words = row.compute || !wait ? span.name[wait ? AWAITED : NAME] || span.name[NAME] : '';
        const dark = span.name[KIND] === GAP || waited > 5, letter = dark ? 7 : 6;
        if (right - left > 60 && words && !dim) texts.push(s('text', {x: left + 5, y: row.y + row.height / 2 + 4, class: dark ? 'strong' : 'inside'},
          words.length * letter > right - left - 8 ? words.slice(0, Math.max(3, Math.floor((right - left - 14) / letter))) + '…' : words));
      }
      for (const {paint, dim, above, d} of [...paths.values()].sort((a, b) => Boolean(a.above) - Boolean(b.above)))
        picture.append(s('path', {d, fill: paint, opacity: dim ? .22 : null}));
      picture.append(...texts);
      if (selected && selected.row === row && selected.end > from && selected.begin < to) {
        const left = Math.max(label, xOf(selected.begin)), right = Math.min(width, xOf(selected.end));
        picture.append(s('rect', {x: left - 1, y: row.y - 2, width: Math.max(3, right - left + 2), height: row.height + 4, fill: 'none', stroke: 'var(--ink)', 'stroke-width': 2, rx: 2}));
      }
    }
    if (range && range[1] > from && range[0] < to) {
      const left = Math.max(label, xOf(range[0])), right = Math.min(width, xOf(range[1])), middle = Math.max(label + 24, Math.min(width - 24, (left + right) / 2));
      picture.append(s('rect', {class: 'range', x: left, y: 14, width: Math.max(1, right - left), height: height - 14}),
        s('text', {class: 'strong', x: middle, y: 11, 'text-anchor': 'middle', 'paint-order': 'stroke', stroke: 'var(--card)', 'stroke-width': 5}, duration(range[1] - range[0])));
    }
    host.replaceChildren(picture);
    hover();
  };
  // The selector and the origin of the axis follow the view.
  const view = (a, b) => {
    const least = 2000, whole = Math.max(end, least), long = Math.min(Math.max(b - a, least), whole);
    from = Math.max(Math.min(a, whole - long), Math.min(0, whole - long)); to = from + long;
    chosen = Math.max(0, bounds.findLastIndex(([begin]) => begin <= (from + to) / 2));
    picker.value = steps.length > 1 && from <= bounds[0][0] && to >= end ? 'all' : String(chosen);
    draw();
  };
  const zoom = (factor, center = (from + to) / 2) => view(center - (center - from) * factor, center + (to - center) * factor);
  const pan = share => view(from + share * (to - from), to + share * (to - from));
  const choose = i => view(...bounds[Math.max(0, Math.min(steps.length - 1, i))]);
  const select = span => {
    selected = span;
    if (span.end < from || span.begin > to) view(span.begin - (to - from) / 2, span.begin + (to - from) / 2); else draw();
    detail.textContent = sentence(span);
  };
  const next = (by) => {
    const row = selected ? selected.row : rows[0];
    const i = selected ? row.spans.indexOf(selected) + by : firstAt(row, from);
    if (row.spans[i]) select(row.spans[i]);
  };
  const otherRow = by => {
    const i = rows.indexOf(selected ? selected.row : rows[0]) + (selected ? by : 0);
    if (!rows[i]) return;
    const at = selected ? selected.begin : from;
    select(rows[i].spans[Math.min(rows[i].spans.length - 1, firstAt(rows[i], at))]);
  };
  const found = event => {
    const box = host.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
    const row = rows.find(one => y >= one.y - 2 && y <= one.y + one.height + 3);
    if (!row || x < label) return null;
    const reach = (to - from) / Math.max(1, width - label) * 1.5, ns = nsOf(x);
    let best = null, distance = Infinity;
    for (let i = firstAt(row, ns - row.longest - reach); i < row.spans.length && row.spans[i].begin <= ns + reach; ++i) {
      const span = row.spans[i], apart = Math.max(0, span.begin - ns, ns - span.end);
      if (apart <= reach && (apart < distance || (apart === distance && span.end - span.begin < best.end - best.begin))) { best = span; distance = apart; }
    }
    return best;
  };
  /// Measures from `a` to `b`, or nothing.
  const measured = h('div', {class: 'measured'});
  const measure = (a, b) => {
    range = a === null || a === b ? null : [Math.max(0, Math.min(a, b)), Math.min(end, Math.max(a, b))];
    measured.replaceChildren(...(range ? totalsOf(rows, range, `of step ${steps[Math.max(0, bounds.findLastIndex(([begin]) => begin <= range[0]))]}`,
      range[0] - bounds[Math.max(0, bounds.findLastIndex(([begin]) => begin <= range[0]))][0], {zoom: () => view(...range), clear: () => measure(null)}) : []));
    draw();
  };
  const finder = finderOf(rows, {find: set => { matches = set; draw(); }, select: span => select(span), sentence});
  const keys = {'+': () => zoom(.6), '=': () => zoom(.6), '-': () => zoom(1 / .6), ArrowLeft: () => pan(-.2), ArrowRight: () => pan(.2),
    0: () => choose(chosen), '.': () => next(1), ',': () => next(-1), ArrowDown: () => otherRow(1), ArrowUp: () => otherRow(-1), Home: () => view(0, end),
    '[': () => selected && measure(selected.begin, range ? Math.max(range[1], selected.end) : selected.end),
    ']': () => selected && measure(range ? Math.min(range[0], selected.begin) : selected.begin, selected.end),
    Escape: () => measure(null), '/': () => finder.focus(), n: () => finder.next(1), N: () => finder.next(-1)};
  const silent = ['.', ',', 'ArrowUp', 'ArrowDown', '[', ']', '/', 'n', 'N'];
  fill(host, {tabindex: 0, role: 'application', 'aria-roledescription': 'timeline',
    'aria-label': 'Timeline of the traced steps. Plus and minus zoom, left and right move, comma and full stop go from event to event, up and down change the row, square brackets measure from and to the event, slash searches, n goes to the next match, 0 shows the step, Home shows all. Tables follow.',
    on: {keydown: event => {
      if (event.ctrlKey || event.metaKey || event.altKey || !keys[event.key]) return;
      event.preventDefault(); pointer = null; keys[event.key]();
      if (!silent.includes(event.key)) detail.textContent = `Shown: ${duration(from - bounds[chosen][0])} to ${duration(to - bounds[chosen][0])} of step ${steps[chosen]}`;
    }, wheel: event => {
      if (event.ctrlKey || event.metaKey) { event.preventDefault(); zoom(Math.exp(event.deltaY / 300), nsOf(event.clientX - host.getBoundingClientRect().left)); }
      else if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) { event.preventDefault(); pan(event.deltaX / Math.max(1, width - label)); }
    }, dblclick: event => zoom(.4, nsOf(event.clientX - host.getBoundingClientRect().left))}});
  // A drag measures, or moves the view: with Shift, with a finger, or after the button.
  let drag = null, pointer = null, measures = true;
  const hover = () => {
    const span = pointer && !drag && found(pointer);
    span ? showTip(pointer, h('b', {}, span.name[NAME]), where(span), h('br'), ...facts(span).flatMap(line => [line, h('br')])) : hideTip();
  };
  host.addEventListener('pointerdown', event => {
    drag = {x: event.clientX, from, to, moved: false, measures: measures !== (event.shiftKey || event.pointerType === 'touch')};
    try { host.setPointerCapture(event.pointerId); } catch { /* a pointer of a script */ }
  });
  host.addEventListener('pointermove', event => {
    if (drag && (drag.moved || Math.abs(event.clientX - drag.x) > 3)) {
      drag.moved = true; hideTip();
      if (drag.measures) {
        const place = x => nsOf(Math.max(label, Math.min(width, x - host.getBoundingClientRect().left)));
        return measure(place(drag.x), place(event.clientX));
      }
      host.classList.add('drags');
      const by = (drag.x - event.clientX) / Math.max(1, width - label) * (drag.to - drag.from);
      return view(drag.from + by, drag.to + by);
    }
    pointer = {clientX: event.clientX, clientY: event.clientY};
    hover();
  });
  host.addEventListener('pointerup', event => {
    const span = drag && !drag.moved && found(event);
    drag = null; host.classList.remove('drags');
    if (span) select(span);
  });
  host.addEventListener('pointercancel', () => { drag = null; host.classList.remove('drags'); });
  host.addEventListener('pointerleave', () => { pointer = null; hideTip(); });

  const picker = h('select', {'aria-label': 'Step of the timeline', on: {change: () => picker.value === 'all' ? view(0, end) : choose(Number(picker.value))}},
    steps.map((step, i) => h('option', {value: i, selected: i === chosen}, `step ${step}, ${duration(bounds[i][1] - bounds[i][0])}`)),
    steps.length > 1 ? h('option', {value: 'all'}, 'all steps') : null);
  const button = (name, title, action) => h('button', {type: 'button', title, 'aria-label': title, on: {click: action}}, name);
  const mover = h('button', {type: 'button', title: 'A drag moves the view instead of measuring', 'aria-pressed': 'false',
    on: {click: () => { measures = !measures; mover.setAttribute('aria-pressed', String(!measures)); host.classList.toggle('moves', !measures); }}}, 'Move');
  whenSized(host, wide => { width = wide; draw(); });

  const key = legend(legendOf(rows));

  // For screen readers and copies: what every rank's rows held in the chosen steps, and the longest waits.
  const sums = rows.map(row => {
    const {events, busy, waits: waited} = totalOf(row, 0, Infinity);
    return [`rank ${row.rank.rank}, ${row.channel}`, events, data(busy / steps.length / 1e6, duration(busy / steps.length)),
      data(waited / steps.length / 1e6, duration(waited / steps.length))];
  });
  const longest = rows.filter(row => row.compute).flatMap(row => row.spans.filter(span => span.name[KIND] === WAIT))
    .sort((a, b) => b.end - b.begin - (a.end - a.begin)).slice(0, 20)
    .map(span => [span.name[NAME], `rank ${span.row.rank.rank}`, span.step, span.name[AWAITED] || '-', data((span.end - span.begin) / 1e6, duration(span.end - span.begin))]);
  return [
    h('div', {class: 'tools'}, steps.length > 1 ? picker : null, button('+', 'Zoom in', () => zoom(.6)), button('−', 'Zoom out', () => zoom(1 / .6)),
      button('←', 'Move left', () => pan(-.3)), button('→', 'Move right', () => pan(.3)), mover, button('Step', 'Show the chosen step', () => choose(chosen)),
      steps.length > 1 ? button('All', 'Show all steps', () => view(0, end)) : null, finder.parts),
    h('p', {class: 'keys'}, 'A drag measures, and moves the view with Shift. Ctrl + wheel, + and − zoom, arrows move; , and . go from event to event, [ and ] measure it, / searches.'),
    host, key, detail, measured,
    fold('Table: time of every row in a mean step', table('Time in a mean step by row', [{name: 'row'}, {name: 'events', n: true}, {name: 'busy', n: true}, {name: 'waits', n: true}], sums)),
    longest.length ? fold('Table: longest waits of compute', table('Longest waits of compute', [{name: 'wait'}, {name: 'rank'}, {name: 'step', n: true}, {name: 'waits for'}, {name: 'time', n: true}], longest)) : null,
  ];
}
