// The character maps that every PDF reader must know (ISO 32000-1, table 118), a newer one for Japanese, and
// the maps from Adobe's character collections to Unicode. pdf.js has more, which PDFs rarely name.

const BOTH_WAYS = [
  ..."GB-EUC GBpc-EUC GBK-EUC GBKp-EUC GBK2K UniGB-UCS2 UniGB-UTF16".split(" "),
  ..."B5pc HKscs-B5 ETen-B5 ETenms-B5 CNS-EUC UniCNS-UCS2 UniCNS-UTF16".split(" "),
  ..."90ms-RKSJ 90msp-RKSJ 90pv-RKSJ Add-RKSJ EUC Ext-RKSJ UniJIS-UCS2 UniJIS-UCS2-HW UniJIS-UTF16 UniJIS2004-UTF16".split(" "),
  ..."KSC-EUC KSCms-UHC KSCms-UHC-HW KSCpc-EUC UniKS-UCS2 UniKS-UTF16".split(" "),
];
const NAMES = [
  ...BOTH_WAYS.flatMap((name) => [`${name}-H`, `${name}-V`]),
  ..."83pv-RKSJ-H H V Adobe-GB1-UCS2 Adobe-CNS1-UCS2 Adobe-Japan1-UCS2 Adobe-Korea1-UCS2".split(" "),
];

/** Provides the module `pdf-cmaps`: the addresses of the maps by file name. */
export const cmaps = {
  name: "pdf-cmaps",
  setup(builder) {
    builder.onResolve({ filter: /^pdf-cmaps$/ }, () => ({ path: "pdf-cmaps", namespace: "pdf-cmaps" }));
    builder.onLoad({ filter: /^pdf-cmaps$/, namespace: "pdf-cmaps" }, () => {
      const imports = NAMES.map((name, place) => `import map${place} from "pdfjs-dist/cmaps/${name}.bcmap";`);
      const entries = NAMES.map((name, place) => `"${name}.bcmap": map${place}`);
      return { contents: `${imports.join("\n")}\nexport default { ${entries.join(", ")} };`, resolveDir: process.cwd() };
    });
  },
};
