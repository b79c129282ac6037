/** The view of samples: a shard's, or those that a search and filters find. */

import { baseName, countOf, formatBytes, formatNumber, h, icon, iconButton, notice, replace, shorten } from './dom.js';
import { Gallery } from './gallery.js';
import { go, hrefOf, joinWhere, route } from './route.js';
import { SearchSource, ByteSource } from './sources.js';

export class SamplesView {
  /** @param {any} context the app */
  constructor(context) {
    this.context = context;
    this.element = h('section', { class: 'view view-samples', 'aria-label': 'Samples' });
    this.bar = h('div', { class: 'viewbar' });
    this.place = h('div', { class: 'view-body' });
    this.element.append(this.bar, this.place);
    this.signature = '';
  }

  update() {
    const now = route();
    const searching = Boolean(now.q || now.where.length);
    const signature = JSON.stringify(searching ? [now.side, now.q, now.where] : [now.side, now.shard]);
    if (signature !== this.signature || now.layout !== this.gallery?.layout) {
      const source = signature === this.signature ? this.source : null;
      this.gallery?.destroy();
      this.signature = signature;
      this.source = source ?? (searching ? new SearchSource({ side: now.side, q: now.q, where: joinWhere(now.where) }) : new ByteSource(now.side, now.shard));
      if (source instanceof SearchSource) source.resume();
      this.searching = searching;
      this.gallery = new Gallery(this.source, {
        layout: now.layout,
        onOpen: (sample) => this.context.open(sample),
        tagsOf: (sample) => this.context.tags.ofListed(sample),
        onRest: (first) => { if (route().view === 'samples' && route().at !== first) go({ at: first }, true); },
        empty: () => this.empty(),
        foot: () => this.foot(),
      });
      this.source.addEventListener('change', () => {
        if (this.source instanceof ByteSource) this.context.counted(this.source.side, this.source.shard, this.source.total);
        this.context.showFilterError(this.source.error?.status === 400 ? this.source.error : null);
        this.choose();
      });
      replace(this.place, this.gallery.element);
      this.gallery.measure();
      const start = now.open && this.source.indexOf(now.open) >= 0 && !now.at ? this.source.indexOf(now.open) : now.at;
      if (start) this.gallery.reveal(start, false);
      this.gallery.follow();
      if (searching) this.source.look();
      else this.source.need(start, start + 20);
    }
    this.drawBar();
    this.choose();
  }

  /** Mark the sample whose detail is open. */
  choose() {
    const { open } = route();
    if (!open) return;
    const index = this.source.indexOf(open);
    if (index >= 0 && index < this.source.size) this.gallery.select(index);
  }

  drawBar() {
    const now = route();
    const { context } = this;
    const shard = context.shardName(now.side, now.shard);
    const total = context.sideOf(now.side).shards;
    const title = this.searching ? h('h1', {}, 'Matches') : h('h1', { title: shard ?? '' }, h('bdi', {}, shorten(shard ? baseName(shard) : `Shard ${now.shard}`, 60)));
    const layouts = [['grid', 'grid', 'Cards'], ['dense', 'dense', 'Pictures only'], ['table', 'table', 'Table']];
    replace(this.bar,
      h('div', { class: 'viewbar-title' }, title, !this.searching && total > 1 && h('span', { class: 'quiet viewbar-place' }, `${formatNumber(now.shard + 1)} of ${formatNumber(total)}`)),
      !this.searching && total > 1 && h('div', { class: 'row tight' },
        iconButton('left', 'Previous shard ( [ )', () => context.moveShard(-1), { disabled: now.shard === 0 }),
        iconButton('right', 'Next shard ( ] )', () => context.moveShard(1), { disabled: now.shard >= total - 1 })),
      h('div', { class: 'segmented', role: 'group', 'aria-label': 'Layout' }, layouts.map(([name, picture, label]) =>
        h('a', { href: hrefOf({ layout: name }), class: 'segment', title: label, 'aria-label': label, 'aria-current': now.layout === name ? 'true' : null }, icon(picture)))));
  }

  empty() {
    if (this.searching) {
      const { scanned } = this.source;
      return notice('No sample matches', `Looked through ${countOf(scanned.samples, 'sample')} of ${countOf(scanned.shards, 'shard')}.`,
        [h('a', { class: 'button', href: hrefOf({ q: '', where: [], at: 0 }) }, 'Remove search and filters')]);
    }
    return notice('This shard holds no samples', 'It is a complete archive without members that form a sample.');
  }

  foot() {
    if (!this.searching) return null;
    const { source } = this;
    const { scanned } = source;
    const facts = `looked through ${countOf(scanned.samples, 'sample')}, ${formatBytes(scanned.bytes)}`;
    if (source.done) return h('span', {}, facts);
    if (source.busy) return h('span', { class: 'row tight' }, h('span', { class: 'spinner', 'aria-hidden': 'true' }), facts, h('button', { type: 'button', class: 'link', on: { click: () => source.pause() } }, 'Stop'));
    return h('span', { class: 'row tight' }, facts, !source.error && h('button', { type: 'button', class: 'link', on: { click: () => source.resume() } }, 'Look further'));
  }

  /** @param {KeyboardEvent} event @returns {boolean} whether it was of use */
  key(event) {
    const opened = Boolean(route().open);
    const steps = { j: 1, k: -1, ArrowRight: 1, ArrowLeft: -1, ArrowDown: this.gallery.columns, ArrowUp: -this.gallery.columns };
    if (event.key in steps) {
      if (opened && ['j', 'k', 'ArrowRight', 'ArrowLeft'].includes(event.key)) return this.step(steps[event.key]);
      if (opened && !this.searching) return false;
      this.gallery.move(steps[event.key]);
      return true;
    }
    if (event.key === 'PageDown' || event.key === 'PageUp') this.gallery.page(event.key === 'PageDown' ? 1 : -1);
    else if (event.key === 'Home') { this.gallery.rows.place(0); if (this.gallery.selected >= 0) this.gallery.select(0, true); }
    else if (event.key === 'End') { this.gallery.rows.place(this.gallery.rows.most); if (this.gallery.selected >= 0) this.gallery.select(this.source.size - 1, true); }
    else if (event.key === 'Enter' && this.gallery.selected >= 0 && !opened) this.context.open(this.source.at(this.gallery.selected));
    else return false;
    return true;
  }

  /** Open a neighbour of the open sample. @param {number} by @returns {boolean} */
  step(by) {
    const { open } = route();
    const index = open ? this.source.indexOf(open) : -1;
    if (index < 0 || !this.searching) return this.context.detail.step(by);
    const sample = this.source.at(index + by);
    if (sample) this.context.open(sample, true);
    else this.source.need(index, index + 1);
    return true;
  }

  /** @returns {any} the sample that keys of tags are about */
  current() {
    return this.source.at(this.gallery.selected) ?? null;
  }

  destroy() {
    this.gallery?.destroy();
  }
}
