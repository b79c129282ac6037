/** A sample as a card of the grid or a row of the table. */

import { apiUrl, get, setSource } from './api.js';
import { countOf, formatBytes, formatDuration, formatNumber, h, icon, keyOf, shorten, svg, writeOut } from './dom.js';
import { makeQueue } from './queue.js';

/** @typedef {import('./sources.js').Sample} Sample */
/** @typedef {import('./sources.js').Field} Field */

const queue = makeQueue(3);
/** @type {Map<string, Promise<any>>} */
const waveforms = new Map();
const LARGE_BYTES = 64 * 2 ** 20;
// of a picture's shape to that of its place: beyond it the picture is shown whole
const MOST_CUT = 2.2;
// of one among others
const MOST_CUT_BESIDE = 4;
const SMALL_PIXELS = 64;
// of an array that the server draws
const LEAST_SIDE = 8;
const MOST_CHIPS = 4;
const CODE = /(^|\.)(ya?ml|csv|tsv|xml|py|js|ts|c|cpp|h|java|rs|go|sh|sql|tex|jsonl|ndjson|toml|ini|cfg|log|srt|vtt)$/i;
export const PICTURES = ['image', 'svg', 'video', 'array'];

/** @param {Sample} sample @param {string} field @param {Record<string, any>} [more] @returns {Record<string, any>} the parameters that name a field */
export const fieldOf = (sample, field, more = {}) => ({ side: sample.side, shard: sample.shard, ordinal: sample.ordinal, field, ...more });

/**
 * The picture of a field, small; where the server refuses, its reason stands in its place.
 * @param {Sample} sample
 * @param {Field} field
 * @param {number} size of its longer side in pixels
 * @param {{page?: number, inline?: number}} [part] a page of a TIFF file, or an image in a document's JSON
 * @returns {HTMLElement}
 */
export function thumbnail(sample, field, size, part = {}) {
  const box = h('span', { class: `thumb thumb-${field.kind}` });
  if (field.size_bytes === 0 || (field.kind === 'array' && !mayBePicture(field.media))) {
    box.classList.add('refused');
    box.append(emblem(field));
    return box;
  }
  const parameters = fieldOf(sample, field.name, { size, ...part });
  const image = h('img', { alt: altOf(sample, field), loading: 'lazy', decoding: 'async', draggable: 'false' });
  image.addEventListener('load', () => {
    const shape = (image.naturalWidth / image.naturalHeight) / (box.clientWidth / box.clientHeight || 4 / 3);
    box.classList.add('loaded');
    const most = box.parentElement?.classList.contains('mosaic') && box.parentElement.childElementCount > 1 ? MOST_CUT_BESIDE : MOST_CUT;
    box.classList.toggle('whole', shape > most || shape < 1 / most);
    box.classList.toggle('pixels-seen', Math.max(image.naturalWidth, image.naturalHeight) <= SMALL_PIXELS);
  });
  image.addEventListener('error', () => {
    image.remove();
    box.classList.add('refused');
    box.append(emblem(field));
    queue(() => get('thumbnail', parameters)).catch((error) => {
      box.title = error.message;
      if (size > 600) box.append(h('span', { class: 'refusal' }, error.message));
    });
  });
  box.append(image);
  setSource(image, 'thumbnail', parameters);
  if (field.kind === 'video') box.append(h('span', { class: 'badge' }, icon('play'), field.media?.duration_seconds ? formatDuration(field.media.duration_seconds) : 'video'));
  return box;
}

/** @param {any} media of an array @returns {boolean} whether its header leaves room for a picture: it has rows and columns of numbers */
const mayBePicture = (media) => !Array.isArray(media?.shape) || (media.shape.length > 1 && !media.shape.includes(0) && (media.shape.length > 2 || Math.min(...media.shape) >= LEAST_SIDE) && /^[<>|=]?[biufc]\d/.test(media.dtype ?? ''));

/** @param {Sample} sample @param {Field} field @returns {string} */
function altOf(sample, field) {
  const caption = sample.fields.find((one) => one.kind === 'text' && one.text);
  return caption ? shorten(caption.text, 120) : `${field.name} of ${shorten(sample.key, 60)}`;
}

const TYPES = { b: 'bool', i: 'int', u: 'uint', f: 'float', c: 'complex' };

/** @param {string} dtype as numpy's files write it, like <f4 @returns {string} its name, like float32 */
export function typeName(dtype) {
  const [, kind, width] = /^[<>|=]?([biufc])(\d{1,2})$/.exec(dtype) ?? [];
  if (kind) return kind === 'b' ? 'bool' : `${TYPES[kind]}${8 * Number(width)}`;
  const [, special, size] = /^[<>|=]?([OUSV])(\d*)$/.exec(dtype) ?? [];
  if (special) return { O: 'object', U: `text[${size}]`, S: `bytes[${size}]`, V: `record[${size}]` }[special];
  return dtype.startsWith('[') ? 'record' : dtype;
}

/** @param {{shape: (number | string)[], dtype?: string}} media of an array @returns {string} like 512 × 3 float32 */
const shapeOf = ({ shape, dtype }) => `${shape.length ? shape.join(' × ') : 'scalar'} ${typeName(dtype ?? '')}`.trim();

/** @param {Field} field @returns {HTMLElement} what stands where there is no picture */
export function emblem(field) {
  const shape = field.media?.shape;
  return h('span', { class: 'emblem' },
    h('span', { class: 'emblem-name' }, shorten(field.name, 24)),
    h('span', { class: 'emblem-facts' }, Array.isArray(shape) ? shapeOf(field.media) : `${field.kind} · ${field.size_bytes === 0 ? 'empty' : formatBytes(field.size_bytes)}`));
}

/**
 * Draw the peaks of a sound; of one of which only the beginning is known, on that part of the width.
 * @param {{peaks: [number, number][], truncated: boolean, sampled: boolean, shown_seconds: number, duration_seconds: number}} waveform
 * @returns {SVGElement}
 */
export function drawPeaks({ peaks, truncated, sampled, shown_seconds: shown, duration_seconds: duration }) {
  const path = peaks.map(([low, high], column) => {
    const top = 50 - 48 * Math.max(high, low + 0.02);
    const bottom = 50 - 48 * Math.min(low, high - 0.02);
    return `M${column + 0.5} ${top.toFixed(1)}V${bottom.toFixed(1)}`;
  }).join('');
  const share = truncated && !sampled && shown < duration ? shown / duration : 1;
  return svg('svg', { class: 'peaks', viewBox: `0 0 ${Math.max(1, peaks.length / share)} 100`, preserveAspectRatio: 'none', 'aria-hidden': 'true' }, svg('path', { d: path }));
}

/** @param {Sample} sample @param {string} field @param {number} columns @returns {Promise<any>} */
export function waveformOf(sample, field, columns) {
  const address = apiUrl('waveform', fieldOf(sample, field, { columns }));
  let answer = waveforms.get(address);
  if (!answer) {
    answer = queue(() => get('waveform', fieldOf(sample, field, { columns })));
    waveforms.set(address, answer);
    answer.catch(() => waveforms.delete(address));
    if (waveforms.size > 300) waveforms.delete(waveforms.keys().next().value);
  }
  return answer;
}

function wave(sample, field) {
  const box = h('span', { class: 'wave' });
  const facts = h('span', { class: 'badge' }, field.media?.duration_seconds ? formatDuration(field.media.duration_seconds) : field.name);
  box.append(facts);
  if (field.size_bytes > LARGE_BYTES) {
    // its outline costs megabytes: for one that is open, not for a page of them
    box.prepend(emblem(field));
    return box;
  }
  waveformOf(sample, field.name, 96).then(
    (answer) => {
      box.prepend(drawPeaks(answer));
      facts.textContent = formatDuration(answer.duration_seconds);
    },
    (error) => {
      box.title = error.message;
      box.classList.add('refused');
      box.replaceChildren(emblem(field));
    },
  );
  return box;
}

/** @param {Sample} sample @returns {Field[]} those with a picture or a waveform */
export const visuals = (sample) => sample.fields.filter((field) => ['image', 'video', 'audio', 'array'].includes(field.kind));

/** @param {string} json maybe cut @returns {string} its first title, caption or text, or the JSON itself */
function proseOf(json) {
  const found = /"(?:title|caption|text|description)"\s*:\s*"((?:[^"\\]|\\.)+)/.exec(json) ?? /"(?:text_list|texts)"\s*:\s*\[\s*"((?:[^"\\]|\\.)+)/.exec(json);
  if (!found) return json;
  try {
    return JSON.parse(`"${found[1]}"`);
  } catch {
    return found[1];
  }
}

/** @param {string} json maybe cut @returns {string} with the letters that it writes as \u… */
const spell = (json) => json.replace(/\\(?:u([0-9a-f]{4})|[^])/gi, (whole, code) => {
  const letter = code && String.fromCharCode(Number.parseInt(code, 16));
  return letter && !/[\u0000-\u001f"\\]/.test(letter) ? letter : whole;
});

/** @param {Field} field @returns {string} its content in a line */
export function summary(field) {
  if (field.text && ['class', 'number'].includes(field.kind)) return field.text.trim();
  if (field.text) return field.kind === 'document' ? proseOf(field.text) : field.kind === 'json' ? spell(field.text) : field.text;
  if (field.value !== undefined && field.value !== null) return typeof field.value === 'object' ? JSON.stringify(field.value) : String(field.value);
  if (Array.isArray(field.media?.shape)) return shapeOf(field.media);
  if (field.media?.width) return `${field.media.width} × ${field.media.height}`;
  if (field.size_bytes === null) return '';
  if (field.size_bytes === 0) return 'empty';
  return formatBytes(field.size_bytes);
}

/** @param {Field} field @param {boolean} [named] @returns {HTMLElement} */
export function chip(field, named = true) {
  const text = summary(field);
  return h('span', { class: `chip chip-${field.kind}`, title: `${field.name}: ${shorten(text, 200)}` }, named && h('span', { class: 'chip-name' }, shorten(field.name, 16)), h('bdi', {}, text.length > 60 ? `${text.slice(0, 60)}…` : text));
}

/** @param {string[]} tags @returns {HTMLElement | null} */
export function tagMarks(tags) {
  if (!tags?.length) return null;
  return h('span', { class: 'tag-marks' }, tags.slice(0, 4).map((tag) => h('span', { class: `tag-mark tag-${['keep', 'drop'].includes(tag) ? tag : 'own'}` }, shorten(tag, 12))));
}

function mosaic(sample, pictures, size) {
  const shown = pictures.slice(0, 4);
  return h('span', { class: `mosaic mosaic-${shown.length}` }, shown.map((field) => thumbnail(sample, field, shown.length > 1 ? Math.min(256, size) : size)),
    pictures.length > shown.length && h('span', { class: 'badge badge-more' }, `+${pictures.length - shown.length}`));
}

/**
 * The upper part of a card.
 * @param {Sample} sample
 * @param {number} size of pictures
 * @returns {{element: HTMLElement, used: Field[]}} and the fields that it shows
 */
function face(sample, size) {
  const pictures = sample.fields.filter((field) => field.kind === 'image');
  if (pictures.length) return { element: mosaic(sample, pictures, size), used: pictures };
  for (const kind of ['video', 'audio', 'array']) {
    const field = sample.fields.find((one) => one.kind === kind);
    if (field) return { element: kind === 'audio' ? wave(sample, field) : thumbnail(sample, field, size), used: [field] };
  }
  const text = ['document', 'text', 'html', 'svg', 'json'].map((kind) => sample.fields.find((field) => field.kind === kind && summary(field))).find(Boolean);
  if (text) return { element: h('span', { class: `excerpt excerpt-${text.kind}${text.kind === 'text' && CODE.test(text.name) ? ' excerpt-code' : ''}` }, h('bdi', {}, summary(text))), used: [text] };
  const figure = sample.fields.find((field) => ['class', 'number'].includes(field.kind) && field.text);
  if (figure) return { element: h('span', { class: 'excerpt excerpt-figure' }, h('bdi', {}, shorten(summary(figure), 60)), h('span', { class: 'chip-name' }, shorten(figure.name, 40))), used: [figure] };
  const first = sample.fields[0];
  return { element: h('span', { class: 'thumb refused' }, first ? emblem(first) : h('span', { class: 'emblem' }, 'no fields')), used: first ? [first] : [] };
}

/**
 * What screen readers say of a card.
 * @param {Sample} sample
 * @param {number} position in the grid; negative where it has none
 * @param {number} total of samples; negative where it is not known
 */
export function cardLabel(sample, position, total) {
  const place = position < 0 ? '' : `, ${formatNumber(position + 1)}`;
  return `Sample ${shorten(writeOut(sample.key), 80)}${place}${place && total >= 0 ? ` of ${formatNumber(total)}` : ''}`;
}

/**
 * A card of the grid.
 * @param {Sample} sample
 * @param {object} options
 * @param {string} options.href of its detail
 * @param {boolean} options.selected
 * @param {boolean} options.dense shows its picture alone
 * @param {number} options.size of pictures
 * @param {string[]} [options.tags]
 * @param {number} [options.position] in the grid, for screen readers
 * @param {number} [options.total]
 * @returns {HTMLElement}
 */
export function card(sample, { href, selected, dense, size, tags = [], position = -1, total = -1 }) {
  const { element, used } = face(sample, size);
  const rest = sample.fields.filter((field) => !used.includes(field));
  const caption = rest.find((field) => field.kind === 'text') ?? rest.find((field) => field.kind === 'document');
  const others = rest.filter((field) => field !== caption);
  const chips = others.slice(0, others.length > MOST_CHIPS ? MOST_CHIPS - 1 : MOST_CHIPS);
  const more = others.length - chips.length + (sample.more_fields ?? 0);
  return h('a', {
    class: `card${element.classList.contains('excerpt') ? ' card-text' : ''}${dense ? ' card-dense' : ''}${selected ? ' selected' : ''}`, href, draggable: 'false', tabindex: selected ? '0' : '-1',
    'aria-label': cardLabel(sample, position, total), 'aria-current': selected ? 'true' : null,
    data: { ordinal: String(sample.ordinal), shard: String(sample.shard) },
  },
  h('span', { class: 'card-face' }, element, tagMarks(tags)),
  !dense && h('span', { class: 'card-body' },
    caption && h('span', { class: 'card-caption' }, h('bdi', {}, summary(caption))),
    chips.length > 0 && h('span', { class: 'chips' }, chips.map((field) => chip(field)), more > 0 && h('span', { class: 'chip chip-more', title: `${countOf(more, 'more field')}` }, `+${formatNumber(more)}`)),
    h('span', { class: 'card-foot' }, keyOf(sample.key), h('span', { class: 'size' }, formatBytes(sample.size_bytes)))));
}

/** @param {boolean} dense @returns {HTMLElement} a card of which nothing is known yet */
export function blank(dense) {
  return h('span', { class: `card blank${dense ? ' card-dense' : ''}`, 'aria-hidden': 'true' }, h('span', { class: 'card-face' }), !dense && h('span', { class: 'card-body' }, h('span', { class: 'bone' }), h('span', { class: 'bone bone-short' })));
}

/**
 * A row of the table.
 * @param {Sample} sample
 * @param {string[]} columns names of fields
 * @param {{href: string, selected: boolean, tags?: string[]}} options
 * @returns {HTMLElement}
 */
export function tableRow(sample, columns, { href, selected, tags = [] }) {
  return h('a', { class: `table-row${selected ? ' selected' : ''}`, href, tabindex: selected ? '0' : '-1', 'aria-current': selected ? 'true' : null, data: { ordinal: String(sample.ordinal), shard: String(sample.shard) } },
    h('span', { class: 'cell cell-number' }, formatNumber(sample.ordinal)),
    h('span', { class: 'cell cell-key' }, keyOf(sample.key), tagMarks(tags)),
    columns.map((name) => {
      const field = sample.fields.find((one) => one.name === name);
      if (!field) return h('span', { class: 'cell cell-missing' }, '–');
      if (['image', 'video', 'array'].includes(field.kind)) return h('span', { class: 'cell cell-picture' }, thumbnail(sample, field, 128), h('span', { class: 'cell-facts' }, summary(field)));
      if (field.kind === 'audio') return h('span', { class: 'cell cell-picture' }, wave(sample, field));
      return h('span', { class: `cell cell-${field.kind}` }, h('bdi', {}, shorten(summary(field), 160)));
    }));
}
