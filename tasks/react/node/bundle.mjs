// Bundles guest.cjs with React into one script for the sandbox. Arguments: folder with node_modules, output file.

import { createRequire } from "node:module";
import { fileURLToPath } from "node:url";
import { join } from "node:path";

const [, , packages, outfile] = process.argv;
const esbuild = createRequire(join(packages, "package.json"))("esbuild");

await esbuild.build({
  entryPoints: [fileURLToPath(new URL("guest.cjs", import.meta.url))],
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
