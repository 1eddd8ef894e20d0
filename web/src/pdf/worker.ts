// Runs pdf.js in its worker. The first import must run before pdf.js.
import "./bounded";
import "pdfjs-dist/legacy/build/pdf.worker.mjs";
