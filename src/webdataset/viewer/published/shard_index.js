/**
 * The index of a shard, `X.wdsindex`, of which only what a page needs is read: its head, then parts of its arrays.
 *
 * What an index says is compared with the header before each field, so that a shard that was replaced is told and not
 * shown wrongly.
 */

import { ApiError, readRange } from './ranges.js';

const MAGIC = 'wdsindex';
const HEAD = 24;
const MOST_HEAD = 1 << 26;
const MOST_FIELDS = 5000;
const ascii = new TextDecoder('latin1');
const utf8 = new TextDecoder('utf-8');

const damaged = () => new ApiError('The index of this shard is damaged. Publish the viewer again.', 422);

function whole(view, at) {
  const number = Number(view.getBigUint64(at, true));
  if (!Number.isSafeInteger(number)) throw damaged();
  return number;
}

export class ShardIndex {
  /** @param {string} url of the index @param {string} shard its url */
  constructor(url, shard) {
    this.url = url;
    this.shard = shard;
    /** @type {Promise<any> | null} */
    this.opened = null;
  }

  /** @returns {Promise<any>} its head, and where its arrays start */
  open() {
    this.opened ??= this.readHead();
    this.opened.catch(() => { this.opened = null; });
    return this.opened;
  }

  async readHead() {
    const start = await readRange(this.url, 0, HEAD);
    if (start.length < HEAD || ascii.decode(start.subarray(0, 8)) !== MAGIC) throw damaged();
    const length = whole(new DataView(start.buffer, start.byteOffset), 8);
    if (length > MOST_HEAD) throw damaged();
    const text = await readRange(this.url, HEAD, HEAD + length);
    let head;
    try {
      head = JSON.parse(utf8.decode(text));
    } catch {
      throw damaged();
    }
    if (head.version !== 1) throw new ApiError('The index of this shard is of another version. Publish the viewer again.', 422);
    const { samples, fields } = head;
    const widths = [8 * samples, 8 * samples, 8 * samples, 8 * fields, 8 * fields, 4 * fields];
    const places = [HEAD + length];
    for (const width of widths) places.push(places.at(-1) + Math.ceil(width / 8) * 8);
    if (places.some((place) => !Number.isSafeInteger(place)) || !Array.isArray(head.names)) throw damaged();
    return { ...head, places, sparse: new Set(head.sparse ?? []) };
  }

  /** Numbers of one of the arrays. */
  async numbers(place, start, stop) {
    const body = await readRange(this.url, place + 8 * start, place + 8 * stop);
    if (body.length !== 8 * (stop - start)) throw damaged();
    const view = new DataView(body.buffer, body.byteOffset, body.length);
    return Array.from({ length: stop - start }, (_, index) => whole(view, 8 * index));
  }

  /**
   * @param {number} start first sample
   * @param {number} stop the one after the last
   * @returns {Promise<{ordinal: number, key: string, offset: number, sparse: boolean, left: number, fields: {name: string, member: string, offset: number, size_bytes: number}[]}[]>}
   *   `left` is how many more fields there are
   */
  async entries(start, stop) {
    const head = await this.open();
    const [keyEnds, starts, fieldEnds, offsets, sizes, kinds, keys] = head.places;
    const last = Math.min(stop, head.samples);
    if (start >= last) return [];
    const before = Math.max(0, start - 1);
    const [ends, firsts, rows] = await Promise.all([this.numbers(keyEnds, before, last), this.numbers(starts, start, last), this.numbers(fieldEnds, before, last)]);
    if (start === 0) {
      ends.unshift(0);
      rows.unshift(0);
    }
    const rising = (list) => list.every((number, index) => index === 0 || number >= list[index - 1]);
    if (!rising(ends) || !rising(rows) || rows.at(-1) > head.fields || ends.at(-1) > head.key_bytes) throw damaged();
    const text = await readRange(this.url, keys + ends[0], keys + ends.at(-1));
    const made = [];
    for (let index = 0; index < last - start; index += 1) {
      const key = utf8.decode(text.subarray(ends[index] - ends[0], ends[index + 1] - ends[0]));
      const until = Math.min(rows[index + 1], rows[index] + MOST_FIELDS);
      made.push({ ordinal: start + index, key, offset: firsts[index], sparse: head.sparse.has(start + index), left: rows[index + 1] - until, fields: await this.fields(head, key, rows[index], until, [offsets, sizes, kinds]) });
    }
    return made;
  }

  async fields(head, key, from, to, [offsets, sizes, kinds]) {
    const [places, lengths, body] = await Promise.all([this.numbers(offsets, from, to), this.numbers(sizes, from, to), readRange(this.url, kinds + 4 * from, kinds + 4 * to)]);
    const view = new DataView(body.buffer, body.byteOffset, body.length);
    return places.map((offset, index) => {
      const [name, rest] = head.names[view.getUint32(4 * index, true)] ?? [];
      if (typeof name !== 'string') throw damaged();
      return { name, member: head.odd?.[from + index] ?? `${key}${rest}`, offset, size_bytes: lengths[index] };
    });
  }

  /**
   * Compare what stands in the shard before a field with what the index says.
   * @param {{member: string, offset: number, size_bytes: number}} field
   */
  async prove(field) {
    const header = await readRange(this.shard, field.offset - 512, field.offset);
    const found = header.length === 512 && parseHeader(header);
    const plain = /^[\x20-\x7e]{1,100}$/.test(field.member);
    const sized = found && (found.size === field.size_bytes || found.size === 0 || field.size_bytes >= 8 ** 11);
    if (!sized || (plain && found.name !== field.member)) throw new ApiError('This shard is not the one that was published: its index says other places. Publish the viewer again.', 409);
  }
}

/**
 * Parse a header of a tar archive.
 * @param {Uint8Array} block of 512 bytes
 * @returns {{name: string, size: number, mode: number | null, mtime: number | null, type: string} | null} null where its checksum is wrong
 */
export function parseHeader(block) {
  const text = (from, to) => utf8.decode(block.subarray(from, to)).replace(/\0[^]*$/, '');
  let sum = 8 * 32;
  for (let index = 0; index < 512; index += 1) if (index < 148 || index >= 156) sum += block[index];
  if (number(block, 148, 156) !== sum) return null;
  const prefix = ascii.decode(block.subarray(257, 263)) === 'ustar\0' ? text(345, 500) : '';
  const name = text(0, 100);
  return { name: prefix ? `${prefix}/${name}` : name, size: number(block, 124, 136) ?? 0, mode: number(block, 100, 108), mtime: number(block, 136, 148), type: String.fromCharCode(block[156]) };
}

function number(block, from, to) {
  if (block[from] & 0x80) {
    let value = block[from] & 0x7f;
    for (let index = from + 1; index < to; index += 1) value = value * 256 + block[index];
    return value;
  }
  const digits = /^[ \0]*([0-7]+)/.exec(ascii.decode(block.subarray(from, to)));
  return digits ? Number.parseInt(digits[1], 8) : null;
}
