// The description of a model, for parts of the page that show it.
import { useEffect, useState } from "preact/hooks";

import { ServerError } from "../server/requests";
import type { ShownModel } from "../server/types";
import { show } from "./list";

/** Milliseconds after which a question that the server did not answer is asked again. */
const AGAIN = 2000;

/** Describes a model; null until the server has answered. It is asked again as long as it cannot be reached. */
export function useShown(model: string): ShownModel | null {
  const [shown, setShown] = useState<ShownModel | null>(null);
  useEffect(() => {
    let again: ReturnType<typeof setTimeout> | undefined;
    let isOver = false;
    const ask = () =>
      void show(model).then(
        (found) => isOver || setShown(found),
        (error: Error) => {
          if (!isOver && error instanceof ServerError && error.status === 0) again = setTimeout(ask, AGAIN);
        },
      );
    setShown(null);
    if (model) ask();
    return () => {
      isOver = true;
      clearTimeout(again);
    };
  }, [model]);
  return shown;
}
