// What index.html shows before its script runs. Only build.mjs runs this: outside of a browser, which keeps nothing.
import { renderToString } from "preact-render-to-string";

Object.assign(globalThis, { localStorage: { getItem: () => null } });

const { Frame } = await import("./shell/Frame");
export const frame = renderToString(<Frame title="chaski" />);
