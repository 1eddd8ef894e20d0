// Builds the page into the package. Every file name except index.html contains a digest of the content.

import { createHash } from "node:crypto";
import { mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { build } from "esbuild";
import { cmaps } from "./cmaps.mjs";

const target = process.argv[2] ?? "../chaski/server/web/bundle";
rmSync(target, { recursive: true, force: true });
mkdirSync(target, { recursive: true });

// Browsers that run this page all read woff2; the other forms of KaTeX's fonts are left out.
const woff2Only = {
  name: "woff2-only",
  setup(builder) {
    builder.onLoad({ filter: /katex\.min\.css$/ }, ({ path }) => ({
      contents: readFileSync(path, "utf8").replace(/,url\([^)]*\.(woff|ttf)\) format\("\w+"\)/g, ""),
      loader: "css",
    }));
  },
};

const jsx = { jsx: "automatic", jsxImportSource: "preact" };
const nameOf = (path) => path.split("/").pop();

const settings = {
  entryNames: "[name]-[hash]",
  bundle: true,
  minify: true,
  format: "esm",
  target: ["es2022"],
  legalComments: "none",
  outdir: target,
  metafile: true,
};

// The worker that reads PDFs is a separate program. The page starts it by its address.
const worker = await build({ ...settings, entryPoints: { "pdf-worker": "src/pdf/worker.ts" } });
const workerAddress = `/web/${nameOf(Object.keys(worker.metafile.outputs)[0])}`;

const { metafile } = await build({
  ...settings,
  entryPoints: ["src/main.tsx", "src/styles/page.css"],
  chunkNames: "[name]-[hash]",
  assetNames: "[name]-[hash]",
  splitting: true,
  conditions: ["production"],
  define: { "process.env.NODE_ENV": '"production"', PDF_WORKER: JSON.stringify(workerAddress) },
  loader: { ".woff2": "file", ".bcmap": "file" },
  publicPath: "/web",
  plugins: [woff2Only, cmaps],
  ...jsx,
});

function built(source) {
  return Object.entries(metafile.outputs).find(([, output]) => output.entryPoint === source);
}

// The frame of the page is part of index.html, so that it is visible while the script still loads.
const program = "node_modules/.frame.mjs";
await build({ entryPoints: ["src/frame.tsx"], bundle: true, format: "esm", platform: "node", outfile: program, ...jsx });
const { frame } = await import(`./${program}`);

const [script, { imports }] = built("src/main.tsx");
const needed = imports.filter(({ kind }) => kind === "import-statement");
const preloads = needed.map(({ path }) => `<link rel="modulepreload" href="/web/${nameOf(path)}">`);

const icon = readFileSync("src/icon.svg");
const iconName = `icon-${createHash("sha256").update(icon).digest("hex").slice(0, 8).toUpperCase()}.svg`;
writeFileSync(`${target}/${iconName}`, icon);
// The styles are part of index.html, so that nothing else is fetched before the frame is visible.
const styles = `${target}/${nameOf(built("src/styles/page.css")[0])}`;
writeFileSync(
  `${target}/index.html`,
  readFileSync("src/index.html", "utf8")
    .replace("SCRIPT", `/web/${nameOf(script)}`)
    .replace("STYLE", () => readFileSync(styles, "utf8").trim())
    .replace("ICON", `/web/${iconName}`)
    .replace("PRELOADS", preloads.join("\n    "))
    .replace("FRAME", () => frame),
);
rmSync(styles);

// The licenses of all packages with parts in the bundle go next to it.
const packages = new Set(
  Object.keys({ ...worker.metafile.inputs, ...metafile.inputs }).flatMap(
    (path) => /node_modules\/((?:@[^/]+\/)?[^/]+)\//.exec(path)?.[1] ?? [],
  ),
);
// pdf.js is built with parts of core-js, whose license text is in its own package.
const polyfills = JSON.parse(readFileSync("node_modules/core-js/package.json", "utf8")).version;
if (!readFileSync(`${target}/${nameOf(workerAddress)}`, "utf8").includes(`core-js/blob/v${polyfills}/`))
  throw new Error(`pdf.js holds another core-js than ${polyfills}. Name its version in package.json.`);
packages.add("core-js");
const MORE_LICENSES = { "pdfjs-dist": ["cmaps/LICENSE"] };
const notices = [...packages].sort().map((name) => {
  const file = readdirSync(`node_modules/${name}`).find((each) => /^licen[sc]e/i.test(each));
  const { version, license } = JSON.parse(readFileSync(`node_modules/${name}/package.json`, "utf8"));
  const texts = [file, ...(MORE_LICENSES[name] ?? [])].filter(Boolean);
  const text = texts.map((each) => readFileSync(`node_modules/${name}/${each}`, "utf8").trim()).join("\n\n");
  return `${name} ${version} (${license})\n\n${text}\n`;
});
writeFileSync(`${target}/../LICENSES.txt`, notices.join("\n----\n\n"));
