/** Plain SVG charts whose marks are filters. */

import { formatBytes, formatFigure, formatNumber, h, shorten, svg } from './dom.js';

/**
 * A histogram; where its bars have expressions, each is a link that filters.
 * @param {{edges: number[], counts: number[], where?: string[]}} data
 * @param {object} [options]
 * @param {number} [options.height]
 * @param {string} [options.label] of the axis, for screen readers
 * @param {(value: number) => string} [options.format] of the edges
 * @param {((expression: string) => void) | null} [options.onFilter]
 * @returns {HTMLElement}
 */
export function histogram(data, { height = 72, label = '', format = formatFigure, onFilter = null } = {}) {
  const { edges, counts } = data;
  if (!counts?.length) return h('p', { class: 'quiet' }, 'No values');
  const most = Math.max(1, ...counts);
  const width = 320;
  const step = width / counts.length;
  const gap = step > 6 ? 1.5 : 0.4;
  const bars = counts.map((count, index) => {
    const tall = count ? Math.max(1.5, (count / most) * (height - 2)) : 0;
    const says = `${format(edges[index])} to ${format(edges[index + 1])}: ${formatNumber(count)}`;
    const where = data.where?.[index];
    return mark({ says, count, where, onFilter }, [
      svg('rect', { class: 'hit', x: index * step, y: 0, width: step, height }),
      svg('rect', { class: 'bar', x: index * step + gap / 2, y: height - tall, width: Math.max(0.5, step - gap), height: tall, rx: Math.min(1.5, tall / 2) })]);
  });
  return h('div', { class: 'chart' },
    svg('svg', { class: 'histogram', viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: 'none', role: 'group', 'aria-label': `Histogram of ${label}` }, bars),
    h('div', { class: 'axis' }, h('span', {}, format(edges[0])), edges.length > 4 && h('span', {}, format(edges[Math.floor(edges.length / 2)])), h('span', {}, format(edges[edges.length - 1]))));
}

/** One mark of a chart, with its tooltip; a link where it has an expression. */
function mark({ says, count, where, onFilter }, shapes) {
  const usable = Boolean(where && onFilter && count);
  const group = svg('g', { class: usable ? 'mark usable' : 'mark', tabindex: usable ? '0' : null, role: usable ? 'link' : 'img', 'aria-label': usable ? `${says}; filter` : says }, svg('title', {}, where ? `${says}\n${where}` : says), shapes);
  if (usable) {
    group.addEventListener('click', () => onFilter(where));
    group.addEventListener('keydown', (event) => {
      if (event.key !== 'Enter' && event.key !== ' ') return;
      event.preventDefault();
      event.stopPropagation();
      onFilter(where);
    });
  }
  return group;
}

/** @param {number} most @returns {number[]} two to five round numbers from 0 */
function ticks(most) {
  const rough = most / 4;
  const power = 10 ** Math.floor(Math.log10(Math.max(rough, 1)));
  const step = [1, 2, 2.5, 5, 10].map((one) => one * power).find((one) => one >= rough) ?? power * 10;
  const made = [];
  for (let value = 0; value <= most; value += step) made.push(value);
  return made;
}

/**
 * Widths against heights.
 * @param {[number, number, number][]} points width, height, count
 * @param {string} field
 * @param {(expression: string) => void} onFilter
 * @returns {HTMLElement}
 */
export function scatter(points, field, onFilter) {
  const size = 320;
  const left = 40;
  const bottom = 26;
  const most = Math.max(1, ...points.map(([width, height]) => Math.max(width, height))) * 1.06;
  const crowd = Math.max(1, ...points.map((point) => point[2]));
  const at = (value) => (value / most) * (size - left - 10);
  const x = (value) => left + at(value);
  const y = (value) => size - bottom - at(value);
  const lines = ticks(most).flatMap((value) => [
    svg('path', { class: 'rule', d: `M${x(value)} ${y(0)}V${y(most)}M${x(0)} ${y(value)}H${x(most)}` }),
    svg('text', { class: 'tick', x: x(value), y: size - bottom + 15, 'text-anchor': 'middle' }, formatNumber(value)),
    value > 0 && svg('text', { class: 'tick', x: left - 6, y: y(value) + 3.5, 'text-anchor': 'end' }, formatNumber(value))]);
  const marks = points.slice(0, 3000).map(([width, height, count]) => {
    const where = `${field}.width == ${width} and ${field}.height == ${height}`;
    return mark({ says: `${width} × ${height}: ${formatNumber(count)}`, count, where, onFilter: points.length <= 400 ? onFilter : null }, [svg('circle', { class: 'dot', cx: x(width), cy: y(height), r: 3 + 5 * Math.sqrt(count / crowd) })]);
  });
  return h('div', { class: 'chart' }, svg('svg', { class: 'scatter', viewBox: `0 0 ${size} ${size}`, role: 'group', 'aria-label': `Widths and heights of ${field}` },
    svg('path', { class: 'diagonal', d: `M${x(0)} ${y(0)}L${x(most)} ${y(most)}` }), lines, marks, svg('text', { class: 'tick', x: size - 10, y: size - bottom - 6, 'text-anchor': 'end' }, 'width'), svg('text', { class: 'tick', x: left + 6, y: 14 }, 'height')));
}

/**
 * Values and how often each stands, as bars.
 * @param {{value: any, count: number, where?: string}[]} values
 * @param {(expression: string) => void} onFilter
 * @param {number} [shown]
 * @returns {HTMLElement}
 */
export function valueBars(values, onFilter, shown = 12) {
  const most = Math.max(1, ...values.map((one) => one.count));
  const row = (one) => {
    const bar = h('span', { class: 'value-bar' });
    bar.style.width = `${Math.max(0.5, (100 * one.count) / most)}%`;
    return h('li', {}, h('button', { type: 'button', class: 'value-row', disabled: !one.where || !onFilter, title: one.where ?? '', on: { click: () => onFilter(one.where) } },
      h('bdi', { class: 'value-name' }, shorten(String(one.value), 48)), h('span', { class: 'value-track' }, bar), h('span', { class: 'figure' }, formatNumber(one.count))));
  };
  const list = h('ol', { class: 'values-list' }, values.slice(0, shown).map(row));
  if (values.length <= shown) return list;
  const more = h('button', { type: 'button', class: 'link', on: { click: () => { more.remove(); list.append(...values.slice(shown).map(row)); } } }, `${formatNumber(values.length - shown)} more`);
  return h('div', {}, list, more);
}

export const bytesFormat = (value) => formatBytes(Math.round(value));
