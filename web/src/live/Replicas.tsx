// The replicas of a model that several machines compute, and the answers that each of them writes now.
import { count } from "../models/memory";
import type { LiveModel, LiveReplica } from "../server/types";

export function Replicas({ model }: { model: LiveModel }) {
  const replicas = model.replicas ?? [];
  const waiting = model.waiting_for_replica ?? 0;
  return (
    <section class="card sequences" aria-label="Machines">
      <h2>Machines</h2>
      {replicas.length === 0 && <p class="note">No machine has the model in memory now. It is being loaded.</p>}
      {waiting > 0 && <p class="note">{`${count(waiting)} requests wait until a machine has loaded the model.`}</p>}
      {replicas.length > 0 && (
        <table>
          <thead>
            <tr>
              <th scope="col">Replica</th>
              <th scope="col">Machines</th>
              <th scope="col">Places taken</th>
              <th scope="col">Answers now</th>
            </tr>
          </thead>
          <tbody>
            {replicas.map((replica) => (
              <tr key={replica.name}>
                <td>{replica.name}</td>
                <td>{machinesOf(replica).join(", ")}</td>
                <td>{`${replica.answers} of ${replica.places}${replica.is_leaving ? ", leaves" : ""}`}</td>
                <td>{answersOf(model, replica).join(", ") || "none"}</td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
    </section>
  );
}

function machinesOf({ node, shards }: LiveReplica): string[] {
  return [...new Set([node, ...shards.map(([name]) => name)])];
}

function answersOf({ sequences }: LiveModel, { name }: LiveReplica): string[] {
  const own = (sequences ?? []).filter(({ replica }) => replica === name);
  return own.map(({ id, state, generated_tokens }) =>
    state === "decode" ? `${id}: ${count(generated_tokens)} tokens` : `${id}: ${state}`,
  );
}
