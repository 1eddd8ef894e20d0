// pdf.js in its worker. The first import has to run before pdf.js does.
import "./bounded";
import "pdfjs-dist/legacy/build/pdf.worker.mjs";
