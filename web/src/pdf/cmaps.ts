// Loads character maps of Chinese, Japanese and Korean fonts, which pdf.js requests by name.
import addresses from "pdf-cmaps";

interface Wanted {
  kind: string;
  filename: string;
}

/** Make the class through which pdf.js requests its data. `onMissing` receives the reason why a map is missing. */
export function mapReader(onMissing: (why: string) => void) {
  return class {
    async fetch({ kind, filename }: Wanted): Promise<Uint8Array> {
      if (kind !== "cMapUrl") throw new Error(`${filename} is not needed to read text`);
      const address = addresses[filename];
      const response = address ? await fetch(address).catch(() => null) : null;
      if (response?.ok) return new Uint8Array(await response.arrayBuffer());
      const why = address
        ? `the character map ${filename} did not load. Reload the page`
        : `the page has no character map ${filename}. Attach its pages as images, or its text`;
      onMissing(why);
      throw new Error(why);
    }
  };
}
