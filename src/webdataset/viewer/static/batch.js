/** What a rank and worker will see at a step, from a seed or a saved state. */

import { get } from './api.js';
import { countOf, failure, formatBytes, formatNumber, h, notice, replace } from './dom.js';
import { Gallery } from './gallery.js';
import { go, route } from './route.js';
import { ListSource } from './sources.js';

const NUMBERS = [['step', 0], ['epoch', 0], ['rank', 0], ['world_size', 1], ['worker', 0], ['workers', 1], ['batch_size', 16], ['seed', 0]];
const LABELS = { step: 'Step', epoch: 'Epoch', rank: 'Rank', world_size: 'Ranks', worker: 'Worker', workers: 'Workers', batch_size: 'Batch size', seed: 'Seed' };
const MEANS = { step: '0', epoch: 'next', rank: '0', world_size: '1', worker: 'any' };

export class BatchView {
  /** @param {any} context the app */
  constructor(context) {
    this.context = context;
    this.form = h('form', { class: 'batch-form', on: { submit: (event) => this.submit(event) } });
    this.place = h('div', { class: 'view-body' });
    this.element = h('section', { class: 'view', 'aria-label': 'Batch' }, h('div', { class: 'viewbar' }, h('div', { class: 'viewbar-title' }, h('h1', {}, 'Batch'), h('span', { class: 'quiet' }, 'what a worker will see'))), this.form, this.place);
    this.signature = '';
  }

  async update() {
    if (!this.options) {
      try {
        this.asked ??= get('batch/options', { side: route().side });
        const options = await this.asked;
        if (!this.options) {
          this.options = options;
          this.drawForm();
        }
      } catch (error) {
        this.asked = null;
        replace(this.place, failure(error));
        return;
      }
    }
    const now = route();
    const signature = JSON.stringify(now.more);
    if (signature === this.signature) return;
    this.signature = signature;
    if (now.more.step === undefined) {
      replace(this.place, notice('Choose a step', 'The order of samples is a function of seed, epoch, ranks and workers: the batch is found without running the training.'));
      return;
    }
    this.fillForm();
    this.load(signature, false);
  }

  drawForm() {
    const { more } = route();
    const { options } = this;
    const given = { seed: options.seed, batch_size: options.batch_size, workers: options.workers || null };
    replace(this.form,
      options.states?.length > 0 && h('label', {}, 'State', h('select', { class: 'input', name: 'state' }, h('option', { value: '' }, 'none: from the seed'), options.states.map((one) => h('option', { value: String(one.state), selected: String(one.state) === more.state }, one.name, one.description ? ` – ${one.description}` : '')))),
      NUMBERS.map(([name, first]) => h('label', {}, LABELS[name], h('input', { class: 'input figure-input', type: 'number', min: name === 'seed' ? null : '0', name, placeholder: MEANS[name] ?? given[name] ?? '', value: more[name] ?? given[name] ?? first }))),
      h('button', { class: 'button primary' }, 'Show the batch'));
  }

  /** Write what the url says into the form; the field that is typed into keeps its text and focus. */
  fillForm() {
    const { more } = route();
    for (const input of this.form.elements) if (input.name && input !== document.activeElement) input.value = more[input.name] ?? '';
  }

  submit(event) {
    event.preventDefault();
    const more = {};
    for (const [name, value] of new FormData(this.form)) if (value !== '') more[name] = String(value);
    if (JSON.stringify(more) === this.signature) return;
    go({ more, at: 0, open: null });
  }

  async load(signature, confirm) {
    this.gallery?.destroy();
    this.gallery = null;
    replace(this.place, h('div', { class: 'page' }, h('div', { class: 'row' }, h('span', { class: 'spinner' }), h('span', { class: 'quiet' }, 'Finding the batch…'))));
    try {
      const answer = await get('batch', { side: route().side, ...route().more, confirm: confirm ? 1 : null });
      if (signature === this.signature) this.show(answer);
    } catch (error) {
      if (signature !== this.signature) return;
      const needs = error.body?.needs;
      replace(this.place, needs
        ? notice('This needs to read shards', needs.message, [h('button', { type: 'button', class: 'button primary', on: { click: () => this.load(signature, true) } }, 'Read them')])
        : failure(error, () => this.load(signature, confirm)));
    }
  }

  show(answer) {
    const { batch, read } = answer;
    const source = new ListSource(answer.samples);
    this.source = source;
    this.gallery = new Gallery(source, {
      layout: 'grid',
      onOpen: (sample) => this.context.open(sample),
      tagsOf: (sample) => this.context.tags.ofListed(sample),
      empty: () => notice('No samples', 'The epoch of this worker ends before that step.'),
      foot: () => h('span', {}, `step ${formatNumber(batch.step)} · epoch ${batch.epoch} · rank ${batch.rank} · worker ${batch.worker}`, read ? ` · ${countOf(read.requests, 'read')}, ${formatBytes(read.bytes)}` : ''),
    });
    replace(this.place, this.gallery.element);
    this.gallery.measure();
    this.gallery.follow();
  }

  key(event) {
    if (!this.gallery) return false;
    const steps = { j: 1, k: -1, ArrowRight: 1, ArrowLeft: -1, ArrowDown: this.gallery.columns, ArrowUp: -this.gallery.columns };
    if (!(event.key in steps)) return false;
    const index = this.gallery.move(steps[event.key]);
    if (route().open && this.source.at(index)) this.context.open(this.source.at(index), true);
    return true;
  }

  step(by) {
    const { open } = route();
    const sample = this.source?.at((open ? this.source.indexOf(open) : -1) + by);
    if (sample) this.context.open(sample, true);
    return true;
  }

  current() {
    return this.source?.at(this.gallery?.selected ?? -1) ?? null;
  }

  destroy() {
    this.signature = null;
    this.gallery?.destroy();
  }
}
