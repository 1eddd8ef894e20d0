import { useEffect, useState } from "preact/hooks";

import { begin, changeHead, changeSettings, current, currentId, put } from "../conversations/store";
import { openCalls, path } from "../conversations/tree";
import type { Head, Message, Settings } from "../conversations/types";
import { modelOf, rememberModel } from "../models/chosen";
import { MemoryWarning } from "../models/MemoryNeeds";
import { isMenuOpen } from "../shell/Frame";
import { Icon } from "../shell/Icon";
import { askQuestion, type Question } from "./answering";
import { Composer } from "./Composer";
import { fitOf } from "./Misfits";
import { ModelChoice } from "./ModelChoice";
import { stop } from "./receiving";
import { Scroller } from "./Scroller";
import { readDefaults, SettingsPanel } from "./SettingsPanel";
import { ToolResults } from "./ToolResults";
import { Turn } from "./Turn";
import { Welcome } from "./Welcome";

export function ChatPage() {
  const conversation = current.value;
  const [fresh, setFresh] = useState(() => begin("", readDefaults()));
  const [isOpen, setOpen] = useState(false);
  const shown = conversation ?? fresh;
  const model = modelOf(shown);
  const change = (fields: Partial<Head>) =>
    conversation ? changeHead(conversation.id, fields) : setFresh({ ...fresh, ...fields });
  const set = (settings: Settings) =>
    conversation ? changeSettings(conversation.id, conversation.settings, settings) : setFresh({ ...fresh, settings });
  const place = currentId.value ?? "new";
  const turns = path(shown);
  const last = turns.at(-1);
  const isRunning = last?.answerId !== undefined;
  const open = openCalls(turns);
  const end = () => last && stop(shown.id, last);
  useStopKey(end);

  const send = (question: Question) => {
    if (!conversation) put({ ...fresh, model }, false);
    else if (conversation.model !== model) changeHead(conversation.id, { model });
    askQuestion(shown.id, shown.leaf, question, model);
    location.hash = `#/chat/${shown.id}`;
  };

  const choose = (name: string) => {
    rememberModel(name);
    change({ model: name });
  };
  const { tools, mcp, think } = shown.settings;
  const needs = { tools: !!(tools || mcp?.length), thinking: !!think, images: turns.some(hasAskedImages) };

  return (
    <>
      <div class="chat-tools">
        <ModelChoice value={model} onChange={choose} />
        <button type="button" class="icon-button" aria-label="Settings" aria-expanded={isOpen} onClick={() => setOpen(!isOpen)}>
          <Icon name="sliders" />
        </button>
      </div>
      {isOpen && <SettingsPanel model={model} settings={shown.settings} onChange={set} onClose={() => setOpen(false)} />}
      {turns.length ? (
        <Scroller isRunning={isRunning}>
          {turns.map((turn) => (
            <Turn key={turn.id} conversation={shown} message={turn} isLast={turn === last} />
          ))}
          {open && <ToolResults conversation={shown} branch={last!} {...open} />}
        </Scroller>
      ) : (
        <Welcome onAsk={(content) => send({ content })} model={model} />
      )}
      <MemoryWarning
        model={model}
        context={shown.settings.num_ctx}
        onContext={(num_ctx) => set({ ...shown.settings, num_ctx })}
      />
      <Composer
        key={place}
        place={place}
        isRunning={isRunning}
        canSend={!!model}
        fit={({ content, images = [], files = [] }) => {
          const characters = files.reduce((sum, file) => sum + file.text.length, content.length);
          return fitOf(model, { ...needs, images: needs.images || images.length > 0, characters }, choose);
        }}
        onSend={send}
        onStop={end}
      />
    </>
  );
}

function hasAskedImages({ role, images }: Message): boolean {
  return role === "user" && !!images?.length;
}

/** Escape stops the answer, unless it belongs to a field or closes something else. */
function useStopKey(end: () => void) {
  useEffect(() => {
    const press = (event: KeyboardEvent) => {
      if (event.key !== "Escape" || event.defaultPrevented || event.isComposing) return;
      const field = (event.target as Element).closest("input, select, textarea, [role=dialog]");
      if ((!field || field.closest(".composer")) && !isSomethingOpen()) end();
    };
    // Before the handler that closes the menu.
    addEventListener("keydown", press, true);
    return () => removeEventListener("keydown", press, true);
  });
}

function isSomethingOpen(): boolean {
  return isMenuOpen.value || document.querySelector("dialog[open], .settings, :popover-open") !== null;
}
