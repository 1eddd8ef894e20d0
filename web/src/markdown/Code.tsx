import type { RootContent } from "hast";
import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";

import { Icon } from "../shell/Icon";
import { useSidewaysScroll } from "./sideways";

/** A block of code with its language and a button that copies it. */
export function Code({ text, language }: { text: string; language: string }) {
  const [tree, setTree] = useState<RootContent[]>([]);
  const [isCopied, setCopied] = useState(false);
  const [place] = useSidewaysScroll<HTMLPreElement>();
  useEffect(() => {
    if (language) void import("./highlight").then(({ highlight }) => setTree(highlight(text, language.toLowerCase())));
  }, [text, language]);
  const copy = async () => {
    await copyText(text);
    setCopied(true);
    setTimeout(() => setCopied(false), 1500);
  };
  return (
    <div class="code" dir="ltr">
      <div class="code-head">
        <span>{language || "text"}</span>
        <button type="button" class="quiet" onClick={copy}>
          <Icon name={isCopied ? "check" : "copy"} /> {isCopied ? "Copied" : "Copy"}
        </button>
      </div>
      <pre ref={place}>
        <code>{textOf(tree) === text ? spans(tree) : text}</code>
      </pre>
    </div>
  );
}

export async function copyText(text: string): Promise<void> {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  // Plain HTTP from another machine has no clipboard of its own.
  const field = document.body.appendChild(Object.assign(document.createElement("textarea"), { value: text }));
  field.select();
  document.execCommand("copy");
  field.remove();
}

function spans(nodes: RootContent[]): ComponentChildren {
  return nodes.map((node) => {
    if (node.type === "text") return node.value;
    if (node.type !== "element") return null;
    const names = node.properties.className;
    return <span class={Array.isArray(names) ? names.join(" ") : ""}>{spans(node.children as RootContent[])}</span>;
  });
}

function textOf(nodes: RootContent[]): string {
  return nodes
    .map((node) => (node.type === "text" ? node.value : node.type === "element" ? textOf(node.children as RootContent[]) : ""))
    .join("");
}
