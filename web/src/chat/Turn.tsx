import { useEffect, useState } from "preact/hooks";

import { put } from "../conversations/store";
import { siblings, youngestLeaf } from "../conversations/tree";
import type { Conversation, Message } from "../conversations/types";
import { copyText } from "../markdown/Code";
import { Markdown } from "../markdown/Markdown";
import { models, sees } from "../models/list";
import { Icon } from "../shell/Icon";
import { answer, append, branch, goOn } from "./answering";
import { Calls } from "./Calls";
import { FiguresLine } from "./FiguresLine";
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
  const [text, setText] = useState<string | null>(null);
  const send = () => {
    const { parent, images, files } = message;
    const [asked, question] = append(conversation, { parent, role: "user", content: text!, images, files });
    setText(null);
    answer(asked, question.id, conversation.model);
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
        {text === null ? (
          <p class="plain">{message.content}</p>
        ) : (
          <form
            onSubmit={(event) => {
              event.preventDefault();
              send();
            }}
          >
            <textarea
              aria-label="Edited question"
              rows={3}
              value={text}
              ref={(field) => {
                if (document.activeElement !== field) field?.focus();
              }}
              onInput={(event) => setText(event.currentTarget.value)}
              onKeyDown={(event) => event.key === "Escape" && setText(null)}
            />
            <div class="row end">
              <button type="button" onClick={() => setText(null)}>
                Cancel
              </button>
              <button type="submit" class="primary">
                Ask
              </button>
            </div>
          </form>
        )}
      </div>
      <div class="turn-tools">
        <Branches conversation={conversation} message={message} />
        <button type="button" class="icon-button" aria-label="Edit the question" onClick={() => setText(message.content)}>
          <Icon name="edit" />
        </button>
      </div>
    </article>
  );
}

function Returned({ conversation, message }: Props) {
  return (
    <article class="turn" aria-label={`Result of ${message.toolName}`}>
      <details class="file">
        <summary>Result of {message.toolName}</summary>
        <pre tabIndex={0}>{message.content}</pre>
      </details>
      {message.images && <ReturnedImages images={message.images} model={conversation.model} />}
    </article>
  );
}

function ReturnedImages({ images, model }: { images: string[]; model: string }) {
  const [isSeen, setSeen] = useState(true);
  useEffect(() => void sees(model).then(setSeen, () => {}), [model]);
  return (
    <div class="returned-images">
      {images.map((image, index) => (
        <img key={index} src={`data:;base64,${image}`} alt={`Image ${index + 1} of the result`} />
      ))}
      {!isSeen && <p class="note">{model} sees no images; it is told that there are some.</p>}
    </div>
  );
}

function Answered({ conversation, message, isLast }: Props) {
  const isRunning = message.answerId !== undefined;
  const [showsTokens, setShowsTokens] = useState(false);
  const isWaiting = isRunning && !message.content && !message.thinking;
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
          onChoose={isRunning ? undefined : (place, other) => branch(conversation, message, place, other)}
        />
      ) : (
        <Markdown text={message.content} />
      )}
      {message.calls && <Calls calls={message.calls} remote={message.remote} />}
      {message.error && (
        <p class={message.error === "Stopped." ? "note" : "problem"} role="alert">
          {message.error}
        </p>
      )}
      {!isRunning && (
        <div class="turn-tools">
          <Branches conversation={conversation} message={message} />
          <button type="button" class="icon-button" aria-label="Copy the answer" onClick={() => void copyText(message.content)}>
            <Icon name="copy" />
          </button>
          <Again conversation={conversation} message={message} />
          {message.tokens && (
            <button type="button" class="quiet" aria-pressed={showsTokens} onClick={() => setShowsTokens(!showsTokens)}>
              Tokens
            </button>
          )}
          {canGoOn && (
            <button type="button" class="quiet" onClick={() => goOn(conversation, message)}>
              <Icon name="forward" /> Continue
            </button>
          )}
          {message.figures && <FiguresLine figures={message.figures} />}
        </div>
      )}
    </article>
  );
}

function Thoughts({ text, isRunning }: { text: string; isRunning: boolean }) {
  return (
    <details class="thoughts">
      <summary>{isRunning ? "Thinking…" : "Thoughts"}</summary>
      <div class="plain">{text}</div>
    </details>
  );
}

function Branches({ conversation, message }: { conversation: Conversation; message: Message }) {
  const all = siblings(conversation, message);
  const place = all.findIndex((each) => each.id === message.id);
  if (all.length < 2) return null;
  const go = (to: number) => put({ ...conversation, leaf: youngestLeaf(conversation, all[to]!.id) });
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
  const again = (model: string) => answer(conversation, message.parent!, model);
  const others = models.value.filter((model) => model.name !== message.model);
  return (
    <>
      <button
        type="button"
        class="icon-button"
        aria-label="Answer again"
        onClick={() => again(message.model ?? conversation.model)}
      >
        <Icon name="again" />
      </button>
      {others.length > 0 && (
        <select
          class="quiet"
          aria-label="Answer again by another model"
          value=""
          onChange={(event) => event.currentTarget.value && again(event.currentTarget.value)}
        >
          <option value="">by…</option>
          {others.map((model) => (
            <option key={model.name}>{model.name}</option>
          ))}
        </select>
      )}
    </>
  );
}
