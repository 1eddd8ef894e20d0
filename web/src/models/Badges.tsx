/** Words for capabilities that are clearer than Ollama's. */
const WORDS: Record<string, string> = { completion: "chat", insert: "fills gaps" };

/** The capabilities of a model, without those that are `known` where they are shown. */
export function Badges({ capabilities, known = [] }: { capabilities: string[]; known?: string[] }) {
  return (
    <>
      {capabilities
        .filter((each) => !known.includes(each))
        .map((each) => (
          <span class="badge" key={each}>
            {WORDS[each] ?? each}
          </span>
        ))}
    </>
  );
}
