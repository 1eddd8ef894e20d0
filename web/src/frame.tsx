// The content of index.html before its script runs. Only build.mjs runs this, outside of a browser.
import { renderToString } from "preact-render-to-string";

Object.assign(globalThis, { localStorage: { getItem: () => null } });

const { Frame } = await import("./shell/Frame");
export const frame = renderToString(<Frame title="chaski" />);
