import { useState } from "preact/hooks";

import { readModels } from "../models/list";
import { forgetKey, keepKey } from "../server/key";
import { Dialog } from "./Dialog";

export function KeyDialog() {
  const [key, setKey] = useState("");
  const [stays, setStays] = useState(false);
  const save = (event: Event) => {
    event.preventDefault();
    if (!key.trim()) return forgetKey();
    keepKey(key.trim(), stays);
    void readModels();
  };
  return (
    <Dialog title="This server wants a key">
      <form onSubmit={save}>
        <label class="field">
          API key
          <input
            type="password"
            autocomplete="off"
            value={key}
            onInput={(event) => setKey(event.currentTarget.value)}
            autofocus
          />
        </label>
        <label class="check">
          <input type="checkbox" checked={stays} onChange={(event) => setStays(event.currentTarget.checked)} />
          Keep it in this browser, not only in this tab
        </label>
        <div class="row end">
          <button type="submit" class="primary">
            Use this key
          </button>
        </div>
      </form>
    </Dialog>
  );
}
