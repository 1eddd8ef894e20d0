import { models } from "../models/list";

export function ModelChoice({ value, onChange }: { value: string; onChange: (name: string) => void }) {
  const names = models.value.map((model) => model.name);
  return (
    <select aria-label="Model" value={value} onChange={(event) => onChange(event.currentTarget.value)}>
      {!names.includes(value) && <option value={value}>{value || "no model yet"}</option>}
      {names.map((name) => (
        <option key={name} value={name}>
          {name}
        </option>
      ))}
    </select>
  );
}
