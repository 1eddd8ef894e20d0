import { signal } from "@preact/signals";
import type { ComponentType } from "preact";
import { useEffect, useState } from "preact/hooks";

import { ChatPage } from "../chat/ChatPage";
import { isOutdated, storageProblem } from "../conversations/records";
import { conversations, currentId, deletedElsewhere } from "../conversations/store";
import { wantsKey } from "../server/key";
import { Frame, isMenuOpen } from "./Frame";
import { KeyDialog } from "./KeyDialog";

const place = signal(location.hash);

/** Pages other than the chat; their code is loaded when they are opened. */
const PAGES: Record<string, { title: string; load: () => Promise<ComponentType> }> = {
  "#/models": { title: "Models", load: async () => (await import("../models/ModelsPage")).ModelsPage },
  "#/live": { title: "Live", load: async () => (await import("../live/LivePage")).LivePage },
};

function Later({ load }: { load: () => Promise<ComponentType> }) {
  const [Page, setPage] = useState<ComponentType | null>(null);
  const [isLost, setLost] = useState(false);
  useEffect(() => {
    load().then(
      (page) => setPage(() => page),
      () => setLost(true),
    );
  }, []);
  if (isLost)
    return (
      <p class="problem notice" role="alert">
        This page cannot be loaded, because the server cannot be reached.{" "}
        <button type="button" onClick={() => location.reload()}>
          Load again
        </button>
      </p>
    );
  return Page && <Page />;
}

export function App() {
  useEffect(() => {
    const go = () => {
      place.value = location.hash;
      isMenuOpen.value = false;
      if (location.hash !== "#/") deletedElsewhere.value = "";
      currentId.value = /^#\/chat\/(\w+)$/.exec(location.hash)?.[1] ?? null;
    };
    const keys = (event: KeyboardEvent) => {
      if (event.key === "Escape") isMenuOpen.value = false;
      if ((event.ctrlKey || event.metaKey) && event.shiftKey && event.key.toLowerCase() === "o") {
        event.preventDefault();
        location.hash = "#/";
      }
    };
    go();
    addEventListener("hashchange", go);
    addEventListener("keydown", keys);
  }, []);
  const page = PAGES[place.value];
  const title = page ? page.title : (currentId.value && conversations.value[currentId.value]?.title) || "New chat";
  useEffect(() => {
    document.title = `${title} · chaski`;
  }, [title]);
  return (
    <Frame title={title}>
      {storageProblem.value && (
        <p class="problem notice" role="alert">
          {storageProblem.value}{" "}
          {isOutdated.value && (
            <button type="button" onClick={() => location.reload()}>
              Load again
            </button>
          )}
        </p>
      )}
      {deletedElsewhere.value && (
        <p class="note notice" role="status">
          “{deletedElsewhere.value}” was deleted in another tab.
        </p>
      )}
      {page ? <Later key={page.title} load={page.load} /> : <ChatPage key={currentId.value ?? "new"} />}
      {wantsKey.value && <KeyDialog />}
    </Frame>
  );
}
