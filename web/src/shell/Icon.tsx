const PATHS = {
  plus: "M12 5v14M5 12h14",
  menu: "M4 7h16M4 12h16M4 17h16",
  send: "M12 19V5M6 11l6-6 6 6",
  lower: "M12 5v14M6 13l6 6 6-6",
  stop: "M8 8h8v8H8z",
  copy: "M9 9h10v11H9zM5 15V4h10",
  check: "M5 12.5l4.5 4.5L19 7.5",
  edit: "M4 20h4L19 9l-4-4L4 16zM13 7l4 4",
  again: "M20 12a8 8 0 1 1-2.5-5.8M20 4v4.5h-4.5",
  next: "M9 5l7 7-7 7",
  back: "M15 5l-7 7 7 7",
  close: "M6 6l12 12M18 6L6 18",
  trash: "M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13",
  clip: "M20 11l-8.5 8.5a5 5 0 0 1-7-7L13 4a3.5 3.5 0 0 1 5 5l-8.5 8.5a2 2 0 0 1-3-3L14 7",
  sliders: "M4 7h9M17 7h3M4 17h3M11 17h9M15 5v4M9 15v4",
  down: "M12 4v12M6 11l6 6 6-6M5 20h14",
  up: "M12 20V8M6 13l6-6 6 6M5 4h14",
  theme: "M12 4a8 8 0 1 0 8 8 6 6 0 0 1-8-8z",
  box: "M4 8l8-4 8 4v8l-8 4-8-4zM4 8l8 4 8-4M12 12v8",
  chat: "M5 5h14v11H10l-5 4z",
  pulse: "M3 12h4l3-8 4 16 3-8h4",
  unfold: "M6 9l6 6 6-6",
  search: "M11 4a7 7 0 1 0 0 14 7 7 0 0 0 0-14zM16 16l4.5 4.5",
  forward: "M5 6l6 6-6 6M13 6l6 6-6 6",
} as const;

export type IconName = keyof typeof PATHS;

export function Icon({ name }: { name: IconName }) {
  return (
    <svg class="icon" viewBox="0 0 24 24" aria-hidden="true">
      <path d={PATHS[name]} />
    </svg>
  );
}
