/**
 * Rows of one height, of which only those in sight exist.
 *
 * Browsers do not lay out elements taller than about 17 million pixels. Where all rows together are taller, the scroll
 * bar stands for the whole and is moved in proportion: dragging it jumps, while the wheel and the keys move by pixels.
 */

import { h } from './dom.js';

const TALLEST = 12_000_000;

export class Rows {
  /**
   * @param {HTMLElement} scroller the element that scrolls
   * @param {object} options
   * @param {number} options.height of a row in pixels
   * @param {(row: number) => HTMLElement} options.draw
   * @param {(first: number, last: number) => void} [options.onSight] rows in sight, at each change
   * @param {() => void} [options.onRest] some time after the last scroll
   */
  constructor(scroller, { height, draw, onSight = () => {}, onRest = () => {} }) {
    this.scroller = scroller;
    this.height = height;
    this.draw = draw;
    this.onSight = onSight;
    this.onRest = onRest;
    this.count = 0;
    this.top = 0;
    this.last = 0;
    /** @type {Map<number, HTMLElement>} */
    this.drawn = new Map();
    this.spacer = h('div', { class: 'rows', role: 'presentation' });
    scroller.appendChild(this.spacer);
    this.listener = () => this.follow();
    scroller.addEventListener('scroll', this.listener, { passive: true });
    this.observer = new ResizeObserver(() => this.show());
    this.observer.observe(scroller);
  }

  get view() {
    return this.scroller.clientHeight;
  }

  get whole() {
    return this.count * this.height;
  }

  get most() {
    return Math.max(0, this.whole - this.view);
  }

  get scaled() {
    return this.whole > TALLEST;
  }

  /** @param {number} count of rows @param {number} [height] of each */
  setSize(count, height = this.height) {
    if (height !== this.height) {
      this.top = (this.top / this.height) * height;
      this.height = height;
      this.clear();
    }
    this.count = count;
    this.spacer.style.height = `${Math.min(this.whole, TALLEST)}px`;
    for (const [row, element] of this.drawn) {
      if (row < count) continue;
      element.remove();
      this.drawn.delete(row);
    }
    this.place(this.top);
  }

  /** Follow the scroll bar. */
  follow() {
    const now = this.scroller.scrollTop;
    const moved = now - this.last;
    this.last = now;
    if (this.scaled) {
      const range = TALLEST - this.view;
      if (now <= 0) this.top = 0;
      else if (now >= range - 1) this.top = this.most;
      else if (Math.abs(moved) > this.view * 1.5) this.top = (now / range) * this.most;
      else this.top = Math.min(this.most, Math.max(0, this.top + moved));
    } else this.top = now;
    this.show();
    clearTimeout(this.timer);
    this.timer = setTimeout(() => {
      if (this.scaled) this.place(this.top);
      this.onRest();
    }, 140);
  }

  /** @param {number} top in pixels of all rows; moves there, and the scroll bar with it */
  place(top) {
    this.top = Math.min(this.most, Math.max(0, top));
    const bar = this.scaled ? (this.top / this.most) * (TALLEST - this.view) : this.top;
    this.scroller.scrollTop = bar;
    this.last = this.scroller.scrollTop;
    this.show();
  }

  /** @param {number} row @param {boolean} [nearest] moves no farther than needed */
  reveal(row, nearest = true) {
    const start = row * this.height;
    if (!nearest || start < this.top) this.place(start);
    else if (start + this.height > this.top + this.view) this.place(start + this.height - this.view);
  }

  get first() {
    return Math.floor(this.top / this.height);
  }

  /** Draw what is in sight, and one screen around it. */
  show() {
    if (!this.view) return;
    const spare = Math.ceil(this.view / this.height / 2) + 1;
    const first = Math.max(0, this.first - spare);
    const last = Math.min(this.count - 1, Math.ceil((this.top + this.view) / this.height) + spare);
    for (const [row, element] of this.drawn) {
      if (row >= first && row <= last) continue;
      if (element.contains(document.activeElement)) this.scroller.focus({ preventScroll: true });
      element.remove();
      this.drawn.delete(row);
    }
    const shift = this.scaled ? this.scroller.scrollTop - this.top : 0;
    for (let row = first; row <= last; row += 1) {
      let element = this.drawn.get(row);
      if (!element) {
        element = this.draw(row);
        element.classList.add('rows-row');
        element.style.height = `${this.height}px`;
        this.drawn.set(row, element);
        this.spacer.appendChild(element);
      }
      element.style.transform = `translateY(${row * this.height + shift}px)`;
    }
    if (last >= first) this.onSight(first, last);
  }

  /** @param {number} row is drawn anew if it is in sight */
  redraw(row) {
    const old = this.drawn.get(row);
    if (!old) return;
    const element = this.draw(row);
    element.classList.add('rows-row');
    element.style.height = old.style.height;
    element.style.transform = old.style.transform;
    old.replaceWith(element);
    this.drawn.set(row, element);
  }

  /** Forget what was drawn. */
  clear() {
    for (const element of this.drawn.values()) element.remove();
    this.drawn.clear();
  }

  /** Draw all anew. */
  redrawAll() {
    this.clear();
    this.show();
  }

  destroy() {
    clearTimeout(this.timer);
    this.observer.disconnect();
    this.scroller.removeEventListener('scroll', this.listener);
    this.spacer.remove();
  }
}
