import { useEffect, useRef, useState } from "preact/hooks";

import type { Settings } from "../conversations/types";
import { McpServers } from "../mcp/McpServers";
import type { SchemaDialog } from "../schema/SchemaDialog";
import { Icon } from "../shell/Icon";
import { min_p, num_ctx, num_predict, seed, temperature, top_k, top_logprobs, top_p } from "./options.json";

const DEFAULTS = "chaski.settings";
type Limits = { min?: number; max?: number; meaning: string };
type NumberName = "temperature" | "top_k" | "top_p" | "min_p" | "seed" | "num_ctx" | "num_predict";

// The ranges and meanings come from the server's table of options (`make docs` writes the file).
const LIMITS: Record<NumberName, Limits> = { temperature, top_k, top_p, min_p, seed, num_ctx, num_predict };
const LABELS: Record<NumberName, string> = {
  temperature: "Temperature",
  top_k: "Top k",
  top_p: "Top p",
  min_p: "Min p",
  seed: "Seed",
  num_ctx: "Context",
  num_predict: "Longest answer",
};
const STEPS: Partial<Record<NumberName, number>> = { temperature: 0.05, top_p: 0.01, min_p: 0.01 };
const NUMBERS = [
  ...(Object.keys(LABELS) as NumberName[]).map((name) => {
    const { min, max, meaning } = LIMITS[name];
    return { name, label: LABELS[name], placeholder: "default", min, max, step: STEPS[name] ?? 1, title: meaning };
  }),
  {
    name: "alternatives" as const,
    label: "Alternatives by token",
    placeholder: "none",
    min: 0,
    max: top_logprobs.max,
    step: 1,
    title: "number of other tokens to show for each token of an answer",
  },
];
const THINKING: [string, Settings["think"]][] = [
  ["as the model does", undefined],
  ["yes", true],
  ["no", false],
  ["low", "low"],
  ["medium", "medium"],
  ["high", "high"],
];

/** The settings of new conversations. */
export function readDefaults(): Settings {
  try {
    return JSON.parse(localStorage.getItem(DEFAULTS) ?? "{}") as Settings;
  } catch {
    return {};
  }
}

export function SettingsPanel(props: { settings: Settings; onChange: (settings: Settings) => void; onClose: () => void }) {
  const { settings } = props;
  const [told, setTold] = useState("");
  const set = (changes: Partial<Settings>) => props.onChange({ ...settings, ...changes });
  return (
    <section
      class="settings"
      aria-label="Settings of this conversation"
      onKeyDown={(event) => event.key === "Escape" && props.onClose()}
    >
      <div class="row">
        <h2>Settings of this conversation</h2>
        <button type="button" class="icon-button" aria-label="Close the settings" onClick={props.onClose}>
          <Icon name="close" />
        </button>
      </div>
      <label class="field wide">
        System prompt
        <textarea
          rows={3}
          value={settings.system ?? ""}
          onInput={(event) => set({ system: event.currentTarget.value || undefined })}
        />
      </label>
      <div class="grid">
        {NUMBERS.map(({ name, label, ...attributes }) => (
          <label class="field" key={name}>
            {label}
            <input
              type="number"
              {...attributes}
              value={settings[name] ?? ""}
              onChange={(event) => {
                const { value, validity } = event.currentTarget;
                if (validity.valid) set({ [name]: value === "" ? undefined : Number(value) });
                event.currentTarget.reportValidity();
              }}
            />
          </label>
        ))}
        <label class="field">
          Thinking
          <select
            value={THINKING.findIndex(([, value]) => value === settings.think)}
            onChange={(event) => set({ think: THINKING[Number(event.currentTarget.value)]![1] })}
          >
            {THINKING.map(([label], index) => (
              <option key={label} value={index}>
                {label}
              </option>
            ))}
          </select>
        </label>
        <label class="field">
          Stays loaded
          <input
            placeholder="5m"
            value={settings.keep_alive ?? ""}
            onChange={(event) => set({ keep_alive: event.currentTarget.value.trim() || undefined })}
          />
        </label>
      </div>
      <JsonField
        label="JSON schema that answers follow"
        value={settings.schema}
        problem={(value) => (isObject(value) ? "" : "A schema must be an object.")}
        onChange={(schema) => set({ schema })}
      />
      <SchemaButton value={settings.schema ?? ""} onChange={(schema) => set({ schema })} />
      <JsonField
        label="Tools that the model may call"
        value={settings.tools}
        problem={(value) => (Array.isArray(value) && value.every(isObject) ? "" : "Tools must be a list of objects.")}
        onChange={(tools) => set({ tools })}
      />
      <McpServers urls={settings.mcp ?? []} onChange={(mcp) => set({ mcp: mcp.length ? mcp : undefined })} />
      <div class="row end">
        {told && <span role="status">{told}</span>}
        <button type="button" onClick={() => props.onChange({})}>
          Clear all
        </button>
        <button
          type="button"
          onClick={() => {
            localStorage.setItem(DEFAULTS, JSON.stringify(settings));
            setTold("New conversations will use these settings.");
          }}
        >
          Use for new conversations
        </button>
      </div>
    </section>
  );
}

/** Opens the schema editor, and loads its code first. */
function SchemaButton({ value, onChange }: { value: string; onChange: (text: string | undefined) => void }) {
  const [Editor, setEditor] = useState<typeof SchemaDialog | null>(null);
  const open = async () => {
    const { SchemaDialog } = await import("../schema/SchemaDialog");
    setEditor(() => SchemaDialog);
  };
  return (
    <div class="row end">
      <button type="button" onClick={() => void open()}>
        Edit the schema as fields
      </button>
      {Editor && <Editor value={value} onChange={onChange} onClose={() => setEditor(null)} />}
    </div>
  );
}

/** A field for JSON. It shows a problem and ignores invalid input. */
function JsonField(props: {
  label: string;
  value: string | undefined;
  problem: (value: unknown) => string;
  onChange: (text: string | undefined) => void;
}) {
  const [text, setText] = useState(props.value ?? "");
  const taken = useRef(props.value);
  useEffect(() => {
    if (taken.current !== props.value) setText(props.value ?? "");
    taken.current = props.value;
  }, [props.value]);
  const take = (value: string | undefined) => {
    taken.current = value;
    props.onChange(value);
  };
  const found = text.trim() ? problemOf(text, props.problem) : "";
  return (
    <label class="field wide">
      {props.label}
      <textarea
        class="mono"
        rows={3}
        spellcheck={false}
        value={text}
        aria-invalid={!!found}
        onInput={(event) => {
          const now = event.currentTarget.value;
          setText(now);
          if (!now.trim()) take(undefined);
          else if (!problemOf(now, props.problem)) take(now);
        }}
      />
      {found && (
        <span class="problem" role="alert">
          {found}
        </span>
      )}
    </label>
  );
}

function problemOf(text: string, problem: (value: unknown) => string): string {
  try {
    return problem(JSON.parse(text));
  } catch (error) {
    return (error as Error).message;
  }
}

function isObject(value: unknown): boolean {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}
