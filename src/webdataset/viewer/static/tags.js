/** Tags of samples: keep, drop and words of one's own; they go to the file of `--tags`, never into a shard. */

import { announce, h, icon, shorten } from './dom.js';
import { get, post } from './api.js';

export class Tags {
  /** @param {(key: string, tags: string[]) => void} onChange */
  constructor(onChange) {
    this.onChange = onChange;
    /** @type {Record<string, string[]>} */
    this.byKey = Object.create(null);
    this.names = ['keep', 'drop'];
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

  /** @param {{key: string}} sample @param {string} tag */
  async toggle(sample, tag) {
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

  /** Buttons for the tags of a sample. @param {any} sample @returns {HTMLElement} */
  bar(sample) {
    const on = this.of(sample.key);
    const input = h('input', { class: 'input tag-input', type: 'text', placeholder: 'tag…', maxlength: '64', 'aria-label': 'Another tag ( t )', spellcheck: 'false' });
    return h('form', { class: 'tag-bar', 'aria-label': 'Tags', on: { submit: (event) => {
      event.preventDefault();
      const tag = input.value.trim();
      if (tag) this.toggle(sample, tag);
      input.value = '';
    } } }, icon('tag'), this.names.map((tag, index) => h('button', { type: 'button', class: `tag-button tag-${['keep', 'drop'].includes(tag) ? tag : 'own'}`, 'aria-pressed': String(on.includes(tag)), title: index < 9 ? `Key ${index + 1}` : '', on: { click: () => this.toggle(sample, tag) } }, h('bdi', {}, shorten(tag, 24)))), input);
  }
}
