// Images of imported messages: as base64, or named if they are missing.
import { bytesOf, type Entry } from "./zip";

const LARGEST_IMAGE = 32 << 20;
/** Bytes of images that an import takes in all, since the page keeps them in memory. */
const LARGEST_IMAGES = 512 << 20;

/** The images of an import. */
export class Images {
  /** The names of images that are missing or cannot be shown. */
  readonly missing: string[] = [];
  private readonly entries = new Map<string, Entry>();
  private left = LARGEST_IMAGES;

  constructor(entries: Entry[] = []) {
    for (const entry of entries) {
      const id = /(?:^|\/)(file[-_][A-Za-z0-9]+)[^/]*$/.exec(entry.name)?.[1];
      if (id) this.entries.set(id, entry);
    }
  }

  /** The image of a file in the archive, or null; `name` is noted then. */
  async ofFile(id: string, name: string): Promise<string | null> {
    const entry = this.entries.get(id);
    const bytes = entry && (await bytesOf(entry, Math.min(LARGEST_IMAGE, this.left)).catch(() => null));
    return this.checked(bytes ?? null, name);
  }

  /** The image of an address with data in base64, or null. */
  ofData(address: string, name: string): string | null {
    const data = /^data:image\/[\w.+-]+;base64,([A-Za-z0-9+/=\s]+)$/.exec(address)?.[1];
    let bytes: Uint8Array | null = null;
    try {
      bytes = data ? Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0)) : null;
    } catch {
      // It is not base64, so it is noted as missing.
    }
    return this.checked(bytes, name);
  }

  private checked(bytes: Uint8Array | null, name: string): string | null {
    if (bytes && isImage(bytes) && bytes.length <= this.left) {
      this.left -= bytes.length;
      return base64(bytes);
    }
    this.missing.push(name);
    return null;
  }
}

/** Whether bytes begin as PNG, JPEG, GIF, BMP or WebP. */
function isImage(bytes: Uint8Array): boolean {
  const head = String.fromCharCode(...bytes.subarray(0, 12));
  return /^(\x89PNG|\xff\xd8\xff|GIF8|BM|RIFF.{4}WEBP)/s.test(head);
}

function base64(bytes: Uint8Array): string {
  const pieces: string[] = [];
  for (let at = 0; at < bytes.length; at += 0x8000) pieces.push(String.fromCharCode(...bytes.subarray(at, at + 0x8000)));
  return btoa(pieces.join(""));
}
