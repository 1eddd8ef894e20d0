import { boundArrays, TOO_LARGE } from "./bounds";

boundArrays(globalThis, () => postMessage(TOO_LARGE));
