// Bundles an entry file with React into one script that defines `__creditbench`, what the entry exports.
// Arguments: folder with node_modules, entry file, output file.

import { createRequire } from "node:module";
import { join } from "node:path";

const [, , packages, entry, outfile] = process.argv;
const esbuild = createRequire(join(packages, "package.json"))("esbuild");

await esbuild.build({
  entryPoints: [entry],
  outfile,
  bundle: true,
  minify: true,
  format: "cjs",
  platform: "browser",
  target: "es2022",
  nodePaths: [join(packages, "node_modules")],
  // react-dom does not export its production renderer by this path
  plugins: [{
    name: "renderer",
    setup: (build) =>
      build.onResolve({ filter: /^react-dom\/cjs\// }, ({ path }) => ({ path: join(packages, "node_modules", path) })),
  }],
  define: { "process.env.NODE_ENV": '"production"' },
  legalComments: "none",
  banner: { js: '"use strict";const __creditbench=(function(){const module={exports:{}};' },
  footer: { js: "return module.exports;})();" },
});
