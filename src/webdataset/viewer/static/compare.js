/** Two inputs side by side, sample by sample. */

import { get } from './api.js';
import { card } from './cards.js';
import { failure, formatNumber, h, keyOf, notice, replace, shorten } from './dom.js';
import { hrefOf, route } from './route.js';

const PAGE = 50;

export class CompareView {
  /** @param {any} context the app */
  constructor(context) {
    this.context = context;
    this.bar = h('div', { class: 'viewbar' });
    this.body = h('div', { class: 'scroll' });
    this.element = h('section', { class: 'view', 'aria-label': 'Comparison' }, this.bar, this.body);
    this.signature = '';
  }

  async update() {
    const now = route();
    const signature = `${now.shard} ${now.more.differs ?? ''}`;
    if (signature === this.signature) return;
    this.signature = signature;
    const names = ['a', 'b'].map((side) => this.context.sideOf(side)?.name ?? side);
    replace(this.bar, h('div', { class: 'viewbar-title' }, h('h1', {}, 'Side by side'), h('span', { class: 'quiet' }, `shard ${formatNumber(now.shard + 1)} of each`)),
      h('div', { class: 'segmented' }, [['', 'All'], ['1', 'Different']].map(([value, label]) => h('a', { class: 'segment segment-text', href: hrefOf({ more: { differs: value } }), 'aria-current': (now.more.differs ?? '') === value ? 'true' : null }, label))));
    this.list = h('div', { class: 'pairs' }, h('div', { class: 'pair pair-head' }, names.map((name, index) => h('div', { title: name }, h('span', { class: 'pill' }, index ? 'B' : 'A'), h('bdi', {}, shorten(name, 60))))));
    this.foot = h('div', { class: 'page-foot' });
    replace(this.body, this.list, this.foot);
    this.start = 0;
    this.shown = 0;
    this.load(signature);
  }

  async load(signature) {
    replace(this.foot, h('span', { class: 'spinner' }));
    try {
      const answer = await get('compare', { shard: route().shard, start: this.start, count: PAGE });
      if (signature !== this.signature) return;
      const rows = route().more.differs ? answer.rows.filter((row) => row.differs.length || !row.a || !row.b) : answer.rows;
      this.start += answer.rows.length;
      this.shown += rows.length;
      for (const row of rows) this.list.append(this.pair(row));
      const end = answer.end ?? answer.rows.length < PAGE;
      if (!end && !rows.length) return void this.load(signature);
      replace(this.foot, end ? (this.shown ? h('span', { class: 'quiet' }, 'End of the shard') : notice('No differences', 'The samples of both shards are alike.')) : h('button', { type: 'button', class: 'button', on: { click: () => this.load(signature) } }, 'More'));
    } catch (error) {
      if (signature === this.signature) replace(this.foot, failure(error, () => this.load(signature)));
    }
  }

  pair(row) {
    const one = (sample, side) => (sample ? card(sample, { href: hrefOf({ open: { side, shard: sample.shard, ordinal: sample.ordinal } }), selected: false, dense: false, size: 512 }) : h('div', { class: 'card card-missing' }, `Not in ${side.toUpperCase()}`));
    const differs = !row.a || !row.b ? [] : row.differs;
    return h('div', { class: `pair${differs.length || !row.a || !row.b ? ' pair-different' : ''}` },
      h('div', { class: 'pair-key' }, keyOf(row.key, 80), differs.length > 0 && h('span', { class: 'chips' }, differs.map((name) => h('span', { class: 'chip chip-differs' }, h('bdi', {}, shorten(name, 24)))))),
      one(row.a, 'a'), one(row.b, 'b'));
  }

  key() {
    return false;
  }

  destroy() {
    this.signature = null;
  }
}
