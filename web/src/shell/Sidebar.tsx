import { useRef, useState } from "preact/hooks";

import { areRead, changeHead, currentId, recent, remove } from "../conversations/store";
import { download, importFiles } from "../conversations/transfer";
import type { Conversation } from "../conversations/types";
import { Question } from "./Dialog";
import { Icon } from "./Icon";
import { nextTheme, theme } from "./theme";

export function Sidebar() {
  const [wanted, setWanted] = useState("");
  const [told, setTold] = useState("");
  const file = useRef<HTMLInputElement>(null);
  const found = recent.value.filter((conversation) => matches(conversation, wanted.trim().toLowerCase()));
  const read = async (chosen: File[]) => {
    if (!chosen.length) return;
    setTold(`Reading ${chosen.map(({ name }) => name).join(", ")}…`);
    try {
      setTold(await importFiles(chosen, setTold));
    } catch (error) {
      setTold((error as Error).message);
    }
  };
  return (
    <nav class="sidebar" aria-label="Conversations">
      <div class="brand">
        <span class="mark" aria-hidden="true">
          <Icon name="forward" />
        </span>
        chaski
      </div>
      <a class="nav primary" href="#/">
        <Icon name="plus" /> New chat
      </a>
      <a class="nav" href="#/models">
        <Icon name="box" /> Models
      </a>
      <a class="nav" href="#/live">
        <Icon name="pulse" /> Live
      </a>
      <input
        type="search"
        dir="auto"
        placeholder="Search conversations"
        aria-label="Search conversations"
        value={wanted}
        onInput={(event) => setWanted(event.currentTarget.value)}
      />
      <ul class="conversations">
        {found.map((conversation) => (
          <Entry key={conversation.id} conversation={conversation} />
        ))}
        {areRead.value && !found.length && <li class="empty">{wanted ? "Nothing found" : "No conversations yet"}</li>}
      </ul>
      {told && (
        <p class="told" role="status">
          {told}
        </p>
      )}
      <div class="tools">
        <button type="button" class="quiet" onClick={() => download(recent.value, "conversations")}>
          <Icon name="down" /> Export
        </button>
        <button
          type="button"
          class="quiet"
          title="Exports of this page, ChatGPT or Open WebUI"
          onClick={() => file.current?.click()}
        >
          <Icon name="up" /> Import
        </button>
        <button type="button" class="quiet" onClick={nextTheme} aria-label={`Theme: ${theme.value}`}>
          <Icon name="theme" /> {theme.value}
        </button>
        <input
          ref={file}
          type="file"
          accept=".json,.zip,application/json,application/zip"
          multiple
          hidden
          aria-label="File of conversations"
          onChange={(event) => {
            void read([...(event.currentTarget.files ?? [])]);
            event.currentTarget.value = "";
          }}
        />
      </div>
    </nav>
  );
}

function Entry({ conversation }: { conversation: Conversation }) {
  const [name, setName] = useState<string | null>(null);
  const [asks, setAsks] = useState(false);
  const rename = () => {
    if (name?.trim()) changeHead(conversation.id, { title: name.trim() });
    setName(null);
  };
  if (name !== null)
    return (
      <li>
        <input
          dir="auto"
          aria-label="Name of the conversation"
          value={name}
          ref={(input) => input?.focus()}
          onInput={(event) => setName(event.currentTarget.value)}
          onBlur={rename}
          onKeyDown={(event) => {
            if (event.key === "Enter") rename();
            if (event.key !== "Escape") return;
            event.stopPropagation(); // otherwise the menu of a phone closes, too
            setName(null);
          }}
        />
      </li>
    );
  const title = conversation.title || "Untitled";
  return (
    <li class={conversation.id === currentId.value ? "entry current" : "entry"}>
      <a dir="auto" href={`#/chat/${conversation.id}`} aria-current={conversation.id === currentId.value ? "page" : undefined}>
        {title}
      </a>
      <span class="entry-tools">
        <button type="button" class="icon-button" aria-label={`Rename ${title}`} onClick={() => setName(title)}>
          <Icon name="edit" />
        </button>
        <button type="button" class="icon-button" aria-label={`Export ${title}`} onClick={() => download([conversation], title)}>
          <Icon name="down" />
        </button>
        <button type="button" class="icon-button" aria-label={`Delete ${title}`} onClick={() => setAsks(true)}>
          <Icon name="trash" />
        </button>
      </span>
      {asks && (
        <Question
          title="Delete this conversation?"
          text={`“${isolated(title)}” is only in this browser, and will be gone.`}
          yes="Delete"
          onYes={() => void remove(conversation.id)}
          onClose={() => setAsks(false)}
        />
      )}
    </li>
  );
}

/** A name inside of a sentence of the page, whatever its direction. */
function isolated(name: string): string {
  return `\u2068${name}\u2069`;
}

function matches(conversation: Conversation, wanted: string): boolean {
  if (!wanted || conversation.title.toLowerCase().includes(wanted)) return true;
  return Object.values(conversation.messages).some((message) => message.content.toLowerCase().includes(wanted));
}
