/** A field in full, by its kind. */

import { drawsPictures, get, setSource } from './api.js';
import { drawPeaks, fieldOf, summary, thumbnail, typeName, waveformOf } from './cards.js';
import { histogram } from './charts.js';
import { copyText, countOf, formatBytes, formatDuration, formatFigure, formatNumber, h, icon, iconButton, replace, shorten } from './dom.js';
import { equals, jsonTree } from './json_tree.js';

/** @typedef {import('./sources.js').Sample} Sample */
/** @typedef {import('./sources.js').Field} Field */

const MOST_PIXELS = 60_000_000;
const SHOWN_BY_BROWSERS = /\.?(png|jpe?g|gif|webp|bmp|avif)$/i;

/**
 * @param {Sample} sample
 * @param {Field} field
 * @param {{onFilter: ((expression: string) => void) | null, onBytes: () => void}} options
 * @returns {HTMLElement}
 */
export function fieldView(sample, field, options) {
  const show = { image: imageView, text: textView, document: jsonView, json: jsonView, class: valueView, number: valueView, audio: audioView, video: videoView, array: arrayView, svg: sourceView, html: sourceView, pickle: pickleView }[field.kind] ?? binaryView;
  const facts = [field.kind, formatBytes(field.size_bytes), field.media?.width && `${field.media.width} × ${field.media.height}`, field.media?.duration_seconds && formatDuration(field.media.duration_seconds), field.media?.mode];
  const download = h('a', { class: 'icon-button', download: '', title: 'Save this field', 'aria-label': `Save ${shorten(field.name, 40)}` }, icon('download'));
  setSource(download, 'payload', fieldOf(sample, field.name));
  return h('section', { class: `field field-${field.kind}`, 'aria-label': `Field ${shorten(field.name, 60)}`, data: { field: field.name } },
    h('header', { class: 'field-head' }, h('h3', {}, h('bdi', {}, shorten(field.name, 120))), h('span', { class: 'quiet' }, facts.filter(Boolean).join(' · ')), download),
    field.note && kindNeedsNote(field) && h('p', { class: 'note field-note' }, icon('warn'), h('bdi', {}, shorten(field.note, 300))),
    show(sample, field, options));
}

// the views of these say it in their own words
const kindNeedsNote = (field) => field.kind !== 'pickle' && (field.size_bytes !== 0 || !['text', 'json'].includes(field.kind));

/** A picture that is fitted first, and zoomed by click, wheel and buttons. */
export function imageView(sample, field) {
  if (field.size_bytes === 0) return null;
  const pixels = (field.media?.width ?? 0) * (field.media?.height ?? 0);
  const whole = SHOWN_BY_BROWSERS.test(field.name) && pixels <= MOST_PIXELS;
  if (!whole) return h('div', { class: 'stage' }, thumbnail(sample, field, 1024));
  const image = h('img', { alt: field.name, decoding: 'async', draggable: 'false' });
  const stage = h('div', { class: 'stage', tabindex: '0', role: 'group', 'aria-label': 'Picture; plus and minus zoom' }, image);
  const level = h('span', { class: 'quiet zoom-level' }, 'fit');
  let scale = 0;
  const fitted = () => Math.min(1, image.clientWidth / (image.naturalWidth || 1));
  function zoom(to) {
    scale = to && Math.min(16, Math.max(0.02, to));
    stage.classList.toggle('zoomed', Boolean(scale));
    image.style.width = scale ? `${Math.round(image.naturalWidth * scale)}px` : '';
    image.classList.toggle('pixels', scale > 2);
    level.textContent = scale ? `${Math.round(scale * 100)}%` : 'fit';
  }
  image.addEventListener('click', (event) => {
    if (stage.dragged) return;
    const x = event.offsetX / image.clientWidth;
    const y = event.offsetY / image.clientHeight;
    zoom(scale ? 0 : fitted() < 1 ? 1 : 2);
    stage.scrollTo(x * image.clientWidth - stage.clientWidth / 2, y * image.clientHeight - stage.clientHeight / 2);
  });
  image.addEventListener('error', () => {
    replace(stage, thumbnail(sample, field, 1024));
    stage.removeAttribute('tabindex');
    tools.remove();
  });
  stage.addEventListener('wheel', (event) => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    zoom((scale || fitted()) * (event.deltaY < 0 ? 1.2 : 1 / 1.2));
  }, { passive: false });
  stage.addEventListener('keydown', (event) => {
    if (event.key === '+' || event.key === '=') zoom((scale || fitted()) * 1.25);
    else if (event.key === '-') zoom((scale || fitted()) / 1.25);
    else if (event.key === '0') zoom(0);
    else return;
    event.stopPropagation();
  });
  drag(stage);
  const tools = h('div', { class: 'zoom row tight' }, level,
    iconButton('minus', 'Smaller', () => zoom((scale || fitted()) / 1.25)), iconButton('plus', 'Larger', () => zoom((scale || fitted()) * 1.25)),
    h('button', { type: 'button', class: 'link', on: { click: () => zoom(1) } }, '100%'), h('button', { type: 'button', class: 'link', on: { click: () => zoom(0) } }, 'Fit'));
  image.addEventListener('load', () => { if (drawsPictures && isDark(image)) offerColours(sample, field, stage, image, tools); }, { once: true });
  setSource(image, 'payload', fieldOf(sample, field.name));
  return h('div', { class: 'picture' }, stage, tools);
}

const DARK = 64;

/** @param {HTMLImageElement} image @returns {boolean} whether it is grey and nearly black, as class numbers and depths are */
function isDark(image) {
  const pen = new OffscreenCanvas(96, 96).getContext('2d', { willReadFrequently: true });
  pen.imageSmoothingEnabled = false;
  pen.drawImage(image, 0, 0, 96, 96);
  const { data } = pen.getImageData(0, 0, 96, 96);
  for (let at = 0; at < data.length; at += 4) if (data[at] >= DARK || data[at] !== data[at + 1] || data[at] !== data[at + 2] || data[at + 3] < 255) return false;
  return true;
}

/** Show class numbers in colours, and values that are close to each other apart; the picture as it is stored stays a click away. */
function offerColours(sample, field, stage, image, tools) {
  const drawn = thumbnail(sample, field, 1024);
  const others = [...tools.children];
  const made = [['Enhanced', drawn, 'Class numbers in colours, or values from the least as black to the greatest as white'], ['As stored', image, 'The picture as its file has it']].map(([label, shown, title]) => {
    const button = h('button', { type: 'button', class: 'segment segment-text', title, on: { click: () => choose(button, shown) } }, label);
    return [button, shown];
  });
  function choose(button, shown) {
    for (const [one] of made) one.setAttribute('aria-current', String(one === button));
    for (const one of others) one.hidden = shown === drawn;
    stage.classList.toggle('zoomed', false);
    replace(stage, shown);
  }
  tools.prepend(h('span', { class: 'segmented', role: 'group', 'aria-label': 'How the picture is shown' }, made.map(([button]) => button)));
  choose(...made[0]);
}

/** Let the pointer move what an element scrolls. */
function drag(stage) {
  stage.addEventListener('pointerdown', (event) => {
    stage.dragged = false;
    if (!stage.classList.contains('zoomed') || event.pointerType !== 'mouse') return;
    const start = [event.clientX, event.clientY, stage.scrollLeft, stage.scrollTop];
    const move = (later) => {
      const [dx, dy] = [later.clientX - start[0], later.clientY - start[1]];
      if (Math.abs(dx) + Math.abs(dy) > 4) stage.dragged = true;
      stage.scrollTo(start[2] - dx, start[3] - dy);
    };
    addEventListener('pointermove', move);
    addEventListener('pointerup', () => removeEventListener('pointermove', move), { once: true });
  });
}

function textView(_sample, field) {
  const text = field.text ?? '';
  const button = iconButton('copy', 'Copy the text', () => copyText(text, button));
  return h('div', { class: 'text-box' }, text ? h('bdi', { class: `text ${/\.?(txt|text|caption|md)$/i.test(field.name) ? 'prose' : 'code'}` }, text) : h('span', { class: 'quiet' }, 'empty'),
    field.truncated && h('p', { class: 'quiet' }, `The first ${formatNumber(text.length)} characters of ${formatBytes(field.size_bytes)}.`), button);
}

function jsonView(sample, field, options) {
  const value = 'json' in field ? field.json : field.value;
  if (value === undefined) return textView(sample, field);
  return jsonTree(value, expressionName(field.name), options);
}

/** @param {string} name @returns {string} the field in the filter language */
export const expressionName = (name) => (/^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*$/.test(name) && !['key', 'shard', 'fields'].includes(name) ? name : `field(${JSON.stringify(name)})`);

function valueView(_sample, field, options) {
  const value = field.value ?? field.text;
  return h('div', { class: 'row' }, h('bdi', { class: 'value' }, shorten(field.text?.trim() ?? String(value), 200)),
    options.onFilter && ['number', 'string'].includes(typeof value) && h('button', { type: 'button', class: 'button small', on: { click: () => options.onFilter(equals(expressionName(field.name), value)) } }, icon('filter'), 'Same value'));
}

function sourceView(sample, field) {
  return h('div', {}, h('p', { class: 'note' }, icon('lock'), `Shown as text: ${field.kind === 'svg' ? 'an SVG' : 'an HTML page'} may hold scripts, and nothing of a shard runs here.`),
    h('pre', { class: 'text code source' }, field.text ?? ''), field.truncated && h('p', { class: 'quiet' }, 'Only its beginning is shown.'));
}

function pickleView(_sample, field, options) {
  return h('div', {}, h('p', { class: 'note' }, icon('lock'), `Not loaded: a ${/\.?pth?$/.test(field.name) ? 'torch file' : 'pickle'} could run code.`), bytesButton(options));
}

function binaryView(_sample, _field, options) {
  return h('div', {}, h('p', { class: 'quiet' }, 'No preview for this kind of field.'), bytesButton(options));
}

const bytesButton = (options) => h('button', { type: 'button', class: 'button small', on: { click: options.onBytes } }, 'Show its bytes');

/** @param {any} answer a waveform @returns {string} which part of the sound it shows, if not all of it */
function extentOf(answer) {
  if (answer.sampled) return `the outline shows ${answer.peaks.length} stretches, ${formatDuration(answer.shown_seconds)} in all`;
  return answer.truncated ? `the outline shows the first ${formatDuration(answer.shown_seconds)}` : '';
}

function audioView(sample, field) {
  if (field.size_bytes === 0) return null;
  const player = h('audio', { controls: true, preload: 'metadata', 'aria-label': `Play ${shorten(field.name, 40)}` });
  const done = h('span', { class: 'wave-done', 'aria-hidden': 'true' });
  const wave = h('div', { class: 'wave wave-large', title: 'Click to seek' });
  const note = h('p', { class: 'quiet', role: 'note' });
  player.addEventListener('error', () => { note.textContent = player.title || 'The browser cannot play this file.'; });
  setSource(player, 'payload', fieldOf(sample, field.name));
  player.addEventListener('timeupdate', () => { done.style.width = `${(100 * player.currentTime) / (player.duration || 1)}%`; });
  wave.addEventListener('click', (event) => {
    const box = wave.getBoundingClientRect();
    if (Number.isFinite(player.duration)) player.currentTime = ((event.clientX - box.left) / box.width) * player.duration;
  });
  waveformOf(sample, field.name, 480).then(
    (answer) => {
      wave.append(drawPeaks(answer), done);
      note.textContent = [formatDuration(answer.duration_seconds), `${formatNumber(answer.rate)} Hz`, answer.channels === 1 ? 'mono' : answer.channels === 2 ? 'stereo' : `${answer.channels} channels`, extentOf(answer), answer.note].filter(Boolean).join(' · ');
    },
    (error) => {
      wave.remove();
      note.textContent = error.message;
    },
  );
  return h('div', { class: 'audio' }, wave, player, note);
}

function videoView(sample, field) {
  if (field.size_bytes === 0) return null;
  const player = h('video', { controls: true, preload: 'metadata', playsinline: true, 'aria-label': `Play ${shorten(field.name, 40)}` });
  const note = h('p', { class: 'quiet', role: 'note' });
  player.addEventListener('loadedmetadata', () => { note.textContent = `${player.videoWidth} × ${player.videoHeight} · ${formatDuration(player.duration)}`; });
  player.addEventListener('error', () => {
    note.textContent = player.title || 'The browser cannot play this file: its first frame is shown. Save it to play it.';
    player.replaceWith(h('div', { class: 'stage' }, thumbnail(sample, field, 768)));
  }, { once: true });
  setSource(player, 'payload', fieldOf(sample, field.name));
  return h('div', { class: 'video' }, player, note);
}

function arrayView(sample, field, options) {
  if (field.size_bytes === 0) return null;
  if (/^[<>|=]?O/.test(field.media?.dtype ?? '')) return h('div', {}, h('p', { class: 'note' }, icon('lock'), 'Not loaded: an array of Python objects is a pickle, which could run code.'), bytesButton(options));
  const place = h('div', { class: 'arrays' }, h('div', { class: 'bone' }));
  get('array', fieldOf(sample, field.name)).then(
    (answer) => replace(place, answer.arrays.map((one) => arrayCard(sample, field, one, answer.arrays.length === 1)), answer.arrays.length === 0 && h('p', { class: 'quiet' }, 'It holds no arrays.'), answer.note && h('p', { class: 'quiet' }, answer.note)),
    (error) => replace(place, h('p', { class: 'note' }, error.message)),
  );
  return place;
}

/** @param {any} one description of an array @returns {HTMLElement} */
export function arrayCard(sample, field, one, single) {
  const facts = [['shape', one.shape?.length ? one.shape.join(' × ') : 'scalar'], ['dtype', one.dtype && typeName(one.dtype)], ['min', one.minimum], ['max', one.maximum], ['mean', one.mean], ['std', one.std], ['NaN', one.nan || null], ['infinite', one.infinite || null]].filter(([, value]) => value !== null && value !== undefined);
  if (one.problem) return h('div', { class: 'array' }, h('h4', {}, h('bdi', {}, shorten(one.name, 80))), h('p', { class: 'note' }, icon('warn'), `Not shown: ${one.problem}`));
  return h('div', { class: 'array' }, one.name && !single && h('h4', {}, h('bdi', {}, shorten(one.name, 80))),
    h('dl', { class: 'facts' }, facts.map(([name, value]) => h('div', {}, h('dt', {}, name), h('dd', {}, formatFigure(value))))),
    h('div', { class: 'array-body' },
      one.thumbnail && single && sample && h('div', { class: 'array-picture' }, thumbnail(sample, field, 512)),
      one.histogram?.counts?.length > 0 && h('div', { class: 'array-chart' }, histogram(one.histogram, { height: 96, label: 'values' }))),
    previewTable(one.preview));
}

function previewTable(preview) {
  if (!Array.isArray(preview) || !preview.length) return null;
  const rows = Array.isArray(preview[0]) ? preview : [preview];
  const flat = rows.map((row) => (Array.isArray(row) ? row : [row]));
  return h('details', { class: 'preview' }, h('summary', {}, 'First values'), h('div', { class: 'scroll-x' }, h('table', { class: 'table values' }, h('tbody', {}, flat.map((row) => h('tr', {}, row.map((value) => h('td', { class: 'figure' }, Array.isArray(value) ? shorten(JSON.stringify(value), 24) : formatFigure(value)))))))));
}

/**
 * A document in the order in which it is read, its images in place.
 * @param {any} sample its detail
 * @returns {HTMLElement}
 */
export function documentView(sample) {
  const images = new Map(sample.fields.map((field) => [field.name, field]));
  const parts = sample.document.map((part) => {
    if (part.kind === 'text') return h('p', {}, h('bdi', {}, part.text));
    if (part.kind === 'problem') return h('p', { class: 'note' }, icon('warn'), h('span', {}, 'This document cannot be shown whole: ', h('bdi', {}, shorten(part.text, 500))));
    // an image of another sample, or in the JSON itself
    const elsewhere = part.ordinal !== undefined || part.inline !== undefined;
    const field = elsewhere ? { name: part.field, kind: 'image', size_bytes: null } : images.get(part.field) ?? (part.field && { name: part.field, kind: 'image', size_bytes: null });
    if (part.missing || !field) return h('figure', { class: 'missing' }, h('div', { class: 'missing-box' }, `Missing image ${shorten(part.field ?? part.name ?? '', 80)}`), part.caption && h('figcaption', {}, h('bdi', {}, part.caption)));
    const owner = part.ordinal === undefined ? sample : { ...sample, ordinal: part.ordinal };
    const facts = part.inline !== undefined ? `${shorten(part.name, 60)} · in the JSON` : part.ordinal !== undefined ? `${shorten(part.name, 60)} · another sample` : `${shorten(part.field, 60)} · ${summary(field)}`;
    return h('figure', { data: { field: part.field } }, thumbnail(owner, field, 768, { page: part.page, inline: part.inline }), h('figcaption', {}, h('bdi', {}, part.caption ?? ''), h('span', { class: 'quiet' }, ` ${facts}`)));
  });
  const count = sample.document.filter((part) => part.kind === 'image').length;
  const texts = sample.document.filter((part) => part.kind === 'text').length;
  return h('section', { class: 'field field-document', 'aria-label': 'Document' },
    h('header', { class: 'field-head' }, h('h3', {}, 'Document'), h('span', { class: 'quiet' }, texts + count > 0 && `${countOf(texts, 'text')}, ${countOf(count, 'image')}, in reading order`)),
    h('article', { class: 'document' }, parts));
}
