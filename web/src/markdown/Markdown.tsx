// Renders Markdown as elements. Links open only when they are clicked, and external images never load.
import type { Token, Tokens } from "marked";
import type { ComponentChildren, JSX } from "preact";
import { memo } from "preact/compat";
import { useEffect, useMemo } from "preact/hooks";

import { Code } from "./Code";
import { directionOf, ownDirection } from "./direction";
import { type MathToken, parse } from "./parse";
import { useSidewaysScroll } from "./sideways";

// Rendering recurses as deep as the tree; real texts are not nested deeper than this.
const DEEPEST = 32;

export function Markdown({ text }: { text: string }) {
  const tokens = useMemo(() => parse(text), [text]);
  return (
    <div class="markdown">
      {tokens.map((token, index) => (
        <Block key={index} token={token} raw={token.raw} />
      ))}
    </div>
  );
}

// While an answer grows, only its last block changes.
const Block = memo(
  ({ token }: { token: Token; raw: string }) => <>{block(token, 0)}</>,
  (before: { raw: string }, now: { raw: string }) => before.raw === now.raw,
);

function blocks(tokens: Token[] | undefined, depth: number): ComponentChildren {
  return (tokens ?? []).map((token) => block(token, depth + 1));
}

/**
 * Blocks of text with letters find their own direction, by `dir="auto"`. Boxes of blocks have the direction of their first
 * letter, since a browser that looks for the direction of a box skips the blocks that have their own.
 */
function block(token: Token, depth: number): ComponentChildren {
  if (depth > DEEPEST) return token.raw;
  switch (token.type) {
    case "space":
    case "def":
      return null;
    case "heading": {
      // The first heading level is the title of the conversation.
      const Heading = `h${Math.min(6, (token as Tokens.Heading).depth + 1)}` as "h2";
      return (
        <Heading dir={ownDirection(token.raw)} data-depth={(token as Tokens.Heading).depth}>
          {inlines(token.tokens, depth)}
        </Heading>
      );
    }
    case "paragraph":
      return <p dir={ownDirection(token.raw)}>{inlines((token as Tokens.Paragraph).tokens, depth)}</p>;
    case "code":
      return <Code text={token.text as string} language={((token as Tokens.Code).lang ?? "").split(/\s/)[0]!} />;
    case "blockquote":
      return <blockquote dir={directionOf(token.raw)}>{blocks(token.tokens, depth)}</blockquote>;
    case "list":
      return list(token as Tokens.List, depth);
    case "table":
      return table(token as Tokens.Table, depth);
    case "hr":
      return <hr />;
    case "html":
      return <p dir={ownDirection(token.raw)}>{token.raw}</p>;
    default:
      return inline(token, depth);
  }
}

function list(token: Tokens.List, depth: number): JSX.Element {
  const items = token.items.map((item) => (
    <li dir={ownDirection(item.text)} class={item.task ? "task" : undefined}>
      {itemBlocks(item.tokens, depth)}
    </li>
  ));
  const dir = directionOf(token.raw);
  return token.ordered ? (
    <ol dir={dir} start={Number(token.start) || 1}>
      {items}
    </ol>
  ) : (
    <ul dir={dir}>{items}</ul>
  );
}

/** The first paragraph of an item has no direction of its own: it gives the item its direction. */
function itemBlocks(tokens: Token[], depth: number): ComponentChildren {
  const [first, ...others] = tokens;
  if (first?.type !== "paragraph") return blocks(tokens, depth);
  return [<p>{inlines((first as Tokens.Paragraph).tokens, depth + 1)}</p>, blocks(others, depth)];
}

/** The most characters of texts that stay on one line. */
const ONE_LINE = 24;

function table(token: Tokens.Table, depth: number): JSX.Element {
  const rows = [token.header, ...token.rows];
  const isLong = token.header.map((_, column) => rows.some((row) => row[column]!.text.length > ONE_LINE));
  const row = (cells: Tokens.TableCell[], Cell: "th" | "td") => (
    <tr>
      {cells.map((cell, column) => (
        <Cell dir={ownDirection(cell.text)} data-align={cell.align ?? undefined} class={isLong[column] ? "long" : "short"}>
          {inlines(cell.tokens, depth)}
        </Cell>
      ))}
    </tr>
  );
  return (
    <Table dir={directionOf(token.raw)}>
      <thead>{row(token.header, "th")}</thead>
      <tbody>{token.rows.map((cells) => row(cells, "td"))}</tbody>
    </Table>
  );
}

function Table({ dir, children }: { dir: "rtl" | "ltr"; children: ComponentChildren }) {
  const [place] = useSidewaysScroll<HTMLDivElement>();
  return (
    <div class="table" dir={dir} role="region" aria-label="Table" ref={place}>
      <table>{children}</table>
    </div>
  );
}

function inlines(tokens: Token[] | undefined, depth: number): ComponentChildren {
  return (tokens ?? []).map((token) => inline(token, depth + 1));
}

function inline(token: Token, depth: number): ComponentChildren {
  if (depth > DEEPEST) return token.raw;
  switch (token.type) {
    case "text":
      return token.tokens ? inlines(token.tokens, depth) : plain((token as Tokens.Text).text);
    case "checkbox":
      return <input type="checkbox" checked={(token as Tokens.Checkbox).checked} disabled aria-label="task" />;
    case "escape":
      return plain((token as Tokens.Escape).text);
    case "strong":
      return <strong>{inlines(token.tokens, depth)}</strong>;
    case "em":
      return <em>{inlines(token.tokens, depth)}</em>;
    case "del":
      return <del>{inlines(token.tokens, depth)}</del>;
    case "codespan":
      return <code dir="ltr">{plain((token as Tokens.Codespan).text)}</code>;
    case "br":
      return <br />;
    case "link":
      return <Link href={(token as Tokens.Link).href}>{inlines(token.tokens, depth)}</Link>;
    case "image":
      return <OutsideImage token={token as Tokens.Image} />;
    case "math":
      return <Maths tex={(token as unknown as MathToken).tex} isBlock={(token as unknown as MathToken).isBlock} />;
    default:
      return token.raw;
  }
}

/** Decodes the characters that Marked returns as entities, since an element's text is not markup. */
function plain(text: string): string {
  const names: Record<string, string> = { "&amp;": "&", "&lt;": "<", "&gt;": ">", "&quot;": '"', "&#39;": "'" };
  return text.replace(/&(?:amp|lt|gt|quot|#39);/g, (name) => names[name]!);
}

function Link({ href, children }: { href: string; children: ComponentChildren }) {
  if (!/^(https?:|mailto:)/i.test(href)) return <span class="dead-link">{children}</span>;
  return (
    <a href={href} title={href} target="_blank" rel="noopener noreferrer nofollow">
      {children}
    </a>
  );
}

function OutsideImage({ token }: { token: Tokens.Image }) {
  return (
    <span class="outside-image">
      <span class="label">image, not loaded</span> <Link href={token.href}>{token.text || token.href}</Link>
    </span>
  );
}

function Maths({ tex, isBlock }: { tex: string; isBlock: boolean }) {
  const [place, measure] = useSidewaysScroll<HTMLSpanElement>();
  useEffect(() => {
    void import("./math").then(({ drawMath }) => {
      if (place.current) drawMath(place.current, tex, isBlock);
      measure();
    });
  }, [tex, isBlock]);
  return <span class={isBlock ? "math block" : "math"} dir="ltr" ref={place} aria-label={tex} role="math" />;
}
