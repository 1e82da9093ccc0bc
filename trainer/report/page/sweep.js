// SPDX-License-Identifier: Apache-2.0
// The page of a sweep: scaling, links, buckets, memory, and a table of all points.
'use strict';

const UNITS = {ns: 1e-9, us: 1e-6, ms: 1e-3, s: 1, min: 60};
['B', 'bit'].forEach(kind => ['', 'k', 'M', 'G', 'T', 'Ki', 'Mi', 'Gi', 'Ti'].forEach((prefix, i) => {
  UNITS[prefix + kind] = (kind === 'bit' ? .125 : 1) * (i < 5 ? 1000 ** i : 1024 ** (i - 4));
}));
/// Returns "25MiB" in bytes, "1Gbit/s" in bytes per second, "3" as a number; NaN for other texts.
function quantity(text) {
  const found = /^\s*([0-9.eE+-]+)\s*([A-Za-z]*)(\/s)?\s*$/.exec(text);
  return found ? Number(found[1]) * (found[2] ? UNITS[found[2]] ?? NaN : 1) : NaN;
}

const mean = (point, key) => (point.figures[key] || [])[0];
const settingOf = (point, key) => key === 'ranks' ? String(point.ranks) : (point.settings.find(row => row[0] === key) || [])[1] ?? 'default';
const nameOf = (point, keys) => keys.map(key => `${key.replace(/^.*\./, '').replaceAll('_', ' ')} ${settingOf(point, key)}`).join(', ') || 'all points';

/// Returns the points that differ only in `key`: [{name, points}], with the points sorted by the quantity of `key`.
function groupsBy(sweep, key) {
  const others = sweep.varied.filter(other => other !== key), groups = new Map();
  for (const point of sweep.points) {
    const x = quantity(settingOf(point, key));
    if (!is(x) || !is(mean(point, 'step_ms'))) continue;
    const name = nameOf(point, others);
    if (!groups.has(name)) groups.set(name, []);
    groups.get(name).push({point, x, text: settingOf(point, key)});
  }
  return [...groups].map(([name, points]) => ({name, points: points.sort((a, b) => a.x - b.x)}));
}

/// Returns round positions on a logarithmic axis.
function logTicks(low, high) {
  const places = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); ++power) for (const digit of [1, 2, 5]) places.push(digit * 10 ** power);
  const inside = places.filter(place => place >= low && place <= high);
  return inside.length > 6 ? inside.filter(place => String(place.toPrecision(1)).startsWith('1')) : inside.length > 1 ? inside : ticks(low, high, 3);
}

/// Draws lines through points with their intervals. A line: {name, color, dashed, points: [{x, text, y, low, high}]}.
/// options: {title, unit, format, lines, xName, logX, logY}
function pointChart({title, unit, format, lines, xName, logX, logY}) {
  const shown = lines.filter(line => line.points.some(one => is(one.y))), all = shown.flatMap(line => line.points.filter(one => is(one.y)));
  if (!all.length) return null;
  const places = new Map([...all].sort((a, b) => a.x - b.x).map(one => [one.x, one.text])), xs = [...places.keys()];
  const values = all.flatMap(one => [one.y, one.low, one.high]).filter(is);
  const withLogX = logX && xs[0] > 0, withLogY = logY && Math.min(...values) > 0;
  const toX = x => withLogX ? Math.log(x) : x, toY = y => withLogY ? Math.log10(y) : y;
  let low = withLogY ? Math.min(...values) / 1.15 : Math.min(0, ...values), high = Math.max(...values) * (withLogY ? 1.15 : 1);
  if (high <= low) high = low + 1;
  if (!withLogY) { const marks = ticks(low, high, 4); if (marks.length > 1) high = Math.max(high, Math.ceil(high / (marks[1] - marks[0]) - 1e-9) * (marks[1] - marks[0])); }
  const plot = h('div', {class: 'plot'}), readout = h('p', {class: 'readout', 'aria-live': 'polite'}), height = 240;
  let at = -1, cursor = null, place = null;
  const valueAt = (line, x) => line.points.find(one => one.x === x && is(one.y));
  const cellOf = one => one ? format(one.y) + (is(one.low) ? ` (${format(one.low)} to ${format(one.high)})` : '') : '';
  const select = i => {
    if (!place) return;
    at = Math.max(0, Math.min(xs.length - 1, i));
    cursor.setAttribute('x1', place(xs[at])); cursor.setAttribute('x2', place(xs[at])); cursor.removeAttribute('visibility');
    readout.textContent = `${xName} ${places.get(xs[at])}: ${shown.map(line => [line.name, cellOf(valueAt(line, xs[at]))]).filter(row => row[1]).map(row => row.join(' ')).join(', ')}`;
  };
  whenSized(plot, width => {
    const left = 56, right = 14, top = 8, bottom = 36, wide = width - left - right, tall = height - top - bottom;
    const first = toX(xs[0]), last = toX(xs[xs.length - 1]);
    place = x => left + (last > first ? (toX(x) - first) / (last - first) : .5) * wide;
    const y = value => top + tall * (1 - (toY(value) - toY(low)) / (toY(high) - toY(low)));
    const picture = s('svg', {height, viewBox: `0 0 ${width} ${height}`, role: 'img', tabindex: 0,
      'aria-label': `${title} against ${xName}, ${shown.map(line => line.name).join(', ')}. Arrow keys read the values; a table follows.`,
      on: {keydown: event => {
        const moves = {ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: xs.length - 1};
        if (event.key in moves) { event.preventDefault(); select(moves[event.key]); }
      }, focus: () => { if (at < 0) select(0); },
      pointermove: event => {
        const where = event.clientX - picture.getBoundingClientRect().left;
        select(xs.reduce((best, x, i) => Math.abs(place(x) - where) < Math.abs(place(xs[best]) - where) ? i : best, 0));
      }}});
    const levels = withLogY ? logTicks(low, high) : ticks(low, high, 4);
    for (const value of levels) picture.append(s('line', {class: 'gridline', x1: left, x2: width - right, y1: y(value), y2: y(value)}),
      s('text', {x: left - 7, y: y(value) + 4, 'text-anchor': 'end'}, format(Number(value.toPrecision(3)))));
    let free = -Infinity;
    for (const [x, text] of places) if (place(x) - text.length * 3.2 > free) {
      picture.append(s('text', {x: place(x), y: height - 20, 'text-anchor': 'middle'}, text));
      free = place(x) + text.length * 3.2 + 6;
    }
    picture.append(s('text', {x: left + wide / 2, y: height - 3, 'text-anchor': 'middle'}, xName),
      s('line', {class: 'axis', x1: left, x2: width - right, y1: top + tall, y2: top + tall}));
    for (const line of shown) {
      const points = line.points.filter(one => is(one.y));
      picture.append(s('path', {d: linePath(points.map(one => [place(one.x), y(one.y)])), fill: 'none', stroke: line.color, 'stroke-width': 1.6,
        'stroke-dasharray': line.dashed ? '5 4' : null, 'stroke-linejoin': 'round'}));
      if (!line.dashed) for (const one of points) picture.append(
        is(one.low) && (!withLogY || one.low > 0) ? s('path', {d: `M${place(one.x)} ${y(one.low)}V${y(one.high)}m-4 0h8M${place(one.x) - 4} ${y(one.low)}h8`, stroke: line.color}) : '',
        s('circle', {cx: place(one.x), cy: y(one.y), r: 3.4, fill: line.color}));
    }
    cursor = s('line', {class: 'cursor', y1: top, y2: top + tall, visibility: 'hidden'});
    picture.append(cursor);
    showPicture(plot, picture);
    if (at >= 0) select(at);
  });
  const rows = xs.map(x => [places.get(x), ...shown.map(line => { const one = valueAt(line, x); return one ? data(one.y, cellOf(one)) : ''; })]);
  return h('figure', {}, h('h3', {}, title, unit ? h('span', {class: 'subtitle'}, `, ${unit}`) : null), plot,
    shown.length > 1 ? legend([...new Map(shown.map(line => [line.legend || line.name, [line.legend || line.name, line.color, line.dashed ? 'dashed' : 'line']])).values()]) : null, readout,
    fold('Table of values', table(title, [{name: xName}, ...shown.map(line => ({name: line.name, n: true}))], rows)));
}

/// Returns the line of a figure over the points of a group. `of` changes the value: a share to per cent, a time to
/// a rate.
function lineOf(group, key, name, paint, of = value => value, dashed = false) {
  return {name, color: paint, dashed, points: group.points.map(({point, x, text}) => {
    const [y, low, high] = (point.figures[key] || []).map(value => is(value) ? of(value, point, x) : value);
    return {x, text, y, ...(dashed ? {} : {low: is(low) && is(high) ? Math.min(low, high) : null, high: is(low) && is(high) ? Math.max(low, high) : null})};
  })};
}

/// Returns 'strong' if the work of all ranks together is equal, and 'weak' if the work of a rank is equal.
function kindOfScaling(points) {
  const same = values => values.every(value => is(value) && Math.abs(value - values[0]) <= 1e-9 * Math.abs(values[0]));
  return same(points.map(({point}) => mean(point, 'tokens'))) ? 'strong' : same(points.map(({point, x}) => mean(point, 'tokens') / x)) ? 'weak' : '';
}

function scaling(sweep) {
  if (!sweep.varied.includes('ranks')) return null;
  const groups = groupsBy(sweep, 'ranks').filter(group => group.points.length > 1);
  if (!groups.length) return null;
  const kinds = [...new Set(groups.map(group => kindOfScaling(group.points)))], title = kinds.length === 1 && kinds[0] ? `${kinds[0] === 'strong' ? 'Strong' : 'Weak'} scaling` : 'Scaling';
  const several = groups.length > 1, named = (group, text) => several ? `${group.name}: ${text}` : text;
  const speed = groups.flatMap((group, i) => {
    const first = group.points[0], base = mean(first.point, 'tokens_per_s') / first.x;
    return [lineOf(group, 'tokens_per_s', named(group, 'measured'), color(i)),
      {name: named(group, 'ideal'), legend: 'ideal', color: 'var(--soft)', dashed: true, points: group.points.map(({x, text}) => ({x, text, y: base * x}))},
      lineOf(group, 'forecast_ms', named(group, 'forecast'), color(i), (ms, point) => mean(point, 'tokens') / ms * 1000, true)];
  });
  const share = groups.map((group, i) => {
    const first = group.points[0], base = mean(first.point, 'tokens_per_s') / first.x;
    return lineOf(group, 'tokens_per_s', group.name, color(i), (rate, point, x) => 100 * rate / (base * x));
  });
  const lead = {strong: 'All points train on the same number of tokens in a step.', weak: 'Every rank has the same number of tokens in a step.'}[kinds.length === 1 ? kinds[0] : ''] || '';
  return [h('p', {class: 'lead'}, `${lead} Ideal is the speed of the fewest ranks times the ranks. The forecast is the plan’s step before the run.`),
    h('div', {class: 'grid'}, pointChart({title, unit: 'tokens per second', format: count, lines: speed, xName: 'ranks', logX: true, logY: true}),
      pointChart({title: 'Efficiency', unit: '% of ideal', format: digits, lines: share, xName: 'ranks', logX: true}))];
}

function overKey(sweep, key, charts) {
  if (!sweep.varied.includes(key)) return null;
  const groups = groupsBy(sweep, key).filter(group => group.points.length > 1);
  if (!groups.length) return null;
  const several = groups.length > 1, drawn = charts.map(({title, unit, format, figure, text, of, forecast}) => pointChart({title, unit, format: format || digits, xName: key, logX: true,
    lines: groups.flatMap((group, i) => [lineOf(group, figure, several ? group.name : text, color(i), of),
      ...(forecast ? [lineOf(group, forecast, several ? `${group.name}: forecast` : 'forecast', color(i), of, true)] : [])])})).filter(one => one);
  return drawn.length ? h('div', {class: 'grid'}, drawn) : null;
}

/// Draws stacked bars, one for each point. parts: [[figure, name, color]].
function bars({title, unit, format, points, parts, label: nameOfPoint}) {
  const used = parts.filter(([key]) => points.some(point => mean(point, key) > 0));
  const total = point => used.reduce((sum, [key]) => sum + Math.max(0, mean(point, key) || 0), 0), most = Math.max(...points.map(total));
  if (!used.length || !(most > 0)) return null;
  const plot = h('div', {class: 'plot'}), row = 26, height = points.length * row + 22;
  whenSized(plot, width => {
    const left = Math.min(width * .42, 16 + 6.2 * Math.max(...points.map(point => nameOfPoint(point).length))), x = value => left + value / most * (width - left - 60);
    const picture = s('svg', {height, viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': `${title} of every point; a table follows.`});
    const unitOf = format === bytes ? 1024 ** Math.floor(Math.log(most) / Math.log(1024)) : 1;
    for (const value of ticks(0, most / unitOf, (width - left) / 110).map(place => place * unitOf)) picture.append(s('line', {class: 'gridline', x1: x(value), x2: x(value), y1: 0, y2: height - 18}),
      s('text', {x: x(value), y: height - 4, 'text-anchor': 'middle'}, format(value)));
    points.forEach((point, i) => {
      let sum = 0;
      const long = Math.floor((left - 10) / 6.2), text = nameOfPoint(point);
      picture.append(s('text', {x: left - 8, y: i * row + 15, 'text-anchor': 'end'}, text.length > long ? text.slice(0, Math.max(1, long - 1)) + '…' : text));
      for (const [key, name, paint] of used) {
        const value = Math.max(0, mean(point, key) || 0);
        if (value > 0) picture.append(s('rect', {x: x(sum), y: i * row + 3, width: Math.max(.5, x(sum + value) - x(sum)), height: row - 8, fill: paint}, s('title', {}, `${text}: ${name} ${format(value)}`)));
        sum += value;
      }
      picture.append(s('text', {class: 'strong', x: x(sum) + 6, y: i * row + 15}, format(sum)));
    });
    plot.replaceChildren(picture);
  });
  return h('figure', {}, h('h3', {}, title, unit ? h('span', {class: 'subtitle'}, `, ${unit}`) : null), plot, legend(used.map(([, name, paint]) => [name, paint])),
    fold('Table of values', table(title, [{name: 'point'}, ...used.map(([, name]) => ({name, n: true})), {name: 'total', n: true}],
      points.map(point => [nameOfPoint(point), ...used.map(([key]) => data(mean(point, key), is(mean(point, key)) ? format(mean(point, key)) : '')), data(total(point), format(total(point)))]))));
}

const pointName = (sweep, point) => nameOf(point, sweep.varied);

function stages(sweep) {
  if (!sweep.varied.includes('zero.stage')) return null;
  const points = sweep.points.filter(point => is(mean(point, 'memory_bytes')));
  const owners = [...new Set(points.flatMap(point => Object.keys(point.figures)))].filter(key => key.startsWith('memory.'));
  const sorted = [...points].sort((a, b) => a.ranks - b.ranks || quantity(settingOf(a, 'zero.stage')) - quantity(settingOf(b, 'zero.stage')));
  return bars({title: 'Memory of a rank', unit: 'by owner', format: bytes, points: sorted, label: point => pointName(sweep, point),
    parts: owners.map((key, i) => [key, key.slice('memory.'.length), color(i)])});
}

const steps = sweep => bars({title: 'Parts of the median step', unit: 'ms', format: digits, points: sweep.points.filter(point => is(mean(point, 'step_ms'))).slice(0, 60),
  label: point => pointName(sweep, point), parts: PARTS});

/// Draws the step of median length of each traced point, one above the other on one scale: compute above the channels.
function timelines(sweep) {
  const drawn = sweep.timelines.map(trace => {
    const rank = trace.ranks[0], starts = new Map();
    const spans = eventsOf(trace, rank).flatMap((list, channel) => (channel === 0 ? withGaps(list) : list).map(span => ({...span, channel})));
    for (const {name, channel, step, begin} of spans) if (channel === 0 && name[KIND] === KERNEL && begin < (starts.get(step) ?? Infinity)) starts.set(step, begin);
    const all = [...starts].sort((a, b) => a[0] - b[0]).map(([step, begin], i, list) => ({step, begin, end: i + 1 < list.length ? list[i + 1][1] : Math.max(...spans.map(span => span.end))}));
    const whole = (all.length > 1 ? all.slice(0, -1) : all).sort((a, b) => a.end - a.begin - (b.end - b.begin)), chosen = whole[Math.floor((whole.length - 1) / 2)];
    if (!chosen) return null;
    const inside = spans.filter(span => span.begin < chosen.end && span.end > chosen.begin && (span.channel === 0 || span.name[KIND] === COMMUNICATION));
    return {point: sweep.points[trace.point], rank, chosen, inside, channels: [...new Set(inside.map(span => span.channel))].sort((a, b) => a - b)};
  }).filter(one => one && one.inside.length);
  if (!drawn.length) return null;
  const longest = Math.max(...drawn.map(one => one.chosen.end - one.chosen.begin)), tall = 20, thin = 11, gap = 3, space = 34;
  const height = drawn.reduce((sum, one) => sum + space + tall + gap + (one.channels.length - 1) * (thin + gap), 24), plot = h('div', {class: 'plot'});
  whenSized(plot, width => {
    const left = 84, x = ns => left + ns / longest * (width - left - 6), picture = s('svg', {height, viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': 'A step of every traced point on one scale.'}), hatched = hatchOf(picture);
    for (const ms of ticks(0, longest / 1e6, (width - left) / 90)) picture.append(s('line', {class: 'gridline', x1: x(ms * 1e6), x2: x(ms * 1e6), y1: 0, y2: height - 18}),
      s('text', {x: x(ms * 1e6), y: height - 4, 'text-anchor': 'middle'}, `${digits(ms)} ms`));
    let y = 0;
    for (const {point, rank, chosen, inside, channels} of drawn) {
      picture.append(s('text', {class: 'strong', x: 0, y: y + 22}, `${pointName(sweep, point)}: ${duration(chosen.end - chosen.begin)}`));
      y += space - 6;
      for (const channel of channels) {
        const high = channel === 0 ? tall : thin;
        picture.append(s('text', {x: left - 8, y: y + high / 2 + 4, 'text-anchor': 'end'}, rank.channels[channel]));
        for (const span of inside) if (span.channel === channel) {
          const from = Math.max(span.begin, chosen.begin), to = Math.min(span.end, chosen.end);
          const words = s('title', {}, `${span.name[NAME]}: ${duration(span.end - span.begin)}${span.waits > 0 ? `, ${duration(span.waits)} of it waits for its last member` : ''}`);
          picture.append(s('rect', {x: x(from - chosen.begin), y, width: Math.max(.6, x(to - from) - left), height: high, fill: paintOf(span.name, rank.channels[channel])}, words));
          const waited = Math.min(to, span.begin + span.waits) - from;
          if (waited > 0) picture.append(s('rect', {x: x(from - chosen.begin), y, width: Math.max(.6, x(waited) - left), height: high, fill: hatched, 'pointer-events': 'none'}));
        }
        y += high + gap;
      }
      y += 6;
    }
    plot.replaceChildren(picture);
  });
  return [h('p', {class: 'lead'}, 'The traced step of median length of rank 0, of the first run of every point, on one scale.'),
    h('figure', {}, plot, legend(legendOf(drawn.flatMap(({rank, inside, channels}) => channels.map(channel =>
      ({compute: channel === 0, channel: rank.channels[channel], spans: inside.filter(span => span.channel === channel)}))))))];
}

function pointTable(sweep) {
  const half = (point, key) => { const [, low, high] = point.figures[key] || []; return is(low) && is(high) ? ` (${digits(low)} to ${digits(high)})` : ''; };
  const cell = (point, key, format) => is(mean(point, key)) ? [data(mean(point, key), format(mean(point, key))), half(point, key)] : '';
  const columns = [['step_ms', 'step, ms', digits], ['forecast_ms', 'forecast, ms', digits], ['tokens_per_s', 'tok/s', count], ['comm_ms', 'communication, ms', digits],
    ['exposed_ms', 'exposed, ms', digits], ['hidden', 'hidden', percent], ['memory_bytes', 'memory of a rank', bytes], ['loss', 'last loss', lossText]]
    .filter(([key]) => sweep.points.some(point => is(mean(point, key))));
  return [h('p', {class: 'lead'}, 'Medians over the runs of a point, in parentheses the 95 % confidence interval of the step, or with fewer than six runs their range. The first two steps of a run do not count.'),
    table('All points', [{name: 'point'}, {name: 'runs', n: true}, {name: 'failed', n: true}, ...columns.map(([, name]) => ({name, n: true}))], sweep.points.map(point => [pointName(sweep, point),
      h('td', {class: 'n'}, data(point.runs, String(point.runs))), h('td', {class: `n${point.failed ? ' bad' : ''}`}, String(point.failed)),
      ...columns.map(([key, , format]) => h('td', {class: 'n'}, key === 'step_ms' ? cell(point, key, format) : is(mean(point, key)) ? data(mean(point, key), format(mean(point, key))) : ''))]))];
}

function failures(sweep) {
  const failed = sweep.points.filter(point => point.failed > 0);
  return failed.length ? table('Failed runs', [{name: 'point'}, {name: 'runs', n: true}, {name: 'reason of the first'}], failed.map(point => [pointName(sweep, point), point.failed, point.why])) : null;
}

/// Returns the sections of a sweep's page.
function partsOfSweep(sweep) {
  const hidden = {title: 'Hidden communication', unit: '%', figure: 'hidden', text: 'hidden', of: share => 100 * share};
  const exposed = {title: 'Exposed communication', unit: 'ms', figure: 'exposed_ms', text: 'exposed'};
  const step = {title: 'Step time', unit: 'ms', figure: 'step_ms', text: 'measured', forecast: 'forecast_ms'};
  return [
    section('scaling', 'Scaling', () => scaling(sweep)),
    section('links', 'Speed of the link', () => overKey(sweep, 'comm.emulate.bandwidth', [hidden, exposed, {...step, title: 'Step time by link'}])),
    section('buckets', 'Bucket size', () => overKey(sweep, 'overlap.bucket_size', [{...step, title: 'Step time by bucket size'}, {...exposed, title: 'Exposed by bucket size'}])),
    section('prefetch', 'Prefetch depth', () => overKey(sweep, 'zero.prefetch_depth', [{...step, title: 'Step time by prefetch depth'}])),
    section('stages', 'Memory', () => stages(sweep)),
    section('steps', 'Step time', () => steps(sweep)),
    section('timelines', 'Timelines', () => timelines(sweep)),
    section('points', 'All points', () => pointTable(sweep)),
    section('failures', 'Failed runs', () => failures(sweep)),
  ].filter(part => part);
}
