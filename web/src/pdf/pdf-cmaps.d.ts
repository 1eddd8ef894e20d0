// Made by cmaps.mjs.
declare module "pdf-cmaps" {
  /** The addresses of character maps by the names of their files. */
  const addresses: Record<string, string>;
  export default addresses;
}
