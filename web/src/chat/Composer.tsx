import { useEffect, useRef, useState } from "preact/hooks";

import { useDraft } from "../conversations/drafts";
import type { TextFile } from "../conversations/types";
import { Icon } from "../shell/Icon";
import type { Question } from "./answering";
import { readAttachments } from "./attachments";
import type { Fit } from "./Misfits";

interface Attached {
  images: string[];
  files: TextFile[];
}

interface Props {
  /** The conversation whose draft this is. */
  place: string;
  isRunning: boolean;
  canSend: boolean;
  /** Whether the model can answer a question. */
  fit: (question: Question) => Fit;
  onSend: (question: Question) => void;
  onStop: () => void;
}

const NOTHING: Attached = { images: [], files: [] };
const together = (a: Attached, b: Attached) => ({ images: [...a.images, ...b.images], files: [...a.files, ...b.files] });

export function Composer(props: Props) {
  const [text = "", setText] = useDraft<string>(`${props.place}/text`, (kept, typed) => kept + typed);
  const [attached = NOTHING, setAttached] = useDraft<Attached>(`${props.place}/files`, together);
  const [problem, setProblem] = useState("");
  const [isReading, setReading] = useState(false);
  const field = useRef<HTMLTextAreaElement>(null);
  const picker = useRef<HTMLInputElement>(null);
  useEffect(() => field.current?.focus(), []);
  useEffect(() => {
    const box = field.current!;
    box.style.height = "auto";
    box.style.height = `${Math.min(box.scrollHeight, innerHeight * 0.4)}px`;
  }, [text]);

  const { images, files } = attached;
  const fit = props.fit({ content: text, images, files });
  const canSend = props.canSend && !fit.isRefused;
  const isEmpty = !text.trim() && !images.length && !files.length;
  const send = () => {
    if (isEmpty || isReading || props.isRunning || !canSend) return;
    props.onSend({ content: text, images, files });
    setText(() => undefined);
    setAttached(() => undefined);
    setProblem("");
  };
  const take = async (chosen: Iterable<File>) => {
    setReading(true);
    const read = await readAttachments(chosen);
    setReading(false);
    setProblem(read.problem);
    if (read.images.length || read.files.length) setAttached((now = NOTHING) => together(now, read));
  };
  const without = <T,>(list: T[], index: number) => list.filter((_, place) => place !== index);

  return (
    <form
      class="composer"
      onSubmit={(event) => {
        event.preventDefault();
        send();
      }}
      onDragOver={(event) => event.preventDefault()}
      onDrop={(event) => {
        event.preventDefault();
        void take(event.dataTransfer?.files ?? []);
      }}
    >
      {!props.isRunning && fit.notice}
      <div class="box">
        <div class="attached">
          {images.map((image, index) => (
            <span class="attachment" key={image.slice(0, 80) + index}>
              <img src={`data:;base64,${image}`} alt={`Attached image ${index + 1}`} />
              <Remove
                onClick={() => setAttached(() => ({ files, images: without(images, index) }))}
                name={`image ${index + 1}`}
              />
            </span>
          ))}
          {files.map((file, index) => (
            <span class="attachment named" key={file.name + index}>
              {file.name}
              <Remove onClick={() => setAttached(() => ({ images, files: without(files, index) }))} name={file.name} />
            </span>
          ))}
        </div>
        <textarea
          ref={field}
          dir="auto"
          rows={1}
          aria-label="Message"
          placeholder="Message"
          value={text}
          onInput={(event) => {
            const { value } = event.currentTarget;
            setText(() => value || undefined);
          }}
          onKeyDown={(event) => {
            if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
              event.preventDefault();
              send();
            }
          }}
          onPaste={(event) => {
            const files = event.clipboardData?.files;
            if (files?.length) {
              event.preventDefault();
              void take(files);
            }
          }}
        />
        {problem && (
          <p class="problem" role="alert">
            {problem}
          </p>
        )}
        <div class="composer-tools">
          <button type="button" class="icon-button" aria-label="Attach files" onClick={() => picker.current?.click()}>
            <Icon name="clip" />
          </button>
          <input
            ref={picker}
            type="file"
            multiple
            hidden
            aria-label="Files"
            onChange={(event) => {
              void take([...(event.currentTarget.files ?? [])]);
              event.currentTarget.value = "";
            }}
          />
          {isReading && (
            <span class="note" role="status">
              Reading…
            </span>
          )}
          <span class="hint">Enter sends, Shift+Enter begins a line</span>
          {props.isRunning ? (
            <button type="button" class="round" aria-label="Stop" onClick={props.onStop}>
              <Icon name="stop" />
            </button>
          ) : (
            <button type="submit" class="round" aria-label="Send" disabled={isEmpty || isReading || !canSend}>
              <Icon name="send" />
            </button>
          )}
        </div>
      </div>
    </form>
  );
}

function Remove({ onClick, name }: { onClick: () => void; name: string }) {
  return (
    <button type="button" class="remove" aria-label={`Remove ${name}`} onClick={onClick}>
      <Icon name="close" />
    </button>
  );
}
