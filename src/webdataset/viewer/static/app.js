/** The page: its start, its frame, its keys, and which view is shown. */

import { ApiError, connection, get, post } from './api.js';
import { BatchView } from './batch.js';
import { CompareView } from './compare.js';
import { Detail } from './detail.js';
import { announce, h, icon, iconButton, notice, replace, shorten } from './dom.js';
import { FindingsView } from './findings.js';
import { go, hrefOf, onRoute, parseRoute, route } from './route.js';
import { SamplesView } from './samples.js';
import { Sidebar } from './sidebar.js';
import { StatisticsView } from './statistics.js';
import { Tags } from './tags.js';

const VIEWS = { samples: SamplesView, statistics: StatisticsView, findings: FindingsView, compare: CompareView, batch: BatchView };
const root = document.getElementById('app');

/* themes ------------------------------------------------------------------------------------------------------- */

const THEMES = ['auto', 'light', 'dark'];

function storedTheme() {
  try {
    const theme = localStorage.getItem('wds-view-theme');
    return THEMES.includes(theme) ? theme : 'auto';
  } catch {
    return 'auto';
  }
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  try {
    localStorage.setItem('wds-view-theme', theme);
  } catch {
    // a browser that keeps nothing
  }
}

document.documentElement.dataset.theme = storedTheme();

/* the frame ---------------------------------------------------------------------------------------------------- */

class App {
  constructor(dataset) {
    this.dataset = dataset;
    this.sides = Object.fromEntries(dataset.sides.map((side) => [side.side, side]));
    this.tags = new Tags((key) => {
      this.view?.gallery?.redrawKey(key);
      if (this.detail.sample?.key === key) this.detail.retag();
    });
    this.sidebar = new Sidebar(this);
    this.detail = new Detail(this);
    this.search = h('input', { class: 'input search-input', type: 'search', placeholder: 'Search keys and text', 'aria-label': 'Search keys and text', spellcheck: 'false', autocapitalize: 'off' });
    this.filter = h('input', { class: 'input filter-input', type: 'text', placeholder: 'Filter: cls == 3', 'aria-label': 'Filter by an expression', 'aria-describedby': 'filter-error', spellcheck: 'false', autocapitalize: 'off', autocomplete: 'off' });
    this.chips = h('section', { class: 'filters', 'aria-label': 'Search and filters' });
    this.error = h('div', { class: 'filter-error', id: 'filter-error', role: 'alert' });
    this.banner = h('div', { class: 'banner', role: 'alert', hidden: true });
    this.nav = h('nav', { class: 'views', 'aria-label': 'Views' });
    this.main = h('main', { id: 'main', class: 'main', tabindex: '-1' });
    this.split = h('div', { class: 'split' }, this.main, this.detail.element);
    this.draw();
  }

  draw() {
    const { title } = this.dataset;
    document.title = `${shorten(title, 60)} – wds view`;
    const searchForm = h('form', { class: 'searchbox', role: 'search', on: { submit: (event) => { event.preventDefault(); this.submit(); } } },
      h('label', { class: 'box' }, icon('search'), this.search, h('kbd', { class: 'only-wide' }, '/')),
      this.dataset.features.queries && h('label', { class: 'box box-filter' }, icon('filter'), this.filter), h('button', { class: 'hidden-text' }, 'Search'));
    this.search.addEventListener('search', () => { if (!this.search.value && route().q) this.submit(); });
    replace(root, h('header', { class: 'top' },
      iconButton('menu', 'Shards', () => root.classList.toggle('sidebar-open'), { class: 'icon-button menu-button' }),
      h('a', { class: 'title', href: '#/samples', title: this.dataset.sides.map((side) => shorten(side.name, 300)).join(' | ') }, h('span', { class: 'logo', 'aria-hidden': 'true' }), h('bdi', {}, shorten(title, 30))),
      this.nav, searchForm,
      h('div', { class: 'row tight top-tools' }, iconButton('half', 'Light, dark or as the system ( d )', () => this.turnTheme(), { class: 'icon-button theme-button' }), iconButton('help', 'Keys ( ? )', () => this.help()))),
    this.banner, this.chips, this.error,
    h('div', { class: 'columns' }, h('div', { class: 'shade', on: { click: () => this.closeSidebar() } }), this.sidebar.element, this.split));
    root.removeAttribute('aria-busy');
    root.classList.toggle('one-shard', this.dataset.sides.every((side) => side.shards < 2));
  }

  sideOf(side) {
    return this.sides[side] ?? this.dataset.sides[0];
  }

  shardName(side, shard) {
    return this.sidebar.side === side ? this.sidebar.at(shard)?.name ?? null : null;
  }

  /** The number of samples of a shard became known. */
  counted(side, shard, total) {
    const entry = this.sidebar.side === side && this.sidebar.at(shard);
    if (!entry || total === null || entry.samples === total) return;
    entry.samples = total;
    this.sidebar.rows.redrawAll();
  }

  /** Names of shards came. */
  named() {
    this.detail.name();
    if (this.view instanceof SamplesView) this.view.drawBar();
  }

  update() {
    const now = route();
    const { features } = this.dataset;
    const views = [['samples', 'Samples', 'grid'], features.statistics && ['statistics', 'Statistics', 'chart'], features.findings && ['findings', 'Findings', 'check'], features.compare && ['compare', 'Compare', 'compare'], features.batches && ['batch', 'Batch', 'batch']].filter(Boolean);
    // one view is no choice
    this.nav.hidden = views.length < 2;
    replace(this.nav, views.map(([name, label, picture]) => h('a', { class: 'view-link', href: hrefOf({ view: name, open: null, at: 0, more: {} }), 'aria-current': now.view === name ? 'page' : null, title: label }, icon(picture), h('span', {}, label))));
    if (document.activeElement !== this.search) this.search.value = now.q;
    this.drawChips();
    if (!views.some(([name]) => name === now.view)) {
      // a url of another server, or of an earlier one
      go({ view: 'samples', more: {} }, true);
      this.update();
      return;
    }
    if (!(this.view instanceof VIEWS[now.view])) {
      this.view?.destroy();
      this.view = new VIEWS[now.view](this);
      replace(this.main, this.view.element);
      this.showFilterError(null);
    }
    this.sidebar.update();
    const opened = this.detail.update();
    root.classList.toggle('detail-open', opened);
    root.classList.toggle('detail-full', opened && now.full);
    this.view.update();
  }

  drawChips() {
    const { q, where } = route();
    const chip = (label, text, href) => h('span', { class: 'filter-chip' }, h('span', { class: 'chip-name' }, label), h('bdi', { title: text }, shorten(text, 70)), h('a', { class: 'icon-button small', href, 'aria-label': `Remove ${shorten(text, 40)}`, title: 'Remove' }, icon('close')));
    replace(this.chips, q && chip('text', q, hrefOf({ q: '', at: 0, open: null })),
      where.map((one, index) => chip('where', one, hrefOf({ where: where.filter((_, other) => other !== index), at: 0, open: null }))),
      where.length + (q ? 1 : 0) > 1 && h('a', { class: 'link', href: hrefOf({ q: '', where: [], at: 0, open: null }) }, 'Remove all'));
  }

  submit() {
    const q = this.search.value.trim();
    const expression = this.filter.value.trim();
    const where = expression && !route().where.includes(expression) ? [...route().where, expression] : route().where;
    this.filter.value = '';
    const view = route().view === 'statistics' && !q ? 'statistics' : 'samples';
    go({ view, q, where, at: 0, open: null, more: view === route().view ? route().more : {} });
  }

  /** @param {ApiError | null} error of an expression, with its column where the server says it */
  showFilterError(error) {
    const { where } = route();
    if (!error || !where.length) {
      replace(this.error);
      return;
    }
    const column = error.body?.error?.position ?? error.body?.error?.column ?? Number(/at column (\d+)/.exec(error.message)?.[1]);
    const text = where.length === 1 ? where[0] : where.map((one) => `(${one})`).join(' and ');
    const caret = Number.isFinite(column) && column > 0 && h('pre', { class: 'caret' }, `${text}\n${' '.repeat(column - 1)}^`);
    replace(this.error, icon('warn'), h('span', {}, error.message), caret);
  }

  /* samples */

  /** @param {any} sample @param {boolean} [instead] in the place of this entry of the history */
  open(sample, instead = false) {
    if (!sample) return;
    const open = { side: sample.side ?? route().side, shard: sample.shard, ordinal: sample.ordinal };
    const patch = { open, tab: route().open ? route().tab : 'fields' };
    if (instead) {
      go(patch, true);
      this.update();
    } else go(patch);
    if (matchMedia('(max-width: 900px)').matches) this.detail.element.focus({ preventScroll: true });
  }

  close() {
    const { open } = route();
    go({ open: null, full: false, tab: 'fields' });
    if (open && this.view.gallery) this.view.gallery.scroller.querySelector('.selected')?.focus({ preventScroll: true });
  }

  step(by) {
    if (this.view.step) this.view.step(by);
    else this.detail.step(by);
  }

  /** A sample's detail came. @param {any} sample @param {number} asked the count of changes when it was asked for */
  seen(sample, asked) {
    if (sample.tags && asked === this.tags.changes) this.tags.byKey[sample.key] = sample.tags;
  }

  moveShard(by) {
    const { shard, side } = route();
    const next = shard + by;
    if (next < 0 || next >= this.sideOf(side).shards) return;
    go({ shard: next, at: 0, open: null });
  }

  closeSidebar() {
    root.classList.remove('sidebar-open');
  }

  turnTheme() {
    const theme = THEMES[(THEMES.indexOf(storedTheme()) + 1) % THEMES.length];
    setTheme(theme);
    announce(theme === 'auto' ? 'As the system' : theme);
  }

  /* keys */

  help() {
    const rows = [['j  k', 'next, previous sample'], ['← → ↑ ↓', 'move in the grid'], ['Page Up, Page Down', 'a screen'], ['Home, End', 'first, last sample'], ['Enter', 'open the sample'], ['Esc', 'close'], ['/', 'search'], this.dataset.features.queries && ['f', 'filter by an expression'], ['[  ]', 'previous, next shard'], ['w', 'detail on the whole width'], ['r', 'members and bytes'], ['d', 'light, dark, as the system'],
      this.dataset.features.tags && ['t  1–9', 'tag: write one, or toggle by number'], ['?', 'these keys']].filter(Boolean);
    const dialog = h('dialog', { class: 'dialog', 'aria-label': 'Keys' }, h('header', { class: 'row' }, h('h2', {}, 'Keys'), iconButton('close', 'Close', () => dialog.close())), h('dl', { class: 'keys' }, rows.map(([keys, meaning]) => h('div', {}, h('dt', {}, keys.split('  ').map((one) => h('kbd', {}, one))), h('dd', {}, meaning)))), h('p', { class: 'quiet' }, `wds view ${this.dataset.version ?? ''}`));
    dialog.addEventListener('close', () => dialog.remove());
    dialog.addEventListener('click', (event) => { if (event.target === dialog) dialog.close(); });
    document.body.append(dialog);
    dialog.showModal();
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector('dialog[open]')) return;
    const { target } = event;
    const typing = target.matches?.('input, textarea, select');
    if (event.key === 'Escape') {
      if (typing) target.blur();
      else if (root.classList.contains('sidebar-open')) this.closeSidebar();
      else if (route().open) this.close();
      return;
    }
    if (typing || (target.matches?.('audio, video') && event.key.startsWith('Arrow'))) return;
    const scrolls = target.closest?.('.stage.zoomed, .hex-body, .scroll-x, .shards') && /^(Arrow|Page|Home|End)/.test(event.key);
    if (scrolls) return;
    if (event.key === 'Enter' && target.closest?.('a, button') && !target.matches('.card')) return;
    const plain = { '/': () => this.focus(this.search), f: () => this.filter.isConnected && this.focus(this.filter), '?': () => this.help(), '[': () => this.moveShard(-1), ']': () => this.moveShard(1), d: () => this.turnTheme() };
    const inDetail = { w: () => go({ full: !route().full }), r: () => go({ tab: route().tab === 'raw' ? 'fields' : 'raw' }) };
    // what is done with the open sample waits until it is here: keys that are typed fast never meet the one before it
    const waits = this.detail.pending && (['j', 'k', 'ArrowLeft', 'ArrowRight'].includes(event.key) || (this.dataset.features.tags && /^[1-9]$/.test(event.key)));
    if (waits) {
      if (!event.repeat) this.detail.whenShown(() => this.sampleKey(event));
    } else if (plain[event.key]) plain[event.key]();
    else if (route().open && inDetail[event.key]) inDetail[event.key]();
    else if (this.dataset.features.tags && this.tagKey(event)) void 0;
    else if (route().open && matchMedia('(max-width: 900px)').matches && /^(Page|Home|End|ArrowUp|ArrowDown)/.test(event.key)) return;
    else if (!this.sampleKey(event)) return;
    event.preventDefault();
  }

  /** @param {KeyboardEvent} event of a key that is about a sample @returns {boolean} whether it was of use */
  sampleKey(event) {
    if (this.dataset.features.tags && this.tagKey(event)) return true;
    if (this.view.key(event)) return true;
    if (!route().open || !['j', 'k'].includes(event.key)) return false;
    return this.detail.step(event.key === 'j' ? 1 : -1);
  }

  focus(input) {
    input.focus();
    input.select();
  }

  tagKey(event) {
    const sample = route().open ? this.detail.sample : this.view.current?.();
    if (event.key === 't' && route().open) {
      // at once, so that the next key is typed into it
      this.detail.tagBar.input.focus();
      return true;
    }
    if (!sample) return false;
    const number = Number(event.key);
    if (number >= 1 && number <= 9 && this.tags.names[number - 1]) {
      this.tags.toggle(sample, this.tags.names[number - 1]);
      return true;
    }
    if (event.key !== 't') return false;
    this.open(sample);
    this.detail.tagBar.input.focus();
    return true;
  }
}

/* the start ---------------------------------------------------------------------------------------------------- */

function locked(message = '') {
  const input = h('input', { class: 'input', type: 'text', placeholder: 'http://127.0.0.1:…/#token=…', 'aria-label': 'The link that wds view printed', spellcheck: 'false', autocomplete: 'off' });
  replace(root, h('main', { id: 'main', class: 'start' }, notice('This page needs its link', ['Open the link that ', h('code', {}, 'wds view'), ' printed in the terminal, or paste it here. It holds the token that lets this browser in.']),
    h('form', { class: 'row', on: { submit: (event) => {
      event.preventDefault();
      enter(/token=([^&\s]+)/.exec(input.value)?.[1] ?? input.value.trim());
    } } }, input, h('button', { class: 'button primary' }, 'Open')), message && h('p', { class: 'error-text', role: 'alert' }, message)));
  root.removeAttribute('aria-busy');
}

async function enter(token) {
  try {
    await post('session', { token: decodeURIComponent(token) });
    begin();
  } catch (error) {
    locked(error.message);
  }
}

/** @type {App | null} */
let app = null;

async function begin() {
  try {
    const dataset = await get('dataset');
    app = new App(dataset);
    if (dataset.features.tags) await app.tags.load();
    if (!location.hash && dataset.page) {
      const { side, shard, ordinal } = dataset.page;
      go({ side, shard, at: ordinal ?? 0 }, true);
    }
    app.update();
  } catch (error) {
    if (error.status === 401) locked();
    else {
      replace(root, h('main', { id: 'main', class: 'start' }, notice('The dataset could not be opened', h('span', { class: 'error-text' }, error.message), [h('button', { type: 'button', class: 'button', on: { click: begin } }, 'Try again')])));
    }
  }
}

document.querySelector('.skip')?.addEventListener('click', (event) => {
  event.preventDefault();
  document.getElementById('main')?.focus();
});
onRoute(() => app?.update());
addEventListener('keydown', (event) => app?.key(event));
connection.addEventListener('locked', () => { if (app) { app = null; locked('The server no longer knows this browser.'); } });
connection.addEventListener('offline', () => {
  if (!app) return;
  app.banner.hidden = false;
  replace(app.banner, icon('warn'), h('span', {}, 'The server has ended. Start ', h('code', {}, 'wds view'), ' again; its new link opens a new page.'), h('button', { type: 'button', class: 'button small', on: { click: () => get('dataset').catch(() => null) } }, 'Try again'));
});
connection.addEventListener('online', () => { if (app) app.banner.hidden = true; });

const token = /^#token=([^&/]+)(?:&(.*))?$/.exec(location.hash);
if (token) {
  // the token leaves the address bar and the history before anything else happens
  const rest = token[2]?.startsWith('/') ? `#${token[2]}` : '';
  history.replaceState(null, '', `${location.pathname}${rest}`);
  if (rest) Object.assign(route(), parseRoute(rest));
  else Object.assign(route(), parseRoute(''));
  enter(token[1]);
} else begin();
