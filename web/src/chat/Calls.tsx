import { Code } from "../markdown/Code";
import type { Call } from "../server/types";

export function Calls({ calls }: { calls: Call[] }) {
  return (
    <div class="calls">
      {calls.map((call, index) => (
        <div class="call" key={call.id ?? index}>
          <div class="name">
            calls <strong>{call.function.name}</strong>
          </div>
          <Code text={JSON.stringify(call.function.arguments, null, 2)} language="json" />
        </div>
      ))}
    </div>
  );
}
