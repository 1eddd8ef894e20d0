import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";

import { begin, current, put } from "../conversations/store";
import { openCalls, path } from "../conversations/tree";
import type { Conversation, Message } from "../conversations/types";
import { models, modelsProblem } from "../models/list";
import { MemoryWarning } from "../models/MemoryNeeds";
import { Icon } from "../shell/Icon";
import { answer, append, stop } from "./answering";
import { Composer, type Draft } from "./Composer";
import { ModelChoice } from "./ModelChoice";
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
  const change = (changed: Conversation) => (conversation ? put(changed) : setFresh(changed));
  const turns = path(shown);
  const last = turns.at(-1);
  const isRunning = last?.answerId !== undefined;
  const open = openCalls(turns);

  const send = ({ text, images, files }: Draft) => {
    localStorage.setItem(LAST_MODEL, model);
    const [asked, question] = append({ ...shown, model }, { parent: shown.leaf, role: "user", content: text, images, files });
    answer(asked, question.id, model);
    location.hash = `#/chat/${asked.id}`;
  };

  return (
    <>
      <div class="chat-tools">
        <ModelChoice value={model} onChange={(name) => change({ ...shown, model: name })} />
        <button type="button" class="icon-button" aria-label="Settings" aria-expanded={isOpen} onClick={() => setOpen(!isOpen)}>
          <Icon name="sliders" />
        </button>
      </div>
      {isOpen && (
        <SettingsPanel
          settings={shown.settings}
          onChange={(settings) => change({ ...shown, settings })}
          onClose={() => setOpen(false)}
        />
      )}
      <Scroller isRunning={isRunning}>
        {turns.length ? (
          turns.map((turn) => <Turn key={turn.id} conversation={shown} message={turn} isLast={turn === last} />)
        ) : (
          <Welcome onAsk={(text) => send({ text, images: [], files: [] })} model={model} />
        )}
        {open && <ToolResults conversation={shown} branch={last!} {...open} />}
      </Scroller>
      <MemoryWarning
        model={model}
        context={shown.settings.num_ctx}
        onContext={(num_ctx) => change({ ...shown, settings: { ...shown.settings, num_ctx } })}
      />
      <Composer isRunning={isRunning} canSend={!!model} onSend={send} onStop={() => stop(last as Message)} />
    </>
  );
}

/** Keeps the end visible while an answer grows, unless the reader has scrolled away. */
function Scroller({ isRunning, children }: { isRunning: boolean; children: ComponentChildren }) {
  const place = useRef<HTMLDivElement>(null);
  const isAtEnd = useRef(true);
  useEffect(() => {
    const box = place.current!;
    const observer = new ResizeObserver(() => {
      if (isAtEnd.current) box.scrollTop = box.scrollHeight;
    });
    observer.observe(box);
    observer.observe(box.firstElementChild!);
    return () => observer.disconnect();
  }, []);
  const note = () => {
    const box = place.current!;
    isAtEnd.current = box.scrollHeight - box.scrollTop - box.clientHeight < 60;
  };
  return (
    <div class="scroller" ref={place} onScroll={note} tabIndex={0} role="region" aria-label="Messages">
      <div class="turns" role="log" aria-live="off" aria-label="Conversation">
        {children}
      </div>
      <p class="sr-only" role="status">
        {isRunning ? "The answer is being written" : ""}
      </p>
    </div>
  );
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
