/** JSON as a tree whose branches are made when they are opened. */

import { copyText, formatNumber, h, icon, shorten } from './dom.js';

const PORTION = 100;
const NAME = /^[A-Za-z_][A-Za-z0-9_]*$/;

/** @param {string} path @param {string | number} step @returns {string} as the filter language writes it */
export const extendPath = (path, step) => (typeof step === 'number' ? `${path}[${step}]` : NAME.test(step) ? `${path}.${step}` : `${path}[${JSON.stringify(step)}]`);

/**
 * @param {any} value
 * @param {string} path of the value in the filter language, for example `json`
 * @param {{onFilter?: ((expression: string) => void) | null}} [options]
 * @returns {HTMLElement}
 */
export function jsonTree(value, path, options = {}) {
  const root = h('div', { class: 'tree', role: 'group', 'aria-label': `JSON of ${shorten(path, 40)}` });
  if (isBranch(value)) root.append(...portion(value, path, 0, 0, options));
  else root.append(leaf(null, value, path, options));
  return root;
}

const PREVIEW = 72;

/** @param {any} value a branch @returns {string} what stands in it, in a line */
function previewOf(value) {
  const list = Array.isArray(value);
  let text = '';
  for (const name of list ? value.keys() : Object.keys(value)) {
    const part = value[name];
    const shown = isBranch(part) ? (Array.isArray(part) ? '[…]' : '{…}') : typeof part === 'string' ? JSON.stringify(shorten(part, 40)) : String(part);
    text += `${text && ', '}${list ? '' : `${shorten(name, 24)}: `}${shown}`;
    if (text.length > PREVIEW) return `${text.slice(0, PREVIEW)}…`;
  }
  return text;
}

const isBranch = (value) => value !== null && typeof value === 'object';

function portion(value, path, start, depth, options) {
  const list = Array.isArray(value);
  const names = list ? null : Object.keys(value);
  const count = list ? value.length : names.length;
  const made = [];
  for (let index = start; index < Math.min(count, start + PORTION); index += 1) {
    const step = list ? index : names[index];
    made.push(node(step, value[step], extendPath(path, step), depth, options));
  }
  if (count > start + PORTION) {
    const more = h('button', { type: 'button', class: 'tree-more', on: { click: () => more.replaceWith(...portion(value, path, start + PORTION, depth, options)) } }, `${formatNumber(count - start - PORTION)} more`);
    made.push(more);
  }
  if (count === 0) made.push(h('span', { class: 'quiet' }, list ? 'empty list' : 'empty object'));
  return made;
}

function node(step, value, path, depth, options) {
  if (!isBranch(value)) return leaf(step, value, path, options);
  const list = Array.isArray(value);
  const count = list ? value.length : Object.keys(value).length;
  const group = h('div', { class: 'tree-group' });
  // a list of plain values is read in its line
  const open = depth < 2 && count <= 12 && !(list && !value.some(isBranch));
  const toggle = h('button', { type: 'button', class: 'tree-toggle', 'aria-expanded': 'false', on: { click: () => flip() } },
    icon('right'), h('bdi', { class: 'tree-name' }, shorten(String(step), 200)), h('span', { class: 'tree-count' }, list ? `[${formatNumber(count)}]` : `{${formatNumber(count)}}`), h('bdi', { class: 'tree-preview' }, previewOf(value)));
  const item = h('div', { class: 'tree-item' }, h('div', { class: 'tree-line' }, toggle, copyButton(path)), group);
  function flip() {
    const now = toggle.getAttribute('aria-expanded') !== 'true';
    toggle.setAttribute('aria-expanded', String(now));
    if (now) group.append(...portion(value, path, 0, depth + 1, options));
    else group.textContent = '';
  }
  if (open) flip();
  return item;
}

function copyButton(path) {
  const button = h('button', { type: 'button', class: 'tree-copy', title: `Copy ${shorten(path, 120)}`, 'aria-label': 'Copy the path', on: { click: () => copyText(path, button) } }, icon('copy'));
  return button;
}

const literal = (value) => (value === null ? 'None' : value === true ? 'True' : value === false ? 'False' : JSON.stringify(value));

/**
 * @param {string} path
 * @param {any} value
 * @returns {string} the expression of the samples that have this value there
 */
export function equals(path, value) {
  // integers that JavaScript's numbers cannot hold come as texts: it may be either
  const either = typeof value === 'string' && /^-?\d{16,300}$/.test(value) && !Number.isSafeInteger(Number(value));
  return either ? `${path} in [${value}, ${literal(value)}]` : `${path} == ${literal(value)}`;
}

function leaf(step, value, path, options) {
  const kind = value === null ? 'null' : typeof value;
  const text = kind === 'string' ? JSON.stringify(value) : String(value);
  const long = text.length > 400;
  const shown = h('bdi', { class: `tree-value tree-${kind}` }, long ? `${text.slice(0, 400)}…` : text);
  const whole = long && h('button', { type: 'button', class: 'tree-more', on: { click: () => { shown.textContent = text; whole.remove(); } } }, `all ${formatNumber(text.length)} characters`);
  const filter = options.onFilter && !long && h('button', { type: 'button', class: 'tree-copy', title: 'Show samples with this value', 'aria-label': 'Show samples with this value', on: { click: () => options.onFilter(equals(path, value)) } }, icon('filter'));
  return h('div', { class: 'tree-item' }, h('div', { class: 'tree-line' },
    step !== null && h('bdi', { class: 'tree-name tree-leaf-name' }, shorten(String(step), 200)), shown, whole, copyButton(path), filter));
}
