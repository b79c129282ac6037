/** Samples of a source as a grid or a table that scrolls through all of them. */

import { blank, card, cardLabel, tableRow } from './cards.js';
import { countOf, failure, formatBytes, formatNumber, h, notice, replace } from './dom.js';
import { Rows } from './rows.js';
import { hrefOf } from './route.js';

const SHAPES = {
  grid: { least: 216, face: 0.75, body: 104, gap: 14 },
  dense: { least: 118, face: 1, body: 0, gap: 6 },
};
const TABLE_ROW = 64;
const MOST_COLUMNS = 8;

export class Gallery {
  /**
   * @param {any} source a source of samples
   * @param {object} options
   * @param {string} options.layout grid, dense or table
   * @param {(sample: any, index: number) => void} options.onOpen
   * @param {(sample: any) => string[]} [options.tagsOf] the tags that cards show
   * @param {(first: number) => void} [options.onRest] the index of the first sample in sight, when scrolling has ended
   * @param {() => HTMLElement | null} [options.empty] shown where there are no samples
   * @param {() => HTMLElement | null} [options.foot] shown below, in the bar of facts
   */
  constructor(source, { layout, onOpen, tagsOf = (sample) => sample.tags, onRest = () => {}, empty = () => notice('No samples'), foot = () => null }) {
    this.source = source;
    this.layout = layout;
    this.onOpen = onOpen;
    this.tagsOf = tagsOf;
    this.empty = empty;
    this.foot = foot;
    this.selected = -1;
    this.columns = 1;
    this.fields = [];
    this.head = h('div', { class: 'table-head', role: 'presentation' });
    this.scroller = h('div', { class: `gallery gallery-${layout}`, tabindex: '0', role: 'group', 'aria-label': 'Samples' });
    this.message = h('div', { class: 'gallery-message' });
    this.status = h('div', { class: 'statusbar' });
    this.element = h('div', { class: 'gallery-frame' }, layout === 'table' && this.head, this.scroller, this.message, this.status);
    this.rows = new Rows(this.scroller, {
      height: 200,
      draw: (row) => this.drawRow(row),
      onSight: (first, last) => this.source.need(first * this.columns, Math.min((last + 1) * this.columns - 1, Math.max(0, this.capacity - 1))),
      onRest: () => onRest(this.rows.first * this.columns),
    });
    this.onChange = () => this.follow();
    source.addEventListener('change', this.onChange);
    this.observer = new ResizeObserver(() => this.measure());
    this.observer.observe(this.scroller);
    this.scroller.addEventListener('click', (event) => this.click(event));
    // the heads of columns stand above the rows, and follow them sideways
    this.scroller.addEventListener('scroll', () => { this.head.style.transform = `translateX(${-this.scroller.scrollLeft}px)`; }, { passive: true });
    this.signature = '';
  }

  /** Samples that there is room for: those known, and a screen of blanks while more may come. */
  get capacity() {
    const { source } = this;
    if (source.total !== null || source.error) return source.size;
    return source.size + (source.size ? this.columns * 2 : this.columns * 4);
  }

  /** Fit columns to the width. */
  measure() {
    const width = this.scroller.clientWidth;
    if (!width) return;
    const index = this.rows.first * this.columns;
    let height = TABLE_ROW;
    if (this.layout === 'table') this.columns = 1;
    else {
      const shape = SHAPES[this.layout];
      const inner = width - 2 * 16 + shape.gap;
      const least = width < 480 && this.layout === 'grid' ? 150 : shape.least;
      this.columns = Math.max(1, Math.floor(inner / (least + shape.gap)));
      const side = inner / this.columns - shape.gap;
      this.size = Math.min(512, Math.ceil((side * Math.min(2, devicePixelRatio)) / 128) * 128);
      height = Math.round(side * shape.face + shape.body + shape.gap);
      this.scroller.style.setProperty('--columns', String(this.columns));
      this.scroller.style.setProperty('--gap', `${shape.gap}px`);
    }
    const signature = `${this.columns} ${height}`;
    if (signature === this.signature) return;
    this.signature = signature;
    this.rows.clear();
    this.rows.setSize(Math.ceil(this.capacity / this.columns), height);
    if (this.pending !== undefined) this.reveal(this.pending, false);
    else if (index) this.rows.reveal(Math.floor(index / this.columns), false);
  }

  /** Let the cards say how many samples there are, once it is known. */
  count() {
    const { source } = this;
    if (source.total === null || this.counted === source.total) return;
    this.counted = source.total;
    for (const one of this.element.querySelectorAll('.card:not(.blank)')) {
      const index = Number(one.dataset.index);
      one.setAttribute('aria-label', cardLabel(source.at(index), index, source.total));
    }
  }

  /** Show what the source has now. */
  follow() {
    const { source } = this;
    this.count();
    if (this.layout === 'table') this.name();
    for (const [row, element] of this.rows.drawn) if (element.classList.contains('waiting') && this.ready(row)) this.rows.redraw(row);
    this.rows.setSize(Math.ceil(this.capacity / this.columns));
    if (this.pending !== undefined) {
      const row = Math.floor(this.pending / this.columns);
      if (this.pending < source.size || source.total !== null) {
        this.rows.reveal(row, false);
        if (this.pending < source.size) this.pending = undefined;
      }
    }
    this.say();
  }

  ready(row) {
    for (let index = row * this.columns; index < (row + 1) * this.columns; index += 1) if (this.source.at(index)) return true;
    return this.source.total !== null && row * this.columns >= this.source.size;
  }

  /** The columns of the table: the fields that the first samples have. */
  name() {
    if (this.fields.length) return;
    const counts = new Map();
    for (let index = 0; index < Math.min(20, this.source.size); index += 1) for (const field of this.source.at(index)?.fields ?? []) counts.set(field.name, (counts.get(field.name) ?? 0) + 1);
    if (!counts.size) return;
    // those that most samples have; among these, in the order of the shard
    this.fields = [...counts.keys()].sort((one, other) => counts.get(other) - counts.get(one)).slice(0, MOST_COLUMNS);
    this.hiddenFields = counts.size - this.fields.length;
    this.element.style.setProperty('--fields', String(this.fields.length));
    replace(this.head, h('span', { class: 'cell cell-number', title: 'Number in its shard, from 0' }, '#'), h('span', { class: 'cell cell-key' }, 'key'), this.fields.map((name) => h('span', { class: 'cell', title: name }, h('bdi', {}, name))));
    this.rows.redrawAll();
  }

  drawRow(row) {
    const { source } = this;
    const dense = this.layout === 'dense';
    const element = h('div', { class: 'gallery-row', role: 'presentation' });
    for (let index = row * this.columns; index < (row + 1) * this.columns; index += 1) {
      const sample = source.at(index);
      if (sample) {
        const options = { href: hrefOf({ open: { side: sample.side, shard: sample.shard, ordinal: sample.ordinal }, tab: 'fields' }), selected: index === this.selected, tags: this.tagsOf(sample), dense, size: this.size ?? 256, position: index, total: source.total ?? -1 };
        const made = this.layout === 'table' ? tableRow(sample, this.fields, options) : card(sample, options);
        made.dataset.index = String(index);
        element.append(made);
      } else if (source.total === null || index < source.total) {
        element.classList.add('waiting');
        element.append(this.layout === 'table' ? h('span', { class: 'table-row blank' }) : blank(dense));
      }
    }
    return element;
  }

  say() {
    const { source } = this;
    const none = source.size === 0;
    this.element.classList.toggle('is-empty', none && (source.total !== null || Boolean(source.error)));
    if (none && source.error?.status === 400) replace(this.message, notice('This filter is no expression', ['Change it or remove it above. It is written as in ', h('code', {}, 'wds grep'), ': ', h('code', {}, 'jpg.width >= 512 and "cat" in txt'), '.']));
    else if (none && source.error) replace(this.message, failure(source.error, () => source.retry()));
    else if (none && source.total !== null) replace(this.message, source.problem ? problemNotice(source.problem) : this.empty());
    else replace(this.message);
    const count = source.total !== null ? countOf(source.size, 'sample') : none ? (source.error ? '' : 'Reading…') : `${formatNumber(source.size)} so far`;
    replace(this.status, h('span', { class: 'status-count' }, count),
      source.sequential && h('span', { class: 'status-note', title: 'This shard is compressed or a stream: it is read from its start' }, 'read in order'),
      source.problem && !none && h('span', { class: 'status-problem', title: source.problem.message }, `${source.problem.stops ? 'Stops here: ' : ''}${source.problem.message}`),
      source.error && !none && h('span', { class: 'status-problem' }, source.error.message, h('button', { type: 'button', class: 'link', on: { click: () => source.retry() } }, 'Try again')),
      source.read && h('span', { class: 'status-read', title: 'What the server has read from the shard' }, `${formatNumber(source.read.requests)} reads, ${formatBytes(source.read.bytes)}`),
      this.layout === 'table' && this.hiddenFields > 0 && h('span', { class: 'status-note', title: 'Columns are the fields of most samples; a sample that is opened shows all' }, `${this.fields.length} of ${countOf(this.fields.length + this.hiddenFields, 'field')}`),
      this.foot());
  }

  /** @param {Event} event */
  click(event) {
    if (event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
    const target = event.target.closest?.('[data-index]');
    if (!target) return;
    event.preventDefault();
    const index = Number(target.dataset.index);
    this.select(index);
    this.onOpen(this.source.at(index), index);
  }

  /** @param {number} index @param {boolean} [focus] */
  select(index, focus = false) {
    const before = this.selected;
    if (index === before && !focus) return;
    this.selected = index;
    for (const one of [before, index]) if (one >= 0) this.rows.redraw(Math.floor(one / this.columns));
    if (index >= 0) this.reveal(index);
    if (focus) this.scroller.querySelector(`[data-index="${index}"]`)?.focus({ preventScroll: true });
  }

  /** @param {number} index @param {boolean} [nearest] */
  reveal(index, nearest = true) {
    if (!nearest && (index >= this.source.size || !this.signature)) this.pending = index;
    this.rows.reveal(Math.floor(index / this.columns), nearest);
  }

  /** Move the choice; @param {number} by samples @returns {number} the index now chosen */
  move(by) {
    const most = this.source.size - 1;
    const next = Math.max(0, Math.min(most, this.selected < 0 ? this.rows.first * this.columns : this.selected + by));
    this.select(next, true);
    return next;
  }

  /** @param {number} by screens */
  page(by) {
    const rows = Math.max(1, Math.floor(this.rows.view / this.rows.height));
    if (this.selected >= 0) this.move(by * rows * this.columns);
    else this.rows.place(this.rows.top + by * rows * this.rows.height);
  }

  /** Draw the samples of a key anew, for example after a tag. @param {string} key */
  redrawKey(key) {
    for (const row of [...this.rows.drawn.keys()]) {
      for (let index = row * this.columns; index < (row + 1) * this.columns; index += 1) {
        if (this.source.at(index)?.key !== key) continue;
        this.rows.redraw(row);
        break;
      }
    }
  }

  destroy() {
    this.source.removeEventListener('change', this.onChange);
    this.source.stop();
    this.observer.disconnect();
    this.rows.destroy();
  }
}

function problemNotice(problem) {
  return notice('No sample could be read', h('span', { class: 'error-text' }, problem.message));
}
