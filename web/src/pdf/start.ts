// Starts the worker. The page's trusted-types policy allows only this script address.

/** The address of the built `worker.ts`. */
declare const PDF_WORKER: string;

interface Policy {
  createScriptURL(address: string): string;
}

interface PolicyFactory {
  createPolicy(name: string, rules: Policy): Policy;
}

// Some browsers lack trusted types.
const { trustedTypes } = globalThis as { trustedTypes?: PolicyFactory };
const policy = trustedTypes?.createPolicy("pdf-worker", { createScriptURL: () => PDF_WORKER });

export function startWorker(): Worker {
  return new Worker(policy?.createScriptURL(PDF_WORKER) ?? PDF_WORKER, { type: "module" });
}
