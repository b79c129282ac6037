/** Tags of samples: keep, drop and words of one's own; they go to the file of `--tags`, never into a shard. */

import { announce, h, icon, replace, shorten } from './dom.js';
import { get, post } from './api.js';

export class Tags {
  /** @param {(key: string) => void} onChange */
  constructor(onChange) {
    this.onChange = onChange;
    /** @type {Record<string, string[]>} */
    this.byKey = Object.create(null);
    this.names = ['keep', 'drop'];
    /** keys that were tagged here: samples that were asked for before have their tags of then */
    this.changed = new Set();
    /** how many changes were sent or answered: what was asked for before one of them is out of date */
    this.changes = 0;
    this.last = Promise.resolve();
  }

  async load() {
    this.take(await get('tags'));
  }

  take(answer) {
    this.byKey = Object.assign(Object.create(null), answer.tags);
    const names = new Set(['keep', 'drop']);
    for (const tags of Object.values(this.byKey)) for (const tag of tags) names.add(tag);
    this.names = [...names].slice(0, 30);
  }

  /**
   * Turn a tag on or off, after the changes before it: an answer that comes late never hides a newer one.
   * @param {{key: string}} sample @param {string} tag @returns {Promise<Error | null>} why it was not written
   */
  toggle(sample, tag) {
    this.changes += 1;
    this.changed.add(sample.key);
    const change = this.last.then(() => this.send(sample, tag));
    this.last = change;
    return change;
  }

  async send(sample, tag) {
    const on = !this.of(sample.key).includes(tag);
    let failed = null;
    try {
      this.take(await post('tags', { key: sample.key, tag, on }));
      if (on && !this.names.includes(tag)) this.names.push(tag);
      announce(`${on ? 'Tagged' : 'No longer tagged'} ${tag}`);
    } catch (error) {
      failed = error;
      announce(error.message);
    }
    this.changes += 1;
    this.onChange(sample.key);
    return failed;
  }

  /** @param {string} key @returns {string[]} */
  of(key) {
    return this.byKey[key] ?? [];
  }

  /** @param {{key: string, tags: string[]}} sample as the server described it @returns {string[]} its tags of now */
  ofListed(sample) {
    return this.changed.has(sample.key) ? this.of(sample.key) : sample.tags;
  }
}

/**
 * The buttons and the input of the open sample's tags. The input stays in the page while all around it is drawn anew, so
 * what is typed into it keeps its place.
 */
export class TagBar {
  /** @param {Tags} tags @param {(tag: string) => Promise<Error | null>} onTag a tag was typed for the open sample */
  constructor(tags, onTag) {
    this.tags = tags;
    this.onTag = onTag;
    this.input = h('input', { class: 'input tag-input', type: 'text', placeholder: 'tag…', maxlength: '64', 'aria-label': 'Another tag ( t )', spellcheck: 'false', autocomplete: 'off' });
    this.buttons = h('span', { class: 'contents' });
    this.error = h('span', { class: 'error-text', role: 'alert' });
    this.element = h('form', { class: 'tag-bar', 'aria-label': 'Tags', on: { submit: (event) => { event.preventDefault(); this.submit(); } } }, icon('tag'), this.buttons, this.input, this.error);
  }

  async submit() {
    const tag = this.input.value.trim();
    this.input.value = '';
    replace(this.error);
    // the keys after Enter are shortcuts again
    this.input.blur();
    const failed = tag && await this.onTag(tag);
    if (!failed) return;
    replace(this.error, failed.message);
    if (!this.input.value) this.input.value = tag;
  }

  /** Another sample is opened. */
  clear() {
    this.input.value = '';
    replace(this.error);
  }

  /** Draw the buttons for a sample. @param {any} sample */
  draw(sample) {
    const on = this.tags.of(sample.key);
    const focused = this.buttons.contains(document.activeElement) ? document.activeElement.dataset.tag : null;
    replace(this.buttons, this.tags.names.map((tag, index) => h('button', { type: 'button', data: { tag }, class: `tag-button tag-${['keep', 'drop'].includes(tag) ? tag : 'own'}`, 'aria-pressed': String(on.includes(tag)), title: index < 9 ? `Key ${index + 1}` : '', on: { click: () => this.tags.toggle(sample, tag) } }, h('bdi', {}, shorten(tag, 24)))));
    if (focused !== null) [...this.buttons.children].find((one) => one.dataset.tag === focused)?.focus({ preventScroll: true });
  }
}
