import { signal } from "@preact/signals";
import { useEffect } from "preact/hooks";

import { ChatPage } from "../chat/ChatPage";
import { conversations, currentId, storageProblem } from "../conversations/store";
import { ModelsPage } from "../models/ModelsPage";
import { wantsKey } from "../server/key";
import { KeyDialog } from "./KeyDialog";
import { Icon } from "./Icon";
import { Sidebar } from "./Sidebar";

const place = signal(location.hash);
export const isMenuOpen = signal(false);

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
  const isModels = place.value === "#/models";
  const title = isModels ? "Models" : (currentId.value && conversations.value[currentId.value]?.title) || "New chat";
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
        {isModels ? <ModelsPage /> : <ChatPage key={currentId.value ?? "new"} />}
      </main>
      {wantsKey.value && <KeyDialog />}
    </div>
  );
}
