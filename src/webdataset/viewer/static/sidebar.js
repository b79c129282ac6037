/** The list of shards: up to hundreds of thousands, of which only those in sight exist. */

import { get } from './api.js';
import { baseName, countOf, formatBytes, formatNumber, h, icon, replace, shorten } from './dom.js';
import { hrefOf, route } from './route.js';
import { Rows } from './rows.js';

const PAGE = 200;
const ROW = 42;
const MOST_SEARCHED = 1000;

export class Sidebar {
  /** @param {any} context the app */
  constructor(context) {
    this.context = context;
    this.pages = new Map();
    /** @type {Map<number, Promise<void>>} */
    this.asked = new Map();
    this.searches = 0;
    this.filter = '';
    this.input = h('input', { class: 'input', type: 'search', placeholder: 'Find a shard', 'aria-label': 'Find a shard by name or number', spellcheck: 'false', on: { input: () => this.search(this.input.value) } });
    this.scroller = h('div', { class: 'shards', role: 'group', 'aria-label': 'Shards', tabindex: '0' });
    this.facts = h('div', { class: 'sidebar-facts' });
    this.sides = h('div', { class: 'segmented sides' });
    this.element = h('nav', { class: 'sidebar', 'aria-label': 'Shards' }, this.sides, h('div', { class: 'sidebar-search' }, icon('search'), this.input), this.scroller, this.facts);
    this.rows = new Rows(this.scroller, { height: ROW, draw: (row) => this.draw(row), onSight: (first, last) => this.need(first, last) });
    this.side = '';
  }

  update() {
    const now = route();
    const { sides } = this.context.dataset;
    this.sides.hidden = sides.length < 2;
    replace(this.sides, sides.map((one) => h('a', { class: 'segment segment-text', href: hrefOf({ side: one.side, shard: 0, at: 0, open: null }), title: one.name, 'aria-current': one.side === now.side ? 'true' : null }, one.side.toUpperCase())));
    if (this.side !== now.side) {
      this.side = now.side;
      this.pages.clear();
      this.asked = new Map();
      this.matches = null;
      this.rows.clear();
      this.rows.setSize(this.context.sideOf(now.side).shards);
      this.rows.reveal(Math.max(0, now.shard - 2), false);
      this.need(now.shard, now.shard + 20);
    } else this.rows.redrawAll();
    if (this.shard !== now.shard && !this.matches) this.rows.reveal(now.shard);
    this.shard = now.shard;
    this.sayTotals();
  }

  sayTotals() {
    const side = this.context.sideOf(this.side);
    replace(this.facts, countOf(side.shards, 'shard'), side.samples !== null && ` · ${side.exact ? countOf(side.samples, 'sample') : `${formatNumber(side.samples)}+ samples`}`);
  }

  at(shard) {
    return this.pages.get(Math.floor(shard / PAGE))?.[shard % PAGE];
  }

  need(first, last) {
    if (this.matches) return;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => {
      for (let page = Math.floor(first / PAGE); page <= Math.floor(last / PAGE); page += 1) this.fetchPage(page);
    }, this.pages.size ? 60 : 0);
  }

  /** Fetch a page of names; one that is being fetched is waited for. @param {number} page @returns {Promise<void>} */
  fetchPage(page) {
    if (this.pages.has(page)) return Promise.resolve();
    const { side, asked } = this;
    if (!asked.has(page)) asked.set(page, this.receivePage(side, page).finally(() => asked.delete(page)));
    return asked.get(page);
  }

  async receivePage(side, page) {
    try {
      const answer = await get('shards', { side, start: page * PAGE, count: PAGE });
      if (side !== this.side) return;
      this.pages.set(page, answer.shards);
      this.rows.redrawAll();
      this.context.named();
    } catch {
      // the rows stay nameless; the views say what is wrong
    }
  }

  /** Find shards by a part of the name, or one by its number. */
  async search(text) {
    const wanted = text.trim().toLowerCase();
    this.filter = wanted;
    this.searches += 1;
    const mine = this.searches;
    if (!wanted) {
      this.matches = null;
      this.rows.setSize(this.context.sideOf(this.side).shards);
      this.rows.redrawAll();
      this.sayTotals();
      return;
    }
    this.matches = [];
    const { side } = this;
    const { shards } = this.context.sideOf(side);
    if (/^\d+$/.test(wanted) && Number(wanted) < shards) await this.fetchPage(Math.floor(Number(wanted) / PAGE));
    for (let page = 0; page * PAGE < shards && this.searches === mine && this.side === side && this.matches.length < MOST_SEARCHED; page += 1) {
      await this.fetchPage(page);
      if (this.searches !== mine || this.side !== side) return;
      for (const shard of this.pages.get(page) ?? []) if (shard.name.toLowerCase().includes(wanted) || String(shard.shard) === wanted) this.matches.push(shard);
      this.rows.setSize(this.matches.length);
      replace(this.facts, `${countOf(this.matches.length, 'match').replace(/matchs$/, 'matches')} in ${formatNumber(Math.min(shards, (page + 1) * PAGE))} of ${countOf(shards, 'shard')}`);
    }
    if (this.searches === mine && this.side === side) this.rows.redrawAll();
  }

  draw(row) {
    const shard = this.matches ? this.matches[row] : this.at(row);
    const number = shard?.shard ?? row;
    const chosen = number === route().shard;
    const facts = shard ? [shard.samples !== null && countOf(shard.samples, 'sample'), shard.size_bytes !== null && formatBytes(shard.size_bytes)].filter(Boolean).join(' · ') : '';
    return h('a', { class: `shard${chosen ? ' selected' : ''}`, href: hrefOf({ view: ['findings', 'compare'].includes(route().view) ? route().view : 'samples', shard: number, at: 0, open: null, q: '', where: [], more: {} }), 'aria-current': chosen ? 'true' : null, title: shard ? shorten(shard.name, 500) : '', on: { click: () => this.context.closeSidebar() } },
      h('span', { class: 'shard-name' }, h('bdi', {}, shard ? shorten(baseName(shard.name), 34) : `shard ${formatNumber(number)}`)),
      h('span', { class: 'shard-facts' }, facts, shard?.indexed && h('span', { class: 'pill pill-small', title: 'This shard has an index' }, 'index')));
  }
}

