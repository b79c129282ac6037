/**
 * What the page shows, as a part of its url.
 *
 * `#/samples?shard=3&open=3.17&q=cat&w=jpg.width%20%3E%20512`: the view, then its parameters. The token is never in it,
 * so a url can be given to other users of the same server.
 */

/**
 * @typedef {object} Route
 * @property {string} view samples, statistics, findings, compare or batch
 * @property {string} side a or b
 * @property {number} shard
 * @property {number} at ordinal of the first sample in sight
 * @property {{side: string, shard: number, ordinal: number} | null} open the sample whose detail is shown
 * @property {string} tab of the detail: fields, raw or pipeline
 * @property {boolean} full the detail takes the whole width
 * @property {string} q text to search
 * @property {string[]} where expressions; a sample must satisfy all
 * @property {string} layout grid, dense or table
 * @property {Record<string, string>} more parameters of one view
 */

const OWN = ['side', 'shard', 'at', 'open', 'tab', 'full', 'q', 'w', 'layout'];
export const VIEWS = ['samples', 'statistics', 'findings', 'compare', 'batch'];
const changes = new EventTarget();

const natural = (text) => (/^\d{1,15}$/.test(text ?? '') ? Number(text) : 0);

/** @param {string} hash @returns {Route} */
export function parseRoute(hash) {
  const text = hash.replace(/^#\/?/, '');
  const cut = text.indexOf('?');
  const view = cut < 0 ? text : text.slice(0, cut);
  const query = new URLSearchParams(cut < 0 ? '' : text.slice(cut + 1));
  const opened = /^(?:b\.)?(\d{1,9})\.(\d{1,15})$/.exec(query.get('open') ?? '');
  const more = {};
  for (const [name, value] of query) if (!OWN.includes(name)) more[name] = value;
  return {
    view: VIEWS.includes(view) ? view : 'samples',
    side: query.get('side') === 'b' ? 'b' : 'a',
    shard: natural(query.get('shard')),
    at: natural(query.get('at')),
    open: opened && { side: opened[0].startsWith('b.') ? 'b' : 'a', shard: Number(opened[1]), ordinal: Number(opened[2]) },
    tab: ['raw', 'pipeline'].includes(query.get('tab') ?? '') ? query.get('tab') : 'fields',
    full: query.get('full') === '1',
    q: query.get('q') ?? '',
    where: query.getAll('w').filter((one) => one.trim()),
    layout: ['dense', 'table'].includes(query.get('layout') ?? '') ? query.get('layout') : 'grid',
    more,
  };
}

/** @param {Route} route @returns {string} the hash */
export function writeRoute(route) {
  const query = new URLSearchParams();
  if (route.side !== 'a') query.set('side', route.side);
  if (route.shard) query.set('shard', String(route.shard));
  if (route.at) query.set('at', String(route.at));
  if (route.q) query.set('q', route.q);
  for (const one of route.where) query.append('w', one);
  if (route.layout !== 'grid') query.set('layout', route.layout);
  if (route.open) query.set('open', `${route.open.side === 'b' ? 'b.' : ''}${route.open.shard}.${route.open.ordinal}`);
  if (route.open && route.tab !== 'fields') query.set('tab', route.tab);
  if (route.open && route.full) query.set('full', '1');
  for (const [name, value] of Object.entries(route.more)) if (value !== '') query.set(name, value);
  const text = query.toString();
  return `#/${route.view}${text ? `?${text}` : ''}`;
}

/** @type {Route} */
let current = parseRoute(location.hash);

/** @returns {Route} what the page shows now */
export const route = () => current;

/** @param {Partial<Route>} patch @returns {string} the url of what would be shown */
export const hrefOf = (patch) => writeRoute({ ...current, ...patch });

/**
 * Show something else.
 * @param {Partial<Route>} patch
 * @param {boolean} [quiet] in the place of this entry of the history, without drawing anew
 */
export function go(patch, quiet = false) {
  current = { ...current, ...patch };
  const hash = writeRoute(current);
  if (quiet) history.replaceState(null, '', hash);
  else if (hash !== location.hash) history.pushState(null, '', hash);
  if (!quiet) changes.dispatchEvent(new Event('change'));
}

/** @param {() => void} listener */
export const onRoute = (listener) => changes.addEventListener('change', listener);

addEventListener('popstate', () => {
  if (location.hash.startsWith('#token=')) {
    // the link of a server was pasted into this tab
    location.reload();
    return;
  }
  current = parseRoute(location.hash);
  changes.dispatchEvent(new Event('change'));
});

/** @param {string[]} where @returns {string} one expression */
export const joinWhere = (where) => (where.length < 2 ? (where[0] ?? '') : where.map((one) => `(${one})`).join(' and '));

/** @param {string} expression @returns {Partial<Route>} samples, with this filter beside the others */
export function addWhere(expression) {
  const where = current.where.includes(expression) ? current.where : [...current.where, expression];
  return { view: 'samples', where, at: 0, open: null, more: {} };
}
