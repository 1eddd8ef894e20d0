// The model of a conversation: a button that opens a list with a search field.
import type { Ref } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";

import { Badges } from "../models/Badges";
import { chats, matching } from "../models/choice";
import { bytes, models, running } from "../models/list";
import { wantedPull } from "../models/pulls";
import { readSuggestions, room, suggestions } from "../models/suggestions";
import type { ListedModel } from "../server/types";
import { Icon } from "../shell/Icon";

const LIST = "models-found";

export function ModelChoice({ value, onChange }: { value: string; onChange: (name: string) => void }) {
  const [search, setSearch] = useState<string | null>(null);
  const button = useRef<HTMLButtonElement>(null);
  const popup = useRef<HTMLDivElement>(null);
  const isOpen = search !== null;
  useEffect(() => {
    if (!isOpen) return;
    void readSuggestions();
    const leave = (event: Event) => {
      const target = event.target as Node;
      if (!popup.current?.contains(target) && !button.current?.contains(target)) setSearch(null);
    };
    document.addEventListener("pointerdown", leave);
    document.addEventListener("focusin", leave);
    return () => {
      document.removeEventListener("pointerdown", leave);
      document.removeEventListener("focusin", leave);
    };
  }, [isOpen]);
  const close = () => {
    setSearch(null);
    button.current?.focus();
  };
  return (
    <div class="picker">
      <button
        ref={button}
        type="button"
        role="combobox"
        class="picker-button"
        aria-label="Model"
        aria-haspopup="listbox"
        aria-expanded={isOpen}
        aria-controls={LIST}
        title={value}
        onClick={() => setSearch(isOpen ? null : "")}
        onKeyDown={(event) => {
          const isLetter = event.key.length === 1 && event.key !== " " && !event.ctrlKey && !event.metaKey && !event.altKey;
          if (!isLetter && event.key !== "ArrowDown" && event.key !== "ArrowUp") return;
          event.preventDefault();
          setSearch(isLetter ? event.key : "");
        }}
      >
        <span class="picker-value">{value.split("/").pop() || "No model yet"}</span>
        <Icon name="unfold" />
      </button>
      {isOpen && (
        <Picker
          place={popup}
          value={value}
          search={search}
          onSearch={setSearch}
          onClose={close}
          onChoose={(name) => {
            onChange(name);
            close();
          }}
        />
      )}
    </div>
  );
}

interface PickerProps {
  place: Ref<HTMLDivElement>;
  value: string;
  search: string;
  onSearch: (search: string) => void;
  onChoose: (name: string) => void;
  onClose: () => void;
}

function Picker({ place, value, search, onSearch, onChoose, onClose }: PickerProps) {
  const found = matching(models.value, search);
  const usable = found.filter(chats);
  const [name, setName] = useState(value);
  const at = Math.max(
    0,
    usable.findIndex((model) => model.name === name),
  );
  const field = useRef<HTMLInputElement>(null);
  useEffect(() => {
    if (matchMedia("(pointer: fine)").matches || search) field.current?.focus();
  }, []);
  useEffect(() => {
    document.getElementById(`${LIST}-${at}`)?.scrollIntoView({ block: "nearest" });
  }, [at, search]);
  const keys = (event: KeyboardEvent) => {
    const steps: Record<string, number> = { ArrowDown: 1, ArrowUp: -1, PageDown: 5, PageUp: -5 };
    const step = steps[event.key];
    if (step) {
      const last = usable.length - 1;
      const isSingle = Math.abs(step) === 1;
      const next = isSingle ? (at + step + usable.length) % usable.length : Math.min(last, Math.max(0, at + step));
      setName(usable[next]?.name ?? "");
    } else if (event.key === "Enter") {
      if (usable[at]) onChoose(usable[at].name);
    } else if (event.key === "Escape") onClose();
    else return;
    event.preventDefault();
    event.stopPropagation();
  };
  return (
    <div class="picker-popup" ref={place} onKeyDown={keys}>
      <label class="picker-search">
        <Icon name="search" />
        <input
          ref={field}
          type="text"
          role="combobox"
          autocomplete="off"
          spellcheck={false}
          aria-label="Search models"
          aria-expanded="true"
          aria-autocomplete="list"
          aria-controls={LIST}
          aria-activedescendant={usable.length ? `${LIST}-${at}` : undefined}
          placeholder="Search by name, size or ability"
          value={search}
          onInput={(event) => {
            onSearch(event.currentTarget.value);
            setName("");
          }}
        />
      </label>
      <div class="picker-list" role="listbox" id={LIST} aria-label="Models" tabIndex={-1}>
        {usable.map((model, index) => (
          <Choice
            key={model.name}
            id={`${LIST}-${index}`}
            model={model}
            isChosen={model.name === value}
            isActive={index === at}
            onChoose={() => onChoose(model.name)}
          />
        ))}
        {found.slice(usable.length).map((model) => (
          <Choice key={model.name} model={model} />
        ))}
      </div>
      {!found.length && (
        <p class="note picker-none" role="status">
          {models.value.length ? `No model here matches “${search}”.` : "There is no model yet."}
        </p>
      )}
      <a class="picker-more" href="#/models" onClick={() => (wantedPull.value = found.length ? "" : search)}>
        <Icon name="down" /> {found.length || !search ? "Get more models" : `Get “${search}”`}
      </a>
    </div>
  );
}

interface ChoiceProps {
  id?: string;
  model: ListedModel;
  isChosen?: boolean;
  isActive?: boolean;
  /** Absent for a model that cannot chat. */
  onChoose?: () => void;
}

function Choice({ id, model, isChosen = false, isActive = false, onChoose }: ChoiceProps) {
  const { name, size, details, capabilities, bundled } = model;
  const isLoaded = running.value.some((each) => each.name === name);
  const isLarge = !isLoaded && size > room(suggestions.value?.available);
  const facts = [details.parameter_size, details.quantization_level, bytes(size)].filter(Boolean).join(" · ");
  return (
    <div
      id={id}
      role="option"
      class={isActive ? "choice active" : "choice"}
      aria-selected={isChosen}
      aria-disabled={onChoose ? undefined : true}
      onClick={onChoose}
    >
      <span class="choice-mark">{isChosen && <Icon name="check" />}</span>
      <span class="choice-text">
        <span class="choice-name">{name}</span>
        <span class="choice-facts">
          <span>{bundled ? "Help for chaski, no language model" : facts}</span>
          {isLoaded && <span class="badge live">in memory</span>}
          <Badges capabilities={capabilities} known={["completion", "insert"]} />
          {isLarge && <span class="problem">larger than the free memory</span>}
        </span>
      </span>
    </div>
  );
}
