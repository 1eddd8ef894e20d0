import assert from "node:assert/strict";
import { test } from "node:test";

import { bytes } from "../../src/models/list";
import { verdict } from "../../src/models/memory";
import type { MemoryEstimate } from "../../src/server/types";

test("sizes have at most three digits and a unit", () => {
  const written = [0, 999, 1000, 99_949, 123_456, 1.5e9, 7e12, 7e15].map(bytes);
  assert.deepEqual(written, ["0 B", "999 B", "1.0 KB", "99.9 KB", "123 KB", "1.5 GB", "7.0 TB", "7000 TB"]);
});

function estimate(more: Partial<MemoryEstimate>): MemoryEstimate {
  const devices = { cpu: { needed: 2e9, available: 3e9 } } as unknown as MemoryEstimate["devices"];
  return { num_ctx: 4096, parallel: 2, fits: true, unloads: false, freeable: 0, devices, ...more } as MemoryEstimate;
}

test("a model that fits is reported with the available memory", () => {
  assert.equal(verdict(estimate({})), "Fits: 2.0 GB of 3.0 GB available, with a context of 4,096, 2 at a time");
  assert.match(verdict(estimate({ unloads: true })), /after other models are unloaded$/);
});

test("a model that does not fit is reported with the missing memory of each device", () => {
  const devices = {
    cpu: { needed: 5e9, available: 3e9 },
    cuda: { needed: 1e9, available: 2e9 },
  } as unknown as MemoryEstimate["devices"];
  const size = "with a context of 4,096, 2 at a time";
  assert.equal(
    verdict(estimate({ fits: false, devices, freeable: 5e8 })),
    `Does not fit: it needs 5.0 GB, 1.5 GB more than available; 1.0 GB on cuda, ${size}`,
  );
});
