/** Counts, sizes, widths and heights, durations, labels and shards; what is counted is a filter. */

import { get } from './api.js';
import { bytesFormat, histogram, scatter, valueBars } from './charts.js';
import { countOf, failure, formatBytes, formatDuration, formatNumber, h, replace, shorten } from './dom.js';
import { addWhere, go, hrefOf, joinWhere, route } from './route.js';

const AMOUNTS = [1000, 10_000, 100_000];
// fields that have a panel; those after them are rows of a table
const PANELS = 24;

export class StatisticsView {
  /** @param {any} context the app */
  constructor(context) {
    this.context = context;
    this.body = h('div', { class: 'scroll' });
    this.bar = h('div', { class: 'viewbar viewbar-wide' });
    this.element = h('section', { class: 'view', 'aria-label': 'Statistics' }, this.bar, this.body);
    this.signature = '';
  }

  async update() {
    const now = route();
    const samples = Number(now.more.samples) || AMOUNTS[0];
    const signature = JSON.stringify([now.side, now.where, samples]);
    if (signature === this.signature) return;
    this.signature = signature;
    this.controller?.abort();
    const controller = new AbortController();
    this.controller = controller;
    replace(this.bar, h('div', { class: 'viewbar-title' }, h('h1', {}, 'Statistics'), h('span', { class: 'quiet' }, 'counting…')));
    replace(this.body, h('div', { class: 'panels' }, [1, 2, 3].map(() => h('div', { class: 'panel' }, h('div', { class: 'bone' }), h('div', { class: 'bone bone-tall' })))));
    try {
      const data = await get('statistics', { side: now.side, where: joinWhere(now.where), samples }, controller.signal);
      if (controller.signal.aborted) return;
      this.context.showFilterError(null);
      this.draw(data, samples);
    } catch (error) {
      if (controller.signal.aborted) return;
      if (error.status === 400) this.context.showFilterError(error);
      replace(this.body, failure(error, () => { this.signature = ''; this.update(); }));
    }
  }

  draw(answer, samples) {
    const data = { contents: { seen: 0, basis: '' }, fields: [], images: [], durations: [], labels: [], shards: [], problems: [], ...answer };
    const { queries } = this.context.dataset.features;
    const onFilter = queries ? (expression) => go(addWhere(expression)) : null;
    const format = { size: bytesFormat };
    const total = data.total ?? null;
    // sizes of pictures, durations and values are those of samples that were read
    const partial = total !== null && data.contents.seen < total;
    replace(this.bar,
      h('div', { class: 'viewbar-title' }, h('h1', {}, 'Statistics'), h('span', { class: `pill ${data.exact ? 'pill-good' : ''}`, title: data.basis }, data.exact ? 'exact' : 'sampled'), h('span', { class: 'quiet' }, partial && data.exact ? `${data.basis}; values of ${data.contents.basis}` : data.basis)),
      queries && (partial || !data.exact) && h('label', { class: 'row tight quiet' }, total === null ? 'of the first' : 'values of', h('select', { class: 'input', 'aria-label': 'Samples to read', on: { change: (event) => go({ more: { ...route().more, samples: event.target.value } }) } }, AMOUNTS.map((amount) => h('option', { value: String(amount), selected: amount === samples }, formatNumber(amount)))), 'samples'));
    const fields = [...data.fields].sort((one, other) => other.count - one.count);
    replace(this.body,
      h('div', { class: 'panels' },
        h('section', { class: 'panel panel-wide figures' },
          figure(total === 1 ? 'sample' : 'samples', total !== null ? formatNumber(total) : `${formatNumber(data.samples)}${data.exact ? '' : ' read'}`),
          figure(this.context.sideOf(route().side).shards === 1 ? 'shard' : 'shards', formatNumber(this.context.sideOf(route().side).shards)),
          figure(data.fields.length === 1 ? 'field' : 'fields', formatNumber(data.fields.length + (data.other_fields ?? 0))),
          figure('mean size', data.samples ? formatBytes(Math.round(data.size_bytes / data.samples)) : '–')),
        data.images.map((image) => [
          image.points?.length > 1 && panel(image.field, 'width against height', scatter(image.points, image.field, onFilter)),
          image.points?.length === 1 && panel(image.field, 'all of one size', h('div', { class: 'figure-value' }, `${image.points[0][0]} × ${image.points[0][1]}`)),
          image.points?.length !== 1 && panel(image.field, 'width, pixels', histogram(image.width, { label: `widths of ${image.field}`, onFilter })),
          image.points?.length !== 1 && panel(image.field, 'height, pixels', histogram(image.height, { label: `heights of ${image.field}`, onFilter }))]),
        data.durations.map((one) => panel(one.field, 'duration', spread(one.histogram, { label: `durations of ${one.field}`, format: formatDuration, onFilter }))),
        data.labels.map((label) => panel(label.field, countOf(label.distinct, 'distinct value'), label.histogram ? histogram(label.histogram, { label: `values of ${label.field}`, onFilter }) : valueBars(label.values, onFilter, 8))),
        data.other_labels > 0 && h('p', { class: 'quiet panel-wide panel-note' }, `${countOf(data.other_labels, 'more place')} in JSON and classes ${data.other_labels === 1 ? 'is' : 'are'} not shown: of one sample each, or beyond the 60 that most samples have.`),
        fields.slice(0, PANELS).map((field) => panel(field.name, [`${field.kind} · ${countOf(field.count, 'sample')}`, field.missing > 0 && [', ', missingOf(field, onFilter)]], field.size?.counts?.length ? spread(field.size, { label: `sizes of ${field.name}`, format: format.size, onFilter }) : null)),
        fields.length > PANELS && fieldTable(fields.slice(PANELS), data.other_fields ?? 0, onFilter),
        data.problems.length > 0 && h('section', { class: 'panel panel-wide' }, h('header', { class: 'panel-head' }, h('h2', {}, 'Not counted')), h('ul', {}, data.problems.slice(0, 50).map((one) => h('li', { class: 'error-text' }, typeof one === 'string' ? one : one.message ?? JSON.stringify(one))))),
        data.shards.length > 0 && h('section', { class: 'panel panel-wide' }, h('header', { class: 'panel-head' }, h('h2', {}, 'Shards'), h('span', { class: 'quiet' }, countOf(data.shards.length, 'shard'))), shardTable(this.context, data.shards))));
  }

  key() {
    return false;
  }

  destroy() {
    this.controller?.abort();
  }
}

const figure = (name, value) => h('div', { class: 'figure-box' }, h('div', { class: 'figure-value' }, value), h('div', { class: 'figure-name' }, name));

/** In how many samples a field is missing; a link to them where there are filters. */
function missingOf(field, onFilter) {
  const text = `missing in ${formatNumber(field.missing)}`;
  return onFilter && field.where_missing ? h('a', { class: 'link', href: hrefOf(addWhere(field.where_missing)), title: field.where_missing }, text) : text;
}

/** The fields that have no panel of their own. */
function fieldTable(fields, others, onFilter) {
  const name = (text) => h('th', { scope: 'col', class: text === 'field' || text === 'kind' ? '' : 'figure' }, text);
  const sizes = ({ least, most }) => [...new Set([least, most].map(bytesFormat))].join(' to ');
  return h('section', { class: 'panel panel-wide' }, h('header', { class: 'panel-head' }, h('h2', {}, 'Other fields'), h('span', { class: 'quiet' }, others > 0 ? `${formatNumber(fields.length)} of ${formatNumber(fields.length + others)}` : countOf(fields.length, 'field'))),
    h('div', { class: 'scroll-x' }, h('table', { class: 'table' }, h('thead', {}, h('tr', {}, ['field', 'kind', 'samples', 'missing', 'sizes'].map(name))),
      h('tbody', {}, fields.map((field) => h('tr', {}, h('td', {}, h('bdi', { class: 'key' }, shorten(field.name, 80))), h('td', {}, field.kind), h('td', { class: 'figure' }, formatNumber(field.count)), h('td', { class: 'figure' }, field.missing > 0 ? missingOf(field, onFilter) : ''), h('td', { class: 'figure' }, sizes(field))))))));
}

/** A histogram, or the one value that all have. */
function spread(data, options) {
  const says = [data.edges[0], data.edges[data.edges.length - 1]].map(options.format);
  return data.counts.length === 1 || says[0] === says[1] ? h('div', { class: 'figure-value' }, says[0]) : histogram(data, options);
}

function panel(title, facts, content) {
  return h('section', { class: 'panel' }, h('header', { class: 'panel-head' }, h('h2', { title: shorten(title, 200) }, h('bdi', {}, shorten(title, 32))), h('span', { class: 'quiet' }, facts)), content);
}

function shardTable(context, shards) {
  const most = Math.max(1, ...shards.map((one) => one.size_bytes ?? 0));
  return h('div', { class: 'scroll-x' }, h('table', { class: 'table' },
    h('thead', {}, h('tr', {}, h('th', { scope: 'col' }, 'shard'), h('th', { scope: 'col', class: 'figure' }, 'samples'), h('th', { scope: 'col', class: 'figure' }, 'size'), h('th', { scope: 'col', class: 'bar-column' }, h('span', { class: 'hidden-text' }, 'beside the largest')))),
    h('tbody', {}, shards.map((one) => {
      const bar = h('span', { class: 'value-bar' });
      bar.style.width = `${(100 * (one.size_bytes ?? 0)) / most}%`;
      return h('tr', {}, h('td', {}, h('a', { href: hrefOf({ view: 'samples', shard: one.shard, where: [], q: '', at: 0, open: null, more: {} }) }, h('bdi', {}, shorten(String(one.name ?? context.shardName(route().side, one.shard) ?? `shard ${one.shard}`), 80)))),
        h('td', { class: 'figure' }, one.samples === null ? '–' : formatNumber(one.samples)), h('td', { class: 'figure' }, formatBytes(one.size_bytes)), h('td', {}, h('span', { class: 'value-track' }, bar)));
    }))));
}
