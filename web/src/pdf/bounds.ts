// Limits the unpacked size of a part of a file. pdf.js unpacks into byte arrays that grow.

const LARGEST = 32 << 20;

export const TOO_LARGE = `a part of it unpacks to more than ${LARGEST >> 20} MiB`;

/** Limit arrays of bytes in a scope to 32 MiB, and call `onTooLarge` when code asks for a larger one. */
export function boundArrays(scope: Pick<typeof globalThis, "Uint8Array">, onTooLarge: () => void): void {
  scope.Uint8Array = new Proxy(scope.Uint8Array, {
    construct(type, values, made) {
      if (typeof values[0] === "number" && values[0] > LARGEST) {
        onTooLarge();
        throw new RangeError(TOO_LARGE);
      }
      return Reflect.construct(type, values, made) as Uint8Array;
    },
  });
  // The browser's own stream unpacks without a limit. Without that stream, pdf.js unpacks by itself.
  Reflect.deleteProperty(scope, "DecompressionStream");
}
