import { useEffect, useState } from "preact/hooks";

import { Icon } from "../shell/Icon";
import { meantModel, startPull, wantedPull } from "./pulls";

const PAUSE = 300;

/** Pulls what a name, a pasted command or a link means, and says so before. */
export function PullForm() {
  const text = wantedPull.value;
  const [meant, setMeant] = useState("");
  const [problem, setProblem] = useState("");
  const isEmpty = !text.trim();
  useEffect(() => {
    const control = new AbortController();
    setMeant("");
    setProblem("");
    const timer = setTimeout(() => {
      if (isEmpty) return;
      meantModel(text, control.signal).then(
        ({ model, is_stored }) =>
          setMeant(is_stored ? `${model} is here. A pull fetches what has changed since.` : `This pulls ${model}.`),
        () => {}, // a name may still be unfinished; the button says what is wrong
      );
    }, PAUSE);
    return () => {
      clearTimeout(timer);
      control.abort();
    };
  }, [text]);
  const pull = (event: Event) => {
    event.preventDefault();
    if (isEmpty) return;
    meantModel(text).then(
      ({ model }) => {
        startPull(model);
        wantedPull.value = "";
      },
      (error: Error) => setProblem(error.message),
    );
  };
  return (
    <form class="pull" onSubmit={pull}>
      <div class="pull-row">
        <input
          aria-label="Name of a model to pull"
          aria-describedby="pull-hint"
          aria-invalid={problem ? true : undefined}
          autocomplete="off"
          autocapitalize="none"
          spellcheck={false}
          placeholder="llama3.2:3b, a link of Hugging Face, or ollama run …"
          value={text}
          onInput={(event) => (wantedPull.value = event.currentTarget.value)}
        />
        <button type="submit" class="primary" disabled={isEmpty}>
          <Icon name="down" /> Pull
        </button>
      </div>
      <p id="pull-hint" class={problem ? "problem" : "note"} role={problem ? "alert" : "status"}>
        {problem || meant}
      </p>
    </form>
  );
}
