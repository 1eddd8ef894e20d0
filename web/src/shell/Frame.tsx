import { signal } from "@preact/signals";
import type { ComponentChildren } from "preact";

import { Icon } from "./Icon";
import { Sidebar } from "./Sidebar";

export const isMenuOpen = signal(false);

function skip(event: Event): void {
  event.preventDefault();
  document.getElementById("main")?.focus();
}

/** The frame around all pages. */
export function Frame({ title, children }: { title: string; children?: ComponentChildren }) {
  return (
    <div class={isMenuOpen.value ? "shell open" : "shell"}>
      <a class="skip" href="#main" onClick={skip}>
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
          <h1 dir="auto">{title}</h1>
        </header>
        {children}
      </main>
    </div>
  );
}
