/**
 * Answers what the server of `wds view` answers, in the browser: from the list of shards that lies beside this page,
 * their indexes, and byte ranges of the shards. It stands in the place of the `api.js` that asks a server.
 */

import { describeDocument, inlineImage } from './documents.js';
import { describeField, imageSize, lastPart, npyHeader, parseJson } from './field_kinds.js';
import { ApiError, counted, readRange } from './ranges.js';
import { parseHeader, ShardIndex } from './shard_index.js';

export { ApiError };

/** Pictures are shown as they are stored: no server draws them. */
export const drawsPictures = false;

/** Says `offline`, `online` and `locked` where there is a server; here nothing. */
export const connection = new EventTarget();

const NEIGHBOURS = 32;
const MOST_CARD_FIELDS = 64;
const MOST_FIELDS = 1000;
const MOST_MEDIA = 256 * 2 ** 20;
const MOST_DECODED = 16 * 2 ** 20;
const MOST_PIXELS = 60_000_000;
const SEARCHED = 200;
const MOST_NUMBERS = 4_000_000;

/** @type {Promise<any> | null} */
let listed = null;
/** @type {Map<number, ShardIndex>} */
const indexes = new Map();

/** The list of shards, whose name stands in the page. */
function list() {
  listed ??= readList();
  listed.catch(() => { listed = null; });
  return listed;
}

const readList = () => readOwn(document.querySelector('meta[name="wds-shards"]')?.getAttribute('content') ?? '');

/** Read a file of the page itself. @param {string} name */
async function readOwn(name) {
  let answer;
  try {
    answer = await fetch(new URL(name, document.baseURI), { credentials: 'same-origin' });
  } catch {
    throw new ApiError('The server of this page does not answer.', 0);
  }
  if (!answer.ok) throw new ApiError(`A file of this page, ${name}, is not beside it (${answer.status}). Publish the viewer again.`, answer.status);
  return answer.json();
}

async function shardOf(number) {
  const { shardlist } = await list();
  const shard = shardlist[number];
  if (!shard) throw new ApiError(`There is no shard ${number}.`, 404);
  const url = new URL(shard.url, document.baseURI).href;
  if (!indexes.has(number)) indexes.set(number, new ShardIndex(new URL(shard.index, document.baseURI).href, url));
  return { url, index: indexes.get(number), count: shard.nsamples, size_bytes: shard.filesize, last: number + 1 >= shardlist.length };
}

async function entryOf(shard, ordinal) {
  const [entry] = await shard.index.entries(ordinal, ordinal + 1);
  if (!entry) throw new ApiError(`There is no sample ${ordinal} in this shard.`, 404);
  return entry;
}

/** Read a field, or a part of it; what stands before it is compared with the index. */
async function readField(shard, field, start = 0, stop = field.size_bytes) {
  await shard.index.prove(field);
  const body = await readRange(shard.url, field.offset + start, field.offset + Math.min(stop, field.size_bytes));
  if (body.length < Math.min(stop, field.size_bytes) - start) throw new ApiError('The shard ends inside this field: it is shorter than when it was published.', 409);
  return body;
}

async function cardOf(number, shard, entry, full) {
  const { kinds } = await list();
  const most = full ? MOST_FIELDS : MOST_CARD_FIELDS;
  const fields = await Promise.all(entry.fields.slice(0, most).map(async (field) => {
    if (entry.sparse) return { name: field.name, size_bytes: field.size_bytes, offset: field.offset, kind: 'binary', note: 'This sample has a sparse member, which a published viewer does not show.' };
    return describeField(field, (start, stop) => readField(shard, field, start, stop), kinds, full);
  }));
  return { side: 'a', shard: number, ordinal: entry.ordinal, key: entry.key, offset: entry.offset, size_bytes: entry.fields.reduce((sum, field) => sum + field.size_bytes, 0), document: fields.some((field) => field.kind === 'document'), fields, tags: [], more_fields: entry.left + Math.max(0, entry.fields.length - most) };
}

/* answers ------------------------------------------------------------------------------------------------------ */

async function dataset() {
  const { name, version, shardlist, statistics: counted } = await list();
  const samples = shardlist.reduce((sum, shard) => sum + shard.nsamples, 0);
  return { title: name, version, features: { compare: false, pipeline: false, tags: false, batches: false, queries: false, statistics: Boolean(counted), findings: shardlist.every((shard) => shard.findings) }, sides: [{ side: 'a', name, shards: shardlist.length, samples, exact: true }], page: { side: 'a', shard: 0, ordinal: 0 } };
}

const statistics = async () => readOwn((await list()).statistics);

async function findings({ shard: number }) {
  const shard = (await list()).shardlist[number];
  if (!shard?.findings) throw new ApiError('This shard was not checked when the page was published.', 404);
  return readOwn(shard.findings);
}

/** A url as people read it: its escapes undone where they can be. */
function nameOf(url) {
  try {
    return decodeURIComponent(url.replace(/^\.\//, ''));
  } catch {
    return url;
  }
}

async function shards({ start = 0, count = 100 }) {
  const { shardlist } = await list();
  return { total: shardlist.length, shards: shardlist.slice(start, start + count).map((shard, index) => ({ shard: start + index, name: nameOf(shard.url), samples: shard.nsamples, size_bytes: shard.filesize, indexed: true })) };
}

async function samples({ shard: number, start, count }) {
  const shard = await shardOf(number);
  const entries = await shard.index.entries(start, start + count);
  const cards = await Promise.all(entries.map((entry) => cardOf(number, shard, entry, false)));
  return { side: 'a', shard: number, start, samples: cards, end: start + count >= shard.count, total: shard.count, sequential: false, problem: null, read: { ...counted } };
}

async function sample({ shard: number, ordinal }) {
  const shard = await shardOf(number);
  const entry = await entryOf(shard, ordinal);
  const card = await cardOf(number, shard, entry, true);
  const members = entry.fields.slice(0, MOST_FIELDS).map(async (field) => {
    const header = parseHeader(await readRange(shard.url, field.offset - 512, field.offset));
    return { name: field.member, header_offset: field.offset - 512, offset: field.offset, size_bytes: field.size_bytes, type: 'file', mode: header?.mode ?? null, mtime: header?.mtime ?? null, pax: {} };
  });
  return { ...card, document: await documentOf(shard, entry, card.fields), members: await Promise.all(members), ...(await neighboursOf(number, shard, ordinal)) };
}

async function neighboursOf(number, shard, ordinal) {
  const { shardlist } = await list();
  const before = number && !ordinal ? shardlist[number - 1].nsamples : 0;
  const previous = ordinal ? { shard: number, ordinal: ordinal - 1 } : before ? { shard: number - 1, ordinal: before - 1 } : null;
  const next = ordinal + 1 < shard.count ? { shard: number, ordinal: ordinal + 1 } : shard.last ? null : { shard: number + 1, ordinal: 0 };
  return { previous, next };
}

async function documentOf(shard, entry, fields) {
  const record = fields.find((field) => field.kind === 'document')?.json;
  if (record === undefined) return null;
  const near = await shard.index.entries(Math.max(0, entry.ordinal - NEIGHBOURS), entry.ordinal + 1 + NEIGHBOURS);
  const neighbours = near.filter((one) => one.ordinal !== entry.ordinal).map((one) => ({ ordinal: one.ordinal, key: one.key, fields: one.fields.map((field) => field.name) }));
  return describeDocument(entry.key, entry.fields.map((field) => field.name), record, neighbours);
}

async function bytes({ shard: number, offset, count }) {
  const shard = await shardOf(number);
  const body = await readRange(shard.url, offset, Math.min(offset + count, shard.size_bytes));
  return { offset, hex: Array.from(body, (byte) => byte.toString(16).padStart(2, '0')).join(''), end: offset + count >= shard.size_bytes };
}

/** Look through keys and texts, some samples a call. */
async function search({ q, where, cursor, count = 50 }) {
  if (where) throw new ApiError('A published viewer has no filters: use wds view.', 400);
  const { shardlist } = await list();
  const wanted = q.toLowerCase();
  let [number, start] = cursor ?? [0, 0];
  while (number < shardlist.length && start >= shardlist[number].nsamples) [number, start] = [number + 1, 0];
  if (number >= shardlist.length) return { samples: [], cursor: null, done: true, scanned: { shards: 0, samples: 0, bytes: 0 } };
  const before = counted.bytes;
  const page = await samples({ shard: number, start, count: SEARCHED });
  const holds = (card) => card.key.toLowerCase().includes(wanted) || card.fields.some((field) => (field.text ?? '').toLowerCase().includes(wanted));
  const found = [];
  let seen = 0;
  for (const card of page.samples) {
    if (found.length >= count) break;
    seen += 1;
    if (holds(card)) found.push(card);
  }
  const next = start + seen;
  const ended = next >= shardlist[number].nsamples;
  const done = ended && number + 1 >= shardlist.length;
  return { samples: found, cursor: done ? null : ended ? [number + 1, 0] : [number, next], done, scanned: { shards: ended ? 1 : 0, samples: seen, bytes: counted.bytes - before } };
}

async function fieldOf({ shard: number, ordinal, field: name }) {
  const shard = await shardOf(number);
  const entry = await entryOf(shard, ordinal);
  const field = entry.fields.find((one) => one.name === name);
  if (!field) throw new ApiError(`This sample has no field ${name}.`, 404);
  if (entry.sparse) throw new ApiError('This sample has a sparse member, which a published viewer does not show.', 415);
  return { shard, field };
}

async function waveform(parameters) {
  const { shard, field } = await fieldOf(parameters);
  if (field.size_bytes > MOST_DECODED) throw new ApiError('No outline: this sound is larger than 16 MiB. wds view outlines it.', 415);
  const content = await readField(shard, field);
  let sound;
  try {
    sound = await new OfflineAudioContext(1, 1, 44_100).decodeAudioData(content.slice().buffer);
  } catch {
    throw new ApiError('The browser cannot decode this sound.', 422);
  }
  const channels = Array.from({ length: sound.numberOfChannels }, (_, channel) => sound.getChannelData(channel));
  const peaks = Array.from({ length: Math.min(parameters.columns, sound.length) }, (_, column, columns = Math.min(parameters.columns, sound.length)) => {
    let [low, high] = [1, -1];
    for (let at = Math.floor((column * sound.length) / columns); at < Math.floor(((column + 1) * sound.length) / columns); at += 1) {
      for (const values of channels) {
        low = Math.min(low, values[at]);
        high = Math.max(high, values[at]);
      }
    }
    return [low, high];
  });
  // the browser resamples: the rate of the file is not told
  return { peaks, duration_seconds: sound.duration, shown_seconds: sound.duration, channels: sound.numberOfChannels, rate: null, truncated: false, sampled: false };
}

const NUMBERS = { __proto__: null, f4: 'Float32', f8: 'Float64', f2: 'Float16', i1: 'Int8', i2: 'Int16', i4: 'Int32', u1: 'Uint8', u2: 'Uint16', u4: 'Uint32', b1: 'Uint8' };

async function array(parameters) {
  const { shard, field } = await fieldOf(parameters);
  const head = lastPart(field.name) === 'npy' && npyHeader(await readField(shard, field, 0, Math.min(field.size_bytes, 64 * 1024)));
  if (!head) throw new ApiError('A published viewer shows arrays of .npy; wds view shows the others.', 415);
  const facts = { name: '', shape: head.shape, dtype: head.dtype };
  const [, order, type] = /^([<>|=])(\w+)$/.exec(head.dtype) ?? [];
  const width = Number(type?.slice(1));
  const count = head.shape.reduce((product, side) => product * side, 1);
  const shown = NUMBERS[type] && `get${NUMBERS[type]}` in DataView.prototype && count <= MOST_NUMBERS && head.start + count * width <= field.size_bytes;
  if (!shown) return { arrays: [facts] };
  const body = await readField(shard, field, head.start, head.start + count * width);
  const view = new DataView(body.buffer, body.byteOffset, body.length);
  const values = Float64Array.from({ length: count }, (_, index) => view[`get${NUMBERS[type]}`](index * width, order !== '>'));
  return { arrays: [{ ...facts, ...statisticsOf(values), preview: previewOf(values, head) }] };
}

function statisticsOf(values) {
  let [minimum, maximum, sum, squares, finite] = [Infinity, -Infinity, 0, 0, 0];
  for (const value of values) {
    if (!Number.isFinite(value)) continue;
    finite += 1;
    sum += value;
    minimum = Math.min(minimum, value);
    maximum = Math.max(maximum, value);
  }
  if (!finite) return { nan: values.length };
  const mean = sum / finite;
  for (const value of values) if (Number.isFinite(value)) squares += (value - mean) ** 2;
  return { minimum, maximum, mean, std: Math.sqrt(squares / finite), nan: values.reduce((count, value) => count + Number(Number.isNaN(value)), 0) };
}

function previewOf(values, { shape, fortran }) {
  if (fortran && shape.length > 1) return null;
  const columns = shape.at(-1) ?? 1;
  if (shape.length < 2) return Array.from(values.subarray(0, 8));
  return Array.from({ length: Math.min(8, values.length / columns) }, (_, row) => Array.from(values.subarray(row * columns, row * columns + Math.min(8, columns))));
}

const ROUTES = { __proto__: null, dataset, shards, samples, sample, bytes, search, waveform, array, statistics, findings };

/**
 * Answer a route.
 * @param {string} route
 * @param {Record<string, any>} [parameters]
 * @param {AbortSignal} [signal]
 * @returns {Promise<any>}
 */
export async function get(route, parameters = {}, signal = undefined) {
  const answer = route === 'thumbnail' ? mediaOf(route, parameters) : ROUTES[route]?.(parameters);
  if (!answer) throw new ApiError('A published viewer has no server for this: use wds view.', 404);
  const body = await answer;
  signal?.throwIfAborted();
  return body;
}

/** @returns {Promise<never>} nothing is ever written */
export const post = async () => {
  throw new ApiError('A published viewer writes nothing.', 405);
};

/* pictures, sounds, films and files ---------------------------------------------------------------------------- */

/** @type {Map<string, Element>} */
const shownUrls = new Map();

/** Make a url for bytes, and forget those of elements that are gone. */
function urlOf(element, content, type) {
  for (const [url, user] of shownUrls) {
    if (user.isConnected) continue;
    URL.revokeObjectURL(url);
    shownUrls.delete(url);
  }
  const url = URL.createObjectURL(new Blob([content], { type }));
  // an element joins the page after it was given its url
  setTimeout(() => shownUrls.set(url, element), 60_000);
  return url;
}

/** The bytes of a picture, sound or film, and their type; the type is never one that can run code. */
async function mediaOf(route, parameters) {
  const { shard, field } = await fieldOf(parameters);
  const { types } = await list();
  let content;
  let { name } = field;
  if (parameters.inline !== undefined) {
    const image = inlineImage(parseJson(new TextDecoder().decode(await readField(shard, field))), parameters.inline);
    if (!image) throw new ApiError(`The JSON holds no image ${parameters.inline} in base64.`, 404);
    content = image.bytes;
    name = Object.hasOwn(types, lastPart(image.name)) ? image.name : 'image.png';
  }
  const type = Object.hasOwn(types, lastPart(name)) ? types[lastPart(name)] : null;
  if (!type) throw new ApiError(`Browsers do not show .${lastPart(name)}; wds view makes a picture of it.`, 415);
  if (route === 'thumbnail' && !type.startsWith('image/')) throw new ApiError('A published viewer makes no pictures of this kind of field; wds view does.', 415);
  if (field.size_bytes > MOST_MEDIA) throw new ApiError('This field is larger than 256 MiB: a published viewer does not load it. wds view plays it.', 413);
  content ??= await readField(shard, field);
  if (type.startsWith('image/')) refuseHuge(content);
  return { content, type };
}

function refuseHuge(content) {
  const size = imageSize(content);
  if (size && size[0] * size[1] > MOST_PIXELS) throw new ApiError(`This picture has ${size[0]} × ${size[1]} pixels, too many for this page.`, 413);
}

/**
 * Let an element show, play or save a field.
 * @param {any} element an image, an audio or video element, or a link
 * @param {string} route `thumbnail` or `payload`
 * @param {Record<string, any>} parameters
 */
export function setSource(element, route, parameters) {
  if (element instanceof HTMLAnchorElement) {
    element.href = '#';
    element.addEventListener('click', (event) => {
      event.preventDefault();
      event.stopPropagation();
      save(parameters, element);
    });
    return;
  }
  mediaOf(route, parameters).then(
    ({ content, type }) => { element.src = urlOf(element, content, type); },
    (error) => { element.title = error.message; element.dispatchEvent(new Event('error')); },
  );
}

async function save(parameters, element) {
  try {
    const { shard, field } = await fieldOf(parameters);
    if (field.size_bytes > MOST_MEDIA) throw new ApiError('This field is larger than 256 MiB: a published viewer does not save it.', 413);
    const link = document.createElement('a');
    link.href = URL.createObjectURL(new Blob([await readField(shard, field)], { type: 'application/octet-stream' }));
    link.download = field.member.split('/').pop() ?? field.name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
  } catch (error) {
    element.title = error.message;
    element.classList.add('refused');
  }
}

/** @param {string} route @param {Record<string, any>} parameters @returns {string} a name for what is asked for */
export const apiUrl = (route, parameters = {}) => `${route} ${JSON.stringify(parameters)}`;
