/** One sample in full: its fields by kind, its raw members, and what a pipeline makes of it. */

import { get } from './api.js';
import { fieldView, documentView } from './fields.js';
import { announce, baseName, countOf, failure, formatBytes, formatNumber, h, icon, iconButton, copyText, replace, shorten, writeOut } from './dom.js';
import { hexdump } from './hexdump.js';
import { pipelineView } from './pipeline.js';
import { addWhere, go, hrefOf, route } from './route.js';
import { TagBar } from './tags.js';

const PORTION = 60;

export class Detail {
  /** @param {any} context the app */
  constructor(context) {
    this.context = context;
    this.element = h('aside', { class: 'detail', 'aria-label': 'Sample', tabindex: '-1' });
    this.sample = null;
    this.signature = '';
    // the bar of tags stands between two parts that are drawn anew, and stays itself
    this.head = h('div', { class: 'contents' });
    this.rest = h('div', { class: 'contents' });
    this.tagBar = context.dataset.features.tags ? new TagBar(context.tags, (tag) => this.tagOpened(tag)) : null;
    replace(this.element, this.head, this.tagBar?.element, this.rest);
    /** a sample is opened and not here yet: what is to be done with it waits in `waiting` */
    this.pending = false;
    /** @type {{act: () => void, drop: () => void}[]} */
    this.waiting = [];
  }

  /**
   * Do something with the open sample, as soon as it is here.
   * @param {() => void} act
   * @param {() => void} [drop] called instead where the sample is left before
   */
  whenShown(act, drop = () => {}) {
    if (this.pending) this.waiting.push({ act, drop });
    else act();
  }

  /** Give up what waits for a sample that is left. */
  drop() {
    const dropped = this.waiting;
    this.waiting = [];
    for (const one of dropped) one.drop();
  }

  /** Do what waited for the sample, until it opens another one. */
  drain() {
    this.draining = true;
    while (!this.pending && this.waiting.length) this.waiting.shift().act();
    this.draining = false;
  }

  /** @param {string} tag typed for the open sample @returns {Promise<Error | null>} */
  tagOpened(tag) {
    return new Promise((resolve) => {
      const unread = () => resolve(new Error('The sample is not here: its tag was not written'));
      this.whenShown(() => (this.sample ? resolve(this.context.tags.toggle(this.sample, tag)) : unread()), unread);
    });
  }

  /** Show tags that changed; nothing else is drawn anew. */
  retag() {
    if (this.sample) this.tagBar?.draw(this.sample);
  }

  /** Show two parts, around the bar of tags. @param {any[]} head @param {any[]} rest */
  show(head, rest) {
    replace(this.head, head);
    replace(this.rest, rest);
  }

  /** Show what the route says; @returns {boolean} whether a sample is open */
  update() {
    const { open, tab, full } = route();
    this.element.hidden = !open;
    if (!open) {
      this.controller?.abort();
      this.signature = '';
      this.sample = null;
      this.pending = false;
      this.drop();
      this.tagBar?.clear();
      this.show([], []);
      return false;
    }
    const side = open.side;
    const signature = `${side} ${open.shard} ${open.ordinal}`;
    if (signature !== this.signature) {
      this.signature = signature;
      if (!this.draining) {
        // what waited was meant for the sample that is left
        this.drop();
        this.tagBar?.clear();
      }
      this.load(side, open);
    } else if (this.sample && (tab !== this.tab || full !== this.full)) this.draw();
    return true;
  }

  async load(side, open) {
    this.controller?.abort();
    const controller = new AbortController();
    this.controller = controller;
    this.pending = true;
    const asked = this.context.tags.changes;
    this.element.classList.add('loading');
    if (!this.sample) this.show([this.bar(null)], [h('div', { class: 'detail-body' }, h('div', { class: 'bone bone-tall' }), h('div', { class: 'bone' }), h('div', { class: 'bone bone-short' }))]);
    try {
      const sample = await get('sample', { side, shard: open.shard, ordinal: open.ordinal }, controller.signal);
      if (controller.signal.aborted) return;
      this.sample = sample;
      this.context.seen(sample, asked);
      this.draw();
      announce(`Sample ${this.sample.key}`);
    } catch (error) {
      if (controller.signal.aborted) return;
      this.sample = null;
      this.show([this.bar(null)], [h('div', { class: 'detail-body' }, failure(error, () => this.load(side, open)))]);
    } finally {
      if (this.controller === controller && !controller.signal.aborted) {
        this.element.classList.remove('loading');
        this.pending = false;
        this.drain();
      }
    }
  }

  bar(sample) {
    const { full } = route();
    const key = sample && h('button', { type: 'button', class: 'detail-key', title: 'Copy the key', on: { click: () => copyText(sample.key, key) } }, h('bdi', { class: 'key' }, shorten(writeOut(sample.key), 160)), icon('copy'));
    return h('header', { class: 'detail-bar' },
      h('div', { class: 'row tight' },
        iconButton('left', 'Previous sample ( k )', () => this.context.step(-1)),
        iconButton('right', 'Next sample ( j )', () => this.context.step(1))),
      h('h2', { class: 'detail-title' }, key),
      iconButton('wide', full ? 'Beside the grid ( w )' : 'Whole width ( w )', () => go({ full: !full }), { class: 'icon-button only-wide' }),
      iconButton('close', 'Close ( Esc )', () => this.context.close()));
  }

  draw() {
    const { sample } = this;
    const { tab, full } = route();
    this.tab = tab;
    this.full = full;
    const tabs = [['fields', 'Fields'], ['raw', 'Members and bytes']];
    if (this.context.dataset.features.pipeline) tabs.push(['pipeline', 'Before and after']);
    this.facts = h('div', { class: 'detail-facts' });
    this.name();
    const body = h('div', { class: 'detail-body' });
    if (tab === 'raw') body.append(...this.raw(sample));
    else if (tab === 'pipeline') body.append(pipelineView(sample));
    else body.append(...this.fields(sample));
    this.tagBar?.draw(sample);
    this.show([this.bar(sample), this.facts], [
      h('nav', { class: 'tabs', 'aria-label': 'Parts of the sample' }, tabs.map(([name, label]) => h('a', { href: hrefOf({ tab: name }), class: 'tab', 'aria-current': tab === name ? 'page' : null }, label))),
      body]);
  }

  /** Write where the sample stands; the names of shards may come after the sample. */
  name() {
    const { sample } = this;
    if (!sample || !this.facts) return;
    const shard = this.context.shardName(sample.side, sample.shard) ?? `shard ${sample.shard}`;
    replace(this.facts, h('span', { title: shard }, h('bdi', {}, shorten(baseName(shard), 44))), h('span', {}, `sample ${formatNumber(sample.ordinal)}`), h('span', { title: 'offset of its first member in the shard' }, `at byte ${formatNumber(sample.offset)}`), h('span', {}, formatBytes(sample.size_bytes)));
  }

  fields(sample) {
    const onFilter = this.context.dataset.features.queries ? (expression) => go(addWhere(expression)) : null;
    const made = [];
    if (sample.document) made.push(documentView(sample));
    const shown = sample.document ? new Set(sample.document.filter((part) => part.kind === 'image').map((part) => part.field)) : new Set();
    const rest = sample.fields.filter((field) => !shown.has(field.name));
    const order = ['image', 'video', 'audio', 'text', 'class', 'number', 'document', 'json', 'array', 'svg', 'html', 'pickle', 'binary'];
    rest.sort((one, two) => order.indexOf(one.kind) - order.indexOf(two.kind));
    made.push(...this.portion(sample, rest, 0, { onFilter, onBytes: () => go({ tab: 'raw' }) }));
    if (sample.more_fields) made.push(h('p', { class: 'quiet' }, `${countOf(sample.more_fields, 'more field')}: see Members and bytes.`));
    if (!sample.fields.length) made.push(h('p', { class: 'quiet' }, 'This sample has no fields.'));
    return made;
  }

  /** Fields from one on: a sample may have thousands, of which few are looked at. */
  portion(sample, fields, start, options) {
    const made = fields.slice(start, start + PORTION).map((field) => fieldView(sample, field, options));
    const left = fields.length - start - PORTION;
    if (left > 0) {
      const more = h('button', { type: 'button', class: 'button', on: { click: () => {
        const next = this.portion(sample, fields, start + PORTION, options);
        more.replaceWith(...next);
        next[0].querySelector('a, button')?.focus();
      } } }, `Show ${formatNumber(Math.min(left, PORTION))} of ${countOf(left, 'more field')}`);
      made.push(more);
    }
    return made;
  }

  raw(sample) {
    const dump = hexdump({ side: sample.side, shard: sample.shard, offset: sample.members[0]?.header_offset ?? sample.offset });
    const table = h('table', { class: 'table members' },
      h('thead', {}, h('tr', {}, ['member', 'header', 'offset', 'size', 'mode', 'time'].map((name) => h('th', { scope: 'col', class: ['header', 'offset', 'size'].includes(name) ? 'figure' : '' }, name)))),
      h('tbody', {}, sample.members.map((member) => h('tr', {},
        h('td', {}, h('button', { type: 'button', class: 'link', title: 'Show its bytes', on: { click: () => dump.show(member.offset, { from: member.offset, to: member.offset + member.size_bytes }) } }, h('bdi', {}, shorten(writeOut(member.name), 90))),
          member.type && !['0', 'file', 'regular'].includes(String(member.type)) && h('span', { class: 'quiet' }, ` ${member.type}`),
          member.pax && Object.keys(member.pax).length > 0 && h('span', { class: 'pax' }, Object.entries(member.pax).map(([name, value]) => h('span', {}, h('bdi', {}, `${name}=${shorten(String(value), 80)}`))))),
        h('td', { class: 'figure' }, h('button', { type: 'button', class: 'link', title: 'Show its header', on: { click: () => dump.show(member.header_offset, { from: member.header_offset, to: member.header_offset + 512 }) } }, formatNumber(member.header_offset))),
        h('td', { class: 'figure' }, formatNumber(member.offset)), h('td', { class: 'figure' }, formatNumber(member.size_bytes)),
        h('td', {}, typeof member.mode === 'number' ? member.mode.toString(8) : member.mode ?? '–'), h('td', {}, formatTime(member.mtime))))));
    return [h('div', { class: 'scroll-x', tabindex: '0', role: 'region', 'aria-label': 'Members' }, table), h('h3', {}, 'Bytes of the shard'), dump.element];
  }

  /** Open the neighbour of this sample in its shard or the next one. @param {number} by @returns {boolean} */
  step(by) {
    const to = by > 0 ? this.sample?.next : this.sample?.previous;
    if (to) this.context.open({ side: this.sample.side, ...to }, true);
    else if (this.sample) announce(by > 0 ? 'This is the last sample' : 'This is the first sample');
    return true;
  }
}

function formatTime(seconds) {
  if (typeof seconds !== 'number') return '–';
  const date = new Date(seconds * 1000);
  return Number.isNaN(date.getTime()) ? '–' : date.toISOString().slice(0, 16).replace('T', ' ');
}
