/**
 * What a field holds, from its name and its first bytes, as the server of `wds view` says it; nothing is decoded here
 * that a browser does not decode by itself, and no markup is ever parsed.
 */

const CARD_BYTES = 64 * 1024;
const TEXT_BYTES = 256 * 1024;
const JSON_BYTES = 1 << 20;
const DOCUMENT_BYTES = 16 << 20;
const CARD_CHARACTERS = 300;
const ascii = new TextDecoder('latin1');

// what the web calls latin1 is another encoding above 0x7f
const startsWith = (bytes, text) => bytes.length >= text.length && [...text].every((letter, index) => bytes[index] === letter.charCodeAt(0));

/** @param {string} name @returns {string} what stands after the last dot */
export const lastPart = (name) => name.slice(name.lastIndexOf('.') + 1).toLowerCase();

/**
 * Describe a field.
 * @param {{name: string, size_bytes: number, offset: number}} field
 * @param {(start: number, stop: number) => Promise<Uint8Array>} read
 * @param {Record<string, string>} kinds of extensions
 * @param {boolean} full for the detail view
 * @returns {Promise<any>}
 */
export async function describeField(field, read, kinds, full) {
  const last = lastPart(field.name);
  // compressed text is none; Object.hasOwn: a field may be called 'constructor'
  const kind = last !== 'svgz' && Object.hasOwn(kinds, last) ? kinds[last] : 'binary';
  const card = { name: field.name, size_bytes: field.size_bytes, offset: field.offset, kind };
  const head = (most) => read(0, Math.min(most, field.size_bytes));
  if (kind === 'text' || kind === 'html' || kind === 'svg') return { ...card, ...describeText(await head(full ? TEXT_BYTES : 4 * CARD_CHARACTERS), field.size_bytes, full) };
  if (kind === 'class' || kind === 'number') {
    const found = describeText(await head(4 * CARD_CHARACTERS), field.size_bytes, full);
    return { ...card, ...found, ...(!found.truncated && { value: scalarOf(found.text) }) };
  }
  if (kind === 'json') return { ...card, ...(await describeJson(field, head, full)) };
  if (kind === 'image') {
    const size = imageSize(await head(CARD_BYTES));
    return { ...card, ...(size && { media: { width: size[0], height: size[1] } }) };
  }
  if (kind === 'array' && lastPart(field.name) === 'npy') {
    const found = npyHeader(await head(CARD_BYTES));
    return { ...card, ...(found && { media: { shape: found.shape, dtype: found.dtype } }) };
  }
  return card;
}

function describeText(bytes, size, full) {
  let encoding = 'utf-8';
  if (bytes[0] === 0xff && bytes[1] === 0xfe) encoding = 'utf-16le';
  else if (bytes[0] === 0xfe && bytes[1] === 0xff) encoding = 'utf-16be';
  const text = new TextDecoder(encoding).decode(bytes, { stream: bytes.length < size });
  const cut = !full && text.length > CARD_CHARACTERS;
  return { text: cut ? text.slice(0, CARD_CHARACTERS) : text, truncated: cut || bytes.length < size };
}

function scalarOf(text) {
  const stripped = text.trim();
  if (!/^[+-]?(\d{1,400}(\.\d{0,400})?|\.\d{1,400})([eE][+-]?\d{1,4})?$/.test(stripped)) return stripped;
  const value = Number(stripped);
  const exact = Number.isFinite(value) && (!/^[+-]?\d+$/.test(stripped) || Number.isSafeInteger(value));
  return exact ? value : stripped;
}

/** @param {string} text @returns {any} its value; integers that JavaScript cannot hold stay texts */
export function parseJson(text) {
  return JSON.parse(text, (_name, value, context) => (typeof value === 'number' && context?.source && /^-?\d+$/.test(context.source) && !Number.isSafeInteger(value) ? context.source : value));
}

async function describeJson(field, head, full) {
  const most = full ? DOCUMENT_BYTES : CARD_BYTES;
  const whole = field.size_bytes <= (full && field.size_bytes <= DOCUMENT_BYTES ? most : CARD_BYTES);
  if (!whole) {
    const start = await head(CARD_BYTES);
    const document = looksLikeDocument(ascii.decode(start));
    return { ...describeText(start.subarray(0, full ? CARD_BYTES : 4 * CARD_CHARACTERS), field.size_bytes, full), kind: document ? 'document' : 'json' };
  }
  const bytes = await head(most);
  const text = new TextDecoder().decode(bytes);
  let value;
  try {
    value = parseJson(text);
  } catch (error) {
    return { ...describeText(bytes.subarray(0, full ? TEXT_BYTES : 4 * CARD_CHARACTERS), field.size_bytes, full), note: `it is no JSON: ${String(error.message).slice(0, 200)}` };
  }
  const document = isDocument(value);
  const flat = text.slice(0, 8 * CARD_CHARACTERS).split(/\s+/).join(' ').trim();
  const found = { kind: document ? 'document' : 'json', text: flat.slice(0, CARD_CHARACTERS), truncated: !full && (flat.length > CARD_CHARACTERS || text.length > 8 * CARD_CHARACTERS) };
  if (value === null || typeof value !== 'object') found.value = value;
  if (full && (document || bytes.length <= JSON_BYTES)) found.json = value;
  return found;
}

function looksLikeDocument(text) {
  const has = (name) => text.includes(`"${name}"`);
  return (has('text_list') || has('texts')) && ['image_info', 'images', 'matched_text_index', 'matched_text_indices'].some(has);
}

/** @param {any} record @returns {boolean} whether it has the form of an interleaved document */
export function isDocument(record) {
  if (record === null || typeof record !== 'object' || Array.isArray(record)) return false;
  const has = (name) => Object.hasOwn(record, name);
  return (has('image_info') && has('text_list')) || ((has('matched_text_index') || has('matched_text_indices')) && (has('text_list') || has('texts'))) || (has('texts') && has('images'));
}

/** @param {Uint8Array} bytes the start of a picture @returns {[number, number] | null} its width and height in pixels */
export function imageSize(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
  const starts = (text, at = 0) => startsWith(bytes.subarray(at), text);
  try {
    if (starts('\x89PNG\r\n\x1a\n')) return [view.getUint32(16), view.getUint32(20)];
    if (starts('GIF8')) return [view.getUint16(6, true), view.getUint16(8, true)];
    if (starts('BM')) return [view.getInt32(18, true), Math.abs(view.getInt32(22, true))];
    if (starts('RIFF') && starts('WEBP', 8)) return webpSize(view, starts);
    if (starts('\xff\xd8')) return jpegSize(view);
  } catch {
    // the header is longer than what was read
  }
  return null;
}

function webpSize(view, starts) {
  if (starts('VP8 ', 12)) return [view.getUint16(26, true) & 0x3fff, view.getUint16(28, true) & 0x3fff];
  if (starts('VP8X', 12)) return [1 + (view.getUint32(24, true) & 0xffffff), 1 + (view.getUint32(26, true) >>> 8)];
  const bits = view.getUint32(21, true);
  return starts('VP8L', 12) ? [1 + (bits & 0x3fff), 1 + ((bits >>> 14) & 0x3fff)] : null;
}

/** Walk the segments up to the frame header (ITU-T T.81, B.2.2). */
function jpegSize(view) {
  for (let at = 2; ;) {
    if (view.getUint8(at) !== 0xff) return null;
    const marker = view.getUint8(at + 1);
    if (marker === 0xff) at += 1;
    else if (marker >= 0xc0 && marker <= 0xcf && ![0xc4, 0xc8, 0xcc].includes(marker)) return [view.getUint16(at + 7), view.getUint16(at + 5)];
    else at += marker >= 0xd0 && marker <= 0xd9 ? 2 : 2 + view.getUint16(at + 2);
  }
}

/** @param {Uint8Array} bytes @returns {{dtype: string, shape: number[], fortran: boolean, start: number} | null} what the header of an npy file says */
export function npyHeader(bytes) {
  if (bytes.length < 12 || !startsWith(bytes, '\x93NUMPY')) return null;
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
  const wide = bytes[6] > 1;
  const start = (wide ? 12 : 10) + (wide ? view.getUint32(8, true) : view.getUint16(8, true));
  const text = ascii.decode(bytes.subarray(wide ? 12 : 10, Math.min(start, bytes.length)));
  const dtype = /'descr': '([<>|=]?[a-z]\d*)'/i.exec(text)?.[1];
  const shape = /'shape': \(([\d, ]*)\)/.exec(text)?.[1];
  if (!dtype || shape === undefined) return null;
  return { dtype, shape: shape.split(',').filter((one) => one.trim()).map(Number), fortran: text.includes("'fortran_order': True"), start };
}
