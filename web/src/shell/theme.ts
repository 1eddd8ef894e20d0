// Light or dark theme, as the system or the user chooses.
import { signal } from "@preact/signals";

type Theme = "system" | "light" | "dark";
const NAME = "chaski.theme";
const ORDER: Theme[] = ["system", "light", "dark"];

export const theme = signal<Theme>((localStorage.getItem(NAME) as Theme | null) ?? "system");

export function applyTheme(): void {
  if (theme.value === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme.value;
}

export function nextTheme(): void {
  theme.value = ORDER[(ORDER.indexOf(theme.value) + 1) % ORDER.length]!;
  localStorage.setItem(NAME, theme.value);
  applyTheme();
}
