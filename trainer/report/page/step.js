// SPDX-License-Identifier: Apache-2.0
// Parts of a step: predicted and measured tasks, rooflines, memory, links and the pipeline's schedule.
'use strict';

const ratio = (value, base) => is(value) && base > 0 ? `${digits(value / base)}×` : '-';

function taskTable(rows, caption, several) {
  const most = Math.max(...rows.map(row => Math.abs(row[6] - row[5])));
  return table(caption, [{name: 'task'}, {name: 'predicted', n: true}, {name: 'measured', n: true}, {name: 'ratio', n: true}, {name: 'difference', n: true}, {name: ''},
    {name: 'runs', n: true}, {name: 'channel'}, ...(several ? [{name: 'stage', n: true}] : [])],
  rows.map(([stage, name, , channel, runs, predicted, measured]) => [name, data(predicted, duration(predicted)),
    data(measured, duration(measured)), ratio(measured, predicted), (measured > predicted ? '+' : '') + duration(measured - predicted),
    h('td', {class: 'barcell', 'aria-hidden': 'true'}, h('span', {class: 'bar',
      style: `width:${(Math.abs(measured - predicted) / most * 100).toFixed(1)}%;background:${measured > predicted ? 'var(--c1)' : 'var(--c2)'}`})), runs, channel, ...(several ? [stage] : [])]));
}

function tasks(run) {
  const rows = run.tasks, several = new Set(rows.map(row => row[0])).size > 1;
  const step = (run.figures.find(figure => figure.key === 'step_ms') || {}).value;
  const lead = is(run.predicted_step_ns) && run.predicted_step_ns > 0 && is(step)
    ? `The plan predicted ${duration(run.predicted_step_ns)} for a step; the run took ${digits(step)} ms in the mean. ` : '';
  return [h('p', {class: 'lead'}, `${lead}Time of every task in a mean traced step, the largest difference first. Micro-batches are added up. Communication counts from the entry of its last member.`),
    taskTable(rows.slice(0, 12), 'Tasks with the largest difference', several),
    rows.length > 12 ? fold(`All ${rows.length} tasks`, taskTable(rows, 'All tasks', several)) : null];
}

/// Draws kernels on logarithmic axes below the two roofs of the machine.
function roofline(run) {
  const [peak, wire] = run.rates || [0, 0], points = run.kernels.filter(row => row[2] > 0 && row[3] > 0 && row[4] > 0);
  if (!(peak > 0 && wire > 0) || !points.length) return null;
  const plot = h('div', {class: 'plot'}), height = 280;
  const total = run.kernels.reduce((sum, row) => sum + row[2], 0);
  const intensities = points.map(row => row[3] / row[4]), speeds = points.map(row => row[3] / row[2] * 1e9);
  const ridge = peak / wire;
  const x0 = Math.log10(Math.min(...intensities, ridge)) - .35, x1 = Math.log10(Math.max(...intensities, ridge)) + .5;
  const y1 = Math.log10(Math.max(peak, ...speeds)) + .25, y0 = Math.min(Math.log10(Math.min(...speeds)), y1 - 1) - .3;
  whenSized(plot, width => {
    const left = 78, right = 12, top = 8, bottom = 36, wide = width - left - right, tall = height - top - bottom;
    const x = value => left + (Math.log10(value) - x0) / (x1 - x0) * wide, y = value => top + (1 - (Math.log10(value) - y0) / (y1 - y0)) * tall;
    const picture = s('svg', {height, viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': 'Roofline of the kernels; the table below has the values.'});
    for (let p = Math.ceil(y0); p <= y1; ++p) picture.append(s('line', {class: 'gridline', x1: left, x2: width - right, y1: y(10 ** p), y2: y(10 ** p)}),
      s('text', {x: left - 7, y: y(10 ** p) + 4, 'text-anchor': 'end'}, flops(10 ** p)));
    for (let p = Math.ceil(x0); p <= x1; ++p) picture.append(s('line', {class: 'gridline', y1: top, y2: top + tall, x1: x(10 ** p), x2: x(10 ** p)}),
      s('text', {x: x(10 ** p), y: height - 20, 'text-anchor': 'middle'}, digits(10 ** p)));
    picture.append(s('text', {x: left + wide / 2, y: height - 4, 'text-anchor': 'middle'}, 'operations per byte of memory'));
    const roof = value => Math.min(peak, value * wire), low = Math.max(10 ** x0, 10 ** y0 / wire);
    picture.append(s('path', {d: `M${x(low)} ${y(roof(low))}L${x(ridge)} ${y(peak)}L${x(10 ** x1)} ${y(peak)}`, fill: 'none', stroke: 'var(--ink)', 'stroke-width': 1.5}));
    picture.append(s('text', {x: width - right, y: y(peak) - 6, 'text-anchor': 'end'}, `${flops(peak)}, ${rate(wire)}`));
    const boxes = [];
    points.forEach((row, i) => {
      const cx = x(intensities[i]), cy = y(speeds[i]), r = 3.5 + 11 * Math.sqrt(row[2] / total);
      picture.append(s('circle', {cx, cy, r, fill: row[6] ? 'var(--c0)' : 'var(--c1)', 'fill-opacity': .55, stroke: row[6] ? 'var(--c0)' : 'var(--c1)'},
        s('title', {}, `${row[0]}: ${flops(speeds[i])}, ${duration(row[2])} of a step`)));
      const words = row[0], long = words.length * 6.2, flip = cx + r + 5 + long > width;
      const box = [flip ? cx - r - 5 - long : cx + r + 5, cy - 7, long, 13];
      if (boxes.some(b => box[0] < b[0] + b[2] && b[0] < box[0] + box[2] && box[1] < b[1] + b[3] && b[1] < box[1] + box[3])) return;
      boxes.push(box);
      picture.append(s('text', {x: flip ? cx - r - 5 : cx + r + 5, y: cy + 4, 'text-anchor': flip ? 'end' : 'start'}, words));
    });
    plot.replaceChildren(picture);
  });
  return h('figure', {}, plot, legend([['limited by compute', 'var(--c0)'], ['limited by memory', 'var(--c1)'], ['roof of the machine file', 'var(--ink)', 'line']]));
}

function kernels(run) {
  const total = run.kernels.reduce((sum, row) => sum + row[2], 0);
  const rows = run.kernels.map(([name, runs, ns, operations, moved, bound, compute]) => [name, digits(runs), data(ns, duration(ns)), percent(ns / total),
    operations > 0 ? flops(operations / ns * 1e9) : '-', moved > 0 ? rate(moved / ns * 1e9) : '-', bound > 0 ? duration(bound) : '-',
    bound > 0 ? data(bound / ns, percent(bound / ns)) : '-', bound > 0 ? compute ? 'compute' : 'memory' : '-']);
  return [h('p', {class: 'lead'}, 'Kernels of a mean step and rank. The bound is the time at the rates of the machine file; a share above 100 % means that the file understates this machine, or that the data stayed in a cache.'),
    roofline(run), table('Kernels, the longest first', [{name: 'kernel'}, {name: 'runs', n: true}, {name: 'time', n: true}, {name: 'share', n: true},
      {name: 'speed', n: true}, {name: 'memory', n: true}, {name: 'bound', n: true}, {name: 'of bound', n: true}, {name: 'limited by'}], rows)];
}

function memory(run) {
  const {owners, stages, step_ns: step} = run.memory;
  const used = owners.filter(owner => stages.some(stage => stage.bytes[owner] > 0));
  const total = stage => used.reduce((sum, owner) => sum + (stage.bytes[owner] || 0), 0);
  const peak = (stage, owner) => Math.max(...stage.in_use.map(row => row[1 + owners.indexOf(owner)]), 0);
  const charts = stages.map((stage, i) => {
    if (stage.in_use.length < 2 || total(stage) <= 0) return null;
    const starts = stage.in_use.map(row => row[0] / 1e6);
    return areaOverTime(`${stages.length > 1 ? `Stage ${i}` : 'A rank'}: bytes in use over a step`, starts, Math.max(step / 1e6, ...starts),
      used.map(owner => ({name: owner, color: color(owners.indexOf(owner)), values: stage.in_use.map(row => row[1 + owners.indexOf(owner)])})), total(stage));
  }).filter(figure => figure);
  const rows = used.map(owner => [owner, ...stages.flatMap(stage => [data(stage.bytes[owner], bytes(stage.bytes[owner] || 0)), stage.in_use.length ? bytes(peak(stage, owner)) : '-'])]);
  rows.push(['total', ...stages.flatMap(stage => [data(total(stage), bytes(total(stage))),
    stage.in_use.length ? bytes(Math.max(...stage.in_use.map(row => row.slice(1).reduce((a, b) => a + b, 0)))) : '-'])]);
  return [h('p', {class: 'lead'}, 'A run allocates all memory before its first step. The areas show how much of it holds a value that the step still reads.'),
    charts.length ? h('div', {class: 'grid'}, charts) : null, charts.length ? legend(used.map(owner => [owner, color(owners.indexOf(owner))])) : null,
    table('Memory of a rank', [{name: 'owner'}, ...stages.flatMap((_, i) => [{name: stages.length > 1 ? `stage ${i}` : 'allocated', n: true}, {name: 'most in use', n: true}])], rows)];
}

/// Draws stacked areas, which change in steps, over the time of a step in ms.
function areaOverTime(title, starts, end, series, allocated) {
  const plot = h('div', {class: 'plot'}), height = 200;
  whenSized(plot, width => {
    const left = 62, right = 10, top = 16, bottom = 34, wide = width - left - right, tall = height - top - bottom;
    const x = ms => left + ms / end * wide, y = value => top + tall * (1 - value / allocated);
    const picture = s('svg', {height, viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': `${title}. The table below has the largest values.`});
    for (const share of [0, .5, 1]) picture.append(s('line', {class: 'gridline', x1: left, x2: width - right, y1: y(share * allocated), y2: y(share * allocated)}),
      s('text', {x: left - 7, y: y(share * allocated) + 4, 'text-anchor': 'end'}, bytes(share * allocated)));
    for (const ms of ticks(0, end, wide / 80)) picture.append(s('text', {x: x(ms), y: height - 18, 'text-anchor': 'middle'}, digits(ms)));
    picture.append(s('text', {x: left + wide / 2, y: height - 3, 'text-anchor': 'middle'}, 'ms of the predicted step'));
    const below = starts.map(() => 0);
    for (const one of series) {
      let there = '', back = '';
      starts.forEach((start, i) => {
        const next = i + 1 < starts.length ? starts[i + 1] : end, low = y(below[i]), up = y(below[i] + one.values[i]);
        there += `${i ? 'L' : 'M'}${x(start).toFixed(1)} ${up.toFixed(1)}H${x(next).toFixed(1)}`;
        back = `L${x(next).toFixed(1)} ${low.toFixed(1)}H${x(start).toFixed(1)}` + back;
        below[i] += one.values[i];
      });
      picture.append(s('path', {d: there + back + 'Z', fill: one.color, opacity: .9}));
    }
    picture.append(s('line', {x1: left, x2: width - right, y1: y(allocated), y2: y(allocated), stroke: 'var(--soft)', 'stroke-dasharray': '5 4'}),
      s('text', {x: width - right, y: y(allocated) - 5, 'text-anchor': 'end'}, 'allocated'));
    plot.replaceChildren(picture);
  });
  return h('figure', {}, h('h3', {}, title), plot);
}

function mesh(run) {
  const {axes, coordinates, channels, ranks_per_node: perNode, ranks} = run.mesh;
  const pipeline = axes.indexOf('pipeline'), used = axes.map((_, i) => i).filter(i => coordinates.some(at => at[i] > 0));
  const nodes = [];
  coordinates.forEach((at, rank) => {
    const node = Math.floor(rank / Math.max(1, perNode));
    (nodes[node] = nodes[node] || []).push(h('li', {class: 'rank', style: `border-color:${color(at[pipeline])}`},
      h('b', {}, `rank ${rank}`), used.length ? ' ' + used.map(i => `${axes[i]} ${at[i]}`).join(', ') : ''));
  });
  const sent = links => links.reduce((sum, row) => sum + row[8], 0);
  const first = channels.filter(row => row[0] === 0), stages = new Set(channels.map(row => row[0])).size;
  const crossing = first.filter(row => row[4]), inside = first.filter(row => !row[4]);
  const most = Math.max(1, ...channels.map(row => row[8]));
  return [h('p', {class: 'lead'}, `Rank 0 sends ${bytes(sent(inside))} in a step within its node and ${bytes(sent(crossing))} between nodes. ${used.includes(pipeline) ? 'Colours are pipeline stages.' : ''}`),
    h('ul', {class: 'nodes', 'aria-label': 'Nodes and their ranks'}, nodes.slice(0, 64).map((list, node) => h('li', {class: 'node'}, h('h4', {}, `node ${node}`), h('ul', {}, list)))),
    nodes.length > 64 || ranks > coordinates.length ? h('p', {class: 'lead'}, `The first nodes of ${ranks} ranks are shown.`) : null,
    table('What crosses which link in a step of one rank', [{name: 'channel'}, ...(stages > 1 ? [{name: 'stage', n: true}] : []), {name: 'axis'}, {name: 'ranks', n: true}, {name: 'link'}, {name: 'rate', n: true}, {name: 'latency', n: true},
      {name: 'tasks', n: true}, {name: 'sends', n: true}, {name: 'at line rate', n: true}, {name: ''}],
    channels.filter(row => row[7] > 0).map(([stage, name, axis, group, between, speed, latency, tasks, moved]) => [name, ...(stages > 1 ? [stage] : []), axis, group, between ? 'between nodes' : 'within a node',
      speed > 0 ? rate(speed) : 'unlimited', duration(latency), tasks, data(moved, bytes(moved)), speed > 0 ? duration(moved / speed * 1e9) : '-',
      h('td', {class: 'barcell', 'aria-hidden': 'true'}, moved > 0 && h('span', {class: 'bar', style: `width:${(moved / most * 100).toFixed(1)}%;background:var(--${purpose(name)})`}))]))];
}

/// Draws the pipeline's schedule with one row per stage.
function schedule(run) {
  const PAINT = ['var(--forward)', 'var(--backward)', 'var(--update)'], PASS = ['forward', 'backward', 'update'];
  const stages = run.schedule, both = ['measured', 'predicted'].filter(kind => stages.some(stage => stage[kind].length));
  const endOf = kind => Math.max(...stages.flatMap(stage => stage[kind].map(pass => pass[2] + pass[3])), 1);
  const figures = both.map(kind => {
    const plot = h('div', {class: 'plot'}), end = Math.max(...both.map(endOf)), tall = 24, height = stages.length * (tall + 6) + 24;
    whenSized(plot, width => {
      const left = 58, x = ns => left + ns / end * (width - left - 4);
      const picture = s('svg', {height, viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': `${kind} schedule of the pipeline; a table follows.`});
      for (const ms of ticks(0, end / 1e6, (width - left) / 80)) picture.append(s('line', {class: 'gridline', x1: x(ms * 1e6), x2: x(ms * 1e6), y1: 0, y2: height - 18}),
        s('text', {x: x(ms * 1e6), y: height - 4, 'text-anchor': 'middle'}, `${digits(ms)} ms`));
      stages.forEach((stage, i) => {
        const y = i * (tall + 6);
        picture.append(s('text', {class: 'strong', x: 0, y: y + 16}, `stage ${stage.stage}`));
        for (const [pass, batch, begin, ns] of stage[kind]) {
          const wide = Math.max(.8, x(begin + ns) - x(begin) - .6);
          picture.append(s('rect', {x: x(begin), y, width: wide, height: tall, fill: PAINT[pass], rx: wide > 6 ? 2 : 0},
            s('title', {}, `${PASS[pass]}${batch >= 0 ? ` of micro-batch ${batch}` : ''}: ${duration(ns)} from ${duration(begin)}`)));
          if (wide > 16 && batch >= 0) picture.append(s('text', {x: x(begin) + wide / 2, y: y + 16, 'text-anchor': 'middle', style: 'fill:#fff'}, batch));
        }
      });
      plot.replaceChildren(picture);
    });
    return h('figure', {}, h('h3', {}, kind === 'measured' ? 'Measured' : 'Predicted'), plot);
  });
  const rows = stages.flatMap(stage => both.map(kind => {
    const busy = stage[kind].reduce((sum, pass) => sum + pass[3], 0);
    return [`stage ${stage.stage}, ${kind}`, stage[kind].length, data(busy, duration(busy)), percent(1 - busy / endOf(kind))];
  }));
  return [h('p', {class: 'lead'}, 'Passes on the compute stream of each stage’s first rank, numbered by micro-batch. Both pictures have one scale.'),
    ...figures, legend(PASS.map((name, i) => [name, PAINT[i]])),
    fold('Table: passes by stage', table('Passes by stage', [{name: 'stage'}, {name: 'passes', n: true}, {name: 'busy', n: true}, {name: 'idle', n: true}], rows))];
}
