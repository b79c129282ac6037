/** Bytes of a shard: offsets, hexadecimal and ASCII, a page at a time. */

import { get } from './api.js';
import { formatNumber, h, iconButton, replace } from './dom.js';

const PAGE = 512;
const WIDTH = 16;

/**
 * @param {object} place
 * @param {string} place.side
 * @param {number} place.shard
 * @param {number} place.offset of the first byte
 * @param {{from: number, to: number} | null} [place.mark] bytes that are marked
 * @returns {{element: HTMLElement, show: (offset: number, mark?: {from: number, to: number} | null) => void}}
 */
export function hexdump({ side, shard, offset, mark = null }) {
  const body = h('div', { class: 'hex-body', tabindex: '0', role: 'region', 'aria-label': 'Bytes' });
  const input = h('input', { type: 'text', class: 'input hex-offset', inputmode: 'numeric', 'aria-label': 'Offset', spellcheck: 'false' });
  let at = offset;
  let request = 0;
  const form = h('form', { class: 'row', on: { submit: (event) => {
    event.preventDefault();
    const text = input.value.trim().replace(/[, ]/g, '');
    const wanted = /^0x[0-9a-f]+$/i.test(text) ? Number.parseInt(text, 16) : Number(text);
    if (Number.isSafeInteger(wanted) && wanted >= 0) show(wanted, mark);
  } } }, iconButton('left', 'Earlier bytes', () => show(Math.max(0, at - PAGE), mark)), input, iconButton('right', 'Later bytes', () => show(at + PAGE, mark)), h('span', { class: 'quiet' }, 'offset, also as 0x…'));
  const element = h('div', { class: 'hex' }, form, body);

  async function show(start, marked = mark) {
    mark = marked;
    at = start - (start % WIDTH);
    input.value = String(at);
    request += 1;
    const mine = request;
    try {
      const answer = await get('bytes', { side, shard, offset: at, count: PAGE });
      if (mine === request) replace(body, lines(answer, mark), answer.end && h('p', { class: 'quiet' }, 'End of the shard.'));
    } catch (error) {
      if (mine === request) replace(body, h('p', { class: 'error-text' }, error.message));
    }
  }
  show(offset, mark);
  return { element, show };
}

function lines(answer, mark) {
  const bytes = (answer.hex.match(/../g) ?? []).map((pair) => Number.parseInt(pair, 16));
  const made = [];
  for (let start = 0; start < bytes.length; start += WIDTH) {
    const row = bytes.slice(start, start + WIDTH);
    const from = answer.offset + start;
    const inside = (index) => mark && from + index >= mark.from && from + index < mark.to;
    made.push(h('div', { class: 'hex-line' },
      h('span', { class: 'hex-at', title: `0x${from.toString(16)}` }, formatNumber(from)),
      h('span', { class: 'hex-codes' }, runs(row, inside, (byte) => `${byte.toString(16).padStart(2, '0')} `)),
      h('span', { class: 'hex-text' }, runs(row, inside, (byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : '·')))));
  }
  return made;
}

/** Join neighbours that are both marked or both not into one node. */
function runs(row, inside, write) {
  const made = [];
  let text = '';
  let marked = false;
  row.forEach((byte, index) => {
    const now = Boolean(inside(index));
    if (now !== marked && text) {
      made.push(marked ? h('mark', {}, text) : text);
      text = '';
    }
    marked = now;
    text += write(byte);
  });
  if (text) made.push(marked ? h('mark', {}, text) : text);
  return made;
}
