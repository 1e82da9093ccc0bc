// SPDX-License-Identifier: Apache-2.0
// The sections of the page, from the data that slipstream report wrote into it.
'use strict';

const {runs: RUNS, sweep: SWEEP, compared: COMPARED = RUNS.map(run => run.figures), shared_steps: SHARED} = JSON.parse(document.getElementById('data').textContent);
const several = RUNS.length > 1;
// Runs with the same name are distinguished by the rest of their paths.
const label = run => RUNS.filter(other => other.name === run.name).length > 1 ? run.path : run.name;

const lossText = value => is(value) ? value.toFixed(4) : '-';
function figureText(one) {
  if (one.unit === 'bytes') return bytes(one.value);
  if (one.key === 'parameters' || one.key === 'tokens_per_s') return count(one.value);
  if (one.key.endsWith('loss')) return lossText(one.value);
  return digits(one.value);
}
const unitText = one => one.unit && one.unit !== 'bytes' ? ` ${one.unit}` : '';

// ---- sections ------------------------------------------------------------------------------------------------------

const shownSections = document.getElementById('sections');
function section(id, title, draw) {
  let inside;
  try {
    inside = [draw()].flat(3).filter(part => part);
  } catch (problem) {  // because of a damaged file, only its section is missing
    console.error(problem);
    inside = [h('p', {class: 'lead'}, `This part cannot be drawn: ${problem.message}.`)];
  }
  if (!inside.length) return null;
  shownSections.append(h('li', {}, h('a', {href: `#${id}`}, title)));
  return h('section', {id, 'aria-labelledby': `${id}-title`}, h('h2', {id: `${id}-title`}, title), inside);
}

function missing() {
  const all = SWEEP ? SWEEP.missing : RUNS.flatMap(run => run.missing.map(sentence => several ? `${label(run)}: ${sentence}` : sentence));
  return all.length ? h('aside', {class: 'notice', id: 'missing', 'aria-labelledby': 'missing-title'},
    h('h2', {id: 'missing-title'}, all.length === 1 ? 'One thing is missing' : `${all.length} things are missing`), h('ul', {}, all.map(sentence => h('li', {}, sentence)))) : null;
}

const tiles = run => h('dl', {class: 'tiles', id: 'figures', 'aria-label': 'Main figures'}, run.figures.filter(one => one.main).map(one =>
  h('div', {class: 'tile'}, h('dt', {}, one.label), h('dd', {'data-figure': one.key}, data(one.value, figureText(one)), unitText(one) ? h('small', {}, unitText(one)) : null))));

function compare() {
  const all = COMPARED, of = (i, key) => all[i].find(one => one.key === key);
  const keys = [...new Map(all.flat().map(one => [one.key, one])).values()];
  const rows = keys.map(({key, label: name, unit}) => [name + (unit && unit !== 'bytes' ? `, ${unit}` : ''), ...RUNS.map((run, i) => {
    const one = of(i, key), base = of(0, key);
    if (!one) return h('td', {class: 'n'}, '-');
    const value = data(one.value, figureText(one));
    if (i === 0 || !base || base.value === 0) return h('td', {class: 'n', 'data-figure': key}, value);
    const change = one.value / base.value, small = Math.abs(change - 1) < .005, noise = is(one.noise) && Math.abs(one.value - base.value) <= one.noise;
    const better = one.better && !small && !noise ? (change > 1) === (one.better === 'higher') : null;
    return h('td', {class: 'n', 'data-figure': key}, value, ' ', h('span', {class: better === null ? 'subtitle' : better ? 'good' : 'bad'},
      h('data', {value: change}, `${digits(change)}×`), better !== null ? better ? ' better' : ' worse' : one.better && noise && !small ? ' within noise' : ''));
  })]);
  const settings = new Map();
  RUNS.forEach((run, i) => run.settings.forEach(([key, value]) => { if (!settings.has(key)) settings.set(key, RUNS.map(() => null)); settings.get(key)[i] = value; }));
  const differing = [...settings].filter(([, values]) => values.some(value => value !== values[0]));
  const shared = SHARED ? `over their equal steps, ${SHARED[0]} to ${SHARED[1]}; last values are those of the last step at which every run has one`
    : 'over all their steps, because they share none';
  return [h('p', {class: 'lead'}, `Figures of all runs ${shared}, with the ratio to ${label(RUNS[0])}. A difference below the noise of the steps has no colour.`),
    table('Figures of the runs', [{name: 'figure'}, ...RUNS.map(run => ({name: label(run), n: true}))], rows),
    h('h3', {style: 'margin-top:1.2rem'}, 'Differing keys'),
    differing.length ? table('Keys of the configuration that differ', [{name: 'key'}, ...RUNS.map(run => ({name: label(run)}))],
      differing.map(([key, values]) => [code(key), ...values.map(value => value === null ? '-' : code(value))]))
      : h('p', {class: 'lead'}, 'The configurations are equal.')];
}

function training() {
  const marks = RUNS.length === 1 ? RUNS[0].marks : [];
  const curve = (title, unit, names, options) => {
    const series = RUNS.flatMap((run, i) => names.map(([name, text, paint, extra]) =>
      seriesOf(run, name, several ? `${label(run)}${names.length > 1 ? ` ${text}` : ''}` : text, several ? color(i) : paint, extra))).filter(one => one);
    return series.length ? chart({title, unit, series, marks, named: several, ...options}) : null;
  };
  const charts = [
    curve('Loss', '', [['loss', 'training', 'var(--c0)'], ['val_loss', 'validation', 'var(--c1)', {dots: true}]], {exact: lossText}),
    curve('Throughput', 'tokens per second', [['tokens_per_s', 'tokens per second', 'var(--c2)']], {format: count, zero: true}),
    curve('Learning rate', '', [['lr', 'learning rate', 'var(--c3)']], {zero: true}),
    curve('Norm of the gradient', 'before clipping', [['grad_norm', 'norm', 'var(--c4)']], {log: true}),
  ].filter(one => one);
  return charts.length ? h('div', {class: 'grid'}, charts) : null;
}

const PARTS = [['compute_ms', 'compute', 'var(--forward)'], ['exposed_ms', 'exposed communication', 'var(--wait-reduce)'],
  ['bubble_ms', 'bubble', 'var(--wait-stages)'], ['input_ms', 'wait for input', 'var(--wait-input)'], ['other_ms', 'gaps of the host', 'var(--gap)']];

function time(run) {
  if (!run.curves) return null;
  const zero = one => ({...one, mean: one.mean.map(value => is(value) ? value : 0), min: undefined, max: undefined});
  const parts = PARTS.map(([name, text, paint]) => seriesOf(run, name, text, paint)).filter(one => one).map(zero).filter(one => one.mean.some(value => value > 0));
  const bound = seriesOf(run, 'bound_ms', 'rehearsed bound', 'var(--ink)');
  const causes = run.curves.causes.filter(one => one.mean.some(value => value > 0))
    .map((one, i) => zero({...one, color: color([1, 5, 4, 8, 10, 2, 0, 3, 6, 7, 11, 9][i % 12]), starts: run.curves.starts, last: run.curves.last}));
  return [h('p', {class: 'lead'}, 'Means over ranks. Exposed communication is the time by which an infinitely fast network would shorten the step; a bubble is a wait that no network removes.'),
    h('div', {class: 'grid'}, parts.length ? chart({title: 'Time of a step', unit: 'ms', series: parts, stacked: true, over: bound ? [bound] : [], marks: run.marks, named: true}) : null,
      causes.length ? chart({title: 'Exposed time by the awaited task', unit: 'ms', series: causes, stacked: true, marks: run.marks, named: true})
        : h('p', {class: 'lead'}, 'No communication was exposed.'))];
}

function events(run) {
  return run.marks.length ? table('Events in the order of their steps', [{name: 'step'}, {name: 'kind'}, {name: 'event'}, {name: 'time'}], run.marks.map(mark => [
    is(mark.step) ? mark.step : '-', h('span', {class: 'tag', style: `border-color:${(MARKS[mark.kind] || MARKS.event)[1]}`}, (MARKS[mark.kind] || MARKS.event)[0]), mark.text, mark.time || '-'])) : null;
}

function configuration(run) {
  if (!run.settings.length) return null;
  const differs = run.settings.filter(([, value, standard]) => value !== standard);
  const rows = list => list.map(([key, value, standard]) => [code(key), code(value), standard === null ? 'not a key of this version' : code(standard)]);
  const columns = [{name: 'key'}, {name: 'value'}, {name: 'default'}];
  return [table('Keys that differ from their defaults', columns, rows(differs)), fold(`All ${run.settings.length} keys`, table('All keys', columns, rows(run.settings)))];
}

const facts = run => run.facts.length ? [h('dl', {class: 'facts'}, run.facts.flatMap(([name, text]) => [h('dt', {}, name), h('dd', {}, text)])),
  run.notes.length ? [h('h3', {style: 'margin-top:1rem'}, 'Notes'), h('ul', {}, run.notes.map(note => h('li', {}, note)))] : null] : null;

const stepsOf = ({steps, traced_steps: traced}) => `${steps.length > 1 ? `Steps ${steps[0]} to ${steps[steps.length - 1]}` : `Step ${steps[0]}`}${
  traced > steps.length ? ` of ${traced} traced steps` : ''}. Every host has its own clock.`;

/// Returns the sections of one run.
function partsOf(run, fixed) {
  shownSections.replaceChildren(...fixed);
  return [
    section('time', 'Step time', () => time(run)),
    run.timeline ? section('timeline', 'Timeline', () => [h('p', {class: 'lead'}, stepsOf(run.timeline)), timeline(run)]) : null,
    run.schedule.length ? section('pipeline', 'Pipeline', () => schedule(run)) : null,
    run.tasks.length ? section('tasks', 'Prediction', () => tasks(run)) : null,
    run.kernels.length ? section('kernels', 'Kernels', () => kernels(run)) : null,
    run.memory ? section('memory', 'Memory', () => memory(run)) : null,
    run.mesh && run.mesh.channels.length ? section('mesh', 'Links', () => mesh(run)) : null,
    section('events', 'Events', () => events(run)),
    section('configuration', 'Configuration', () => configuration(run)),
    section('run', 'Run', () => facts(run)),
  ].filter(part => part);
}

const main = document.getElementById('main');
const fact = (run, name) => (run.facts.find(one => one[0] === name) || [])[1];
function title(text, subtitle) {
  document.getElementById('title').textContent = text;
  document.getElementById('subtitle').textContent = subtitle;
}

function drawRuns() {
  const run = RUNS[0], ranks = fact(run, 'Ranks');
  title(RUNS.map(label).join(' · '), several ? `Comparison of ${RUNS.length} runs`
    : [fact(run, 'Model'), ranks && `${ranks} rank${ranks === '1' ? '' : 's'} on ${fact(run, 'GPU') || fact(run, 'Device')}`, fact(run, 'Version') && `version ${fact(run, 'Version')}`].filter(text => text).join(' · '));
  const head = [missing(), several ? null : tiles(run), several ? section('compare', 'Comparison', compare) : null, section('training', 'Training', training)];
  const fixed = [...shownSections.children];
  const parts = h('div', {id: 'parts'});
  let picker = null;
  if (several) {
    const choose = h('select', {id: 'run-picker', on: {change: () => parts.replaceChildren(...partsOf(RUNS[Number(choose.value)], fixed))}}, RUNS.map((one, i) => h('option', {value: i}, label(one))));
    picker = h('p', {class: 'tools'}, h('label', {for: 'run-picker'}, 'The sections below show '), choose);
  }
  parts.append(...partsOf(run, fixed));
  main.append(...[...head, picker, parts, h('footer', {}, RUNS.map(one => one.path).join(' · '))].filter(part => part));
}

function drawSweep() {
  title(SWEEP.name, `Sweep of ${SWEEP.run}: ${SWEEP.points.length} points, ${SWEEP.repeats} round${SWEEP.repeats === 1 ? '' : 's'}`);
  main.append(...[missing(), ...partsOfSweep(SWEEP), h('footer', {}, SWEEP.path)].filter(part => part));
}

if (SWEEP) drawSweep();
else drawRuns();
