/** Jobs that wait for their turn. */

/**
 * Let a limited number of jobs run at once, so that waveforms and pictures of a page do not queue before its samples.
 * @param {number} most
 * @returns {<T>(job: () => Promise<T>) => Promise<T>}
 */
export function makeQueue(most) {
  let running = 0;
  /** @type {(() => void)[]} */
  const waiting = [];
  return async (job) => {
    if (running >= most) await new Promise((resolve) => waiting.push(() => resolve(undefined)));
    running += 1;
    try {
      return await job();
    } finally {
      running -= 1;
      waiting.shift()?.();
    }
  };
}
