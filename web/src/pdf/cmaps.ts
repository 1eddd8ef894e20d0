// The character maps of Chinese, Japanese and Korean fonts, which pdf.js asks for by name.
import addresses from "pdf-cmaps";

interface Wanted {
  kind: string;
  filename: string;
}

/** Make the class by which pdf.js asks for its data. A map that is missing is told to `onMissing`. */
export function mapReader(onMissing: (filename: string) => void) {
  return class {
    async fetch({ kind, filename }: Wanted): Promise<Uint8Array> {
      if (kind !== "cMapUrl") throw new Error(`${filename} is not needed to read text`);
      try {
        const response = await fetch(addresses[filename]!);
        if (!response.ok) throw new Error(`the server answered ${response.status}`);
        return new Uint8Array(await response.arrayBuffer());
      } catch (error) {
        onMissing(filename);
        throw error;
      }
    }
  };
}
