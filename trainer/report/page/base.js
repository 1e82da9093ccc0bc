// SPDX-License-Identifier: Apache-2.0
// Elements, numbers and colours. Texts of the run reach the page only as text nodes and attributes.
'use strict';

const SVG = 'http://www.w3.org/2000/svg';

function fill(element, attributes, children) {
  for (const [key, value] of Object.entries(attributes || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (key === 'on') for (const [event, listener] of Object.entries(value)) element.addEventListener(event, listener);
    else element.setAttribute(key, value === true ? '' : String(value));
  }
  for (const child of [children].flat(3)) if (child !== undefined && child !== null && child !== false)
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  return element;
}
const h = (name, attributes, ...children) => fill(document.createElement(name), attributes, children);
const s = (name, attributes, ...children) => fill(document.createElementNS(SVG, name), attributes, children);

// ---- numbers -------------------------------------------------------------------------------------------------------

const is = value => typeof value === 'number' && Number.isFinite(value);

/// Returns three or four significant digits, without an exponent in the usual range.
function digits(value) {
  if (!is(value)) return '-';
  const size = Math.abs(value);
  if (size === 0) return '0';
  if (size >= 1e9 || size < 1e-4) return value.toExponential(2);
  if (size >= 1000) return Math.round(value).toLocaleString('en-US');
  return String(Number(value.toPrecision(size >= 100 ? 4 : 3)));
}
function scaled(value, base, units) {
  if (!is(value)) return '-';
  let power = 0;
  while (Math.abs(value) >= base && power + 1 < units.length) { value /= base; ++power; }
  return `${value >= 100 || Number.isInteger(value) ? Math.round(value) : value.toFixed(value >= 10 ? 1 : 2)} ${units[power]}`.trim();
}
const bytes = value => scaled(value, 1024, ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB']);
const rate = value => scaled(value, 1000, ['B/s', 'kB/s', 'MB/s', 'GB/s', 'TB/s']);
const flops = value => scaled(value, 1000, ['FLOP/s', 'kFLOP/s', 'MFLOP/s', 'GFLOP/s', 'TFLOP/s', 'PFLOP/s']);
const count = value => scaled(value, 1000, ['', 'k', 'M', 'G', 'T']);
function duration(ns) {
  if (!is(ns)) return '-';
  const size = Math.abs(ns);
  if (size >= 999.95e6) return `${digits(ns / 1e9)} s`;
  if (size >= 999.95e3) return `${digits(ns / 1e6)} ms`;
  if (size >= 999.5) return `${digits(ns / 1e3)} µs`;
  return `${Math.round(ns)} ns`;
}
const percent = share => is(share) ? `${digits(100 * share)} %` : '-';

/// Returns a number with its exact value for scripts and copies.
const data = (value, text) => h('data', {value: is(value) ? String(value) : ''}, text);

/// Returns round positions for about `most` marks of an axis.
function ticks(low, high, most) {
  if (!(high > low)) return [low];
  const rough = (high - low) / Math.max(1, most), power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].find(m => m * power >= rough) * power, places = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + 1e-9 * step && places.length < 100; ++k) places.push(k * step);
  return places;
}

// ---- colours -------------------------------------------------------------------------------------------------------

const color = i => `var(--c${i % 12})`;

/// Returns what a channel of the plan carries, by the name of the channel.
function purpose(channel) {
  if (/^(reduce|norm_sum)/.test(channel)) return 'reduce';
  if (/^gather/.test(channel)) return 'gather';
  if (/^(tensor_reduce|ring_gradients|tied|align)/.test(channel)) return 'reduce';
  if (/^(tensor_gather|ring)/.test(channel)) return 'gather';
  if (/^pipe/.test(channel)) return 'stages';
  if (/^(scalars|norm)/.test(channel)) return 'scalars';
  if (/^h2d/.test(channel)) return 'input';
  return 'local';
}
const PURPOSES = {
  reduce: 'gradients', gather: 'parameters', stages: 'pipeline stages', scalars: 'losses and norms', input: 'next batch',
  local: 'local work',
};

// ---- blocks --------------------------------------------------------------------------------------------------------

/// Names of tasks, keys and runs break after their separators, and nowhere else.
const broken = text => typeof text === 'string' ? text.split(/(?<=[_.\/])/).flatMap((part, i) => i ? [h('wbr'), part] : [part]) : text;
const code = text => h('code', {}, broken(text));

/// columns: [{name, n: numeric}]; rows: arrays of cells, the first of which names the row.
function table(caption, columns, rows) {
  const cell = (value, i) => i === 0 ? h('th', {scope: 'row'}, broken(value))
    : value instanceof Node && value.nodeName === 'TD' ? value
    : h('td', {class: columns[i].n ? 'n' : 'text'}, value);
  return h('div', {class: 'scroll', tabindex: 0, role: 'region', 'aria-label': caption},
    h('table', {}, h('caption', {}, caption),
      h('thead', {}, h('tr', {}, columns.map(c => h('th', {scope: 'col', class: c.n ? 'n' : null}, broken(c.name))))),
      h('tbody', {}, rows.map(row => h('tr', {}, row.map(cell))))));
}
const fold = (summary, ...content) => h('details', {}, h('summary', {}, summary), ...content);
/// entries: [name, colour, form of the swatch: 'line', 'dashed', 'hatched', or a square].
const legend = entries => h('ul', {class: 'legend'}, entries.map(([name, paint, form]) =>
  h('li', {}, h('i', {style: `background:${paint}`, class: form || null}), name)));

let hatches = 0;
/// Returns paint that hatches what is below it in `picture`.
function hatchOf(picture) {
  const id = `hatch-${++hatches}`;
  picture.append(s('defs', {}, s('pattern', {id, width: 5, height: 5, patternUnits: 'userSpaceOnUse', patternTransform: 'rotate(45)'},
    s('rect', {width: 2.6, height: 5, fill: 'var(--card)', opacity: .8}))));
  return `url(#${id})`;
}

const tip = document.getElementById('tip');
function showTip(event, ...content) {
  tip.replaceChildren(...content);
  tip.hidden = false;
  const box = tip.getBoundingClientRect(), wide = document.documentElement.clientWidth;
  const left = Math.min(event.clientX + 14, wide - box.width - 8);
  const above = event.clientY + box.height + 24 > window.innerHeight;
  tip.style.left = `${Math.max(8, left) + window.scrollX}px`;
  tip.style.top = `${event.clientY + (above ? -box.height - 14 : 16) + window.scrollY}px`;
}
const hideTip = () => { tip.hidden = true; };

// Replaces the picture of a plot. The keyboard's focus stays in it.
function showPicture(plot, picture) {
  const focused = plot.contains(document.activeElement);
  plot.replaceChildren(picture);
  if (focused) picture.focus();
}

/// Calls draw(width) when the current script has attached `host`, and whenever its width changes. Neither waits for a frame, which a
/// hidden tab or a headless browser may never draw.
function whenSized(host, draw) {
  let last = 0;
  const again = () => {
    const width = Math.floor(host.clientWidth);
    if (width > 0 && width !== last) draw(last = width);
  };
  new ResizeObserver(again).observe(host);
  queueMicrotask(again);
}
