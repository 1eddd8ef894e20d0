import { useEffect, useRef, useState } from "preact/hooks";

import type { Settings } from "../conversations/types";
import { McpServers } from "../mcp/McpServers";
import { useEstimate } from "../models/memory";
import { useShown } from "../models/shown";
import type { SchemaDialog } from "../schema/SchemaDialog";
import { Icon } from "../shell/Icon";
import { OptionField, OptionRow } from "./OptionField";
import {
  ALTERNATIVES,
  defaultOf,
  KEEP_ALIVE,
  LENGTH,
  type NumberOption,
  parametersOf,
  SAMPLING,
  sentence,
  trainedContext,
} from "./options";

const DEFAULTS = "chaski.settings";
const THINKING: [string, Settings["think"]][] = [
  ["the model decides", undefined],
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

interface Props {
  model: string;
  settings: Settings;
  onChange: (settings: Settings) => void;
  onClose: () => void;
}

export function SettingsPanel({ model, settings, onChange, onClose }: Props) {
  const [told, setTold] = useState("");
  const set = (changes: Partial<Settings>) => onChange({ ...settings, ...changes });
  return (
    <section
      class="settings"
      aria-label="Settings of this conversation"
      onKeyDown={(event) => event.key === "Escape" && onClose()}
    >
      <div class="settings-head">
        <h2>Settings of this conversation</h2>
        <button type="button" class="icon-button" aria-label="Close the settings" onClick={onClose}>
          <Icon name="close" />
        </button>
      </div>
      <Options model={model} settings={settings} set={set} />
      <h3>Form of the answer</h3>
      <JsonField
        label="JSON schema that answers follow"
        value={settings.schema}
        problem={(value) => (isObject(value) ? "" : "A schema must be an object.")}
        onChange={(schema) => set({ schema })}
      />
      <SchemaButton value={settings.schema ?? ""} onChange={(schema) => set({ schema })} />
      <h3>Tools</h3>
      <JsonField
        label="Tools that the model may call"
        value={settings.tools}
        problem={(value) => (Array.isArray(value) && value.every(isObject) ? "" : "Tools must be a list of objects.")}
        onChange={(tools) => set({ tools })}
      />
      <McpServers urls={settings.mcp ?? []} onChange={(mcp) => set({ mcp: mcp.length ? mcp : undefined })} />
      <div class="settings-end">
        {told && <span role="status">{told}</span>}
        <button
          type="button"
          disabled={!Object.values(settings).some((value) => value !== undefined)}
          onClick={() => {
            onChange({});
            setTold("All settings have their defaults again.");
          }}
        >
          Reset all
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

/** The settings with a default: of the model if it sets one, otherwise of the server. */
function Options({ model, settings, set }: { model: string; settings: Settings; set: (changes: Partial<Settings>) => void }) {
  const shown = useShown(model);
  const { estimate } = useEstimate(model, undefined, undefined, 0);
  const parameters = parametersOf(shown);
  const trained = trainedContext(shown);
  const field = (option: NumberOption) => {
    const { value, isOfModel } = defaultOf(option, parameters);
    const standard = option.name === "num_ctx" ? (value ?? estimate?.num_ctx) : value;
    const slider: NumberOption["slider"] = option.name === "num_ctx" && trained ? [0, trained] : option.slider;
    return (
      <OptionField
        key={option.name}
        option={{ ...option, slider }}
        value={settings[option.name]}
        standard={standard}
        isOfModel={isOfModel}
        onChange={(number) => set({ [option.name]: number })}
      />
    );
  };
  return (
    <>
      <OptionRow
        label="System prompt"
        help="Instructions that come before all messages."
        isChanged={settings.system !== undefined}
        onReset={() => set({ system: undefined })}
      >
        {(id, describedBy) => (
          <textarea
            id={id}
            aria-describedby={describedBy}
            dir="auto"
            rows={3}
            placeholder={shown?.system}
            value={settings.system ?? ""}
            onInput={(event) => set({ system: event.currentTarget.value || undefined })}
          />
        )}
      </OptionRow>
      <h3>Choice of words</h3>
      {SAMPLING.map(field)}
      <h3>Length and memory</h3>
      {LENGTH.map(field)}
      <OptionRow
        label="Stays loaded"
        help={`${sentence(KEEP_ALIVE.meaning)} Default: ${KEEP_ALIVE.unset}, or as the server is set.`}
        isChanged={settings.keep_alive !== undefined}
        onReset={() => set({ keep_alive: undefined })}
      >
        {(id, describedBy) => (
          <input
            id={id}
            aria-describedby={describedBy}
            placeholder={KEEP_ALIVE.unset}
            value={settings.keep_alive ?? ""}
            onChange={(event) => set({ keep_alive: event.currentTarget.value.trim() || undefined })}
          />
        )}
      </OptionRow>
      <h3>Thinking and tokens</h3>
      <OptionRow
        label="Thinking"
        help="Whether the model thinks before it answers, and how much, if it can."
        isChanged={settings.think !== undefined}
        onReset={() => set({ think: undefined })}
      >
        {(id, describedBy) => (
          <select
            id={id}
            aria-describedby={describedBy}
            value={THINKING.findIndex(([, value]) => value === settings.think)}
            onChange={(event) => set({ think: THINKING[Number(event.currentTarget.value)]![1] })}
          >
            {THINKING.map(([label], index) => (
              <option key={label} value={index}>
                {label}
              </option>
            ))}
          </select>
        )}
      </OptionRow>
      {field(ALTERNATIVES)}
    </>
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
