import { useLayoutEffect, useRef } from "preact/hooks";

import { Icon } from "../shell/Icon";
import { type Field, KINDS, type Kind, newField, newShape, problemOfName, problemOfShape, type Shape } from "./shape";

/** The fields of an object, in order. Alt with an arrow key moves the focused field; Enter adds a field. */
export function FieldList(props: { fields: Field[]; of: string; onChange: (fields: Field[]) => void }) {
  const { fields, of, onChange } = props;
  const place = useRef<HTMLDivElement>(null);
  // The element to focus after the next change, since moved elements lose the focus.
  const wanted = useRef("");
  useLayoutEffect(() => {
    if (!wanted.current) return;
    const found = place.current?.querySelector<HTMLElement>(wanted.current);
    if (found instanceof HTMLButtonElement && found.disabled)
      found.parentElement!.querySelector<HTMLElement>("button:enabled")!.focus();
    else found?.focus();
    wanted.current = "";
  });
  const focus = (field: Field | undefined, part: string) => {
    wanted.current = field ? `[data-field="${field.id}"] [data-part="${part}"]` : ":scope > button";
  };
  const add = (at: number) => {
    const field = newField();
    focus(field, "name");
    onChange(fields.toSpliced(at, 0, field));
  };
  const move = (at: number, by: number, part: string) => {
    const field = fields[at]!;
    if (!fields[at + by]) return;
    focus(field, part);
    onChange(fields.toSpliced(at, 1).toSpliced(at + by, 0, field));
  };
  return (
    <div class="fields" ref={place} role="group" aria-label={`Fields of ${of}`}>
      {fields.map((field, at) => (
        <FieldForm
          key={field.id}
          field={field}
          problem={problemOfName(field, fields)}
          isFirst={at === 0}
          isLast={at === fields.length - 1}
          onChange={(changes) => onChange(fields.with(at, { ...field, ...changes }))}
          onMove={(by, part) => move(at, by, part)}
          onNext={() => add(at + 1)}
          onRemove={() => {
            focus(fields[at + 1] ?? fields[at - 1], "name");
            onChange(fields.toSpliced(at, 1));
          }}
        />
      ))}
      <button type="button" class="quiet" onClick={() => add(fields.length)}>
        <Icon name="plus" /> Add a field{of === "the answer" ? "" : ` to ${of}`}
      </button>
    </div>
  );
}

function FieldForm(props: {
  field: Field;
  problem: string;
  isFirst: boolean;
  isLast: boolean;
  onChange: (changes: Partial<Field>) => void;
  onMove: (by: number, part: string) => void;
  onNext: () => void;
  onRemove: () => void;
}) {
  const { field, problem, onChange, onMove } = props;
  const name = field.name || "field without a name";
  const keys = (event: KeyboardEvent) => {
    const isName = (event.target as HTMLElement).dataset.part === "name";
    const by = { ArrowUp: -1, ArrowDown: 1 }[event.key];
    if (by && event.altKey) onMove(by, "name");
    else if (event.key === "Enter" && isName) props.onNext();
    else return;
    event.preventDefault();
    event.stopPropagation();
  };
  return (
    <div class="schema-field" role="group" aria-label={name} data-field={field.id} onKeyDown={keys}>
      <div class="schema-head">
        <label class="field">
          Name
          <input
            data-part="name"
            value={field.name}
            spellcheck={false}
            aria-invalid={!!problem}
            onInput={(event) => onChange({ name: event.currentTarget.value })}
          />
        </label>
        <KindChoice label="Type" shape={field.shape} onChange={(shape) => onChange({ shape })} />
        <label class="check">
          <input
            type="checkbox"
            checked={field.isRequired}
            onChange={(event) => onChange({ isRequired: event.currentTarget.checked })}
          />
          Required
        </label>
        <span class="schema-tools">
          <Tool name="Move up" icon="send" of={name} part="up" disabled={props.isFirst} onClick={() => onMove(-1, "up")} />
          <Tool name="Move down" icon="lower" of={name} part="down" disabled={props.isLast} onClick={() => onMove(1, "down")} />
          <Tool name="Remove" icon="trash" of={name} part="remove" onClick={props.onRemove} />
        </span>
      </div>
      {problem && (
        <p class="problem" role="alert">
          {problem}
        </p>
      )}
      <label class="field">
        Description, for the model
        <input value={field.description} onInput={(event) => onChange({ description: event.currentTarget.value })} />
      </label>
      <ShapeForm shape={field.shape} of={name} onChange={(shape) => onChange({ shape })} />
    </div>
  );
}

/** The other parts of a shape: choices, items, or fields. */
function ShapeForm({ shape, of, onChange }: { shape: Shape; of: string; onChange: (shape: Shape) => void }) {
  if (shape.kind === "object")
    return <FieldList fields={shape.fields} of={of} onChange={(fields) => onChange({ ...shape, fields })} />;
  if (shape.items) {
    const change = (items: Shape) => onChange({ ...shape, items });
    return (
      <>
        <KindChoice label="Each item is" shape={shape.items} onChange={change} />
        <ShapeForm shape={shape.items} of={of} onChange={change} />
      </>
    );
  }
  if (shape.kind !== "choice") return null;
  const problem = problemOfShape(shape);
  return (
    <label class="field">
      Choices, one per line
      <textarea
        rows={Math.max(2, shape.choices.length + 1)}
        spellcheck={false}
        aria-invalid={!!problem}
        value={shape.choices.join("\n")}
        onInput={(event) => {
          const { value } = event.currentTarget;
          onChange({ ...shape, choices: value ? value.split("\n") : [] });
        }}
      />
      {problem && (
        <span class="problem" role="alert">
          {problem}
        </span>
      )}
    </label>
  );
}

function KindChoice({ label, shape, onChange }: { label: string; shape: Shape; onChange: (shape: Shape) => void }) {
  return (
    <label class="field">
      {label}
      <select value={shape.kind} onChange={(event) => onChange(newShape(event.currentTarget.value as Kind))}>
        {KINDS.map((kind) => (
          <option key={kind}>{kind}</option>
        ))}
      </select>
    </label>
  );
}

function Tool(props: {
  name: string;
  icon: "send" | "lower" | "trash";
  of: string;
  part: string;
  disabled?: boolean;
  onClick: () => void;
}) {
  return (
    <button
      type="button"
      class="icon-button"
      aria-label={`${props.name}: ${props.of}`}
      data-part={props.part}
      disabled={props.disabled}
      onClick={props.onClick}
    >
      <Icon name={props.icon} />
    </button>
  );
}
