import type { ComponentChildren } from "preact";
import { useId } from "preact/hooks";

import { type NumberOption, sentence } from "./options";

interface RowProps {
  label: string;
  help: string;
  isChanged: boolean;
  onReset: () => void;
  /** The field; `id` belongs to the label, and `describedBy` to the line of help. */
  children: (id: string, describedBy: string) => ComponentChildren;
}

/** A setting with its label, a line of help, and a button that goes back to the default. */
export function OptionRow({ label, help, isChanged, onReset, children }: RowProps) {
  const id = useId();
  return (
    <div class={isChanged ? "option changed" : "option"}>
      <label for={id} id={`${id}-label`}>
        {label}
      </label>
      {isChanged && (
        <button type="button" class="quiet reset" aria-describedby={`${id}-label`} onClick={onReset}>
          Reset
        </button>
      )}
      {children(id, `${id}-help`)}
      <p class="note" id={`${id}-help`}>
        {help}
      </p>
    </div>
  );
}

interface NumberProps {
  option: NumberOption;
  value: number | undefined;
  /** The value without a setting; undefined if it is not a number. */
  standard: number | undefined;
  isOfModel: boolean;
  onChange: (value: number | undefined) => void;
}

/** A number as a field, and as a slider if it has usual limits. The field takes all values that the server takes. */
export function OptionField({ option, value, standard, isOfModel, onChange }: NumberProps) {
  const { slider, step, unset = "automatic" } = option;
  const least = option.is_above ? step : option.min;
  const origin = isOfModel ? " (set by the model)" : "";
  const usual = standard === undefined ? unset : `${standard}`;
  return (
    <OptionRow
      label={option.label}
      help={`${sentence(option.meaning)} Default: ${usual}${origin}.`}
      isChanged={value !== undefined}
      onReset={() => onChange(undefined)}
    >
      {(id, describedBy) => (
        <>
          <input
            id={id}
            type="number"
            aria-describedby={describedBy}
            placeholder={usual}
            min={least}
            max={option.max}
            step={step}
            value={value ?? ""}
            onChange={(event) => {
              const field = event.currentTarget;
              if (isAllowed(field, option)) onChange(field.value === "" ? undefined : Number(field.value));
              else field.reportValidity();
            }}
          />
          {slider && (
            // The field does the same for the keyboard and for screen readers.
            <input
              type="range"
              aria-hidden="true"
              tabIndex={-1}
              min={slider[0]}
              max={slider[1]}
              step={step}
              value={value ?? standard ?? slider[0]}
              onInput={(event) => onChange(Number(event.currentTarget.value))}
            />
          )}
        </>
      )}
    </OptionRow>
  );
}

/** Whether a value is one that the server takes; values between the steps of a number that is no integer are. */
function isAllowed({ validity, value }: HTMLInputElement, { is_integer }: NumberOption): boolean {
  if (validity.badInput || validity.rangeOverflow || validity.rangeUnderflow) return false;
  return !is_integer || value === "" || Number.isInteger(Number(value));
}
