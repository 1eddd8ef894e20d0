import { signal } from "@preact/signals";
import type { ComponentType } from "preact";
import { useEffect, useState } from "preact/hooks";

import { ChatPage } from "../chat/ChatPage";
import { conversations, currentId, storageProblem } from "../conversations/store";
import { wantsKey } from "../server/key";
import { KeyDialog } from "./KeyDialog";
import { Icon } from "./Icon";
import { Sidebar } from "./Sidebar";

const place = signal(location.hash);
export const isMenuOpen = signal(false);

/** Pages besides the chat; their code is loaded when they are opened. */
const PAGES: Record<string, { title: string; load: () => Promise<ComponentType> }> = {
  "#/models": { title: "Models", load: async () => (await import("../models/ModelsPage")).ModelsPage },
  "#/live": { title: "Live", load: async () => (await import("../live/LivePage")).LivePage },
};

function Later({ load }: { load: () => Promise<ComponentType> }) {
  const [Page, setPage] = useState<ComponentType | null>(null);
  useEffect(() => void load().then((page) => setPage(() => page)), []);
  return Page && <Page />;
}

export function App() {
  useEffect(() => {
    const go = () => {
      place.value = location.hash;
      isMenuOpen.value = false;
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
    <div class={isMenuOpen.value ? "shell open" : "shell"}>
      <a class="skip" href="#main" onClick={(event) => (event.preventDefault(), document.getElementById("main")?.focus())}>
        Skip to the content
      </a>
      <Sidebar />
      <div class="shade" onClick={() => (isMenuOpen.value = false)} />
      <main id="main" tabIndex={-1}>
        <header class="bar">
          <button
            type="button"
            class="icon-button menu"
            aria-label="Menu"
            aria-expanded={isMenuOpen.value}
            onClick={() => (isMenuOpen.value = !isMenuOpen.value)}
          >
            <Icon name="menu" />
          </button>
          <h1>{title}</h1>
        </header>
        {storageProblem.value && <p class="problem" role="alert">{storageProblem.value}</p>}
        {page ? <Later key={page.title} load={page.load} /> : <ChatPage key={currentId.value ?? "new"} />}
      </main>
      {wantsKey.value && <KeyDialog />}
    </div>
  );
}
