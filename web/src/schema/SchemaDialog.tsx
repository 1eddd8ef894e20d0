import { useState } from "preact/hooks";

import { Dialog } from "../shell/Dialog";
import { FieldList } from "./FieldList";
import { isWhole, NoForm, newShape, readSchema, type Shape, schemaOf } from "./shape";

interface Read {
  shape?: Shape;
  /** Why the schema cannot be used. */
  problem?: string;
  /** The part of the schema that has no form. */
  noForm?: string;
}

/** A schema as fields and as JSON, side by side. A change on one side changes the other. */
export function SchemaDialog(props: { value: string; onChange: (text: string | undefined) => void; onClose: () => void }) {
  const [text, setText] = useState(props.value);
  const [{ shape, problem, noForm }, setRead] = useState(() => readText(props.value));
  const write = (changed: string) => {
    const read = readText(changed);
    setText(changed);
    setRead(read);
    if (!read.problem) props.onChange(changed.trim() ? changed : undefined);
  };
  const edit = (fields: Shape["fields"]) => {
    const changed = { ...shape!, fields };
    setRead({ shape: changed });
    if (!isWhole(changed)) return;
    const written = fields.length ? JSON.stringify(schemaOf(changed), null, 2) : "";
    setText(written);
    props.onChange(written || undefined);
  };
  return (
    <div onKeyDown={(event) => event.stopPropagation()}>
      <Dialog title="Structure of answers" isWide onClose={props.onClose}>
        <div class="schema">
          <div class="schema-side">
            {shape && <FieldList fields={shape.fields} of="the answer" onChange={edit} />}
            {shape && !isWhole(shape) && (
              <p class="note" role="status">
                Until you fix this, answers follow the schema as it is in the text.
              </p>
            )}
            {noForm && (
              <p class="note" role="status">
                This schema is used as it is, and edited as text: there is no form for {noForm}.
              </p>
            )}
            {problem && <p class="note">The fields return when the text is a valid schema.</p>}
          </div>
          <label class="field schema-side">
            As JSON schema
            <textarea
              class="mono"
              rows={16}
              spellcheck={false}
              value={text}
              aria-invalid={!!problem}
              onInput={(event) => write(event.currentTarget.value)}
            />
            {problem && (
              <span class="problem" role="alert">
                {problem}
              </span>
            )}
          </label>
        </div>
        <div class="row end">
          <span class="hint">Enter adds a field, Alt with an arrow moves one</span>
          <button type="button" class="primary" onClick={props.onClose}>
            Done
          </button>
        </div>
      </Dialog>
    </div>
  );
}

function readText(text: string): Read {
  if (!text.trim()) return { shape: newShape("object") };
  let found: unknown;
  try {
    found = JSON.parse(text);
  } catch (error) {
    return { problem: `This is not valid JSON: ${(error as Error).message}` };
  }
  if (typeof found !== "object" || found === null || Array.isArray(found)) return { problem: "A schema must be an object." };
  try {
    return { shape: readSchema(found) };
  } catch (error) {
    if (error instanceof NoForm) return { noForm: error.message };
    throw error;
  }
}
