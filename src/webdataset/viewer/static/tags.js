/** Tags of samples: keep, drop and words of one's own; they go to the file of `--tags`, never into a shard. */

import { announce, h, icon, replace, shorten } from './dom.js';
import { get, post } from './api.js';

export class Tags {
  /** @param {(key: string, tags: string[]) => void} onChange */
  constructor(onChange) {
    this.onChange = onChange;
    /** @type {Record<string, string[]>} */
    this.byKey = Object.create(null);
    this.names = ['keep', 'drop'];
    this.last = Promise.resolve();
    this.wanted = false;
    this.close();
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

  /** Set or take away a tag, after the changes that were asked for before: each sees what the one before it left.
   * @param {{key: string}} sample @param {string} tag @returns {Promise<void>} */
  toggle(sample, tag) {
    this.last = this.last.then(() => this.change(sample, tag));
    return this.last;
  }

  async change(sample, tag) {
    const on = !this.of(sample.key).includes(tag);
    try {
      this.take(await post('tags', { key: sample.key, tag, on }));
      if (on && !this.names.includes(tag)) this.names.push(tag);
      announce(`${on ? 'Tagged' : 'No longer tagged'} ${tag}`);
    } catch (error) {
      announce(error.message);
    }
    this.onChange(sample.key, this.of(sample.key));
  }

  /** @param {string} key @returns {string[]} */
  of(key) {
    return this.byKey[key] ?? [];
  }

  /** Buttons for the tags of a sample, and a field for another one. @param {any} sample @returns {HTMLElement} */
  bar(sample) {
    const input = h('input', { class: 'input tag-input', type: 'text', placeholder: 'tag…', maxlength: '64', 'aria-label': 'Another tag ( t )', spellcheck: 'false' });
    const before = this.input;
    if (before) {
      input.value = before.value;
      this.wanted ||= before === document.activeElement;
    }
    [this.sample, this.input, this.buttons] = [sample, input, h('span', { class: 'tag-buttons' })];
    this.refresh();
    // the caller puts the bar into the page first; no key comes before that
    if (this.wanted) queueMicrotask(() => this.focus());
    return h('form', { class: 'tag-bar', 'aria-label': 'Tags', on: { submit: (event) => {
      event.preventDefault();
      const tag = input.value.trim();
      if (tag) this.toggle(sample, tag);
      input.value = '';
      // keys are shortcuts again: j for the next sample, 1 to 9 for its tags
      input.blur();
    } } }, icon('tag'), this.buttons, input);
  }

  /** Draw the buttons anew; what is being typed beside them stays. */
  refresh() {
    if (!this.buttons) return;
    const { sample } = this;
    const on = this.of(sample.key);
    replace(this.buttons, this.names.map((tag, index) => h('button', { type: 'button', class: `tag-button tag-${['keep', 'drop'].includes(tag) ? tag : 'own'}`, 'aria-pressed': String(on.includes(tag)), title: index < 9 ? `Key ${index + 1}` : '', on: { click: () => this.toggle(sample, tag) } }, h('bdi', {}, shorten(tag, 24)))));
  }

  /** Put the caret into the field, or remember to do so when the sample is drawn. */
  focus() {
    this.wanted = !this.input?.isConnected;
    if (!this.wanted) this.input.focus();
  }

  /** Forget the sample that was shown. */
  close() {
    this.wanted = false;
    [this.sample, this.input, this.buttons] = [null, null, null];
  }
}
