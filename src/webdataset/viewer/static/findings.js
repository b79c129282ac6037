/** What `wds check` finds in each shard; each finding leads to its sample and its bytes. */

import { get } from './api.js';
import { countOf, failure, formatBytes, formatNumber, h, icon, notice, replace, shorten, writeOut } from './dom.js';
import { hexdump } from './hexdump.js';
import { go, hrefOf, route } from './route.js';

const POLL_MS = 700;
const SEVERITIES = ['error', 'warning', 'note'];

/** @param {any[]} findings @returns {string} like "3 errors, 1 warning" */
const countBySeverity = (findings) => SEVERITIES.map((severity) => [severity, findings.filter((one) => one.severity === severity).length]).filter(([, count]) => count).map(([severity, count]) => countOf(count, severity)).join(', ');

export class FindingsView {
  /** @param {any} context the app */
  constructor(context) {
    this.context = context;
    this.bar = h('div', { class: 'viewbar' });
    this.body = h('div', { class: 'scroll' });
    this.element = h('section', { class: 'view', 'aria-label': 'Findings' }, this.bar, this.body);
    this.signature = '';
    this.seen = new Map();
    this.all = false;
  }

  update() {
    const now = route();
    const signature = `${now.side} ${now.shard}`;
    if (signature === this.signature) return;
    this.signature = signature;
    this.data = null;
    this.drawn = '';
    clearTimeout(this.timer);
    replace(this.body, h('div', { class: 'page' }, h('div', { class: 'bone' }), h('div', { class: 'bone bone-short' })));
    this.poll(signature);
  }

  async poll(signature) {
    const { side, shard } = route();
    try {
      const data = await get('findings', { side, shard });
      if (signature !== this.signature) return;
      this.data = data;
      this.seen.set(shard, data);
      this.draw();
      if (data.state === 'running') this.timer = setTimeout(() => this.poll(signature), POLL_MS);
      else if (this.all && shard + 1 < this.context.sideOf(side).shards) go({ shard: shard + 1 });
      else this.all = false;
    } catch (error) {
      if (signature === this.signature) replace(this.body, failure(error, () => { this.signature = ''; this.update(); }));
    }
  }

  draw() {
    const { data } = this;
    const { side, shard } = route();
    const name = this.context.shardName(side, shard) ?? `shard ${shard}`;
    const drawn = JSON.stringify([data, this.all, name]);
    if (drawn === this.drawn) return;
    this.drawn = drawn;
    const running = data.state === 'running';
    const total = this.context.sideOf(side).shards;
    const summary = running ? 'checking…' : data.state === 'failed' ? 'the check failed' : data.findings.length ? countBySeverity(data.findings) : 'nothing found';
    replace(this.bar, h('div', { class: 'viewbar-title' }, h('h1', {}, 'Findings'), h('span', { class: 'quiet', title: name }, h('bdi', {}, shorten(name, 60))), h('span', { class: `pill ${running ? '' : data.state === 'failed' || data.findings.some((one) => one.severity === 'error') ? 'pill-bad' : data.findings.length ? '' : 'pill-good'}` }, summary)),
      total > 1 && this.context.dataset.features.queries && h('button', { type: 'button', class: 'button small', on: { click: () => { this.all = !this.all; if (this.all) go({ shard: 0 }); this.draw(); } } }, this.all ? 'Stop' : `Check all ${formatNumber(total)} shards`));
    const groups = new Map();
    const bySeverity = [...data.findings].sort((one, other) => SEVERITIES.indexOf(one.severity) - SEVERITIES.indexOf(other.severity));
    for (const finding of bySeverity) groups.set(finding.code, [...(groups.get(finding.code) ?? []), finding]);
    replace(this.body, h('div', { class: 'page' },
      running && progress(data.progress),
      data.findings.length === 0 && !running && (data.state === 'failed'
        ? notice('The check did not end', data.error?.message ?? data.message ?? 'The shard could not be read to its end.')
        : notice('Nothing is wrong with this shard', ['Headers, padding, the end, keys and the fields that ', h('code', {}, 'wds check'), ' decodes were looked at.'])),
      [...groups].map(([code, findings]) => h('section', { class: 'finding-group' },
        h('header', { class: 'panel-head' }, h('h2', {}, code), h('span', { class: 'quiet' }, countOf(data.counts?.[code] ?? findings.length, 'finding'))),
        h('ul', { class: 'finding-list' }, findings.slice(0, 500).map((finding) => this.row(finding, side, shard))))),
      this.others(shard)));
  }

  row(finding, side, shard) {
    const place = h('div', { class: 'finding-bytes' });
    const bytes = typeof finding.offset === 'number' && h('button', { type: 'button', class: 'button small', 'aria-expanded': 'false', on: { click: (event) => {
      const open = place.childNodes.length === 0;
      event.currentTarget.setAttribute('aria-expanded', String(open));
      replace(place, open && hexdump({ side, shard, offset: finding.offset, mark: { from: finding.offset, to: finding.offset + 1 } }).element);
    } } }, `Byte ${formatNumber(finding.offset)}`);
    const sample = typeof finding.ordinal === 'number' && h('a', { class: 'button small', href: hrefOf({ view: 'samples', q: '', where: [], at: finding.ordinal, open: { side, shard, ordinal: finding.ordinal }, tab: 'raw', more: {} }) }, 'Sample');
    return h('li', { class: `finding finding-${['error', 'warning'].includes(finding.severity) ? finding.severity : 'note'}` },
      h('div', { class: 'finding-line' }, icon('warn'),
        h('div', { class: 'finding-text' }, h('bdi', {}, finding.message),
          h('div', { class: 'quiet' }, [finding.severity, finding.key !== null && finding.key !== undefined && `key ${shorten(writeOut(finding.key), 60)}`, finding.member && `member ${shorten(writeOut(finding.member), 80)}`, finding.field && `field ${shorten(finding.field, 40)}`].filter(Boolean).join(' · '))),
        sample, bytes), place);
  }

  /** Shards that were checked here. */
  others(shard) {
    const rows = [...this.seen].filter(([number]) => number !== shard);
    if (!rows.length) return null;
    return h('section', {}, h('header', { class: 'panel-head' }, h('h2', {}, 'Other shards')), h('table', { class: 'table' }, h('tbody', {}, rows.map(([number, data]) => h('tr', {},
      h('td', {}, h('a', { href: hrefOf({ shard: number }) }, h('bdi', {}, shorten(this.context.shardName(route().side, number) ?? `shard ${number}`, 80)))), h('td', { class: 'figure' }, data.state === 'running' ? 'checking…' : countBySeverity(data.findings) || 'nothing found'))))));
  }

  key() {
    return false;
  }

  destroy() {
    this.signature = null;
    clearTimeout(this.timer);
  }
}

function progress(now) {
  const bar = h('span', { class: 'value-bar' });
  bar.style.width = now?.of ? `${(100 * now.bytes) / now.of}%` : '30%';
  return h('div', { class: 'progress', role: 'progressbar', 'aria-valuenow': now?.of ? Math.round((100 * now.bytes) / now.of) : null, 'aria-valuemin': '0', 'aria-valuemax': '100' }, h('span', { class: 'value-track' }, bar), h('span', { class: 'quiet' }, now ? `${formatBytes(now.bytes)}${now.of ? ` of ${formatBytes(now.of)}` : ''}` : ''));
}
