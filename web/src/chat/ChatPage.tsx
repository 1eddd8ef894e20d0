import { useEffect, useState } from "preact/hooks";

import { begin, changeHead, changeSettings, current, currentId, put } from "../conversations/store";
import { openCalls, path } from "../conversations/tree";
import type { Head, Settings } from "../conversations/types";
import { models, modelsProblem } from "../models/list";
import { MemoryWarning } from "../models/MemoryNeeds";
import { isMenuOpen } from "../shell/Frame";
import { Icon } from "../shell/Icon";
import { askQuestion, type Question } from "./answering";
import { Composer } from "./Composer";
import { ModelChoice } from "./ModelChoice";
import { stop } from "./receiving";
import { Scroller } from "./Scroller";
import { readDefaults, SettingsPanel } from "./SettingsPanel";
import { ToolResults } from "./ToolResults";
import { Turn } from "./Turn";

const LAST_MODEL = "chaski.model";

export function ChatPage() {
  const conversation = current.value;
  const [fresh, setFresh] = useState(() => begin("", readDefaults()));
  const [isOpen, setOpen] = useState(false);
  const shown = conversation ?? fresh;
  const model = shown.model || localStorage.getItem(LAST_MODEL) || models.value[0]?.name || "";
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
    localStorage.setItem(LAST_MODEL, model);
    if (!conversation) put({ ...fresh, model }, false);
    else if (conversation.model !== model) changeHead(conversation.id, { model });
    askQuestion(shown.id, shown.leaf, question, model);
    location.hash = `#/chat/${shown.id}`;
  };

  return (
    <>
      <div class="chat-tools">
        <ModelChoice value={model} onChange={(name) => change({ model: name })} />
        <button type="button" class="icon-button" aria-label="Settings" aria-expanded={isOpen} onClick={() => setOpen(!isOpen)}>
          <Icon name="sliders" />
        </button>
      </div>
      {isOpen && <SettingsPanel model={model} settings={shown.settings} onChange={set} onClose={() => setOpen(false)} />}
      <Scroller isRunning={isRunning}>
        {turns.length ? (
          turns.map((turn) => <Turn key={turn.id} conversation={shown} message={turn} isLast={turn === last} />)
        ) : (
          <Welcome onAsk={(content) => send({ content })} model={model} />
        )}
        {open && <ToolResults conversation={shown} branch={last!} {...open} />}
      </Scroller>
      <MemoryWarning
        model={model}
        context={shown.settings.num_ctx}
        onContext={(num_ctx) => set({ ...shown.settings, num_ctx })}
      />
      <Composer key={place} place={place} isRunning={isRunning} canSend={!!model} onSend={send} onStop={end} />
    </>
  );
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

const QUESTIONS = ["How do I use fewer cores?", "Where are models kept?", "How do I pull a model?"];

function Welcome({ onAsk, model }: { onAsk: (text: string) => void; model: string }) {
  return (
    <div class="welcome">
      <h2>Ask anything</h2>
      <p>
        The answer is computed by this server. Conversations stay in this browser.
        {modelsProblem.value && <strong class="problem">{modelsProblem.value}</strong>}
      </p>
      {model.startsWith("guide") && (
        <div class="questions">
          {QUESTIONS.map((question) => (
            <button type="button" key={question} onClick={() => onAsk(question)}>
              {question}
            </button>
          ))}
        </div>
      )}
    </div>
  );
}
