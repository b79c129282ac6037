// Loaded by playwright's node before playwright (NODE_OPTIONS): playwright sets media features of every page by a
// command of WebDriver BiDi that Firefox does not have yet. It becomes one that does nothing; Browsers sets the features
// by preferences of Firefox instead.
const fs = require('node:fs');
const { Module } = require('node:module');

const load = Module._extensions['.js'];
Module._extensions['.js'] = (module, name) => {
  if (!name.endsWith('coreBundle.js')) return load(module, name);
  const text = fs.readFileSync(name, 'utf8');
  module._compile(text.replaceAll('"emulation.setMediaFeaturesOverride"', '"session.status"'), name);
};
