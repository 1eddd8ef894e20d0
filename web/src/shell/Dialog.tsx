import type { ComponentChildren } from "preact";
import { useEffect, useRef } from "preact/hooks";

interface DialogProps {
  title: string;
  isWide?: boolean;
  onClose?: () => void;
  children: ComponentChildren;
}

/** A modal dialog. Escape closes it if `onClose` is given. */
export function Dialog(props: DialogProps) {
  const place = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    place.current?.showModal();
  }, []);
  return (
    <dialog
      ref={place}
      class={props.isWide ? "wide" : undefined}
      aria-label={props.title}
      onCancel={(event) => {
        event.preventDefault();
        props.onClose?.();
      }}
    >
      <h2>{props.title}</h2>
      {props.children}
    </dialog>
  );
}

export function Question(props: { title: string; text: string; yes: string; onYes: () => void; onClose: () => void }) {
  return (
    <Dialog title={props.title} onClose={props.onClose}>
      <p>{props.text}</p>
      <div class="row end">
        <button type="button" onClick={props.onClose}>
          Cancel
        </button>
        <button
          type="button"
          class="danger"
          onClick={() => {
            props.onYes();
            props.onClose();
          }}
        >
          {props.yes}
        </button>
      </div>
    </Dialog>
  );
}
