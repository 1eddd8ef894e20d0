// Reads the conversations of a file: this page's export, ChatGPT's, or Open WebUI's.
import type { Conversation } from "../conversations/types";
import { isOfChatGpt, ofChatGpt } from "./chatgpt";
import { BadFile, elements, NO_EXPORT } from "./elements";
import { Images } from "./images";
import { isOfOpenWebUi, ofOpenWebUi } from "./openwebui";
import { isOwn, ownConversation } from "./own";
import { entriesOf, isZip } from "./zip";

export interface Read {
  conversations: Conversation[];
  /** The number of conversations that could not be read. */
  unread: number;
  /** The names of images that are not in the file. */
  missing: string[];
}

/** Read a file; `onProgress` gets the number of conversations so far. Throws an Error that describes a problem. */
export async function readConversations(file: File, onProgress: (count: number) => void = () => {}): Promise<Read> {
  try {
    return await readFile(file, onProgress);
  } catch (error) {
    if (error instanceof BadFile) throw new Error(`${file.name} ${error.message}`);
    // A stream of a damaged archive, or of a file that has changed.
    throw new Error(`${file.name} cannot be read: ${(error as Error).message || "it is damaged"}`);
  }
}

async function readFile(file: File, onProgress: (count: number) => void): Promise<Read> {
  const entries = (await isZip(file)) ? await entriesOf(file) : [];
  const lists = entries
    .filter(({ name }) => /(^|\/)(conversations|chat-export|all-chats-export)[\w.-]*\.json$/.test(name) && !/shared/.test(name))
    .sort((one, other) => (one.name < other.name ? -1 : 1));
  const streams = entries.length ? lists.map(({ open }) => open) : [async () => file.stream() as ReadableStream<Uint8Array>];
  const images = new Images(entries);
  const found: Read = { conversations: [], unread: 0, missing: images.missing };
  for (const open of streams)
    for await (const element of elements(await open())) {
      const conversation = await conversationOf(element, images);
      if (conversation) found.conversations.push(conversation);
      else if (conversation === undefined) found.unread++;
      onProgress(found.conversations.length);
    }
  if (!found.conversations.length) throw new BadFile(NO_EXPORT);
  return found;
}

/** The conversation of an element; null if it has no messages, undefined if it is none. */
async function conversationOf(value: unknown, images: Images): Promise<Conversation | null | undefined> {
  if (isOfChatGpt(value)) return ofChatGpt(value, images);
  if (isOfOpenWebUi(value)) return ofOpenWebUi(value, images);
  if (isOwn(value)) return ownConversation(value);
  return undefined;
}
