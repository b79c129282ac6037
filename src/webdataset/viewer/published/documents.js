/** Interleaved documents: texts in reading order, and where the image between them is, as `webdataset` finds them. */

const IMAGES = new Set('apng avif bmp gif heic heif image img j2k jfif jp2 jpe jpeg jpg jxl pbm pgm png pnm ppm tif tiff webp'.split(' '));
const MOST_PARTS = 2000;

const after = (name, mark) => name.slice(name.lastIndexOf(mark) + 1);
const front = (name) => (name.includes('.') ? name.slice(0, name.lastIndexOf('.')) : '');
const isImage = (field) => IMAGES.has(after(field, '.').toLowerCase());
const isText = (value) => typeof value === 'string';

function stem(name) {
  const base = after(name, '/');
  const cut = base.lastIndexOf('.');
  return cut > 0 && IMAGES.has(base.slice(cut + 1).toLowerCase()) ? base.slice(0, cut) : base;
}

class Contradiction extends Error {}

const check = (fits, text) => {
  if (!fits) throw new Contradiction(text);
};

function listOf(record, name) {
  check(Array.isArray(record[name]), `${name} is not a list`);
  return record[name];
}

function slotOf(number, entry, position) {
  const named = (name) => {
    const value = entry[name] ?? null;
    check(value === null || isText(value), `${name} of image ${number} is not text`);
    return value || null;
  };
  const caption = ['caption', 'alt', 'alt_text'].map((name) => entry[name]).find(isText);
  check([null, 'number'].includes(entry.matched_sim === undefined || entry.matched_sim === null ? null : typeof entry.matched_sim), `matched_sim of image ${number} is not a number`);
  return { number, position, name: named('image_name'), member: named('member'), inline: named('image_base64'), similarity: entry.matched_sim ?? null, caption };
}

/** @param {any} record @returns {{texts: string[], slots: any[]} | null} the texts, and a slot for each image */
export function outlineOf(record) {
  const has = (name) => Object.hasOwn(record, name);
  if (record === null || typeof record !== 'object' || Array.isArray(record)) return null;
  const place = (index, texts) => {
    check(Number.isInteger(index) && index >= 0 && index < texts.length, `an image is matched to text ${String(index).slice(0, 40)}, and there ${texts.length === 1 ? 'is 1 text' : `are ${texts.length} texts`}`);
    return index;
  };
  const textsOf = (name) => {
    const texts = listOf(record, name);
    check(texts.every(isText), `${name} holds something that is not text`);
    return texts;
  };
  if (has('image_info') && has('text_list')) {
    const texts = textsOf('text_list');
    return { texts, slots: listOf(record, 'image_info').map((entry, number) => {
      check(entry !== null && typeof entry === 'object' && !Array.isArray(entry), `image_info[${number}] is not an object`);
      return slotOf(number, entry, place(entry.matched_text_index, texts));
    }) };
  }
  const matched = ['matched_text_index', 'matched_text_indices'].find(has);
  const named = ['text_list', 'texts'].find(has);
  if (matched && named) {
    const texts = textsOf(named);
    const places = listOf(record, matched);
    const given = Array.isArray(record.images) && record.images.length === places.length && record.images.every((image) => isText(image) || (image && typeof image === 'object')) ? record.images : [];
    const similar = record.matched_sim ?? null;
    check(similar === null || (Array.isArray(similar) && similar.length === places.length), `matched_sim does not have one entry for each of ${matched}`);
    return { texts, slots: places.map((index, number) => {
      const entry = isText(given[number]) ? { image_name: given[number] } : { ...given[number] };
      if (similar) entry.matched_sim = similar[number];
      return slotOf(number, entry, place(index, texts));
    }) };
  }
  return has('texts') && has('images') ? parallelOutline(record) : null;
}

function parallelOutline(record) {
  const [texts, images] = [listOf(record, 'texts'), listOf(record, 'images')];
  check(texts.length === images.length, `the lists texts (${texts.length}) and images (${images.length}) must be of one length`);
  const written = [];
  const slots = [];
  texts.forEach((text, number) => {
    const image = images[number];
    check(text === null || image === null, `a text and an image both stand at place ${number}`);
    if (text !== null) {
      check(isText(text), `texts[${number}] is not text`);
      written.push(text);
    } else if (image !== null) {
      check(typeof image === 'object' || isText(image), `images[${number}] is neither a name nor an object`);
      slots.push(slotOf(slots.length, isText(image) ? { image_name: image } : image, written.length));
    }
  });
  const described = record.image_metadata;
  if (Array.isArray(described) && described.length === slots.length) slots.forEach((slot, number) => { slot.caption = ['caption', 'alt', 'alt_text'].map((name) => described[number]?.[name]).find(isText) ?? slot.caption; });
  return { texts: written, slots };
}

/** Find each image by its name, by its number, as a page of a TIFF, or as the one image that there is. */
function locate(key, fields, slots) {
  const own = fields.filter(isImage);
  const found = slots.map((slot) => (slot.inline ? { field: 'json', inline: slot.number } : null));
  slots.forEach((slot, number) => {
    const called = slot.member ?? slot.name;
    if (found[number] || called === null) return;
    const base = after(called, '/').toLowerCase();
    const fitting = base.includes('.') && own.includes(base) ? [base] : own.filter((name) => front(name).toLowerCase() === stem(called).toLowerCase());
    check(fitting.length < 2, `${called} may be any of ${fitting.join(', ')}`);
    if (fitting.length) found[number] = { field: fitting[0] };
  });
  const byName = found.some((place) => place && place.inline === undefined);
  const left = slots.filter((_, number) => !found[number]);
  if (!byName) locateByNumber(own, left, found);
  const single = own.filter((name) => !name.includes('.'));
  const rest = slots.filter((_, number) => !found[number]);
  if (single.length === 1 && rest.length && !found.some((place) => place && place.inline === undefined)) {
    const called = rest[0].member ?? rest[0].name;
    const alone = rest.length === 1 && (called === null || called.includes('://') || stem(called) === after(key, '/'));
    if (['tif', 'tiff'].includes(single[0]) || alone) rest.forEach((slot, page) => { found[slot.number] = { field: single[0], page }; });
  }
  return found;
}

function locateByNumber(own, left, found) {
  const numbered = new Map();
  for (const name of own) {
    if (!/^\d{1,11}$/.test(front(name))) continue;
    const number = Number(front(name));
    check(!numbered.has(number), `image ${number} stands in two fields, ${numbered.get(number)} and ${name}`);
    numbered.set(number, name);
  }
  if (!numbered.size || left.some((slot) => slot.member)) return;
  const sorted = [...numbered.entries()].sort((one, other) => one[0] - other[0]);
  if (sorted.length === left.length) left.forEach((slot, index) => { found[slot.number] = { field: sorted[index][1] }; });
  else {
    check(numbered.has(0), `images: ${left.length}, fields: ${[...numbered.values()].join(', ')}: their numbers do not tell which is which`);
    for (const slot of left) if (numbered.has(slot.number)) found[slot.number] = { field: numbered.get(slot.number) };
  }
}

/** What may stand after the key of the document in the name of another sample's image. */
function restsOf(slot, before) {
  if (slot.member !== null) return [stem(slot.member)];
  if (slot.name === null || slot.name.includes('://')) return [String(slot.number)];
  const called = stem(slot.name);
  return called.startsWith(before) && called !== before ? [called, called.slice(before.length)] : [called];
}

function locateSiblings(key, slots, found, neighbours) {
  const siblings = new Map();
  for (const { ordinal, key: other, fields } of neighbours) {
    if (!other.startsWith(`${key}-`)) continue;
    for (const field of fields) {
      const name = (front(field) ? `${other}.${front(field)}` : other).slice(key.length + 1);
      if (isImage(field) && !siblings.has(name)) siblings.set(name, { ordinal, field });
    }
  }
  const wanted = slots.map((slot, number) => (found[number] ? [] : restsOf(slot, `${after(key, '/')}-`)));
  const firsts = new Set(wanted.map((names) => names[0]));
  wanted.forEach((names, number) => {
    const usable = names.filter((name, index) => index === 0 || !firsts.has(name));
    const name = usable.find((one) => siblings.has(one));
    if (name !== undefined) found[number] = siblings.get(name);
  });
}

/**
 * Describe a document in reading order.
 * @param {string} key of its sample
 * @param {string[]} fields names of the sample's fields
 * @param {any} record what its JSON holds
 * @param {{ordinal: number, key: string, fields: string[]}[]} [neighbours] samples that stand next to it
 * @returns {any[] | null} parts, as the server of `wds view` gives them; null for JSON that is no document
 */
export function describeDocument(key, fields, record, neighbours = []) {
  let outline;
  let found;
  try {
    outline = outlineOf(record);
    if (!outline) return null;
    found = locate(key, fields, outline.slots);
  } catch (error) {
    if (error instanceof Contradiction) return [{ kind: 'problem', text: error.message }];
    throw error;
  }
  locateSiblings(key, outline.slots, found, neighbours);
  const images = outline.slots.map((slot, number) => ({ position: slot.position, part: {
    kind: 'image', name: slot.name ?? slot.member ?? `image ${slot.number}`, ...(found[number] ?? { field: null, missing: true }),
    ...(slot.similarity !== null && { similarity: slot.similarity }), ...(slot.caption !== undefined && { caption: slot.caption }),
  } }));
  images.sort((one, other) => one.position - other.position);
  const parts = [];
  let taken = 0;
  for (let number = 0; number <= outline.texts.length; number += 1) {
    for (; taken < images.length && images[taken].position <= number; taken += 1) parts.push(images[taken].part);
    if (number < outline.texts.length) parts.push({ kind: 'text', text: outline.texts[number] });
    if (parts.length > MOST_PARTS) return [...parts.slice(0, MOST_PARTS), { kind: 'problem', text: `only the first ${MOST_PARTS} parts are shown` }];
  }
  return parts;
}

/** @param {any} record @param {number} number @returns {{name: string, bytes: Uint8Array} | null} an image that the JSON holds in base64 */
export function inlineImage(record, number) {
  const slot = outlineOf(record)?.slots.find((one) => one.number === number);
  if (!slot?.inline) return null;
  const text = atob(slot.inline.replace(/^data:[^,]*,/, '').replace(/\s/g, ''));
  return { name: slot.name ?? 'image', bytes: Uint8Array.from(text, (letter) => letter.charCodeAt(0)) };
}
