// Runs the tests of modules that need no browser, with node's test runner.
import { spawnSync } from "node:child_process";
import { readdirSync, rmSync } from "node:fs";
import { join } from "node:path";
import { build } from "esbuild";

const target = "node_modules/.tests";
const filesIn = (folder, ending) => readdirSync(folder, { recursive: true }).filter((name) => name.endsWith(ending));

rmSync(target, { recursive: true, force: true });
await build({
  entryPoints: filesIn("tests", ".test.ts").map((name) => join("tests", name)),
  outdir: target,
  outExtension: { ".js": ".mjs" },
  bundle: true,
  packages: "external",
  splitting: true,
  format: "esm",
  platform: "node",
  sourcemap: "inline",
});
const built = filesIn(target, ".test.mjs").map((name) => join(target, name));
const { status } = spawnSync(process.execPath, ["--enable-source-maps", "--test", "--test-reporter=spec", ...built], {
  stdio: "inherit",
});
process.exit(status ?? 1);
