/**
 * Where a grid takes its samples from: one shard, a search, or a list.
 *
 * A source says `change` when samples came or its size changed. `size` is what is known to be there, `total` what will
 * be there in the end, or null; `state` says what else there is to say.
 */

import { get } from './api.js';

/** @typedef {{name: string, size_bytes: number, offset: number, kind: string, media?: any, text?: string, value?: any, truncated?: boolean}} Field */
/** @typedef {{side: string, shard: number, ordinal: number, key: string, offset: number, size_bytes: number, document: boolean, fields: Field[], tags: string[]}} Sample */

const PAGE = 50;
const MOST_PAGES = 120;

/** The samples of one shard; those in sight are asked for by pages. */
export class ByteSource extends EventTarget {
  /** @param {string} side @param {number} shard */
  constructor(side, shard) {
    super();
    this.side = side;
    this.shard = shard;
    /** @type {Map<number, Sample[]>} */
    this.pages = new Map();
    /** @type {Map<number, AbortController>} */
    this.asked = new Map();
    this.total = null;
    this.known = 0;
    this.end = false;
    this.sequential = false;
    this.problem = null;
    this.error = null;
    this.read = null;
  }

  /** How many samples can be scrolled to. */
  get size() {
    return this.total ?? this.known;
  }

  /** @param {number} index @returns {Sample | undefined} */
  at(index) {
    return this.pages.get(Math.floor(index / PAGE))?.[index % PAGE];
  }

  /** @param {{shard: number, ordinal: number}} sample @returns {number} its index, or -1 */
  indexOf(sample) {
    return sample.shard === this.shard ? sample.ordinal : -1;
  }

  /** @param {number} first @param {number} last index in sight */
  need(first, last) {
    const from = Math.max(0, Math.floor(first / PAGE));
    let to = Math.floor(last / PAGE);
    if (this.total === null && !this.end && last >= this.known - PAGE / 2) to = Math.max(to, Math.floor(this.known / PAGE));
    for (const [page, controller] of this.asked) if (page < from - 1 || page > to + 1) controller.abort();
    clearTimeout(this.timer);
    const missing = [];
    for (let page = from; page <= to; page += 1) if (!this.pages.has(page) && !this.asked.has(page)) missing.push(page);
    // a thumb that is dragged passes thousands of pages: only where it rests are they asked for
    if (missing.length) this.timer = setTimeout(() => missing.forEach((page) => this.fetchPage(page)), this.pages.size ? 60 : 0);
  }

  async fetchPage(page) {
    if (this.asked.has(page) || this.error) return;
    if (this.end && page * PAGE >= this.size && page > 0) return;
    const controller = new AbortController();
    this.asked.set(page, controller);
    try {
      const answer = await get('samples', { side: this.side, shard: this.shard, start: page * PAGE, count: PAGE }, controller.signal);
      this.keep(page, answer);
    } catch (error) {
      if (!controller.signal.aborted) this.error = error;
    } finally {
      this.asked.delete(page);
      this.dispatchEvent(new Event('change'));
    }
  }

  keep(page, answer) {
    this.pages.delete(page);
    this.pages.set(page, answer.samples);
    for (const old of this.pages.keys()) {
      if (this.pages.size <= MOST_PAGES) break;
      this.pages.delete(old);
    }
    this.known = Math.max(this.known, page * PAGE + answer.samples.length);
    this.total = answer.total ?? this.total;
    this.end = this.end || answer.end;
    if (this.end && this.total === null) this.total = this.known;
    this.sequential = answer.sequential ?? false;
    this.problem = answer.problem ?? this.problem;
    this.read = answer.read ?? this.read;
    if (this.total === null && !this.asking) this.askTotal(700);
  }

  /** Ask later how many samples there are: a large index is loaded while the first pages are shown without it. */
  askTotal(wait) {
    this.asking = setTimeout(async () => {
      const answer = await get('samples', { side: this.side, shard: this.shard, start: 0, count: 1 }).catch(() => null);
      const total = answer?.total ?? null;
      if (this.stopped || this.total !== null) return;
      if (total !== null) {
        this.total = total;
        this.dispatchEvent(new Event('change'));
      } else if (answer && wait < 12_000) this.askTotal(wait * 2);
    }, wait);
  }

  retry() {
    this.error = null;
    this.dispatchEvent(new Event('change'));
  }

  stop() {
    this.stopped = true;
    clearTimeout(this.asking);
    clearTimeout(this.timer);
    for (const controller of this.asked.values()) controller.abort();
  }
}

/** What a search and filters find, as far as it has looked. */
export class SearchSource extends EventTarget {
  /** @param {{side: string, q: string, where: string}} query */
  constructor(query) {
    super();
    this.query = query;
    /** @type {Sample[]} */
    this.samples = [];
    this.cursor = null;
    this.done = false;
    this.error = null;
    this.problem = null;
    this.busy = false;
    this.scanned = { shards: 0, samples: 0, bytes: 0 };
    this.wanted = 60;
    this.stopped = null;
  }

  get size() {
    return this.samples.length;
  }

  get total() {
    return this.done ? this.samples.length : null;
  }

  at(index) {
    return this.samples[index];
  }

  indexOf(sample) {
    return this.samples.findIndex((one) => one.shard === sample.shard && one.ordinal === sample.ordinal);
  }

  need(_first, last) {
    if (last >= this.samples.length - 20) this.wanted = Math.max(this.wanted, this.samples.length + 50);
    this.look();
  }

  /** Ask until enough is found, all was looked through, or someone stops it. */
  async look() {
    if (this.busy || this.stopped || this.done || this.error || this.samples.length >= this.wanted) return;
    this.busy = true;
    const controller = new AbortController();
    this.controller = controller;
    while (!this.done && !this.error && this.samples.length < this.wanted && !controller.signal.aborted) {
      try {
        const answer = await get('search', { ...this.query, cursor: this.cursor, count: 50 }, controller.signal);
        this.samples.push(...answer.samples);
        this.cursor = answer.cursor;
        this.done = answer.done || answer.cursor === null;
        for (const name of ['shards', 'samples', 'bytes']) this.scanned[name] += answer.scanned?.[name] ?? 0;
      } catch (error) {
        if (!controller.signal.aborted) this.error = error;
      }
      this.dispatchEvent(new Event('change'));
    }
    this.busy = false;
    this.dispatchEvent(new Event('change'));
  }

  /** Stop looking until `resume`. */
  pause() {
    this.stopped = true;
    this.controller?.abort();
  }

  resume() {
    this.stopped = null;
    this.error = null;
    this.wanted = this.samples.length + 50;
    this.look();
  }

  retry() {
    this.resume();
  }

  stop() {
    this.pause();
  }
}

/** Samples that are already here. */
export class ListSource extends EventTarget {
  /** @param {Sample[]} samples */
  constructor(samples) {
    super();
    this.samples = samples;
    this.size = samples.length;
    this.total = samples.length;
    this.end = true;
    this.error = null;
    this.problem = null;
  }

  at(index) {
    return this.samples[index];
  }

  indexOf(sample) {
    return this.samples.findIndex((one) => one.shard === sample.shard && one.ordinal === sample.ordinal);
  }

  need() {}

  retry() {}

  stop() {}
}
