import type { Call } from "../server/types";

/** Settings of a conversation; absent ones are left to the model and the server. */
export interface Settings {
  system?: string;
  temperature?: number;
  top_k?: number;
  top_p?: number;
  min_p?: number;
  repeat_penalty?: number;
  presence_penalty?: number;
  frequency_penalty?: number;
  seed?: number;
  num_ctx?: number;
  num_predict?: number;
  think?: boolean | string;
  keep_alive?: string;
  /** Number of alternatives requested for each token; absent for no log-probabilities. */
  alternatives?: number;
  schema?: string;
  tools?: string;
  /** Addresses of MCP servers whose tools the model may call. */
  mcp?: string[];
}

/** A tool of an MCP server, with the server's own name for it. */
export interface RemoteTool {
  server: string;
  tool: string;
}

export interface TextFile {
  name: string;
  text: string;
}

/** A token with its natural log-probability; `bytes` if its text alone is not complete UTF-8. */
export interface Token {
  text: string;
  logprob: number;
  bytes?: number[];
  others?: Token[];
}

/** Counts and times of an answer, in tokens and seconds. */
export interface Figures {
  firstSeconds?: number;
  rate?: number;
  promptRate?: number;
  waitSeconds?: number;
  proposedTokens?: number;
  acceptedTokens?: number;
  context?: number;
  promptTokens: number;
  answerTokens: number;
  cachedTokens: number;
  cachedByTier?: Record<string, number>;
  droppedTokens: number;
  shiftedTokens: number;
  loadSeconds: number;
  reason: string;
}

export interface Message {
  id: string;
  parent: string | null;
  role: "user" | "assistant" | "tool";
  content: string;
  created: number;
  thinking?: string;
  images?: string[];
  files?: TextFile[];
  calls?: Call[];
  /** The MCP servers of called tools, by the names that the model uses. */
  remote?: Record<string, RemoteTool>;
  toolName?: string;
  model?: string;
  figures?: Figures;
  error?: string;
  /** The id to receive this answer again from the server; present only while it is generated. */
  answerId?: string;
  /** The tab that receives this answer and saves it. */
  receiver?: string;
  /** The id of an answer whose connection was lost; the server may still have it. */
  lostId?: string;
  /** The text that this answer had to begin with, and how many of its tokens came with it. */
  prefix?: string;
  prefixTokens?: number;
  /** The beginning of an answer with thoughts that was continued as a turn. */
  begun?: string;
  /** All sampled tokens, including thoughts and tags, if log-probabilities were requested. */
  tokens?: Token[];
}

/** A conversation without its messages; `leaf` is the last one of the branch that is shown. */
export interface Head {
  id: string;
  title: string;
  created: number;
  updated: number;
  model: string;
  settings: Settings;
  leaf: string | null;
}

/** A tree of messages. */
export interface Conversation extends Head {
  messages: Record<string, Message>;
}
