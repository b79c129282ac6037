/**
 * Byte ranges of files on a web server, through a bounded cache of blocks; what a server does wrong is said in words.
 *
 * All that comes from one file has to come from one version of it: its mark (ETag, time and length) is compared.
 */

const BLOCK = 64 * 1024;
const MOST_BLOCKS = 1024;
const DIRECT_BYTES = 512 * 1024;

/** An answer that is an error. */
export class ApiError extends Error {
  /**
   * @param {string} message
   * @param {number} status of HTTP; 0 where no answer came
   * @param {any} body of the answer
   */
  constructor(message, status, body = null) {
    super(message);
    this.status = status;
    this.body = body;
  }
}

/** What was read so far. */
export const counted = { requests: 0, bytes: 0 };

/** @type {Map<string, Promise<Uint8Array>>} */
const blocks = new Map();
/** @type {Map<string, string>} */
const marks = new Map();

/** @param {string} url @returns {string} its last part, for messages */
const nameOf = (url) => decodeURIComponent(new URL(url).pathname.split('/').pop() || url);

function explainSilence(url) {
  const { origin } = new URL(url);
  if (origin === location.origin) return new ApiError(`The server does not answer for ${nameOf(url)}.`, 0);
  return new ApiError(`${origin} does not answer, or does not let this page read it (CORS). Its answers need the headers Access-Control-Allow-Origin: ${location.origin} and Access-Control-Allow-Headers: Range.`, 0);
}

function explainStatus(url, status) {
  const name = nameOf(url);
  if (status === 404 || status === 410) return new ApiError(`${name} is not on the server any more (${status}). Publish the viewer again.`, status);
  if (status === 401 || status === 403) return new ApiError(`The server does not let this page read ${name} (${status}).`, status);
  return new ApiError(`The server answered ${status} for ${name}.`, status);
}

async function fetchRange(url, start, stop) {
  let answer;
  counted.requests += 1;
  try {
    answer = await fetch(url, { headers: { Range: `bytes=${start}-${stop - 1}` }, credentials: 'same-origin' });
  } catch {
    throw explainSilence(url);
  }
  if (answer.status === 416) return new Uint8Array(0);
  if (answer.status === 200) {
    // the whole file is on its way: it may be terabytes
    answer.body?.cancel().catch(() => null);
    throw new ApiError(`The server of ${nameOf(url)} sends no byte ranges, which this page needs. Servers such as nginx, Apache and Caddy and object stores send them; python -m http.server does not.`, 200);
  }
  if (answer.status !== 206) {
    answer.body?.cancel().catch(() => null);
    throw explainStatus(url, answer.status);
  }
  const range = /^bytes (\d+)-(\d+)\/(\d+|\*)$/.exec(answer.headers.get('content-range') ?? '');
  const mark = `${answer.headers.get('etag') ?? ''} ${answer.headers.get('last-modified') ?? ''} ${range?.[3] ?? ''}`;
  if ((marks.get(url) ?? mark) !== mark) throw new ApiError(`${nameOf(url)} was replaced while this page was open. Reload the page.`, 409);
  marks.set(url, mark);
  if (range && Number(range[1]) !== start) throw new ApiError(`The server sent other bytes of ${nameOf(url)} than it was asked for.`, 502);
  let body;
  try {
    body = new Uint8Array(await answer.arrayBuffer());
  } catch {
    throw explainSilence(url);
  }
  counted.bytes += body.length;
  if (body.length > stop - start || (range && body.length !== Number(range[2]) - start + 1)) throw new ApiError(`The server sent another number of bytes of ${nameOf(url)} than it said.`, 502);
  return body;
}

function keepBlock(key, promise) {
  blocks.set(key, promise);
  promise.catch(() => blocks.delete(key));
  for (const old of blocks.keys()) {
    if (blocks.size <= MOST_BLOCKS) break;
    blocks.delete(old);
  }
}

/**
 * Read bytes of a file; fewer than asked for at its end.
 * @param {string} url absolute
 * @param {number} start
 * @param {number} stop
 * @returns {Promise<Uint8Array>}
 */
export async function readRange(url, start, stop) {
  if (stop <= start) return new Uint8Array(0);
  if (stop - start > DIRECT_BYTES) return fetchRange(url, start, stop);
  const first = Math.floor(start / BLOCK);
  const last = Math.floor((stop - 1) / BLOCK);
  const parts = [];
  for (let block = first; block <= last; block += 1) {
    const key = `${url} ${block}`;
    if (!blocks.has(key)) {
      // neighbours that are missing too come by one request
      let end = block + 1;
      while (end <= last && !blocks.has(`${url} ${end}`)) end += 1;
      const whole = fetchRange(url, block * BLOCK, end * BLOCK);
      for (let one = block; one < end; one += 1) keepBlock(`${url} ${one}`, whole.then((body) => body.slice((one - block) * BLOCK, (one - block + 1) * BLOCK)));
    }
    const promise = blocks.get(key);
    blocks.delete(key);
    blocks.set(key, promise);
    parts.push(promise);
  }
  const bodies = await Promise.all(parts);
  const joined = new Uint8Array(bodies.reduce((sum, body) => sum + body.length, 0));
  let at = 0;
  for (const body of bodies) {
    joined.set(body, at);
    at += body.length;
  }
  const skipped = start - first * BLOCK;
  return joined.subarray(skipped, skipped + stop - start);
}
