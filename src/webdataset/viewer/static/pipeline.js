/** A sample before and after the function that `--pipeline` names. */

import { apiUrl, get } from './api.js';
import { thumbnail } from './cards.js';
import { arrayCard } from './fields.js';
import { failure, formatBytes, h, notice, replace, shorten } from './dom.js';
import { jsonTree } from './json_tree.js';

/**
 * @param {any} sample its detail
 * @returns {HTMLElement}
 */
export function pipelineView(sample) {
  const seed = h('input', { class: 'input figure-input', type: 'number', min: '0', value: '0', 'aria-label': 'Seed' });
  const place = h('div', { class: 'before-after' });
  let request = 0;
  async function run() {
    request += 1;
    const mine = request;
    replace(place, h('div', { class: 'bone bone-tall' }));
    try {
      const answer = await get('pipeline', { side: sample.side, shard: sample.shard, ordinal: sample.ordinal, seed: seed.value || 0 });
      if (mine !== request) return;
      name.textContent = answer.name ?? '';
      const after = answer.error ? [notice(answer.error.type, h('span', { class: 'error-text' }, answer.error.message))]
        : answer.dropped ? [notice('Dropped', 'The function returned no sample.')]
          : answer.after.map((one, index) => h('div', { class: 'result' }, answer.after.length > 1 && h('h4', {}, `Sample ${index + 1} of ${answer.after.length}`), one.fields.map((field) => value(sample, field))));
      replace(place, h('div', {}, h('h3', {}, 'Before'), (answer.before ?? sample).fields.map((field) => before(sample, field))), h('div', {}, h('h3', {}, 'After'), after));
    } catch (error) {
      if (mine === request) replace(place, failure(error, run));
    }
  }
  const name = h('code', {});
  run();
  return h('div', {}, h('form', { class: 'row', on: { submit: (event) => { event.preventDefault(); run(); } } }, name, h('label', { class: 'row tight quiet' }, 'seed', seed), h('button', { class: 'button small' }, 'Run')), place);
}

const frame = (field, content) => h('section', { class: 'field' }, h('header', { class: 'field-head' }, h('h3', {}, h('bdi', {}, shorten(String(field.name), 80))), h('span', { class: 'quiet' }, [field.kind, field.type, field.size_bytes && formatBytes(field.size_bytes)].filter(Boolean).join(' · '))), content);

function before(sample, field) {
  if (['image', 'video', 'array'].includes(field.kind)) return frame(field, h('div', { class: 'stage' }, thumbnail(sample, field, 512)));
  return frame(field, content(field));
}

function value(_sample, field) {
  const made = [];
  if (field.preview) made.push(h('div', { class: 'stage' }, h('img', { src: apiUrl('pipeline/preview', { id: field.preview }), alt: String(field.name) })));
  if (field.array) made.push(arrayCard(null, field, field.array, true));
  if (!made.length) made.push(content(field));
  return frame(field, h('div', {}, made));
}

function content(field) {
  if ('json' in field) return jsonTree(field.json, String(field.name));
  if (field.value !== undefined && field.value !== null && typeof field.value === 'object') return jsonTree(field.value, String(field.name));
  if (field.text !== undefined && field.text !== null) return h('bdi', { class: 'text prose' }, field.text);
  if (field.value !== undefined && field.value !== null) return h('bdi', { class: 'value' }, shorten(String(field.value), 200));
  return h('span', { class: 'quiet' }, field.kind);
}
