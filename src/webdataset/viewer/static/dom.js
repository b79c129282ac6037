/**
 * Elements, icons and figures for people.
 *
 * Everything that comes from a shard enters the page through `h` as a text node, an attribute of a fixed name or a url
 * of this server: no markup is ever parsed.
 */

const SVG = 'http://www.w3.org/2000/svg';

/** @typedef {Node | string | number | null | undefined | false} Child */

/**
 * Make an element.
 * @param {string} tag name of the element
 * @param {Record<string, any>} [properties] `on` holds listeners, `data` data attributes, `value`, `checked` and other
 *   properties of inputs are set as properties; the rest are attributes; null and false leave one out
 * @param {...(Child | Child[])} children texts and nodes
 * @returns {any}
 */
export function h(tag, properties = {}, ...children) {
  return fill(document.createElement(tag), properties, children);
}

/**
 * Make an SVG element, as `h` does.
 * @param {string} tag
 * @param {Record<string, any>} [properties]
 * @param {...(Child | Child[])} children
 * @returns {any}
 */
export function svg(tag, properties = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), properties, children);
}

function fill(element, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === 'on') for (const [type, listener] of Object.entries(value)) element.addEventListener(type, listener);
    else if (name === 'data') Object.assign(element.dataset, value);
    else if (name === 'value' || name === 'checked' || name === 'disabled' || name === 'selected') element[name] = value;
    else element.setAttribute(name, value === true ? '' : String(value));
  }
  append(element, children);
  return element;
}

function append(element, children) {
  for (const child of children) {
    if (Array.isArray(child)) append(element, child);
    else if (child instanceof Node) element.appendChild(child);
    else if (child !== null && child !== undefined && child !== false) element.appendChild(document.createTextNode(String(child)));
  }
}

/**
 * Put these in the place of what an element holds.
 * @param {Element} element
 * @param {...(Child | Child[])} children
 */
export function replace(element, ...children) {
  element.textContent = '';
  append(element, children);
}

const ICONS = {
  search: 'M7 12A5 5 0 1 0 7 2a5 5 0 0 0 0 10Zm3.6-1.4L14 14',
  filter: 'M2 3.5h12M4.5 8h7M6.5 12.5h3',
  grid: 'M2.5 2.5h4.5v4.5h-4.5zM9 2.5h4.5v4.5h-4.5zM2.5 9h4.5v4.5h-4.5zM9 9h4.5v4.5h-4.5z',
  dense: 'M2.5 2.5h2.6v2.6h-2.6zM6.7 2.5h2.6v2.6h-2.6zM10.9 2.5h2.6v2.6h-2.6zM2.5 6.7h2.6v2.6h-2.6zM6.7 6.7h2.6v2.6h-2.6zM10.9 6.7h2.6v2.6h-2.6zM2.5 10.9h2.6v2.6h-2.6zM6.7 10.9h2.6v2.6h-2.6zM10.9 10.9h2.6v2.6h-2.6z',
  table: 'M2 3h12v10H2zM2 6.5h12M2 9.8h12M6.5 3v10',
  chart: 'M2.5 13.5h11M4 11V8M8 11V3.5M12 11V6',
  check: 'M3 8.5l3.2 3L13 4.5',
  warn: 'M8 2.5l6 10.5H2zM8 6.5v3M8 11.3v.2',
  compare: 'M2.5 3h4.5v10h-4.5zM9 3h4.5v10H9z',
  batch: 'M8 2l6 3-6 3-6-3zM2.5 8L8 10.8 13.5 8M2.5 11L8 13.8 13.5 11',
  tag: 'M2.5 2.5H8l5.5 5.5-5.5 5.5L2.5 8zM5.3 5.3v.01',
  close: 'M4 4l8 8M12 4l-8 8',
  left: 'M10 3L5 8l5 5',
  right: 'M6 3l5 5-5 5',
  down: 'M3.5 6L8 10.5 12.5 6',
  up: 'M3.5 10L8 5.5l4.5 4.5',
  play: 'M5 3.2v9.6L12.6 8z',
  copy: 'M5.5 5.5h8v8h-8zM10.5 5.5v-3h-8v8h3',
  wide: 'M9.5 2.5h4v4M13 3L9 7M6.5 13.5h-4v-4M3 13l4-4',
  menu: 'M2 4h12M2 8h12M2 12h12',
  half: 'M8 2a6 6 0 1 0 0 12A6 6 0 0 0 8 2Zm0 0v12',
  download: 'M8 2.5v7.5M4.8 7L8 10.2 11.2 7M3 13h10',
  plus: 'M8 3v10M3 8h10',
  minus: 'M3 8h10',
  help: 'M5.8 6a2.2 2.2 0 1 1 3 2c-.6.3-.8.7-.8 1.4M8 11.6v.1',
  lock: 'M3.5 7.5h9v6h-9zM5.5 7.5V5a2.5 2.5 0 0 1 5 0v2.5',
  crop: 'M2.5 5V2.5H5M11 2.5h2.5V5M13.5 11v2.5H11M5 13.5H2.5V11',
};

/**
 * Draw one of the icons; it is hidden from screen readers, so its button needs a label.
 * @param {keyof typeof ICONS} name
 * @returns {SVGElement}
 */
export function icon(name) {
  return svg('svg', { class: 'icon', viewBox: '0 0 16 16', 'aria-hidden': 'true', focusable: 'false' }, svg('path', { d: ICONS[name] }));
}

/**
 * Make a button of an icon.
 * @param {keyof typeof ICONS} name
 * @param {string} label what it does, for its tooltip and for screen readers
 * @param {(event: Event) => void} act
 * @param {Record<string, any>} [properties]
 * @returns {HTMLButtonElement}
 */
export function iconButton(name, label, act, properties = {}) {
  return h('button', { type: 'button', class: 'icon-button', title: label, 'aria-label': label, on: { click: act }, ...properties }, icon(name));
}

const NUMBERS = new Intl.NumberFormat('en');

/** @param {number} value @returns {string} with groups of digits */
export const formatNumber = (value) => NUMBERS.format(value);

/** @param {number | null | undefined} count of bytes @returns {string} */
export function formatBytes(count) {
  if (count === null || count === undefined) return '–';
  if (count < 1000) return `${count} B`;
  const units = ['kB', 'MB', 'GB', 'TB', 'PB'];
  let value = count;
  let unit = -1;
  while (value >= 999.5 && unit < units.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return `${value < 9.95 ? value.toFixed(1) : value.toFixed(0)} ${units[unit]}`;
}

/** @param {number} seconds @returns {string} like 1:05 or 0.4 s */
export function formatDuration(seconds) {
  if (!Number.isFinite(seconds)) return '–';
  if (seconds < 0.1) return `${(seconds * 1000).toPrecision(2)} ms`.replace(/^0\.0 /, '0 ');
  if (seconds < 9.95) return `${seconds.toFixed(1)} s`;
  const whole = Math.round(seconds);
  const tail = `${String(Math.floor(whole / 60) % 60).padStart(whole >= 3600 ? 2 : 1, '0')}:${String(whole % 60).padStart(2, '0')}`;
  return whole >= 3600 ? `${Math.floor(whole / 3600)}:${tail}` : tail;
}

/** @param {number} value @returns {string} short, for axes and tables */
export function formatFigure(value) {
  if (value === null || value === undefined) return '–';
  if (typeof value !== 'number') return String(value);
  if (Number.isInteger(value) && Math.abs(value) < 1e6) return formatNumber(value);
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-3) return value.toExponential(2);
  return String(Number(value.toPrecision(4)));
}

/** @param {number} count @param {string} noun @returns {string} like "1 sample", "1,200 samples" */
export const countOf = (count, noun) => `${formatNumber(count)} ${noun}${count === 1 ? '' : 's'}`;

/** @param {string} text @param {number} most @returns {string} with its middle left out when it is longer */
export function shorten(text, most = 40) {
  if (text.length <= most) return text;
  const head = Math.ceil((most - 1) / 2);
  return `${text.slice(0, head)}…${text.slice(text.length - (most - 1 - head))}`;
}

const UNSEEN = /[\u0000-\u001f\u007f-\u009f\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]/g;
const WRITTEN = { '\t': '\\t', '\n': '\\n', '\r': '\\r' };

/** @param {string} name a key or the name of a member @returns {string} with the characters that cannot be seen, or turn the others around, written out */
export const writeOut = (name) => name.replace(UNSEEN, (one) => WRITTEN[one] ?? `\\u${one.charCodeAt(0).toString(16).padStart(4, '0')}`);

/** @param {string} key of a sample @param {number} most characters @returns {HTMLElement} the key, whose end stays in sight where its middle is left out */
export function keyOf(key, most = 64) {
  const text = shorten(writeOut(key), most);
  // letters of other scripts may join, or run from right to left
  const head = text.length > 18 && /^[\x20-\x7e…]+$/.test(text) ? text.length - 8 : text.length;
  return h('bdi', { class: 'key', title: shorten(writeOut(key), 300) }, h('span', { class: 'key-head' }, text.slice(0, head)), head < text.length && h('span', { class: 'key-tail' }, text.slice(head)));
}

/** @param {string} name a path or a url @returns {string} its last part */
export const baseName = (name) => name.split(/[/\\]/).filter(Boolean).pop() ?? name;

/** @param {string} text said by screen readers */
export function announce(text) {
  const live = document.getElementById('live');
  if (live) live.textContent = text;
}

/**
 * A state of a view with nothing to show: empty, failed, refused.
 * @param {string} title
 * @param {Child | Child[]} [text]
 * @param {Child[]} [actions] buttons
 * @returns {HTMLElement}
 */
export function notice(title, text = null, actions = []) {
  return h('div', { class: 'notice' }, h('h2', {}, title), text && h('p', {}, text), actions.length > 0 && h('div', { class: 'row' }, actions));
}

/** @param {unknown} error @returns {HTMLElement} the notice of something that failed */
export function failure(error, again = null) {
  const message = error instanceof Error ? error.message : String(error);
  const button = again && h('button', { type: 'button', class: 'button', on: { click: again } }, 'Try again');
  return notice('This could not be read', h('span', { class: 'error-text' }, message), button ? [button] : []);
}

/** @param {string} text @param {HTMLElement} button that says so for a moment */
export async function copyText(text, button) {
  try {
    await navigator.clipboard.writeText(text);
    button.classList.add('copied');
    announce('Copied');
    setTimeout(() => button.classList.remove('copied'), 1200);
  } catch {
    announce('The browser does not let this page copy');
  }
}
