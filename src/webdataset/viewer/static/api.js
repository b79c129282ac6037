/** Requests to the server that this page came from; its errors and its end. */

/** An answer that is an error. */
export class ApiError extends Error {
  /**
   * @param {string} message what the server said
   * @param {number} status of HTTP; 0 where no answer came
   * @param {any} body of the answer
   */
  constructor(message, status, body) {
    super(message);
    this.status = status;
    this.body = body;
  }
}

/** Says `offline`, `online` and `locked`. */
/** Thumbnails are drawn by the server, which colours and stretches what is dark. */
export const drawsPictures = true;

export const connection = new EventTarget();
let online = true;

/** @param {boolean} now */
function setOnline(now) {
  if (now === online) return;
  online = now;
  connection.dispatchEvent(new Event(now ? 'online' : 'offline'));
}

/**
 * The address of a route.
 * @param {string} route for example `samples`
 * @param {Record<string, any>} [parameters] null and undefined are left out
 * @returns {string}
 */
export function apiUrl(route, parameters = {}) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) if (value !== null && value !== undefined && value !== '') query.set(name, String(value));
  const text = query.toString();
  return `/api/${route}${text ? `?${text}` : ''}`;
}

async function send(address, options) {
  let answer;
  try {
    answer = await fetch(address, { credentials: 'same-origin', redirect: 'error', ...options });
  } catch (error) {
    if (error instanceof DOMException && error.name === 'AbortError') throw error;
    setOnline(false);
    throw new ApiError('The server does not answer. It may have been stopped.', 0, null);
  }
  setOnline(true);
  const body = await answer.json().catch(() => null);
  // a body that was cut off by an abort is no answer
  options.signal?.throwIfAborted();
  if (answer.ok) return body;
  if (answer.status === 401) connection.dispatchEvent(new Event('locked'));
  throw new ApiError(body?.error?.message ?? `The server answered ${answer.status}`, answer.status, body);
}

/**
 * Get JSON. Where the server is still reading headers on the way to a sample, ask again until it is there.
 * @param {string} route
 * @param {Record<string, any>} [parameters]
 * @param {AbortSignal} [signal] ends that too
 * @returns {Promise<any>}
 */
export async function get(route, parameters = {}, signal = undefined) {
  for (;;) {
    const body = await send(apiUrl(route, parameters), { signal });
    if (body?.error?.type !== 'HeadersPending') return body;
  }
}

/**
 * Post JSON.
 * @param {string} route
 * @param {any} body
 * @returns {Promise<any>}
 */
export const post = (route, body) =>
  send(`/api/${route}`, { method: 'POST', headers: { 'Content-Type': 'application/json', 'X-WDS-View': '1' }, body: JSON.stringify(body) });

/**
 * Let an element show, play or save a field.
 * @param {HTMLElement} element an image, an audio or video element, or a link
 * @param {string} route `thumbnail` or `payload`
 * @param {Record<string, any>} parameters
 */
export function setSource(element, route, parameters) {
  element.setAttribute(element instanceof HTMLAnchorElement ? 'href' : 'src', apiUrl(route, parameters));
}
