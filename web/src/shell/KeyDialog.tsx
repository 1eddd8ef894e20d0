import { useState } from "preact/hooks";

import { readModels } from "../models/list";
import { forgetKey, keepKey, readKey, wantsKey } from "../server/key";
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
  const close = wantsKey.value === "other" ? () => (wantsKey.value = null) : undefined;
  return (
    <Dialog title={close ? "Another key" : "This server needs a key"} onClose={close}>
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
        {!close && readKey() && (
          <p class="problem" role="alert">
            The server does not know this key.
          </p>
        )}
        <label class="check">
          <input type="checkbox" checked={stays} onChange={(event) => setStays(event.currentTarget.checked)} />
          Keep it in this browser instead of only this tab
        </label>
        <div class="row end">
          {close && (
            <button type="button" onClick={close}>
              Cancel
            </button>
          )}
          <button type="submit" class="primary">
            Use this key
          </button>
        </div>
      </form>
    </Dialog>
  );
}
