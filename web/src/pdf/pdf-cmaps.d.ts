// cmaps.mjs generates this module.
declare module "pdf-cmaps" {
  /** The addresses of character maps by file name. */
  const addresses: Record<string, string>;
  export default addresses;
}
