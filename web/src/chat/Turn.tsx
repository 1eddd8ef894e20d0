import { useEffect, useRef, useState } from "preact/hooks";

import { useDraft } from "../conversations/drafts";
import { changeHead, removeMessages } from "../conversations/store";
import { below, path, siblings, youngestLeaf } from "../conversations/tree";
import type { Conversation, Message } from "../conversations/types";
import { copyText } from "../markdown/Code";
import { Markdown } from "../markdown/Markdown";
import { chats } from "../models/choice";
import { modelOf } from "../models/chosen";
import { models } from "../models/list";
import { useShown } from "../models/shown";
import { Question } from "../shell/Dialog";
import { Icon } from "../shell/Icon";
import { answer, askQuestion, branch, goOn, tryAgain } from "./answering";
import { Calls } from "./Calls";
import { FiguresLine } from "./FiguresLine";
import { STOPPED } from "./receiving";
import { Tokens } from "./Tokens";

interface Props {
  conversation: Conversation;
  message: Message;
  isLast: boolean;
}

export function Turn(props: Props) {
  const role = props.message.role;
  if (role === "user") return <Asked {...props} />;
  if (role === "tool") return <Returned {...props} />;
  return <Answered {...props} />;
}

function Asked({ conversation, message }: Props) {
  const [text, setText] = useDraft<string>(`${conversation.id}/${message.id}`);
  const editButton = useRef<HTMLButtonElement>(null);
  const send = () => {
    const { parent, images, files } = message;
    if (!text?.trim() && !images?.length && !files?.length) return;
    askQuestion(conversation.id, parent, { content: text!, images, files }, modelOf(conversation));
    setText(() => undefined);
  };
  const leave = () => {
    setText(() => undefined);
    editButton.current?.focus();
  };
  return (
    <article class="turn asked" aria-label="You">
      <div class="bubble">
        {message.images?.map((image, index) => (
          <img src={`data:;base64,${image}`} alt={`Image ${index + 1} of the question`} />
        ))}
        {message.files?.map((file) => (
          <details class="file">
            <summary>{file.name}</summary>
            <pre tabIndex={0}>{file.text}</pre>
          </details>
        ))}
        {text === undefined ? (
          <p class="plain" dir="auto">
            {message.content}
          </p>
        ) : (
          <Edited text={text} onInput={(value) => setText(() => value)} onSend={send} onLeave={leave} />
        )}
      </div>
      <div class="turn-tools">
        <Branches conversation={conversation} message={message} />
        <Copy text={message.content} name="Copy the question" />
        <button
          type="button"
          class="icon-button"
          aria-label="Edit the question"
          ref={editButton}
          onClick={() => setText((now) => now ?? message.content)}
        >
          <Icon name="edit" />
        </button>
        <Delete conversation={conversation} message={message} what="question" />
      </div>
    </article>
  );
}

interface EditedProps {
  text: string;
  onInput: (text: string) => void;
  onSend: () => void;
  onLeave: () => void;
}

function Edited({ text, onInput, onSend, onLeave }: EditedProps) {
  const field = useRef<HTMLTextAreaElement>(null);
  useEffect(() => field.current?.focus(), []);
  const press = (event: KeyboardEvent) => {
    if (event.isComposing) return;
    if (event.key === "Escape") onLeave();
    if (event.key !== "Enter" || event.shiftKey) return;
    event.preventDefault();
    onSend();
  };
  return (
    <form
      onSubmit={(event) => {
        event.preventDefault();
        onSend();
      }}
    >
      <textarea
        dir="auto"
        aria-label="Edited question"
        rows={3}
        value={text}
        ref={field}
        onInput={(event) => onInput(event.currentTarget.value)}
        onKeyDown={press}
      />
      <div class="row end">
        <button type="button" onClick={onLeave}>
          Cancel
        </button>
        <button type="submit" class="primary">
          Ask
        </button>
      </div>
    </form>
  );
}

function Returned({ conversation, message }: Props) {
  return (
    <article class="turn" aria-label={`Result of ${message.toolName}`}>
      <details class="file">
        <summary>Result of {message.toolName}</summary>
        <pre tabIndex={0}>{message.content}</pre>
      </details>
      {message.images && <ReturnedImages images={message.images} model={modelOf(conversation)} />}
      <div class="turn-tools">
        <Copy text={message.content} name="Copy the result" />
        <Delete conversation={conversation} message={message} what="result" />
      </div>
    </article>
  );
}

function ReturnedImages({ images, model }: { images: string[]; model: string }) {
  const isUnseen = useShown(model)?.capabilities.includes("vision") === false;
  return (
    <div class="returned-images">
      {images.map((image, index) => (
        <img key={index} src={`data:;base64,${image}`} alt={`Image ${index + 1} of the result`} />
      ))}
      {isUnseen && <p class="note">{model} sees no images; it is told that there are some.</p>}
    </div>
  );
}

function Answered({ conversation, message, isLast }: Props) {
  const isRunning = message.answerId !== undefined;
  const [showsTokens, setShowsTokens] = useState(false);
  const isWaiting = isRunning && !message.error && !message.content && !message.thinking;
  const canGoOn = isLast && !isRunning && !!message.content && (!message.figures || message.figures.reason === "length");
  return (
    <article class="turn answered" aria-label={`Answer of ${message.model}`} aria-busy={isRunning}>
      <div class="name">{message.model}</div>
      {message.thinking && <Thoughts text={message.thinking} isRunning={isRunning && !message.content} />}
      {isWaiting && (
        <p class="waiting">
          <span class="dots" aria-hidden="true">
            <i />
            <i />
            <i />
          </span>
          <span class="sr-only">The model is reading the question</span>
        </p>
      )}
      {showsTokens && message.tokens ? (
        <Tokens
          tokens={message.tokens}
          onChoose={isRunning ? undefined : (place, other) => branch(conversation.id, message, place, other)}
        />
      ) : (
        <Markdown text={message.content} />
      )}
      {message.calls && <Calls calls={message.calls} remote={message.remote} />}
      {message.error && <Failure conversation={conversation} message={message} />}
      {!isRunning && (
        <div class="turn-tools">
          <Branches conversation={conversation} message={message} />
          <Copy text={message.content} name="Copy the answer" />
          <Again conversation={conversation} message={message} />
          <Delete conversation={conversation} message={message} what="answer" />
          {message.tokens && (
            <button type="button" class="quiet" aria-pressed={showsTokens} onClick={() => setShowsTokens(!showsTokens)}>
              Tokens
            </button>
          )}
          {canGoOn && (
            <button type="button" class="quiet" onClick={() => goOn(conversation.id, message)}>
              <Icon name="forward" /> Continue
            </button>
          )}
          {message.figures && <FiguresLine figures={message.figures} />}
        </div>
      )}
    </article>
  );
}

function Failure({ conversation, message }: { conversation: Conversation; message: Message }) {
  if (message.error === STOPPED)
    return (
      <p class="note" role="alert">
        {STOPPED}
      </p>
    );
  return (
    <div class="failure">
      <p class="problem" role="alert">
        {message.error}
      </p>
      <button type="button" onClick={() => void tryAgain(conversation.id, message)}>
        <Icon name="again" /> Try again
      </button>
    </div>
  );
}

function Copy({ text, name }: { text: string; name: string }) {
  const [isCopied, setCopied] = useState(false);
  const copy = async () => {
    await copyText(text);
    setCopied(true);
    setTimeout(() => setCopied(false), 1500);
  };
  return (
    <button type="button" class="icon-button" aria-label={name} title={name} onClick={() => void copy()}>
      <Icon name={isCopied ? "check" : "copy"} />
    </button>
  );
}

/** Deletes a message, after a question that says what goes with it. */
function Delete({ conversation, message, what }: { conversation: Conversation; message: Message; what: string }) {
  const [asks, setAsks] = useState(false);
  const name = `Delete the ${what}`;
  const removed = asks ? below(conversation, message.id) : [];
  const more = removed.length - 1;
  const after = more > 1 ? `the ${more} messages after it, in all branches` : "the message after it";
  const remove = () => {
    removeMessages(conversation.id, removed);
    // The button that had the focus is gone.
    setTimeout(() => document.activeElement === document.body && document.querySelector<HTMLElement>(".scroller")?.focus());
  };
  return (
    <>
      <button type="button" class="icon-button" aria-label={name} title={name} onClick={() => setAsks(true)}>
        <Icon name="trash" />
      </button>
      {asks && (
        <Question
          title={`${name}?`}
          text={more > 0 ? `This also deletes ${after}. You cannot undo this.` : "You cannot undo this."}
          yes="Delete"
          onYes={remove}
          onClose={() => setAsks(false)}
        />
      )}
    </>
  );
}

function Thoughts({ text, isRunning }: { text: string; isRunning: boolean }) {
  return (
    <details class="thoughts">
      <summary>{isRunning ? "Thinking…" : "Thoughts"}</summary>
      <div class="plain" dir="auto">
        {text}
      </div>
    </details>
  );
}

function Branches({ conversation, message }: { conversation: Conversation; message: Message }) {
  const all = siblings(conversation, message);
  const place = all.findIndex((each) => each.id === message.id);
  if (all.length < 2) return null;
  const go = (to: number) => changeHead(conversation.id, { leaf: youngestLeaf(conversation, all[to]!.id) });
  return (
    <span class="branches">
      <button type="button" class="icon-button" aria-label="Earlier version" disabled={place === 0} onClick={() => go(place - 1)}>
        <Icon name="back" />
      </button>
      <span>
        {place + 1} / {all.length}
      </span>
      <button
        type="button"
        class="icon-button"
        aria-label="Later version"
        disabled={place === all.length - 1}
        onClick={() => go(place + 1)}
      >
        <Icon name="next" />
      </button>
    </span>
  );
}

/** Requests another answer to the same question, from the same model or another one. */
function Again({ conversation, message }: { conversation: Conversation; message: Message }) {
  const again = (model: string) => answer(conversation.id, path(conversation, message.parent), model);
  const isHere = (name = "") => models.value.some((model) => model.name === name);
  const same = [message.model, conversation.model].find(isHere);
  const others = models.value.filter((model) => chats(model) && model.name !== message.model);
  return (
    <>
      <button type="button" class="icon-button" aria-label="Answer again" onClick={() => again(same ?? modelOf({ model: "" }))}>
        <Icon name="again" />
      </button>
      {others.length > 0 && (
        <select
          class="quiet"
          aria-label="Answer again with another model"
          value=""
          onChange={(event) => event.currentTarget.value && again(event.currentTarget.value)}
        >
          <option value="">Answer again with…</option>
          {others.map((model) => (
            <option key={model.name}>{model.name}</option>
          ))}
        </select>
      )}
    </>
  );
}
